// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// What the programs and the netmanager have in common. Addresses and ports are
// in network byte order. An IPv6 twin is known by the IPv4 address in its low
// 32 bits, so that both families have the same maps.
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

// LAYOUT is raised when a map's meaning changes without its size: maps of
// another layout are not adopted.
#define LAYOUT 5

// Marks of packets on their way through the host's stack.
#define MARK_DONE 0x74720001   // a program has dealt with it; the last hop lets it pass
#define MARK_REFUSE 0x74720002 // nftables answers it with a reset or unreachable
#define MARK_OUT 0x74720003    // from a container to the outside; nftables masquerades it
#define MARK_CLOSED 0x74720004 // the same, to a closed network; nftables drops it, but for answers and the resolver
#define MARK_CAME 0x74720005   // a fragment that came by its peer's way; the last hop judges the rest

struct settings {
	__u32 layout;
	char prefix[12]; // of the plane's names: whose the programs and maps are
	__u64 seed[5];	 // of the hash of tuples: random, and nobody else's
	__u32 gen;	 // raised by every change: flows look again at what they rest on
	__be32 instances, instances_mask;
	__be32 services, services_mask;
	__be32 instances6[3]; // the first 96 bits of twins
	__be32 services6[3];
	__u32 hold, tunnel, vxlan; // devices; 0: there is none
	__u32 places;		   // flows of a kind, a power of two
	__u32 share;		   // of them, that one address may have opened
	__u32 unanswered, answered; // ticks after which a flow without connection ends
};

struct endpoint {
	__u32 ident;
	__u32 ifindex; // the host's end of the veth pair
	__u32 queued;  // 1: it has a queueing discipline, which short cuts would go round
	__u32 held, since; // packets given to the netmanager in a stretch, and when that began, in ticks
};

struct service {
	__u32 ident;
	__u32 set;   // of slots
	__u32 slots; // how many the set has; 0: refuse
	__u32 _pad;
	__u64 turn; // new flows so far
};

struct slot {
	__u32 set;
	__u32 index;
};

// A remote instance: as a backend, or as a source.
struct remote {
	__u32 ident;
	__u32 _pad;
	__u64 used; // backend: new flows; source: new flows and seconds with packets
};

struct pair {
	__u32 from, to;
};

// Ways to and from peers; bits, where several may be taken.
enum way { PATH_TUNNEL, PATH_ROUTE = 1, PATH_VXLAN = 2 };

struct prefix {
	__u32 len;
	__be32 address;
};

struct network {
	__u32 len;
	__be32 address[4]; // IPv4 as ::ffff:0:0/96
};

struct peer {
	__u32 id;   // index of its traffic
	__u32 path; // ways that its packets may come by, beside the tunnel
	__u32 send; // enum way, that packets to it go by
	__u32 mtu;  // of inner packets, 0: the route's
	__be32 via[4];
	__u32 family; // of via
};

struct traffic {
	__u64 to, from; // bytes
	// The device that its packets may come by, as found under settings' gen and
	// when, in ticks.
	__u32 in, gen, checked, _pad;
};

struct counts {
	__u64 denied, forged; // packets
};

// A packet's place among flows. For ICMP echo, the identifier is the port of
// the side that asks.
struct tuple {
	__be32 src, dst;
	__be16 sport, dport;
	__u8 proto;
	__u8 family; // 4 or 6
	__u16 _pad;
};

enum how {
	HOW_STACK, // the host's stack forwards it
	HOW_PEER,  // into the container, past the host's stack
	HOW_NEIGH, // out to a neighbour, past the host's stack
	HOW_VXLAN, // the same, within VXLAN
};

enum flow_flags {
	FLOW_FIN = 1,	 // a FIN was seen in this direction
	FLOW_CLOSED = 2, // both directions have: its place is another's
	FLOW_RESET = 4,	 // closed by a reset
	FLOW_OUT = 8,	 // to a peer; else from one, if peer is not 0
};

// One direction of a flow: what its packets become, and how they travel.
struct half {
	__be32 src, dst;
	__be16 sport, dport;
	__u8 flags;
	__u8 how;
	__u16 mtu;
	__u32 gen;     // of the settings that it was checked under
	__u32 checked; // when, in ticks
	__u32 seen;    // the last packet, in ticks
	__u32 in;      // device that packets come from
	__u32 out;     // device that they go to
	__u32 peer;    // id + 1
	__be32 ack;    // TCP: the last acknowledgement, as a reset needs it
	__be32 hop[4]; // next hop of HOW_NEIGH; the peer of HOW_VXLAN
	__u32 hop_family;
};

enum side { CALLS, ANSWERS };

// A flow, in its place. Packets of its first half come as its name says; those of
// the other are the first one's outcome, turned round.
struct flow {
	struct tuple name;
	__u32 claim; // whoever writes here has set it first; 0: the place is free
	__u32 from, to; // idents
	__be32 isn;	// TCP: first sequence number, SCTP: initiate tag. Another one is another flow
	struct half half[2];
};

// Slots of tuples that have this hash: a tag beside the flow's place and side.
#define SLOTS 16

struct bucket {
	__u32 slot[SLOTS];
};

// What tells a TCP flow's caller that it has ended: its name, and the byte that is expected.
struct reset {
	struct tuple flow;
	__be32 ack;
};

// tl_end looks at so many places at once and has room for so many resets.
#define ENDS 1024
#define RESETS 128

// Flows of three kinds have places of their own, so that many of one push out none of
// another.
enum kind { BRIEF, TALK, CONNECTION };

// Which ports the rest of a fragmented packet belongs to.
struct fragment {
	__be32 src, dst;
	__be32 id;
	__u8 proto;
	__u8 family;
	__u16 _pad;
};

struct ports {
	__be16 sport, dport;
};
