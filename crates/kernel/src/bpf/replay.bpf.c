// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The replayer: turns the kernel's repeated test run, which hands the same packet to a program again and again
 * as the program left it, into a replay of a trace.
 *
 * Each run takes the next packet of the trace, gives the buffer the packet's bounds and bytes, and tail-calls
 * the program under test. Every slice of packets it takes a time stamp. What it costs itself is measured by
 * replaying to a program that returns at once. User space: src/replay.rs.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual BSD/GPL";

/* Set before loading, so that the verifier knows them: table sizes less one, and log2 of packets in a slice. */
struct config {
	__u32 header_mask;
	__u32 byte_mask;
	__u32 packets;
	__u32 slice_shift;
};
const volatile struct config config SEC(".rodata.config") = { .packets = 1 };

/* Longest packet; the bytes map is this much longer than its mask says. */
#define PACKET_MAX 4096
#define SLICES_MAX 65536
/* Packets of one to two times this length are copied by plain stores, in two halves; of longer ones the first half. */
#define HALF 32

struct control {
	/* Where the packet starts in the test run's buffer: set at the first run after being zeroed. */
	__u64 base;
	__u64 runs;
	__u64 next;
	__u64 faults;
	__u64 data, data_end, data_meta;
};
struct control control SEC(".bss.control");
__u64 stamps[SLICES_MAX] SEC(".bss.stamps");

struct header {
	__u32 offset;
	__u32 len;
};

/* One entry each, sized at load: the headers of all packets, and the bytes of all packets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct header));
} headers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 2 * PACKET_MAX);
} bytes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} under_test SEC(".maps");

/* Gives the buffer the bounds of a packet of this length. A pointer stored in memory and loaded again is a
 * number, which is the only way to compare it with one of an earlier run. */
static __always_inline long restore_bounds(struct xdp_md *ctx, __u64 len)
{
	long head, tail, error = 0;

	control.data = (long)ctx->data;
	control.data_end = (long)ctx->data_end;
	control.data_meta = (long)ctx->data_meta;
	if (!control.base)
		control.base = *(volatile __u64 *)&control.data;
	head = control.base - *(volatile __u64 *)&control.data;
	tail = control.base + len - *(volatile __u64 *)&control.data_end;
	if (*(volatile __u64 *)&control.data_meta != *(volatile __u64 *)&control.data)
		error |= bpf_xdp_adjust_meta(ctx, control.data - control.data_meta);
	/* The kernel never lets a packet become shorter than 14 bytes: grow at the tail before, shrink after. */
	if (tail > 0)
		error |= bpf_xdp_adjust_tail(ctx, tail);
	if (head)
		error |= bpf_xdp_adjust_head(ctx, head);
	if (tail < 0)
		error |= bpf_xdp_adjust_tail(ctx, tail);
	return error;
}

static __always_inline void copy_half(void *to, const void *from)
{
#pragma unroll
	for (int i = 0; i < HALF / 8; i++)
		((__u64 *)to)[i] = ((const __u64 *)from)[i];
}

static __always_inline long copy_packet(struct xdp_md *ctx, const __u8 *from, __u32 len)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 second = len - HALF;

	if (len >= HALF && data + HALF <= data_end) {
		copy_half(data, from);
		if (second > HALF)
			return bpf_xdp_store_bytes(ctx, HALF, (void *)from + HALF, second);
		/* Overlaps the first half unless the packet has twice its length. */
		if (data + second + HALF <= data_end) {
			copy_half(data + second, from + second);
			return 0;
		}
	}
	return bpf_xdp_store_bytes(ctx, 0, (void *)from, len);
}

static __always_inline void stamp(__u64 run)
{
	__u64 slice = run >> config.slice_shift;

	if ((run & ((1ULL << config.slice_shift) - 1)) == 0 && slice < SLICES_MAX)
		stamps[slice] = bpf_ktime_get_ns();
}

SEC("xdp")
int replay(struct xdp_md *ctx)
{
	__u64 run = control.runs, next = control.next;
	__u32 zero = 0, len, offset;
	struct header *header;
	__u8 *from;

	control.runs = run + 1;
	control.next = next + 1 < config.packets ? next + 1 : 0;
	stamp(run);
	header = bpf_map_lookup_elem(&headers, &zero);
	from = bpf_map_lookup_elem(&bytes, &zero);
	if (!header || !from)
		goto fault;
	header += next & config.header_mask;
	len = header->len;
	offset = header->offset & config.byte_mask;
	if (len == 0 || len > PACKET_MAX)
		goto fault;
	if (restore_bounds(ctx, len) || copy_packet(ctx, from + offset, len))
		goto fault;
	bpf_tail_call(ctx, &under_test, 0);
fault:
	control.faults++;
	return XDP_ABORTED;
}
