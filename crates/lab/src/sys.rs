//! The system calls that only the bench makes: writing maps as any other process would, running a program on live
//! frames, attaching to TC, choosing a CPU, reading the clock that `bpf_ktime_get_ns` reads.
//!
//! Everything else that concerns BPF goes through `runnel-kernel`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_sys as sys;
use nix::sched::CpuSet;
use runnel_kernel::cpu::allowed;
use runnel_kernel::program::Program;

use crate::error::Result;

/// Most frames that the kernel makes before it hands them on (`TEST_XDP_MAX_BATCH` in `net/bpf/test_run.c`).
pub const MAX_BATCH: u32 = 256;

/// A pinned map, written by plain `bpf(2)` calls.
#[derive(Debug)]
pub(crate) struct PinnedMap {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

impl PinnedMap {
    /// Opens it. Keys and values have these sizes in bytes.
    pub fn open(path: &Path, key_size: usize, value_size: usize) -> io::Result<PinnedMap> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `name` is a live C string.
        let fd = done(unsafe { sys::bpf_obj_get(name.as_ptr()) })?;
        // SAFETY: the kernel just returned this descriptor as new.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut info = sys::bpf_map_info::default();
        let mut len = size_of::<sys::bpf_map_info>() as u32;
        // SAFETY: `info` is a plain structure of `len` bytes; its pointers are null.
        done(unsafe { sys::bpf_map_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) })?;
        if (info.key_size as usize, info.value_size as usize) != (key_size, value_size) {
            let found = format!("keys of {} bytes and values of {}", info.key_size, info.value_size);
            return Err(io::Error::new(io::ErrorKind::InvalidData, found));
        }
        Ok(PinnedMap { fd, key_size, value_size })
    }

    /// Adds an entry, or replaces its value.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key_size, self.value_size));
        let (key, value) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: key and value live during the call and have the sizes that the map was found to have.
        done(unsafe { sys::bpf_map_update_elem(self.fd.as_raw_fd(), key, value, u64::from(sys::BPF_ANY)) })?;
        Ok(())
    }

    /// Deletes an entry, which must be there.
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key_size);
        // SAFETY: the key lives during the call and has the size that the map was found to have.
        done(unsafe { sys::bpf_map_delete_elem(self.fd.as_raw_fd(), key.as_ptr().cast()) })?;
        Ok(())
    }
}

/// What libbpf's calls return: an errno, negative, in place of a result.
fn done(ret: i32) -> io::Result<i32> {
    if ret < 0 { Err(io::Error::from_raw_os_error(-ret)) } else { Ok(ret) }
}

/// Makes `repeat` frames with an XDP program and lets them go, `batch` at a time (at most [`MAX_BATCH`]), as if
/// they had come in by interface `ifindex` of this thread's network namespace.
///
/// A signal ends it early, which is no error.
pub(crate) fn run_live(
    program: &Program,
    frame: &[u8],
    ifindex: u32,
    repeat: u32,
    batch: u32,
) -> io::Result<()> {
    let ctx = sys::xdp_md { data_end: frame.len() as u32, ingress_ifindex: ifindex, ..Default::default() };
    let mut opts = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: (&raw const ctx).cast(),
        ctx_size_in: size_of::<sys::xdp_md>() as u32,
        repeat: repeat as i32,
        flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: frame and context live during the call, with the lengths given; nothing is written back.
    let ret = unsafe { sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &mut opts) };
    match ret {
        e if e == -libc::EINTR => Ok(()),
        ret => done(ret).map(drop),
    }
}

/// Attaches a program to the ingress of an interface of this thread's network namespace, behind XDP (tcx). It is
/// detached when the descriptor is closed.
pub(crate) fn attach_tcx_ingress(program: &Program, ifindex: u32) -> io::Result<OwnedFd> {
    let opts =
        sys::bpf_link_create_opts { sz: size_of::<sys::bpf_link_create_opts>() as _, ..Default::default() };
    let fd = program.as_fd().as_raw_fd();
    // SAFETY: `opts` lives during the call; the rest are plain numbers.
    let link = done(unsafe { sys::bpf_link_create(fd, ifindex as i32, sys::BPF_TCX_INGRESS, &opts) })?;
    // SAFETY: the kernel just returned this descriptor as new.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// How the CPUs are divided: packets run on one, everything else on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// For the generator, the data plane and the collector.
    pub traffic: usize,
    /// For everything else.
    pub control: usize,
}

impl Cpus {
    /// The last CPU that this thread may use for the traffic, the first for the rest; the same one where
    /// there is but one.
    pub fn choose() -> Result<Cpus> {
        let set = allowed()?;
        let mut allowed = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
        let control = allowed.next().unwrap_or(0);
        Ok(Cpus { traffic: allowed.next_back().unwrap_or(control), control })
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, which is what `bpf_ktime_get_ns` gives.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live out-parameter; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until `CLOCK_MONOTONIC` shows `ns`; returns at once if it does already.
pub fn sleep_until(ns: u64) {
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // A signal may wake it early.
    // SAFETY: `time` is live; no remainder is asked for.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, std::ptr::null_mut())
    } == libc::EINTR
    {}
}
