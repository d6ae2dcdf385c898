// CO-RE relocations, also in a subprogram.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct net_device {
	int ifindex;
	struct {
		long flags[4];
	} nested;
} __attribute__((preserve_access_index));

static __attribute__((noinline)) long flags_of(struct net_device *dev)
{
	return dev->nested.flags[2];
}

SEC("raw_tp/netif_rx")
int traced(struct bpf_raw_tracepoint_args *ctx)
{
	struct net_device *dev = (void *)ctx->args[0];

	return dev->ifindex + flags_of(dev);
}

char _license[] SEC("license") = "GPL";
