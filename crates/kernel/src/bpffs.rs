//! Pins, and the BPF file system that they live in.
//!
//! [`ensure`] makes a directory usable for pins and says whether it had to mount something; [`discard`] undoes it.
//! [`PrivateBpffs`] is
//! a file system of one's own that goes away with its guard, for tests and trials: nothing pinned there can be
//! left behind or meet another process's pins.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_sys as sys;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::error::{Errno, Error, Result, check};
use crate::sys::{c_path, owned};

/// Iterators that a kernel with CONFIG_BPF_PRELOAD pins in each BPF file system (`kernel/bpf/preload`).
const PRELOADED: [&str; 2] = ["maps.debug", "progs.debug"];

/// Who mounted the file system under a pin directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// It was there before (usually mounted by the init system).
    Already,
    /// [`ensure`] mounted it just now; it stays.
    Now,
}

/// Makes sure that `dir` exists and lies in a BPF file system; mounts one on `dir` itself where it does not.
///
/// Errors: a want of privilege to mount; a path that cannot be created.
pub fn ensure(dir: &Path) -> Result<Mounted> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(format!("creating {}", dir.display()), e))?;
    if is_bpffs(dir)? {
        return Ok(Mounted::Already);
    }
    mount_bpffs(dir)?;
    Ok(Mounted::Now)
}

/// Undoes [`ensure`] once nothing is pinned in `dir` any more: unmounts what it mounted there, and removes the
/// directory. One that is still in use stays: with something in it, or with somebody else's mount on it.
///
/// Errors: removing an empty directory fails for another reason.
pub fn discard(dir: &Path, mounted: Mounted) -> Result<()> {
    if mounted == Mounted::Now && is_unused(dir) && umount2(dir, MntFlags::empty()).is_err() {
        return Ok(());
    }
    match std::fs::remove_dir(dir) {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTEMPTY | libc::EBUSY)) => {
            Err(Error::io(format!("removing {}", dir.display()), e))
        }
        _ => Ok(()),
    }
}

/// Whether nothing is pinned in the root of a BPF file system but what the kernel itself puts there.
fn is_unused(dir: &Path) -> bool {
    let by_kernel = |name: std::ffi::OsString| PRELOADED.iter().any(|known| name == *known);
    std::fs::read_dir(dir)
        .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| by_kernel(entry.file_name()))))
}

/// Whether an existing path lies in a BPF file system.
pub fn is_bpffs(path: &Path) -> Result<bool> {
    let stat = statfs(path).map_err(|e| {
        Error::from_errno(format!("asking for the file system of {}", path.display()), e.into())
    })?;
    Ok(stat.filesystem_type() == BPF_FS_MAGIC)
}

fn mount_bpffs(dir: &Path) -> Result<()> {
    let none: Option<&str> = None;
    mount(Some("bpf"), dir, Some("bpf"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC, none)
        .map_err(|e| Error::from_errno(format!("mounting a BPF file system on {}", dir.display()), e.into()))
}

/// Opens what is pinned at `path` (a map, program or link; the caller finds out which).
pub(crate) fn open_pin(path: &Path) -> Result<OwnedFd> {
    let name = c_path(path)?;
    // SAFETY: `name` is a live C string.
    owned(unsafe { sys::bpf_obj_get(name.as_ptr()) })
        .map_err(|e| Error::from_errno(format!("opening the pin {}", path.display()), e))
}

/// Pins an object at `path`. `EEXIST` when something is there; `EINVAL` outside a BPF file system.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = c_path(path)?;
    // SAFETY: `name` is a live C string and `fd` a live descriptor.
    match check(unsafe { sys::bpf_obj_pin(fd.as_raw_fd(), name.as_ptr()) }) {
        Ok(_) => Ok(()),
        Err(Errno(libc::EINVAL | libc::EPERM))
            if !path.parent().is_some_and(|d| is_bpffs(d).unwrap_or(true)) =>
        {
            Err(Error::usage(format!("pinning at {}", path.display()), "it is not in a BPF file system"))
        }
        Err(e) => Err(Error::from_errno(format!("pinning at {}", path.display()), e)),
    }
}

/// Removes a pin; one that is not there is no error. The object lives on while anything else holds it.
pub fn unpin(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing the pin {}", path.display()), e))
        }
        _ => Ok(()),
    }
}

/// A BPF file system on a fresh temporary directory, unmounted and removed on drop with all pins in it.
#[derive(Debug)]
pub struct PrivateBpffs {
    dir: PathBuf,
}

impl PrivateBpffs {
    /// Mounts it. Needs the right to mount.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("runnel-bpffs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| Error::io(format!("creating {}", dir.display()), e))?;
        let guard = PrivateBpffs { dir };
        mount_bpffs(&guard.dir)?;
        Ok(guard)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for PrivateBpffs {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; a detached mount goes when its last user does.
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir(&self.dir);
    }
}
