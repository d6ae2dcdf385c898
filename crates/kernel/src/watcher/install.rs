//! Putting the watcher into the kernel, finding it again, taking it away.
//!
//! What is pinned, and in which order: first the maps and the scanning program, then the exit hook's link, the
//! entry hook's link last. A process killed in between leaves a directory that [`Watcher::open`] refuses as
//! incomplete and [`Watcher::remove`] clears; no optimized program can depend on it yet.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libbpf_sys as sys;

use super::layout::{self, SCANNED_BYTES, state};
use super::{Links, Thread, Watcher, WatcherError};
use crate::bpffs::{open_pin, pin, unpin};
use crate::error::{Errno, Error, Result, check};
use crate::map::Map;
use crate::object::Object;
use crate::program::Program;
use crate::sys::owned;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/watcher.bpf.o"));

/// How long to wait for threads inside bpf(2). When the watcher is attached some may be verifying a large
/// program or running a test; later only writes to maps are waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which hooks see the bpf(2) system call.
///
/// `lsm/bpf` would see the kernel's own copy of the arguments, and calls from SYSCALL programs too; `fentry` on
/// `__sys_bpf` nearly so. Both are refused by the kernels this was written on (lockdown), so only the system
/// call tracepoints are implemented; another choice is a second entry program in `watcher.bpf.c` and a variant
/// here. [`crate::probe`] says whether the better hooks would load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `sys_enter` and `sys_exit`, as BTF-typed raw tracepoints. Measured: 55 ns on every
    /// system call of the machine, 340 ns on an update of an unwatched map, 500 ns on one of a watched map.
    SyscallTracepoints,
}

/// How to install a watcher.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether writes bump epochs. Off only in a checker's self-test, which must then find stale contents.
    pub bump: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { bump: true }
    }
}

/// Names of the pins, in the order in which they are made.
const EPOCHS: &str = "epochs";
const STATE: &str = "state";
const RING: &str = "ring";
const WATCHED: &str = "watched";
const SCAN: &str = "scan";
const LEAVE: &str = "leave";
const ENTER: &str = "enter";
const PINS: [&str; 7] = [EPOCHS, STATE, RING, WATCHED, SCAN, LEAVE, ENTER];

/// Pins carry the layout's version in their names, so that another version's are not taken for ours.
fn pin_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("v{}-{name}", layout::VERSION))
}

impl Watcher {
    /// Loads and attaches the watcher, pins it under `pin_dir` if one is given, and waits until every thread
    /// that was inside bpf(2) when it was attached has left.
    ///
    /// Without `pin_dir` the watcher ends with this value (a test's choice; see [`Watcher`]).
    ///
    /// Errors: [`WatcherError::AlreadyInstalled`]; [`WatcherError::StillInside`]; a want of privilege;
    /// `Unsupported` on other machines than x86-64, and in other PID or time namespaces than the machine's first.
    pub fn install(pin_dir: Option<&Path>) -> Result<Watcher> {
        Self::install_with(pin_dir, Options::default())
    }

    /// [`Watcher::install`] with options.
    pub fn install_with(pin_dir: Option<&Path>, options: Options) -> Result<Watcher> {
        if cfg!(not(target_arch = "x86_64")) {
            let why = "the watcher knows the system call numbers of x86-64 only";
            return Err(Error::Unsupported { doing: "installing the watcher".into(), why: why.into() });
        }
        whole_machine_is_visible()?;
        if let Some(dir) = pin_dir.filter(|dir| is_pinned(dir)) {
            return Err(WatcherError::AlreadyInstalled { dir: dir.into() }.into());
        }
        let mut object = Object::open_bytes(Path::new("watcher.bpf.o"), OBJECT)?;
        object.set_initial(".rodata.config", &u64::from(options.bump).to_ne_bytes())?;
        let loaded = object.load()?;
        let scan = loaded.program("scan")?.program.try_clone()?;
        let map = |name: &str| loaded.map(name)?.try_clone();
        let (epochs, state, ring) = (map(".bss.epochs")?, map(".bss.state")?, map(".bss.ring")?);
        let watched = map("watched")?;
        if let Some(dir) = pin_dir {
            epochs.pin(&pin_path(dir, EPOCHS))?;
            state.pin(&pin_path(dir, STATE))?;
            ring.pin(&pin_path(dir, RING))?;
            watched.pin(&pin_path(dir, WATCHED))?;
            scan.pin(&pin_path(dir, SCAN))?;
        }
        // The exit hook comes first: a call whose exit alone is seen does not count, one whose entry alone is
        // seen would stay begun for ever.
        let leave = attach(&loaded.program("leave")?.program)?;
        let enter = attach(&loaded.program("enter")?.program)?;
        if let Some(dir) = pin_dir {
            pin(leave.as_fd(), &pin_path(dir, LEAVE))?;
            pin(enter.as_fd(), &pin_path(dir, ENTER))?;
        }
        let links = if pin_dir.is_some() { Links::Pinned } else { Links::Held };
        let watcher = Self::from_parts(epochs, &state, &ring, watched, scan, [leave, enter], links)?;
        all_cpus_barrier()?;
        watcher.settle()?;
        Ok(watcher)
    }

