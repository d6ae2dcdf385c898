//! What the name of a section says about the programs in it: type, attach type and load flags, by the same rules
//! as libbpf 1.x (`section_defs` in `tools/lib/bpf/libbpf.c`), so that an object means the same to both loaders.
//!
//! Only what [`crate::spec::ProgramSpec`] can carry is here: hooks that need a kernel function (`fentry/…`) get
//! their type, and it is the loader's business that the target is missing.

/// Load flag of programs that may sleep (`BPF_F_SLEEPABLE`).
pub const F_SLEEPABLE: u32 = 1 << 4;
/// Load flag of XDP programs that can take packets in several buffers (`BPF_F_XDP_HAS_FRAGS`).
pub const F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// How the programs of a section are to be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hook {
    /// `enum bpf_prog_type`; 0 if the section's name says nothing.
    pub prog_type: u32,
    /// `enum bpf_attach_type`, 0 where there is none.
    pub attach_type: u32,
    /// `BPF_F_*` load flags.
    pub flags: u32,
}

/// The hook that a section's name asks for. A leading `?` (do not load unless asked) is not part of the name.
pub fn hook_of_section(section: &str) -> Hook {
    let name = section.strip_prefix('?').unwrap_or(section);
    let found = HOOKS.iter().find(|(pattern, ..)| matches(pattern, name));
    found.map_or(Hook::default(), |&(_, prog_type, attach_type, flags)| Hook {
        prog_type,
        attach_type,
        flags,
    })
}

/// `name+` stands for `name` and `name/anything`, all else for itself.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('+') {
        Some(stem) => name.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        None => pattern == name,
    }
}

#[rustfmt::skip]
const HOOKS: &[(&str, u32, u32, u32)] = &[
    // pattern, bpf_prog_type, bpf_attach_type, flags
    ("xdp", 6, 37, 0),
    ("xdp.frags", 6, 37, F_XDP_HAS_FRAGS),
    ("xdp/devmap", 6, 33, 0),
    ("xdp.frags/devmap", 6, 33, F_XDP_HAS_FRAGS),
    ("xdp/cpumap", 6, 35, 0),
    ("xdp.frags/cpumap", 6, 35, F_XDP_HAS_FRAGS),
    ("tc", 3, 0, 0),
    ("classifier", 3, 0, 0),
    ("action", 4, 0, 0),
    ("tcx/ingress", 3, 46, 0),
    ("tcx/egress", 3, 47, 0),
    ("tc/ingress", 3, 46, 0),
    ("tc/egress", 3, 47, 0),
    ("netkit/primary", 3, 54, 0),
    ("netkit/peer", 3, 55, 0),
    ("socket", 1, 0, 0),
    ("sk_reuseport", 21, 39, 0),
    ("sk_reuseport/migrate", 21, 40, 0),
    ("sk_lookup", 30, 36, 0),
    ("sk_skb", 14, 0, 0),
    ("sk_skb/stream_parser", 14, 4, 0),
    ("sk_skb/stream_verdict", 14, 5, 0),
    ("sk_skb/verdict", 14, 38, 0),
    ("sk_msg", 16, 7, 0),
    ("sockops", 13, 3, 0),
    ("flow_dissector", 22, 17, 0),
    ("netfilter", 32, 45, 0),
    ("lwt_in", 10, 0, 0),
    ("lwt_out", 11, 0, 0),
    ("lwt_xmit", 12, 0, 0),
    ("lwt_seg6local", 19, 0, 0),
    ("cgroup_skb/ingress", 8, 0, 0),
    ("cgroup_skb/egress", 8, 1, 0),
    ("cgroup/skb", 8, 0, 0),
    ("cgroup/sock", 9, 2, 0),
    ("cgroup/sock_create", 9, 2, 0),
    ("cgroup/sock_release", 9, 34, 0),
    ("cgroup/post_bind4", 9, 12, 0),
    ("cgroup/post_bind6", 9, 13, 0),
    ("cgroup/bind4", 18, 8, 0),
    ("cgroup/bind6", 18, 9, 0),
    ("cgroup/connect4", 18, 10, 0),
    ("cgroup/connect6", 18, 11, 0),
    ("cgroup/connect_unix", 18, 49, 0),
    ("cgroup/sendmsg4", 18, 14, 0),
    ("cgroup/sendmsg6", 18, 15, 0),
    ("cgroup/sendmsg_unix", 18, 50, 0),
    ("cgroup/recvmsg4", 18, 19, 0),
    ("cgroup/recvmsg6", 18, 20, 0),
    ("cgroup/recvmsg_unix", 18, 51, 0),
    ("cgroup/getpeername4", 18, 29, 0),
    ("cgroup/getpeername6", 18, 30, 0),
    ("cgroup/getpeername_unix", 18, 52, 0),
    ("cgroup/getsockname4", 18, 31, 0),
    ("cgroup/getsockname6", 18, 32, 0),
    ("cgroup/getsockname_unix", 18, 53, 0),
    ("cgroup/sysctl", 23, 18, 0),
    ("cgroup/getsockopt", 25, 21, 0),
    ("cgroup/setsockopt", 25, 22, 0),
    ("cgroup/dev", 15, 6, 0),
    ("syscall", 31, 0, F_SLEEPABLE),
    ("raw_tracepoint+", 17, 0, 0),
    ("raw_tp+", 17, 0, 0),
    ("raw_tracepoint.w+", 24, 0, 0),
    ("raw_tp.w+", 24, 0, 0),
    ("tracepoint+", 5, 0, 0),
    ("tp+", 5, 0, 0),
    ("kprobe+", 2, 0, 0),
    ("kretprobe+", 2, 0, 0),
    ("perf_event", 7, 0, 0),
    ("tp_btf+", 26, 23, 0),
    ("fentry+", 26, 24, 0),
    ("fentry.s+", 26, 24, F_SLEEPABLE),
    ("fexit+", 26, 25, 0),
    ("fexit.s+", 26, 25, F_SLEEPABLE),
    ("fmod_ret+", 26, 26, 0),
    ("fmod_ret.s+", 26, 26, F_SLEEPABLE),
    ("iter+", 26, 28, 0),
    ("iter.s+", 26, 28, F_SLEEPABLE),
    ("freplace+", 28, 0, 0),
    ("lsm+", 29, 27, 0),
    ("lsm.s+", 29, 27, F_SLEEPABLE),
    ("lsm_cgroup+", 29, 43, 0),
    ("struct_ops+", 27, 0, 0),
    ("struct_ops.s+", 27, 0, F_SLEEPABLE),
];
