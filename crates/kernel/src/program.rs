//! Programs: load from canonical form, find, ask, pin, and who uses which map.
//!
//! A [`Program`] is a descriptor and an id; [`Program::info`] asks the kernel for the rest, counters included,
//! each time. Programs are loaded from [`ProgramSpec`] by themselves, without BTF: a program whose callbacks
//! or typed map values need BTF is loaded from its object file ([`crate::object`]).

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use libbpf_sys as sys;
use runnel_bpf::insn::Insn;
use runnel_bpf::spec::ProgramSpec;

use crate::error::{Errno, Error, LoadError, Result, check};
use crate::sys::{expect_kind, ids, kernel_name, name_from, owned};

/// A loaded program: a descriptor and its id.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    id: u32,
}

/// What the kernel says of a program (`struct bpf_prog_info`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Id, stable while the program lives.
    pub id: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// `enum bpf_prog_type`.
    pub prog_type: u32,
    /// What a tracing program is attached to, as an id of the kernel's types; 0 for programs of other types.
    pub attach_btf_id: u32,
    /// Hash of the instructions as loaded. The kernel blanks out map references by descriptor but not those by
    /// index, so a program loaded from canonical form has another tag than the same one loaded by libbpf.
    pub tag: [u8; 8],
    /// Bytes of the instructions after the verifier's rewriting.
    pub xlated_bytes: u32,
    /// Bytes of machine code.
    pub jited_bytes: u32,
    /// Instructions that the verifier walked through, all paths counted.
    pub verified_insns: u32,
    /// Ids of the maps that the program refers to. A map reached only through `bpf_sys_bpf` is *not* among them.
    pub map_ids: Vec<u32>,
    /// Nanoseconds run while statistics were on (see [`enable_stats`]).
    pub run_time_ns: u64,
    /// Runs while statistics were on.
    pub run_cnt: u64,
    /// Runs that the kernel skipped because the program was already running on the CPU (tracing only).
    pub recursion_misses: u64,
    /// Whether GPL-only helpers are open to it.
    pub gpl_compatible: bool,
}

/// What a successful load cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadStats {
    /// Wall time of the whole load command (verification, rewriting, JIT).
    pub load_time: Duration,
    /// Time that the verifier says it took; zero where the kernel does not say.
    pub verify_time: Duration,
    /// Instructions that the verifier walked through, all paths counted.
    pub verified_insns: u32,
    /// The verifier's statistics lines.
    pub log_tail: String,
}

/// Room for the verifier's statistics, which are a few lines.
const STATS_LOG: usize = 16 << 10;
/// First and last size of the buffer for the log of a program that was refused.
const FIRST_LOG: usize = 256 << 10;
const LAST_LOG: usize = 256 << 20;
/// `BPF_LOG_LEVEL1` and `BPF_LOG_STATS` of `include/linux/bpf_verifier.h`.
const LOG_TRACE: u32 = 1;
const LOG_STATS: u32 = 4;