    /// Opens the watcher that is pinned under `pin_dir`, whoever installed it, and takes it over.
    ///
    /// Errors: [`WatcherError::NotInstalled`], also for one that was pinned incompletely or by another version.
    pub fn open(pin_dir: &Path) -> Result<Watcher> {
        whole_machine_is_visible()?;
        let there = |name: &&str| pin_path(pin_dir, name).exists();
        if !PINS.iter().all(there) {
            let found = std::fs::read_dir(pin_dir).into_iter().flatten().filter_map(Result::ok);
            let found = found.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
            return Err(WatcherError::NotInstalled { dir: pin_dir.into(), found }.into());
        }
        let map = |name| Map::from_pin(&pin_path(pin_dir, name));
        let links = [open_pin(&pin_path(pin_dir, LEAVE))?, open_pin(&pin_path(pin_dir, ENTER))?];
        let scan = Program::from_pin(&pin_path(pin_dir, SCAN))?;
        let (epochs, watched) = (map(EPOCHS)?, map(WATCHED)?);
        Self::from_parts(epochs, &map(STATE)?, &map(RING)?, watched, scan, links, Links::Pinned)
    }

    /// Takes a pinned watcher away, complete or not, of any version: bumps every epoch first, so that each
    /// program that depends on it falls back for ever, then removes the pins. No watcher is no error.
    pub fn remove(pin_dir: &Path) -> Result<()> {
        let entries = match std::fs::read_dir(pin_dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|e| Error::io(format!("listing {}", pin_dir.display()), e))?,
        };
        let paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|e| e.path()).collect();
        let ours = |path: &&PathBuf| pin_kind(path).is_some();
        for epochs in paths.iter().filter(|p| pin_kind(p) == Some(EPOCHS)) {
            bump_all(&Map::from_pin(epochs)?)?;
        }
        // Entry hook first, so that no call is begun any more that would not end.
        let mut pins: Vec<&PathBuf> = paths.iter().filter(ours).collect();
        pins.sort_by_key(|p| std::cmp::Reverse(PINS.iter().position(|n| Some(*n) == pin_kind(p))));
        pins.into_iter().try_for_each(|p| unpin(p))
    }

    fn from_parts(
        epochs: Map,
        state: &Map,
        ring: &Map,
        watched: Map,
        scan: Program,
        links: [OwnedFd; 2],
        kept: Links,
    ) -> Result<Watcher> {
        let watcher = Watcher {
            epochs_memory: epochs.mmap(true)?,
            state: state.mmap(true)?,
            ring: ring.mmap(false)?,
            epochs,
            watched,
            scan,
            links,
            kept,
            watching: Mutex::new(()),
            settled: Mutex::new(0),
        };
        watcher.register_owner()?;
        Ok(watcher)
    }

    /// Makes this process the one whose new programs are not taken for a write to everything.
    fn register_owner(&self) -> Result<()> {
        self.state.store_u64(state::OWNER_START, own_start_time()?);
        self.state.store_u64(state::OWNER_TGID, std::process::id().into());
        Ok(())
    }

    /// Waits until every bpf(2) call that was under way when this began, and that may write, has ended.
    ///
    /// Errors: [`WatcherError::StillInside`] with the threads, after 30 s.
    pub(super) fn settle(&self) -> Result<()> {
        self.state.fetch_add_u64(state::GENERATION, 1);
        let started = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            let threads = self.threads_inside()?;
            if threads.is_empty() {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                return Err(WatcherError::StillInside { threads }.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Threads inside a call that the watcher did not see enter, or that entered before the present generation.
    fn threads_inside(&self) -> Result<Vec<Thread>> {
        let doing = "listing the threads inside bpf(2)";
        // SAFETY: plain descriptors; no options.
        let link = owned(unsafe {
            sys::bpf_link_create(self.scan.as_fd().as_raw_fd(), 0, sys::BPF_TRACE_ITER, std::ptr::null())
        })
        .map_err(|e| Error::from_errno(doing, e))?;
        // SAFETY: a plain descriptor.
        let iterator = owned(unsafe { sys::bpf_iter_create(link.as_raw_fd()) })
            .map_err(|e| Error::from_errno(doing, e))?;
        let mut bytes = Vec::new();
        File::from(iterator).read_to_end(&mut bytes).map_err(|e| Error::io(doing, e))?;
        Ok(bytes.chunks_exact(SCANNED_BYTES).map(Thread::from_bytes).collect())
    }
}

/// Which pin of a watcher of any version this is.
fn pin_kind(path: &Path) -> Option<&'static str> {
    let (version, name) = path.file_name()?.to_str()?.strip_prefix('v')?.split_once('-')?;
    version.parse::<u32>().ok()?;
    PINS.into_iter().find(|p| *p == name)
}

fn is_pinned(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries.map(|e| e.path()).any(|p| pin_kind(&p).is_some())
}

/// Makes every program that depends on these epochs fall back for ever.
pub(super) fn bump_all(epochs: &Map) -> Result<()> {
    let memory = epochs.mmap(true)?;
    for at in (0..memory.len()).step_by(layout::SLOT_BYTES as usize) {
        memory.fetch_add_u64(at, 1);
    }
    Ok(())
}

fn attach(program: &Program) -> Result<OwnedFd> {
    // SAFETY: a plain descriptor; BTF-typed tracepoint programs know their tracepoint and take no name.
    owned(unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_fd().as_raw_fd()) })
        .map_err(|e| Error::from_errno("attaching the watcher to the system call tracepoints", e))
}

