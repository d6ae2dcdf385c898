//! Small pieces shared by the modules that call libbpf's thin wrappers of bpf(2): descriptors, C strings,
//! names as the kernel takes and gives them, and the enumeration of ids.
//!
//! libbpf's own wrappers are used rather than the bare system call because they know the size of the
//! attributes for every command and version; nothing here adds a second way beside them.

use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::error::{Errno, Error, Result, check};

/// Longest object name that the kernel keeps (`BPF_OBJ_NAME_LEN` without the terminating zero).
pub(crate) const NAME_MAX: usize = 15;

/// Takes ownership of a descriptor that a libbpf wrapper returned, or gives the errno.
pub(crate) fn owned(ret: i32) -> std::result::Result<OwnedFd, Errno> {
    let fd = check(ret)?;
    // SAFETY: the wrapper just returned this descriptor as new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A path as C string.
pub(crate) fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::usage(format!("path {}", path.display()), "it contains a zero byte"))
}

/// A name cut and cleaned to what the kernel accepts: 15 bytes of letters, digits, `_` and `.`.
pub(crate) fn kernel_name(name: &str) -> CString {
    let ok = |b: u8| if b.is_ascii_alphanumeric() || b == b'_' || b == b'.' { b } else { b'_' };
    CString::new(name.bytes().take(NAME_MAX).map(ok).collect::<Vec<_>>()).unwrap_or_default()
}

/// The name in a kernel info structure.
pub(crate) fn name_from(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A C string that libbpf owns, copied.
///
/// # Safety
/// `ptr` is null or points to a zero-terminated string that lives during the call.
pub(crate) unsafe fn string_from(ptr: *const c_char) -> String {
    if ptr.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(ptr) }.to_string_lossy().into_owned()
}

/// Number of possible CPUs, which is the number of copies in a per-CPU value.
pub fn possible_cpus() -> usize {
    // SAFETY: no arguments; reads a file under /sys.
    let n = unsafe { libbpf_sys::libbpf_num_possible_cpus() };
    usize::try_from(n).unwrap_or(1).max(1)
}

/// Walks all ids of one kind of object with the kernel's "next id" command.
pub(crate) fn ids(what: &str, next: unsafe extern "C" fn(u32, *mut u32) -> i32) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let mut id = 0;
    loop {
        let mut following = 0;
        // SAFETY: `following` is a live out-parameter.
        match check(unsafe { next(id, &mut following) }) {
            Ok(_) if following > id => {
                ids.push(following);
                id = following;
            }
            Ok(_) | Err(Errno(libc::ENOENT)) => return Ok(ids),
            Err(e) => return Err(Error::from_errno(format!("listing the {what} of this machine"), e)),
        }
    }
}

/// Fails unless the descriptor is of this kind of BPF object (`bpf-map`, `bpf-prog`, `bpf-link`).
///
/// The kernel's info command would not notice: it fills whatever structure belongs to the descriptor.
pub(crate) fn expect_kind(fd: BorrowedFd<'_>, kind: &str) -> Result<()> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let target = std::fs::read_link(&link).map_err(|e| Error::io(format!("reading {link}"), e))?;
    let found = target.to_string_lossy();
    // A link's descriptor is called bpf_link when it is made and bpf-link when it is opened again.
    if found.replace("bpf_link", "bpf-link") == format!("anon_inode:{kind}") {
        return Ok(());
    }
    Err(Error::usage(format!("taking over a descriptor as {kind}"), format!("it is {found}")))
}

/// The value of `key:` in the fdinfo of a descriptor of this process.
pub(crate) fn fdinfo(fd: i32, key: &str) -> Result<Option<String>> {
    let path = format!("/proc/self/fdinfo/{fd}");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io(format!("reading {path}"), e))?;
    Ok(text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':')).map(|v| v.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(kernel_name("a-name/that is long").to_bytes(), b"a_name_that_is_");
    }
}
