/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the XDP router and the programs that fill its tables agree on: keys and values of its maps.
 *
 * Addresses are in network byte order, everything else in the host's. There are no hidden padding
 * bytes, so that a value can be compared byte by byte.
 */
#ifndef ROUTER_H
#define ROUTER_H

#include <linux/types.h>

#define MAX_ROUTES (1 << 20)
#define MAX_NEIGHBOURS 16384
#define MAX_LOCAL_ADDRS 1024
#define MAX_PORTS 256

/* Key of `routes` (longest-prefix match). */
struct route_key {
	__u32 prefixlen; /* 0..32 */
	__be32 addr;
};

struct route {
	__be32 next_hop; /* 0: directly connected, the next hop is the destination itself */
	__u32 port;	 /* key of `ports` */
};

/* struct port, flags */
#define PORT_UP (1 << 0)
#define PORT_SAME_DEV (1 << 1) /* the port is the device that packets come in by */

struct port {
	__u32 tx_index; /* slot of `tx_ports` and of `tx_counters` */
	__u8 mac[6];	/* source address of what leaves here */
	__u16 vlan_id;	/* 1..4094, 0: untagged */
	__u16 mtu;	/* longest IP packet, in bytes */
	__u16 flags;
};

/* struct neighbour, state */
#define NEIGHBOUR_INCOMPLETE 0
#define NEIGHBOUR_REACHABLE 1

/* Value of `neighbours`; the key is the neighbour's address, __be32. */
struct neighbour {
	__u8 mac[6];
	__u16 state;
};

/* Value of `tx_counters`. */
struct tx_counter {
	__u64 packets;
	__u64 bytes; /* whole frames, without the frame check sequence */
};

/* Index of `drop_counters`; each value is a __u64 number of packets. */
enum drop_reason {
	DROP_TRUNCATED,	    /* the frame ends inside of a header */
	DROP_VERSION,	    /* EtherType says IPv4, the packet does not */
	DROP_HEADER_LENGTH, /* less than 20 bytes, or more than the frame has */
	DROP_TOTAL_LENGTH,  /* less than the header, or more than the frame has */
	DROP_CHECKSUM,
	DROP_MARTIAN, /* an address that must not be seen on the wire */
	DROP_REASONS,
};

#endif
