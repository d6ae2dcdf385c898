// Every form of map declaration and global data that the reader knows.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct flow {
	__u32 saddr, daddr;
	union {
		__u32 ports;
		struct {
			__u16 sport, dport;
		};
	};
	__u8 proto : 4, class : 4;
	__u8 pad[3];
};

typedef struct {
	__u64 packets;
	__u64 bytes[2];
} counters_t;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow);
	__type(value, counters_t);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_COMMON_LRU | BPF_F_NUMA_NODE);
	__uint(numa_node, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(key_size, 8);
	__uint(value_size, 4);
	__uint(max_entries, 100);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__type(value, __u32);
	__uint(max_entries, 10);
	__uint(map_extra, 3);
} bloom SEC(".maps");

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 7);
} inner_a SEC(".maps"), inner_b SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [1] = &inner_b, [3] = &inner_a } };

int target(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = { .values = { [1] = (void *)&target } };

const volatile __u32 limit = 17;
const volatile struct flow model = { .saddr = 1, .daddr = 2 };
__u64 seen = 0x1122334455667788;
__u64 total;
__u32 table[16];
static __u32 hidden SEC(".data.hidden") = 5;
__u32 custom SEC(".rodata.custom_long_name") = 9;
__u32 common;

SEC("xdp")
int target(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp")
int use_maps(struct xdp_md *ctx)
{
	struct flow key = { .saddr = limit, .daddr = model.daddr };
	counters_t *c = bpf_map_lookup_elem(&flows, &key);
	__u64 prefix = 32;
	__u32 *hop = bpf_map_lookup_elem(&routes, &prefix);
	__u32 one = 1;
	void *in = bpf_map_lookup_elem(&outer, &one);

	if (c)
		c->packets++;
	if (in)
		bpf_map_lookup_elem(in, &one);
	__sync_fetch_and_add(&seen, 1);
	total += hop ? *hop : 0;
	table[5] += custom;
	common++;
	*(volatile __u32 *)&hidden += 1;
	bpf_map_peek_elem(&bloom, &one);
	bpf_tail_call(ctx, &jumps, 1);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
