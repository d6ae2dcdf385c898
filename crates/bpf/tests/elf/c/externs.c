// Programs that need the kernel, beside one that does not.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifndef __kconfig
#define __kconfig __attribute__((section(".kconfig")))
#endif
#ifndef __ksym
#define __ksym __attribute__((section(".ksyms")))
#endif

extern int LINUX_KERNEL_VERSION __kconfig;
extern const void init_net __ksym;
extern int bpf_xdp_metadata_rx_hash(const struct xdp_md *ctx, __u32 *hash) __ksym;
__u32 calls;

SEC("xdp")
int plain(struct xdp_md *ctx)
{
	calls++;
	return XDP_PASS;
}

static __attribute__((noinline)) int version(void)
{
	return LINUX_KERNEL_VERSION;
}

SEC("xdp")
int needs_config(struct xdp_md *ctx)
{
	return version() > 5;
}

SEC("xdp")
int needs_symbol(struct xdp_md *ctx)
{
	return (long)&init_net & 255;
}

SEC("xdp")
int needs_function(struct xdp_md *ctx)
{
	__u32 hash = 0;

	bpf_xdp_metadata_rx_hash(ctx, &hash);
	return hash & 1;
}

char _license[] SEC("license") = "GPL";
