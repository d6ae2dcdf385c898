//! What this kernel offers, found by trying.
//!
//! An answer is "no" only for the errnos that mean absence for that very question; they are listed with each
//! question. Anything else, a want of privilege or a lockdown above all, is "could not tell": the same question
//! asked with more rights may have another answer. Everything made to find out is gone when the probe returns.
//!
//! Written against Linux 6.18; the errnos were read in its sources (files named below).

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_sys as sys;
use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::MapSpec;

use crate::error::{ENOTSUPP, Errno, check};
use crate::map::Map;
use crate::sys::owned;

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It works here.
    Yes,
    /// The kernel does not have it; the errno that says so.
    No(Errno),
    /// Something else stood in the way; what.
    CouldNotTell(String),
}

impl Answer {
    /// Whether it can be relied on.
    pub fn is_yes(&self) -> bool {
        *self == Answer::Yes
    }

    /// Reads an attempt's result; `absent` are the errnos that mean "no".
    fn of<T>(attempt: &std::result::Result<T, Errno>, absent: &[i32]) -> Answer {
        match attempt {
            Ok(_) => Answer::Yes,
            Err(errno) if absent.contains(&errno.0) => Answer::No(*errno),
            Err(errno) => Answer::CouldNotTell(errno.to_string()),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Yes => f.write_str("yes"),
            Answer::No(errno) => write!(f, "no ({errno})"),
            Answer::CouldNotTell(why) => write!(f, "could not tell ({why})"),
        }
    }
}

/// Everything that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Type information of the running kernel, at `/sys/kernel/btf/vmlinux`. No: the file is not there.
    pub kernel_types: Answer,
    /// Loading an XDP program. No: `EINVAL`, for a kernel without the program type
    /// (`bpf_prog_load` in kernel/bpf/syscall.c).
    pub load_xdp: Answer,
    /// BTF-typed raw tracepoints on system calls, which the watcher uses. No: as for `fentry`.
    pub syscall_tracepoints: Answer,
    /// Programs on the entry of kernel functions (`fentry/__sys_bpf`), a better hook for the watcher. No:
    /// `ENOENT` and `ESRCH` for a kernel without the function's type, `ENOTSUPP` and `EOPNOTSUPP` for a machine
    /// without trampolines, `EINVAL` for one without the attach type.
    pub fentry: Answer,
    /// Programs on security hooks (`lsm/bpf`), the best hook for the watcher. No: as for `fentry`.
    pub lsm: Answer,
    /// Reading a whole map by batch commands, by `enum bpf_map_type`. No: `ENOTSUPP` from a type without it
    /// (`BPF_DO_BATCH` in kernel/bpf/syscall.c), `EINVAL` from a kernel without the command.
    pub batch_read: Vec<(u32, Answer)>,
}

impl Offers {
    /// All answers with the names of the questions, for showing.
    pub fn list(&self) -> Vec<(String, &Answer)> {
        let batch = self.batch_read.iter().map(|(t, a)| (format!("batch read of {}", map_type_name(*t)), a));
        [
            ("types of the kernel", &self.kernel_types),
            ("loading XDP programs", &self.load_xdp),
            ("system call tracepoints", &self.syscall_tracepoints),
            ("fentry programs", &self.fentry),
            ("LSM programs", &self.lsm),
        ]
        .map(|(question, answer)| (question.to_owned(), answer))
        .into_iter()
        .chain(batch)
        .collect()
    }
}

/// Asks everything. Takes some milliseconds; attaches programs that do nothing, for a moment.
pub fn probe() -> Offers {
    use sys::{BPF_LSM_MAC, BPF_PROG_TYPE_LSM, BPF_PROG_TYPE_TRACING, BPF_TRACE_FENTRY, BPF_TRACE_RAW_TP};
    const BATCH_TYPES: [u32; 8] = [
        sys::BPF_MAP_TYPE_HASH,
        sys::BPF_MAP_TYPE_ARRAY,
        sys::BPF_MAP_TYPE_PERCPU_HASH,
        sys::BPF_MAP_TYPE_PERCPU_ARRAY,
        sys::BPF_MAP_TYPE_LRU_HASH,
        sys::BPF_MAP_TYPE_LRU_PERCPU_HASH,
        sys::BPF_MAP_TYPE_LPM_TRIE,
        sys::BPF_MAP_TYPE_DEVMAP,
    ];
    Offers {
        kernel_types: kernel_types(),
        load_xdp: Answer::of(&load(sys::BPF_PROG_TYPE_XDP, 0, 0), &[libc::EINVAL]),
        syscall_tracepoints: hook(BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, c"sys_enter"),
        fentry: hook(BPF_PROG_TYPE_TRACING, BPF_TRACE_FENTRY, c"__sys_bpf"),
        lsm: hook(BPF_PROG_TYPE_LSM, BPF_LSM_MAC, c"bpf"),
        batch_read: BATCH_TYPES.map(|map_type| (map_type, batch_read(map_type))).into(),
    }
}