/// Returns when every CPU has passed a full memory barrier since the call (an RCU grace period).
///
/// Why the watcher needs one: see "Attaching" in [`super`].
fn all_cpus_barrier() -> Result<()> {
    // SAFETY: takes plain numbers only.
    let ret = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    match check(if ret < 0 { -Errno::last().0 } else { 0 }) {
        Ok(_) => Ok(()),
        Err(Errno(libc::EINVAL)) => Err(Error::Unsupported {
            doing: "waiting for all CPUs to notice the watcher".into(),
            why: "membarrier(MEMBARRIER_CMD_GLOBAL) is refused on kernels booted with nohz_full".into(),
        }),
        Err(e) => Err(Error::from_errno("waiting for all CPUs to notice the watcher", e)),
    }
}

/// Inodes of the initial namespaces (`include/uapi/linux/nsfs.h`, fixed since Linux 3.8 and 5.6), and what fails in others.
const NAMESPACES: [(&str, u64, &str); 2] = [
    ("pid", 0xefff_fffc, "the threads of others, which may be writing, are hidden there"),
    ("time", 0xefff_fffa, "the kernel's start times, by which it knows this process, are hidden there"),
];

/// The watcher lists all threads and knows its owner by the kernel's own numbers; in a container's namespaces it
/// would see some of the threads only, and take its owner for somebody else.
fn whole_machine_is_visible() -> Result<()> {
    let doing = "installing the watcher";
    for (name, initial, hidden) in NAMESPACES {
        let path = format!("/proc/self/ns/{name}");
        match std::fs::metadata(&path) {
            Ok(namespace) if namespace.ino() == initial => {}
            // A kernel without such namespaces.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format!("looking at {path}"), e)),
            Ok(_) => {
                let why = format!(
                    "this is not the machine's first {name} namespace, and {hidden}; give the container the \
                     machine's own"
                );
                return Err(Error::Unsupported { doing: doing.into(), why });
            }
        }
    }
    Ok(())
}

/// Start time of this process in clock ticks since boot: field 22 of `/proc/self/stat`.
fn own_start_time() -> Result<u64> {
    let doing = "reading /proc/self/stat";
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|e| Error::io(doing, e))?;
    // The second field is the name in parentheses, which may contain anything.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
    let start = fields.and_then(|mut f| f.nth(19)?.parse().ok());
    start.ok_or_else(|| Error::usage(doing, "it has no start time"))
}
