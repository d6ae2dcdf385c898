// Subprograms, shared and nested, by call and by address; programs that must not see one another's.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

__u32 sink;
static __u32 quiet[4];

static __attribute__((noinline)) int leaf(int x)
{
	sink += x;
	return x * 3;
}

static __attribute__((noinline)) int branch(int x)
{
	quiet[x & 3]++;
	return leaf(x) + leaf(x + 1);
}

__attribute__((noinline)) int shared(int x)
{
	return branch(x) ^ quiet[2];
}

static __attribute__((noinline)) int unused_by_second(int x)
{
	return sink - x;
}

static long each(__u32 index, void *context)
{
	*(__u32 *)context += shared(index);
	return 0;
}

SEC("xdp")
int first(struct xdp_md *ctx)
{
	return shared(ctx->ingress_ifindex) + unused_by_second(ctx->rx_queue_index);
}

SEC("xdp")
int second(struct xdp_md *ctx)
{
	return leaf(ctx->ingress_ifindex);
}

SEC("tc")
int third(struct __sk_buff *skb)
{
	__u32 sum = 0;

	bpf_loop(4, each, &sum, 0);
	return unused_by_second(sum);
}

SEC("tc")
int alone(struct __sk_buff *skb)
{
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
