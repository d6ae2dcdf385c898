// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The two ends of the bench: a generator of packets, and those who see them again.
 *
 * `generate` is run by BPF_PROG_TEST_RUN with live frames. It makes each frame anew from a template,
 * writes a sequence number into it, notes the time in the packet's record and lets the frame leave by the
 * tester's interface. `collect`, on that same interface, sees what the router sends back; `passed`, at the
 * router's ingress behind XDP, what it hands to its stack. Both complete the record of the packet.
 *
 * So a record without an end is a packet that was dropped or lost, and nothing has to be guessed from gaps.
 * All of it runs on one CPU (live frames and veth's NAPI stay on the CPU that began), except for the
 * reader in user space, which relies on stores being seen in their order: this is for x86.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>

#define FRAME 64
#define TEMPLATES 8192
#define PATTERNS 4
#define SCHEDULE 16384
#define RECORDS (1 << 21)
/* Records that the generator leaves alone behind the reader. */
#define MARGIN 1024

#define FORWARDED 1
#define PASSED 2

#define barrier() asm volatile("" ::: "memory")

struct payload {
	__u64 magic;
	__u64 sequence;
} __attribute__((packed));

/* Untagged IPv4 without options. */
struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct payload payload;
	__u8 rest[FRAME - sizeof(struct ethhdr) - sizeof(struct iphdr) - sizeof(struct udphdr) -
		  sizeof(struct payload)];
} __attribute__((packed));

struct record {
	__u64 sequence;
	__u64 started;
	/* 0: the packet has not been seen again (yet). Stored last. */
	__u64 ended;
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__u16 template;
	__u16 outcome;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECORDS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct record);
} ring SEC(".maps");

/* Each writer has a cache line of its own. */
struct control {
	/* Packets made so far: the next sequence number. Written by the generator. */
	__u64 made;
	/* Runs that made none because the ring was full. */
	__u64 throttled;
	__u64 unused0[6];
	/* Sequence numbers below are done with. Written by user space. */
	__u64 read;
	/* Which schedule to follow. */
	__u64 pattern;
	/* Tells this bench's frames from others. */
	__u64 magic;
	__u64 unused1[5];
	/* Frames that came in and are not ours, or not of a packet on its way. */
	__u64 strange;
	__u64 unused2[7];
};
struct control control SEC(".bss.control");
__u16 schedule[PATTERNS][SCHEDULE] SEC(".bss.schedule");
__u64 templates[TEMPLATES][FRAME / 8] SEC(".bss.templates");

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	__u64 *words = (void *)(long)ctx->data;
	__u64 sequence = control.made;
	struct record *record;
	__u32 index, template, i;

	if ((void *)(long)ctx->data + FRAME > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	if (sequence - *(volatile __u64 *)&control.read >= RECORDS - MARGIN) {
		control.throttled++;
		return XDP_DROP;
	}
	index = sequence & (RECORDS - 1);
	record = bpf_map_lookup_elem(&ring, &index);
	if (!record)
		return XDP_ABORTED;

	template = schedule[*(volatile __u64 *)&control.pattern & (PATTERNS - 1)][sequence & (SCHEDULE - 1)];
	template &= TEMPLATES - 1;
#pragma unroll
	for (i = 0; i < FRAME / 8; i++)
		words[i] = templates[template][i];
	frame->payload.magic = control.magic;
	frame->payload.sequence = sequence;

	record->ended = 0;
	barrier();
	record->sequence = sequence;
	record->template = template;
	record->outcome = 0;
	record->started = bpf_ktime_get_ns();
	barrier();
	control.made = sequence + 1;
	return XDP_TX;
}

/* The record of a packet that is on its way, or NULL. */
static __always_inline struct record *record_of(const struct payload *payload)
{
	struct record *record;
	__u32 index = payload->sequence & (RECORDS - 1);

	if (payload->magic != control.magic)
		return NULL;
	record = bpf_map_lookup_elem(&ring, &index);
	if (!record || record->sequence != payload->sequence || record->ended)
		return NULL;
	return record;
}

static __always_inline void complete(struct record *record, const struct ethhdr *eth, __u16 outcome, __u64 now)
{
	__builtin_memcpy(record->destination, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(record->source, eth->h_source, ETH_ALEN);
	record->outcome = outcome;
	barrier();
	record->ended = now;
}

SEC("xdp")
int collect(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	__u64 now = bpf_ktime_get_ns();
	struct record *record;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end) {
		control.strange++;
		return XDP_DROP;
	}
	record = record_of(&frame->payload);
	if (!record) {
		control.strange++;
		return XDP_DROP;
	}
	complete(record, &frame->eth, FORWARDED, now);
	return XDP_DROP;
}

SEC("tcx/ingress")
int passed(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	struct record *record;
	struct frame frame;

	if (bpf_skb_load_bytes(skb, 0, &frame, sizeof(frame)) < 0) {
		control.strange++;
		return TC_ACT_SHOT;
	}
	record = record_of(&frame.payload);
	if (!record) {
		control.strange++;
		return TC_ACT_SHOT;
	}
	complete(record, &frame.eth, PASSED, now);
	return TC_ACT_SHOT;
}

/* On the router's interface when nothing else is: what arrives goes straight back. */
SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
