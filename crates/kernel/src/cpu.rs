//! Keeps a thread on one CPU for a while.
//!
//! Test runs happen on the CPU of the calling thread. What they leave in per-CPU maps can be compared only if all of
//! them ran on one, and what they cost only if no other CPU's caches come in between.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// The calling thread, and all that it starts meanwhile, stays on one CPU until this is dropped, which must be by the
/// same thread.
#[derive(Debug)]
pub struct OneCpu {
    cpu: u32,
    before: CpuSet,
}

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

impl OneCpu {
    /// Binds the calling thread to the CPU that it is on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind() -> Result<OneCpu> {
        Self::bind_to(sched_getcpu().map_err(failed("asking which CPU this thread is on"))?)
    }

    /// Binds the calling thread to a CPU.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind_to(cpu: usize) -> Result<OneCpu> {
        let before = allowed()?;
        let mut only = CpuSet::new();
        only.set(cpu).and_then(|()| sched_setaffinity(SELF, &only)).map_err(failed("staying on one CPU"))?;
        Ok(OneCpu { cpu: cpu as u32, before })
    }

    /// Number of the CPU.
    pub fn number(&self) -> u32 {
        self.cpu
    }
}

fn failed(doing: &'static str) -> impl Fn(nix::errno::Errno) -> Error {
    move |errno| Error::Io { doing: doing.to_owned(), source: errno.into() }
}

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// What the kernel says.
pub fn allowed() -> Result<CpuSet> {
    sched_getaffinity(SELF).map_err(failed("asking which CPUs this thread may use"))
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        // Nothing can be done about a failure; the thread only stays where it is.
        let _ = sched_setaffinity(SELF, &self.before);
    }
}
