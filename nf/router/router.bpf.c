// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * An IPv4 router for XDP.
 *
 * The fast path of RFC 1812: it checks a packet, finds the route with the longest prefix, the port and
 * the neighbour, and sends the packet on. Whatever needs more than that goes up to the kernel's own stack
 * (XDP_PASS) as it came: packets to the router itself, IP options, multicast, expired TTLs, unresolved
 * neighbours, fragmentation, unreachable destinations. So the stack answers with ICMP and ARP, and the
 * tables here are meant to mirror its own. Only what no router may forward is dropped.
 *
 * It does not compare the frame's destination with the device's address: a device that is not
 * promiscuous has done so already.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "router.h"

#define IPV4_MIN_HEADER 20
#define IPV4_MAX_HEADER 60
#define VLAN_VID_MASK 0x0fff

struct vlan_hdr {
	__be16 tci;
	__be16 encapsulated_proto;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_ROUTES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct route_key);
	__type(value, struct route);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NEIGHBOURS);
	__type(key, __be32);
	__type(value, struct neighbour);
} neighbours SEC(".maps");

/* The router's own addresses, and the broadcast addresses of its networks. Only the keys matter. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LOCAL_ADDRS);
	__type(key, __be32);
	__type(value, __u32);
} local_addrs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} tx_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct tx_counter);
} tx_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} drop_counters SEC(".maps");

static __always_inline int drop(enum drop_reason reason)
{
	__u32 index = reason;
	__u64 *packets = bpf_map_lookup_elem(&drop_counters, &index);

	if (packets)
		(*packets)++;
	return XDP_DROP;
}

static __always_inline void count_tx(__u32 index, __u64 bytes)
{
	struct tx_counter *counter = bpf_map_lookup_elem(&tx_counters, &index);

	if (counter) {
		counter->packets++;
		counter->bytes += bytes;
	}
}

/* 32-bit sum of 16-bit words -> ones' complement sum. Twice, because the first fold can carry again. */
static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return sum + (sum >> 16);
}

/* Ones' complement sum over the header with its options: 0xffff if the checksum is right (RFC 1071). */
static __always_inline __u16 header_sum(const struct iphdr *ip, const void *data_end)
{
	const __u16 *word = (const void *)ip;
	__u32 words = ip->ihl * 2;
	__u32 sum = 0;
	__u32 i;

#pragma unroll
	for (i = 0; i < IPV4_MIN_HEADER / 2; i++)
		sum += word[i];

	if (words > IPV4_MIN_HEADER / 2) {
		for (i = IPV4_MIN_HEADER / 2; i < IPV4_MAX_HEADER / 2; i++) {
			/* The caller knows that the header fits; the verifier cannot follow that
			 * through a variable length.
			 */
			if (i >= words || (const void *)(word + i + 1) > data_end)
				break;
			sum += word[i];
		}
	}
	return csum_fold(sum);
}

/*
 * The checks of RFC 1812, 5.2.2, and that the frame holds the whole packet. Longer frames are fine:
 * Ethernet pads to 60 bytes. The caller has seen to the 20 bytes of the fixed header.
 *
 * Returns the reason to drop the packet, or DROP_REASONS if there is none.
 */
static __always_inline enum drop_reason check_header(const struct iphdr *ip, const void *data_end)
{
	__u64 available = data_end - (const void *)ip;
	__u32 header_length = ip->ihl * 4;
	__u32 total_length = bpf_ntohs(ip->tot_len);

	if (ip->version != 4)
		return DROP_VERSION;
	if (header_length < IPV4_MIN_HEADER || header_length > available)
		return DROP_HEADER_LENGTH;
	if (total_length < header_length || total_length > available)
		return DROP_TOTAL_LENGTH;
	if (header_sum(ip, data_end) != 0xffff)
		return DROP_CHECKSUM;
	return DROP_REASONS;
}