impl Program {
    /// Loads a program; `map_fds[i]` is the map that the instructions call number `i`.
    ///
    /// The first attempt asks the verifier for its statistics only, which costs nothing. When it fails the
    /// program is verified again with the full log, in a buffer that grows until the log fits.
    pub fn load(spec: &ProgramSpec, map_fds: &[BorrowedFd<'_>]) -> Result<(Program, LoadStats), LoadError> {
        let request = LoadRequest::new(spec, map_fds)?;
        let started = Instant::now();
        let mut log = vec![0u8; STATS_LOG];
        let outcome = match request.attempt(LOG_STATS, &mut log) {
            // The statistics did not fit: an old kernel refuses the whole load for that.
            Err(Errno(libc::ENOSPC)) => request.attempt(0, &mut []),
            other => other,
        };
        let load_time = started.elapsed();
        let fd = match outcome {
            Ok(fd) => fd,
            Err(errno) => return Err(request.explain(errno, &text(&log))),
        };
        let program = Program::from_fd(fd).map_err(|e| request.error(e.errno().unwrap_or(Errno(0)), ""))?;
        let verified_insns = program.info().map(|i| i.verified_insns).unwrap_or(0);
        let log_tail = text(&log);
        let verify_time = verification_time(&log_tail);
        Ok((program, LoadStats { load_time, verify_time, verified_insns, log_tail }))
    }

    /// Takes over a program's descriptor; `Usage` if it is something else.
    pub fn from_fd(fd: OwnedFd) -> Result<Program> {
        expect_kind(fd.as_fd(), "bpf-prog")?;
        let id = raw_info(fd.as_raw_fd(), &mut [])?.id;
        Ok(Program { fd, id })
    }

    /// The program with this id; `Kernel` with `ENOENT` when there is none (any more).
    pub fn from_id(id: u32) -> Result<Program> {
        // SAFETY: a plain number.
        let fd = owned(unsafe { sys::bpf_prog_get_fd_by_id(id) })
            .map_err(|e| Error::from_errno(format!("opening program id {id}"), e))?;
        Ok(Program { fd, id })
    }

    /// The program pinned at `path`.
    pub fn from_pin(path: &Path) -> Result<Program> {
        Self::from_fd(crate::bpffs::open_pin(path)?)
    }

    /// Pins the program at `path`, in a BPF file system.
    pub fn pin(&self, path: &Path) -> Result<()> {
        crate::bpffs::pin(self.fd.as_fd(), path)
    }

    /// Another handle to the same program.
    pub fn try_clone(&self) -> Result<Program> {
        let fd = self.fd.try_clone().map_err(|e| Error::io("duplicating a program descriptor", e))?;
        Ok(Program { fd, id: self.id })
    }

    /// The kernel's id: stable while the program lives.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the kernel says of the program now.
    pub fn info(&self) -> Result<ProgramInfo> {
        let mut map_ids = vec![0u32; raw_info(self.fd.as_raw_fd(), &mut [])?.nr_map_ids as usize];
        let info = raw_info(self.fd.as_raw_fd(), &mut map_ids)?;
        map_ids.truncate(info.nr_map_ids as usize);
        Ok(ProgramInfo {
            id: info.id,
            name: name_from(&info.name),
            prog_type: info.type_,
            attach_btf_id: info.attach_btf_id,
            tag: info.tag,
            xlated_bytes: info.xlated_prog_len,
            jited_bytes: info.jited_prog_len,
            verified_insns: info.verified_insns,
            map_ids,
            run_time_ns: info.run_time_ns,
            run_cnt: info.run_cnt,
            recursion_misses: info.recursion_misses,
            gpl_compatible: info.gpl_compatible() != 0,
        })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Everything that both attempts of a load share.
struct LoadRequest<'a> {
    spec: &'a ProgramSpec,
    name: CString,
    license: CString,
    fds: Vec<RawFd>,
}

impl<'a> LoadRequest<'a> {
    fn new(spec: &'a ProgramSpec, map_fds: &[BorrowedFd<'_>]) -> Result<Self, LoadError> {
        let refused = |problem: String| LoadError {
            program: spec.name.clone(),
            errno: Errno(libc::EINVAL),
            log: problem,
        };
        if map_fds.len() < spec.maps.len() {
            let (given, wanted) = (map_fds.len(), spec.maps.len());
            return Err(refused(format!(
                "the program refers to {wanted} maps, {given} descriptors are given"
            )));
        }
        let license = CString::new(spec.license.as_str())
            .map_err(|_| refused("the license contains a zero byte".to_owned()))?;
        let fds = map_fds.iter().map(AsRawFd::as_raw_fd).collect();
        Ok(LoadRequest { spec, name: kernel_name(&spec.name), license, fds })
    }

    fn attempt(&self, log_level: u32, log: &mut [u8]) -> std::result::Result<OwnedFd, Errno> {
        const { assert!(size_of::<Insn>() == size_of::<sys::bpf_insn>()) };
        let mut opts = sys::bpf_prog_load_opts {
            sz: size_of::<sys::bpf_prog_load_opts>() as _,
            expected_attach_type: self.spec.expected_attach_type,
            prog_flags: self.spec.flags,
            fd_array: self.fds.as_ptr(),
            log_level,
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr().cast() },
            ..Default::default()
        };
        // SAFETY: name, license, instructions (laid out as the kernel's), descriptors and log live during the
        // call, with the counts given.
        owned(unsafe {
            sys::bpf_prog_load(
                self.spec.prog_type,
                self.name.as_ptr(),
                self.license.as_ptr(),
                self.spec.insns.as_ptr().cast(),
                self.spec.insns.len() as _,
                &mut opts,
            )
        })
    }

