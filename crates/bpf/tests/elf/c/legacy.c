// The old section `maps`. With -DEXTRA its entries are longer and say more than they may.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct map_def {
	__u32 type, key_size, value_size, max_entries, map_flags;
#ifdef EXTRA
	__u32 id, pinning;
#endif
};

struct map_def SEC("maps") ports = { BPF_MAP_TYPE_HASH, 2, 8, 128, BPF_F_NO_PREALLOC };
struct map_def SEC("maps") hits = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY, .key_size = 4, .value_size = 16, .max_entries = 3,
#ifdef EXTRA
	.pinning = 2,
#endif
};

SEC("xdp")
int uses_ports(struct xdp_md *ctx)
{
	__u16 port = 80;

	return bpf_map_lookup_elem(&ports, &port) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int uses_hits(struct xdp_md *ctx)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&hits, &zero) ? XDP_DROP : XDP_PASS;
}
