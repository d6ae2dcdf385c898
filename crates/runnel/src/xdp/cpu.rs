//! Keeps a thread on one CPU for a while.
//!
//! Test runs happen on the CPU of the calling thread. What they leave in per-CPU maps can be compared only if all of
//! them ran on one, and what they cost only if no other CPU's caches come in between.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use runnel_kernel::error::Error as KernelError;

/// The calling thread stays on the CPU that it was on, until this is dropped.
#[derive(Debug)]
pub struct OneCpu {
    cpu: u32,
    before: CpuSet,
}

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

impl OneCpu {
    /// Binds the calling thread.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind() -> Result<OneCpu, KernelError> {
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |errno: nix::errno::Errno| KernelError::Io { doing, source: errno.into() }
        };
        let before = sched_getaffinity(SELF).map_err(failed("asking which CPUs this thread may use"))?;
        let cpu = sched_getcpu().map_err(failed("asking which CPU this thread is on"))?;
        let mut only = CpuSet::new();
        only.set(cpu).and_then(|()| sched_setaffinity(SELF, &only)).map_err(failed("staying on one CPU"))?;
        Ok(OneCpu { cpu: cpu as u32, before })
    }

    /// Number of the CPU.
    pub fn number(&self) -> u32 {
        self.cpu
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        // Nothing can be done about a failure; the thread only stays where it is.
        let _ = sched_setaffinity(SELF, &self.before);
    }
}