/// Whether the running kernel tells its types, which the watcher needs.
pub fn kernel_types() -> Answer {
    match std::fs::File::open("/sys/kernel/btf/vmlinux") {
        Ok(_) => Answer::Yes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Answer::No(Errno(libc::ENOENT)),
        Err(e) => Answer::CouldNotTell(e.to_string()),
    }
}

/// Loads `r0 = 0; exit`.
fn load(prog_type: u32, attach_type: u32, btf_id: u32) -> std::result::Result<OwnedFd, Errno> {
    let insns = [
        Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, 0),
        Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
    ];
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: attach_type,
        attach_btf_id: btf_id,
        ..Default::default()
    };
    // SAFETY: name, license, instructions (laid out as the kernel's) and options live during the call.
    owned(unsafe {
        sys::bpf_prog_load(
            prog_type,
            c"runnel_probe".as_ptr(),
            c"GPL".as_ptr(),
            insns.as_ptr().cast(),
            insns.len() as _,
            &mut opts,
        )
    })
}

/// Loads a program for a hook that is named by kernel type information, attaches it, and lets it go.
fn hook(prog_type: u32, attach_type: u32, target: &std::ffi::CStr) -> Answer {
    let attempt = || {
        // SAFETY: a live C string.
        let btf_id = check(unsafe { sys::libbpf_find_vmlinux_btf_id(target.as_ptr(), attach_type) })?;
        let program = load(prog_type, attach_type, btf_id as u32)?;
        // SAFETY: a live descriptor; programs that know their hook take no name.
        owned(unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) })
    };
    Answer::of(&attempt(), &[libc::ENOENT, libc::ESRCH, ENOTSUPP, libc::EOPNOTSUPP, libc::EINVAL])
}

/// Reads an empty map by batch; "no entry" is how that ends well.
fn batch_read(map_type: u32) -> Answer {
    let (key_size, flags) = match map_type {
        sys::BPF_MAP_TYPE_LPM_TRIE => (8, sys::BPF_F_NO_PREALLOC),
        _ => (4, 0),
    };
    let spec =
        MapSpec { name: "runnel_probe".into(), map_type, key_size, value_size: 4, max_entries: 1, flags };
    let map = match Map::create(&spec) {
        Ok(map) => map,
        Err(e) => return Answer::CouldNotTell(e.to_string()),
    };
    let (mut key, mut next, mut value) = ([0u8; 8], [0u8; 8], vec![0u8; map.value_len()]);
    let mut count = 1;
    // SAFETY: room for one key, one value and one position of this map; no options.
    let ret = unsafe {
        sys::bpf_map_lookup_batch(
            std::os::fd::AsFd::as_fd(&map).as_raw_fd(),
            std::ptr::null_mut(),
            next.as_mut_ptr().cast(),
            key.as_mut_ptr().cast(),
            value.as_mut_ptr().cast(),
            &mut count,
            std::ptr::null(),
        )
    };
    match check(ret) {
        Err(Errno(libc::ENOENT)) => Answer::Yes,
        other => Answer::of(&other, &[ENOTSUPP, libc::EINVAL]),
    }
}

/// The name of an `enum bpf_map_type`, such as `hash`.
pub fn map_type_name(map_type: u32) -> String {
    // SAFETY: takes a number, returns null or a static string.
    let name = unsafe { crate::sys::string_from(sys::libbpf_bpf_map_type_str(map_type)) };
    if name.is_empty() { format!("type {map_type}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_errnos_mean_no() {
        let answer = |errno| Answer::of::<()>(&Err(Errno(errno)), &[libc::EINVAL]);
        assert_eq!(answer(libc::EINVAL), Answer::No(Errno(libc::EINVAL)));
        assert!(matches!(answer(libc::EPERM), Answer::CouldNotTell(why) if why.contains("EPERM")));
        assert_eq!(Answer::of(&Ok(()), &[]), Answer::Yes);
    }
}