    /// Verifies once more for the full log. Should the program be accepted this time (a shortage has passed),
    /// the first answer still stands: the caller may try again.
    fn explain(&self, errno: Errno, short_log: &str) -> LoadError {
        if matches!(errno.0, libc::EPERM | libc::E2BIG | libc::EFAULT) && short_log.is_empty() {
            return self.error(errno, "");
        }
        let mut size = FIRST_LOG;
        loop {
            let mut log = vec![0u8; size];
            match self.attempt(LOG_TRACE, &mut log) {
                Err(Errno(libc::ENOSPC)) if size < LAST_LOG => size *= 4,
                Err(_) if log[0] != 0 => return self.error(errno, &text(&log)),
                _ => return self.error(errno, short_log),
            }
        }
    }

    fn error(&self, errno: Errno, log: &str) -> LoadError {
        LoadError { program: self.spec.name.clone(), errno, log: log.to_owned() }
    }
}

/// The zero-terminated text in a log buffer.
fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|b| *b == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// Reads `verification time 123 usec` out of the statistics.
fn verification_time(log: &str) -> Duration {
    let usec =
        log.lines().find_map(|l| l.strip_prefix("verification time ")?.split(' ').next()?.parse().ok());
    Duration::from_micros(usec.unwrap_or(0))
}

fn raw_info(fd: RawFd, map_ids: &mut [u32]) -> Result<sys::bpf_prog_info> {
    let mut info = sys::bpf_prog_info {
        nr_map_ids: map_ids.len() as u32,
        map_ids: if map_ids.is_empty() { 0 } else { map_ids.as_mut_ptr() as u64 },
        ..Default::default()
    };
    let mut len = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is a plain structure of `len` bytes; its only pointer is `map_ids`, with its length.
    check(unsafe { sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut len) })
        .map_err(|e| Error::from_errno("asking what a program is", e))?;
    Ok(info)
}

/// Every program loaded on this machine. Programs that vanish during the walk are left out.
pub fn all_programs() -> Result<Vec<ProgramInfo>> {
    let mut programs = Vec::new();
    for id in ids("programs", sys::bpf_prog_get_next_id)? {
        match Program::from_id(id).and_then(|p| p.info()) {
            Ok(info) => programs.push(info),
            Err(Error::Kernel { errno: Errno(libc::ENOENT), .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(programs)
}

/// Program statistics (run time and count) stay on while this guard lives; they cost about 46 ns a run.
#[derive(Debug)]
pub struct StatsGuard {
    _fd: OwnedFd,
}

/// Turns program statistics on for the whole machine until the guard is dropped.
pub fn enable_stats() -> Result<StatsGuard> {
    // SAFETY: a plain number.
    let fd = owned(unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) })
        .map_err(|e| Error::from_errno("turning program statistics on", e))?;
    Ok(StatsGuard { _fd: fd })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verification_time_is_read_from_the_statistics() {
        let log = "verification time 1234 usec\nstack depth 8\nprocessed 2 insns\n";
        assert_eq!(verification_time(log), Duration::from_micros(1234));
        assert_eq!(verification_time(""), Duration::ZERO);
    }
}
