//! Running a program once or many times on given data (`BPF_PROG_TEST_RUN`).
//!
//! With `repeat` above one the kernel runs the program again on what it just made of the packet, bounds
//! included, and an XDP program that is attached nowhere first waits some 16 ms: measuring is the replayer's
//! business ([`crate::replay`]). [`TestRunner`] is for very many single runs, each on its own packet.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_sys as sys;

use crate::error::{Error, Result, check};
use crate::program::Program;

/// Largest packet that comes back: test-run packets with fragments can reach 64 KB.
const OUT_BYTES: usize = 64 << 10;

/// What a test run gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value (the verdict), of the last run.
    pub retval: u32,
    /// The packet after the run.
    pub data_out: Vec<u8>,
    /// The context after the run, when one was given.
    pub ctx_out: Vec<u8>,
    /// Mean time of one run in nanoseconds, as the kernel measured it.
    pub duration_ns: u32,
}

impl Program {
    /// Runs the program `repeat` times on `data_in` with the context `ctx` (such as `struct xdp_md`; empty for
    /// the kernel's default). `flags` are `BPF_F_TEST_*`.
    ///
    /// With no data the program is run as SYSCALL programs are: once, on the context alone, `repeat` ignored.
    ///
    /// Errors: `EINVAL` for packets shorter than 14 bytes or a context that does not fit them; `Unsupported`
    /// for program types that cannot be run so.
    pub fn test_run(&self, data_in: &[u8], ctx: &[u8], repeat: u32, flags: u32) -> Result<TestRun> {
        let mut ctx_out = ctx.to_vec();
        if data_in.is_empty() {
            let done = Run { program: self, flags, repeat: 0 }.in_place(&mut ctx_out)?;
            return Ok(TestRun { retval: done.retval, data_out: Vec::new(), ctx_out, duration_ns: 0 });
        }
        let mut out = vec![0u8; OUT_BYTES];
        let done = Run { program: self, flags, repeat }.once(data_in, &mut out, ctx, &mut ctx_out)?;
        out.truncate(done.data_len);
        ctx_out.truncate(done.ctx_len);
        Ok(TestRun { retval: done.retval, data_out: out, ctx_out, duration_ns: done.duration_ns })
    }
}

/// Runs one program on packet after packet without allocating.
#[derive(Debug)]
pub struct TestRunner<'a> {
    program: &'a Program,
    out: Box<[u8]>,
    ctx_out: Box<[u8]>,
}

/// One packet's outcome; the buffers are the runner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The verdict.
    pub retval: u32,
    /// The packet after the run.
    pub data: &'a [u8],
    /// The context after the run, when one was given.
    pub ctx: &'a [u8],
}

impl<'a> TestRunner<'a> {
    /// A runner for a packet program.
    pub fn new(program: &'a Program) -> Self {
        TestRunner {
            program,
            out: vec![0; OUT_BYTES].into_boxed_slice(),
            ctx_out: vec![0; 512].into_boxed_slice(),
        }
    }

    /// Runs the program once on `packet`, with the context `ctx` (empty for the kernel's default; at most 512 bytes).
    pub fn run(&mut self, packet: &[u8], ctx: &[u8]) -> Result<Outcome<'_>> {
        let ctx_len = ctx.len().min(self.ctx_out.len());
        let run = Run { program: self.program, flags: 0, repeat: 1 };
        let done = run.once(packet, &mut self.out, ctx, &mut self.ctx_out[..ctx_len])?;
        Ok(Outcome {
            retval: done.retval,
            data: &self.out[..done.data_len],
            ctx: &self.ctx_out[..done.ctx_len],
        })
    }
}

struct Run<'a> {
    program: &'a Program,
    flags: u32,
    repeat: u32,
}

struct Done {
    retval: u32,
    data_len: usize,
    ctx_len: usize,
    duration_ns: u32,
}

impl Run<'_> {
    /// Runs a packet program.
    fn once(&self, data_in: &[u8], out: &mut [u8], ctx: &[u8], ctx_out: &mut [u8]) -> Result<Done> {
        let mut opts = sys::bpf_test_run_opts {
            data_in: pointer(data_in).cast(),
            data_size_in: data_in.len() as u32,
            data_out: pointer_mut(out).cast(),
            data_size_out: out.len() as u32,
            ctx_in: pointer(ctx).cast(),
            ctx_size_in: ctx.len() as u32,
            ctx_out: pointer_mut(ctx_out).cast(),
            ctx_size_out: ctx_out.len() as u32,
            repeat: self.repeat as i32,
            ..Default::default()
        };
        // SAFETY: all four buffers live during the call and have the lengths given.
        unsafe { self.run(&mut opts)? };
        Ok(Done {
            retval: opts.retval,
            data_len: (opts.data_size_out as usize).min(out.len()),
            ctx_len: (opts.ctx_size_out as usize).min(ctx_out.len()),
            duration_ns: opts.duration,
        })
    }

    /// Runs a SYSCALL program: the kernel writes the context back to where it took it from, and refuses any
    /// other output.
    fn in_place(&self, ctx: &mut [u8]) -> Result<Done> {
        let mut opts = sys::bpf_test_run_opts {
            ctx_in: pointer_mut(ctx).cast_const().cast(),
            ctx_size_in: ctx.len() as u32,
            ..Default::default()
        };
        // SAFETY: the context lives during the call, is writable, and has the length given.
        unsafe { self.run(&mut opts)? };
        Ok(Done { retval: opts.retval, data_len: 0, ctx_len: ctx.len(), duration_ns: 0 })
    }

    /// # Safety
    /// The buffers that the options name are live, of the lengths named, and writable where the kernel writes.
    unsafe fn run(&self, opts: &mut sys::bpf_test_run_opts) -> Result<()> {
        opts.sz = size_of::<sys::bpf_test_run_opts>() as _;
        opts.flags = self.flags;
        // SAFETY: the caller's promise.
        let ret = unsafe { sys::bpf_prog_test_run_opts(self.program.as_fd().as_raw_fd(), opts) };
        check(ret).map_err(|e| {
            let bytes = opts.data_size_in;
            Error::from_errno(format!("test-running program id {} on {bytes} bytes", self.program.id()), e)
        })?;
        Ok(())
    }
}

fn pointer(bytes: &[u8]) -> *const u8 {
    if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr() }
}

fn pointer_mut(bytes: &mut [u8]) -> *mut u8 {
    if bytes.is_empty() { std::ptr::null_mut() } else { bytes.as_mut_ptr() }
}
