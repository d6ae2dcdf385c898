// One program in each of several sections; a function cannot be named like its section.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define PROGRAM(section, name) \
	SEC(section) int name(void *ctx) { return 0; }

PROGRAM("xdp", on_xdp)
PROGRAM("xdp.frags", xdp_frags)
PROGRAM("xdp/devmap", xdp_devmap)
PROGRAM("xdp.frags/cpumap", xdp_frags_cpumap)
PROGRAM("tc", on_tc)
PROGRAM("action", on_action)
PROGRAM("tcx/ingress", tcx_ingress)
PROGRAM("tcx/egress", tcx_egress)
PROGRAM("socket", on_socket)
PROGRAM("cgroup_skb/ingress", cgroup_ingress)
PROGRAM("cgroup_skb/egress", cgroup_egress)
PROGRAM("raw_tp/sys_enter", raw_tp)
PROGRAM("syscall", on_syscall)
PROGRAM("?xdp", xdp_manual)
PROGRAM("xdpish", on_xdpish)
PROGRAM("prog", on_prog)
