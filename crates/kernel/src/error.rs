//! Typed errors of everything that speaks to the kernel.
//!
//! The kernel says little more than an errno, and the same errno means different things to different
//! commands (`EPERM` is "not privileged" to a load and "frozen" to a map update). So each error is made where
//! the command is known, and says what was being done. A want of privilege is never reported as a want of
//! support: the first can be cured by the user, the second cannot.
//!
//! What this deliberately does not do: turn errors into advice for a whole command line; the binary does that.

use std::fmt;

use thiserror::Error;

use crate::link::LinkError;
use crate::object::ObjectError;
use crate::watcher::WatcherError;

/// What the operations of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong between this crate and the kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused for want of privilege (`EPERM` or `EACCES` where the command means that by it).
    #[error(
        "{doing}: not permitted ({errno}); run as root or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and \
         CAP_SYS_ADMIN, and see whether a kernel lockdown forbids it"
    )]
    Permission {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// This kernel, or this kind of object, does not offer the operation.
    #[error("{doing}: not offered here ({why})")]
    Unsupported {
        /// What was being done.
        doing: String,
        /// What is missing.
        why: String,
    },
    /// The kernel failed the command with an errno that needs no translation.
    #[error("{doing}: {errno}")]
    Kernel {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The caller asked for something that makes no sense, such as a key of the wrong length.
    #[error("{doing}: {problem}")]
    Usage {
        /// What was being done.
        doing: String,
        /// Why it cannot be.
        problem: String,
    },
    /// The map is frozen: user space may no longer write to it.
    #[error("writing map `{map}`: it is frozen, user space cannot change it any more")]
    Frozen {
        /// Name of the map.
        map: String,
    },
    /// A map was changed while it was being read, in a way that the reading noticed.
    #[error("reading map `{map}`: it changed meanwhile and the reading cannot be completed; read it again")]
    ChangedWhileReading {
        /// Name of the map.
        map: String,
    },
    /// A file operation failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A helper command (such as `ip`) failed.
    #[error("`{command}` failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// What it printed on standard error, or how it ended.
        stderr: String,
    },
    /// The kernel's verifier, or the load around it, refused a program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An object file could not be opened or loaded.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A program could not be attached, replaced or detached.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The consistency watcher cannot do what was asked.
    #[error(transparent)]
    Watcher(#[from] WatcherError),
}

impl Error {
    /// An error for `errno`, where `EPERM` and `EACCES` mean a want of privilege.
    pub(crate) fn from_errno(doing: impl Into<String>, errno: Errno) -> Self {
        let doing = doing.into();
        match errno.0 {
            libc::EPERM | libc::EACCES => Error::Permission { doing, errno },
            libc::EOPNOTSUPP | ENOTSUPP => Error::Unsupported { doing, why: errno.to_string() },
            _ => Error::Kernel { doing, errno },
        }
    }

    /// An error of a file operation.
    pub(crate) fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        Error::Io { doing: doing.into(), source }
    }

    /// A misuse by the caller.
    pub(crate) fn usage(doing: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Usage { doing: doing.into(), problem: problem.into() }
    }

    /// The errno behind this error, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Permission { errno, .. } | Error::Kernel { errno, .. } => Some(*errno),
            Error::Io { source, .. } => source.raw_os_error().map(Errno),
            Error::Load(e) => Some(e.errno),
            Error::Link(e) => e.errno(),
            _ => None,
        }
    }

    /// Whether the cause is a want of privilege rather than of support.
    pub fn is_permission(&self) -> bool {
        matches!(self, Error::Permission { .. })
            || matches!(self, Error::Load(e) if e.is_permission())
            || matches!(self, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
    }
}

/// `ENOTSUPP`, which the kernel's BPF code returns though user space has no name for it.
pub const ENOTSUPP: i32 = 524;

/// An errno as the kernel returned it, including those that the C library does not know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(
    /// The positive number.
    pub i32,
);

impl Errno {
    /// The calling thread's current `errno`.
    pub(crate) fn last() -> Self {
        Errno(nix::errno::Errno::last_raw())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ENOTSUPP => f.write_str("ENOTSUPP: operation not supported by this object"),
            n => match nix::errno::Errno::from_raw(n) {
                nix::errno::Errno::UnknownErrno => write!(f, "errno {n}"),
                known => write!(f, "{known}"),
            },
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(e: nix::errno::Errno) -> Self {
        Errno(e as i32)
    }
}

/// A program that the kernel refused to load. The whole verifier log is kept; the message shows its useful line.
#[derive(Clone, Debug, Error)]
#[error("loading program `{program}`: {errno}: {}", self.reason())]
pub struct LoadError {
    /// Name of the program.
    pub program: String,
    /// The kernel's answer.
    pub errno: Errno,
    /// Everything that the verifier said; empty when the load failed before or outside the verifier.
    pub log: String,
}

impl LoadError {
    /// The line of the log that says why: the last one that is neither empty nor statistics.
    ///
    /// The verifier ends its log with counts (`processed 12 insns …`, `verification time …`, `stack depth …`);
    /// the complaint stands right before those.
    pub fn reason(&self) -> &str {
        let useful =
            self.log.lines().rev().map(str::trim).find(|line| !line.is_empty() && !is_statistics(line));
        useful.unwrap_or("the verifier left no log")
    }

    /// Whether the load failed for want of privilege before the verifier looked at the program.
    ///
    /// The verifier itself answers `EACCES` and `EPERM` for programs that it rejects, but then it leaves a log.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno.0, libc::EPERM | libc::EACCES) && self.log.trim().is_empty()
    }
}

fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time ", "stack depth ", "insns processed "]
        .iter()
        .any(|p| line.starts_with(p))
}

/// Turns the return value of a libbpf wrapper (negative errno on failure) into a result.
pub(crate) fn check(ret: i32) -> std::result::Result<i32, Errno> {
    if ret < 0 { Err(Errno(-ret)) } else { Ok(ret) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_error(errno: i32, log: &str) -> LoadError {
        LoadError { program: "p".into(), errno: Errno(errno), log: log.into() }
    }

    #[test]
    fn reason_is_the_line_before_the_statistics() {
        let log = "0: R1=ctx() R10=fp0\n0: (79) r2 = *(u64 *)(r1 +4000)\ninvalid bpf_context access off=4000 size=8\n\
                   verification time 50 usec\nstack depth 0\nprocessed 1 insns (limit 1000000) max_states_per_insn 0\n\n";
        assert_eq!(load_error(libc::EACCES, log).reason(), "invalid bpf_context access off=4000 size=8");
    }

    #[test]
    fn a_rejection_with_a_log_is_not_a_want_of_privilege() {
        assert!(load_error(libc::EPERM, "").is_permission());
        assert!(!load_error(libc::EACCES, "R1 invalid mem access\n").is_permission());
    }

    #[test]
    fn enotsupp_is_named() {
        assert!(Errno(ENOTSUPP).to_string().contains("ENOTSUPP"));
        assert!(Errno(libc::ENOENT).to_string().contains("ENOENT"));
    }
}
