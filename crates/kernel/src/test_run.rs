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
    /// Errors: `EINVAL` for packets shorter than 14 bytes or a context that does not fit them; `Unsupported`
    /// for program types that cannot be run so.
    pub fn test_run(&self, data_in: &[u8], ctx: &[u8], repeat: u32, flags: u32) -> Result<TestRun> {
        // SYSCALL programs take no packet and refuse an output buffer.
        let mut out = vec![0u8; if data_in.is_empty() { 0 } else { OUT_BYTES }];
        let mut ctx_out = ctx.to_vec();
        let mut run = Run { program: self, flags, repeat };
        let done = run.once(data_in, &mut out, ctx, &mut ctx_out)?;
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
        let mut run = Run { program: self.program, flags: 0, repeat: 1 };
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
    fn once(&mut self, data_in: &[u8], out: &mut [u8], ctx: &[u8], ctx_out: &mut [u8]) -> Result<Done> {
        let mut opts = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: pointer(data_in).cast(),
            data_size_in: data_in.len() as u32,
            data_out: if out.is_empty() { std::ptr::null_mut() } else { out.as_mut_ptr().cast() },
            data_size_out: out.len() as u32,
            ctx_in: pointer(ctx).cast(),
            ctx_size_in: ctx.len() as u32,
            ctx_out: if ctx_out.is_empty() { std::ptr::null_mut() } else { ctx_out.as_mut_ptr().cast() },
            ctx_size_out: ctx_out.len() as u32,
            repeat: self.repeat as i32,
            flags: self.flags,
            ..Default::default()
        };
        // SAFETY: all four buffers live during the call and have the lengths given.
        check(unsafe { sys::bpf_prog_test_run_opts(self.program.as_fd().as_raw_fd(), &mut opts) }).map_err(
            |e| {
                Error::from_errno(
                    format!("test-running program id {} on {} bytes", self.program.id(), data_in.len()),
                    e,
                )
            },
        )?;
        Ok(Done {
            retval: opts.retval,
            data_len: (opts.data_size_out as usize).min(out.len()),
            ctx_len: (opts.ctx_size_out as usize).min(ctx_out.len()),
            duration_ns: opts.duration,
        })
    }
}

fn pointer(bytes: &[u8]) -> *const u8 {
    if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr() }
}