/* 224.0.0.0/4 and 255.255.255.255: never forwarded here, but the host may listen. */
static __always_inline int is_multicast_or_broadcast(__be32 addr)
{
	return (addr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || addr == bpf_htonl(0xffffffff);
}

/* 0.0.0.0/8, 127.0.0.0/8 and 240.0.0.0/4: invalid as source and as destination (RFC 1812, 5.3.7). */
static __always_inline int is_martian(__be32 addr)
{
	__be32 network = addr & bpf_htonl(0xff000000);

	return network == 0 || network == bpf_htonl(0x7f000000) ||
	       (addr & bpf_htonl(0xf0000000)) == bpf_htonl(0xf0000000);
}

/* RFC 1624, equation 3; TTL and protocol share a 16-bit word of the checksum. */
static __always_inline void decrement_ttl(struct iphdr *ip)
{
	const __u16 *word = (const void *)&ip->ttl;
	__u16 before = *word;
	__u32 sum;

	ip->ttl--;
	sum = (__u32)(__u16)~ip->check + (__u16)~before + *word;
	ip->check = ~csum_fold(sum);
}

SEC("xdp")
int router(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct vlan_hdr *vlan = (void *)(eth + 1);
	struct iphdr *ip = (void *)(eth + 1);
	struct route_key destination;
	struct neighbour *neighbour;
	enum drop_reason reason;
	struct route *route;
	__u32 tagged = 0;
	struct port *port;
	__be32 next_hop;
	__be16 proto;

	if ((void *)(eth + 1) > data_end)
		return drop(DROP_TRUNCATED);
	proto = eth->h_proto;

	if (proto == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(vlan + 1) > data_end)
			return drop(DROP_TRUNCATED);
		proto = vlan->encapsulated_proto;
		ip = (void *)(vlan + 1);
		tagged = 1;
	}

	/* What came as a link-layer broadcast must not be forwarded (RFC 1812, 5.3.4). */
	if (proto != bpf_htons(ETH_P_IP) || (eth->h_dest[0] & 1))
		return XDP_PASS;

	if ((void *)(ip + 1) > data_end)
		return drop(DROP_TRUNCATED);
	reason = check_header(ip, data_end);
	if (reason != DROP_REASONS)
		return drop(reason);

	/* Options such as record route or source route change the packet on its way and ask for a
	 * router's own address; they are rare, and the stack knows them all.
	 */
	if (ip->ihl * 4 > IPV4_MIN_HEADER)
		return XDP_PASS;

	/* Before the martians: a DHCP client broadcasts from 0.0.0.0. */
	if (is_multicast_or_broadcast(ip->daddr))
		return XDP_PASS;
	if (is_martian(ip->daddr) || is_martian(ip->saddr) || is_multicast_or_broadcast(ip->saddr))
		return drop(DROP_MARTIAN);

	if (bpf_map_lookup_elem(&local_addrs, &ip->daddr))
		return XDP_PASS;
	/* ICMP time exceeded. */
	if (ip->ttl <= 1)
		return XDP_PASS;

	destination.prefixlen = 32;
	destination.addr = ip->daddr;
	route = bpf_map_lookup_elem(&routes, &destination);
	/* ICMP network unreachable. */
	if (!route)
		return XDP_PASS;

	port = bpf_map_lookup_elem(&ports, &route->port);
	if (!port || !(port->flags & PORT_UP))
		return XDP_PASS;
	/* Fragments, or ICMP fragmentation needed. */
	if (bpf_ntohs(ip->tot_len) > port->mtu)
		return XDP_PASS;
	/* From VLAN to VLAN the tag is rewritten in place. To add or to remove one would move the
	 * headers, which is left to the stack.
	 */
	if (tagged != (port->vlan_id != 0))
		return XDP_PASS;

	next_hop = route->next_hop ? route->next_hop : ip->daddr;
	neighbour = bpf_map_lookup_elem(&neighbours, &next_hop);
	/* The stack resolves it. */
	if (!neighbour || neighbour->state != NEIGHBOUR_REACHABLE)
		return XDP_PASS;

	decrement_ttl(ip);
	__builtin_memcpy(eth->h_dest, neighbour->mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, port->mac, ETH_ALEN);
	if (tagged)
		vlan->tci = (vlan->tci & ~bpf_htons(VLAN_VID_MASK)) | bpf_htons(port->vlan_id);

	count_tx(port->tx_index, data_end - data);
	if (port->flags & PORT_SAME_DEV)
		return XDP_TX;
	return bpf_redirect_map(&tx_ports, port->tx_index, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
