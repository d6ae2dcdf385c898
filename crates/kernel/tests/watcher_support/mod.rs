//! What the watcher's tests need beside the crate: raw bpf(2) calls by every entry, pages that are not faulted
//! in, and helper processes.
//!
//! A helper process is this very test binary, run with one test ([`helper_process`]) and told its job by the
//! environment; without that, the test does nothing.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
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
pub const LINK_CREATE: u32 = 28;

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
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
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

/// A page whose first access by the kernel stops there until [`HeldPage::release`]: a bpf(2) call whose key
/// lies on it is held in the middle of a write. Made of userfaultfd.
pub struct HeldPage {
    page: *mut libc::c_void,
    uffd: OwnedFd,
}

/// `struct uffdio_api`, `uffdio_register` and `uffdio_copy` of linux/userfaultfd.h, and their ioctl numbers.
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;

impl HeldPage {
    pub fn new() -> Self {
        // SAFETY: system calls on fresh objects with structures of the sizes that their numbers carry.
        unsafe {
            let uffd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            assert!(uffd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
            let uffd = OwnedFd::from_raw_fd(uffd);
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let mut api = [0xaau64, 0, 0];
            assert_eq!(libc::ioctl(uffd.as_raw_fd(), UFFDIO_API as _, api.as_mut_ptr()), 0);
            // Range, mode (1: missing pages), and room for the answer.
            let mut register = [page as u64, 4096, 1, 0];
            assert_eq!(libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER as _, register.as_mut_ptr()), 0);
            HeldPage { page, uffd }
        }
    }

    pub fn address(&self) -> usize {
        self.page as usize
    }

    /// Waits until somebody is held.
    pub fn wait(&self) {
        // One `struct uffd_msg` is 32 bytes.
        let mut message = [0u8; 32];
        // SAFETY: a buffer of the length given.
        let n = unsafe { libc::read(self.uffd.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        assert_eq!(n, 32);
    }

    /// Fills the page and lets everybody go on.
    pub fn release(&self, bytes: &[u8]) {
        let mut source = vec![0u8; 4096];
        source[..bytes.len()].copy_from_slice(bytes);
        // Destination, source, length, mode, and room for the answer.
        let mut copy = [self.page as u64, source.as_ptr() as u64, 4096, 0, 0];
        // SAFETY: source and destination are whole pages of ours; the structure has the size in its number.
        assert_eq!(unsafe { libc::ioctl(self.uffd.as_raw_fd(), UFFDIO_COPY as _, copy.as_mut_ptr()) }, 0);
    }
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        // SAFETY: the page mapped in `new`, which nothing refers to any more.
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

/// Waits until something is so; panics after two minutes, so that a fault is a failure and not a hang.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !so() {
        assert!(started.elapsed().as_secs() < 120, "never came true: {what}");
        std::thread::sleep(std::time::Duration::from_micros(50));
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

/// Asks for a link of this attach type (`enum bpf_attach_type`) without naming a program.
fn link(attach_type: u32) {
    let attr = [0, 0, attach_type, 0, 0, 0, 0, 0u32];
    assert_eq!(raw_bpf(LINK_CREATE, attr.as_ptr() as usize, 32), -1);
}

#[test]
fn helper_process() {
    let (Ok(job), Some(place)) = (std::env::var(JOB), std::env::var_os(PLACE)) else { return };
    let place = Path::new(&place);
    match job.as_str() {
        "update_once" => {
            let map = Map::from_pin(place).expect("opening");
            map.update(&[9; 4], &[1; 4], UpdateMode::Any).expect("updating");
        }
        "held_in_update" => {
            let map = Map::from_pin(place).expect("opening");
            let (key, value) = (HeldPage::new(), [1u8; 4]);
            let attr = [map.as_fd().as_raw_fd() as u64, key.address() as u64, value.as_ptr() as u64, 0];
            raw_bpf(UPDATE, attr.as_ptr() as usize, 32);
        }
        "load_program" => {
            Program::load(&crate::common::returns(crate::common::XDP, 2), &[]).expect("loading");
        }
        // Neither call succeeds, for want of a program: the watcher goes by what is asked for.
        "link_iterator" => link(28),
        "link_other" => link(37),
        "load_holder" => {
            let map = Map::from_pin(place).expect("opening");
            Program::load(&crate::common::holder(&map), &[map.as_fd()]).expect("loading");
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
