//! What the watcher's tests need beside the crate: raw bpf(2) calls by every entry, pages that are not faulted
//! in, and helper processes.
//!
//! A helper process is this very test binary, run with one test ([`helper_process`]) and told its job by the
//! environment; without that, the test does nothing.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::program::Program;
use runnel_kernel::watcher::Watcher;

/// `enum bpf_cmd`.
pub const UPDATE: u32 = 2;
pub const DELETE: u32 = 3;
pub const LOOKUP_AND_DELETE: u32 = 21;
pub const FREEZE: u32 = 22;
pub const BATCH_UPDATE: u32 = 26;

/// bpf(2) by the ordinary entry; the attributes may be anything, the kernel checks them.
pub fn raw_bpf(command: u32, attr: usize, size: u32) -> i64 {
    // SAFETY: the kernel reads user memory by address and fails cleanly if it cannot.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr, size) }
}

/// bpf(2) by the 32-bit entry.
pub fn raw_bpf_int80(command: u32, attr: u32, size: u32) -> i32 {
    let result: i64;
    // SAFETY: the kernel reads user memory by address and fails cleanly if it cannot. `rbx` is kept by hand, as
    // the compiler reserves it; the 32-bit entry may clobber r8 to r11.
    unsafe {
        std::arch::asm!(
            "xchg {command:r}, rbx",
            "int 0x80",
            "xchg {command:r}, rbx",
            command = inout(reg) u64::from(command) => _,
            inout("rax") 357i64 => result,
            in("rcx") u64::from(attr),
            in("rdx") u64::from(size),
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result as i32
}

/// A writable page below 4 GiB, for the 32-bit entry. Never unmapped.
pub fn low_memory() -> usize {
    // SAFETY: a fresh anonymous mapping.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    page as usize
}

/// A valid page of a file's contents that no access has mapped in yet: reading it with page faults off fails.
pub struct UnfaultedPage {
    page: *mut libc::c_void,
    _file: std::fs::File,
}

impl UnfaultedPage {
    pub fn holding(bytes: &[u8]) -> Self {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).expect("writing");
        file.set_len(4096).expect("a whole page");
        file.seek(SeekFrom::Start(0)).expect("seeking");
        // SAFETY: a fresh mapping of a file of one page.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        UnfaultedPage { page, _file: file }
    }

    pub fn address(&self) -> usize {
        self.page as usize
    }
}

impl Drop for UnfaultedPage {
    fn drop(&mut self) {
        // SAFETY: the page mapped in `holding`, which nothing refers to any more.
        unsafe { libc::munmap(self.page, 4096) };
    }
}

/// A child process that is killed if its owner forgets it.
pub struct Helper(Child);

impl std::ops::Deref for Helper {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Helper {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const JOB: &str = "RUNNEL_TEST_JOB";
const PLACE: &str = "RUNNEL_TEST_PLACE";

/// Starts a helper process on a job with a path.
pub fn helper(job: &str, place: &Path) -> Helper {
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "watcher_support::helper_process", "--nocapture"])
        .env(JOB, job)
        .env(PLACE, place)
        .stdout(Stdio::null())
        .spawn()
        .expect("starting a helper");
    Helper(child)
}

#[test]
fn helper_process() {
    let (Ok(job), Some(place)) = (std::env::var(JOB), std::env::var_os(PLACE)) else { return };
    let place = Path::new(&place);
    let update =
        |map: &Map, i: u32| map.update(&[9; 4], &i.to_ne_bytes(), UpdateMode::Any).expect("updating");
    match job.as_str() {
        "update_once" => update(&Map::from_pin(place).expect("opening"), 1),
        "update_for_ever" => {
            let map = Map::from_pin(place).expect("opening");
            (0..).for_each(|i| update(&map, i));
        }
        "load_program" => {
            Program::load(&crate::common::returns(crate::common::XDP, 2), &[]).expect("loading");
        }
        "install_and_hang" => {
            let watcher = Watcher::install(Some(place)).expect("installing");
            let map = Map::from_pin(&place.join("map")).expect("opening");
            watcher.watch(map.id(), 3).expect("watching");
            std::fs::create_dir(place.join("ready")).expect("saying so");
            loop {
                std::thread::park();
            }
        }
        other => panic!("unknown job {other}"),
    }
}
