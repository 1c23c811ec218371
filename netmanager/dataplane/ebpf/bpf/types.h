// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// Types that the programs and the netmanager share. Addresses and ports are in network byte
// order. The key of an IPv6 twin is the IPv4 address in its low 32 bits, so that both families
// use the same maps.
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

// LAYOUT is incremented when the meaning of a map changes but not its size: maps of another
// layout are not adopted.
#define LAYOUT 5

// Marks of packets in the host's stack.
#define MARK_DONE 0x74720001   // a program has accepted it; the last hop passes it
#define MARK_REFUSE 0x74720002 // nftables answers with a reset or an ICMP error
#define MARK_OUT 0x74720003    // from a container to the outside; nftables masquerades it
#define MARK_CLOSED 0x74720004 // the same, to a closed network; nftables drops it, except answers and the resolver
#define MARK_CAME 0x74720005   // a fragment whose path was checked; the last hop checks the rest

struct settings {
	__u32 layout;
	char prefix[12]; // of the plane's names: identifies the owner of the programs and maps
	__u64 seed[5];	 // of the hash of tuples: random and secret
	__u32 gen;	 // incremented by every change: flows check again what they depend on
	__be32 instances, instances_mask;
	__be32 services, services_mask;
	__be32 instances6[3]; // the first 96 bits of twins
	__be32 services6[3];
	__u32 hold, tunnel, vxlan; // devices; 0: there is none
	__u32 places;		   // flows of a kind, a power of two
	__u32 share;		   // how many of these one address may have opened
	__u32 unanswered, answered; // ticks after which a silent flow without a connection ends
};

struct endpoint {
	__u32 ident;
	__u32 ifindex; // the host's end of the veth pair
	__u32 queued;  // 1: it has a queueing discipline, which packets past the stack would bypass
	__u32 held, since; // packets queued in the present interval, and its start in ticks
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

// Paths to and from peers; bits, because several may be accepted.
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
	__u32 path; // paths by which its packets may arrive, besides the tunnel
	__u32 send; // the path of packets to it
	__u32 mtu;  // of inner packets, 0: the route's
	__be32 via[4];
	__u32 family; // of via
};

struct traffic {
	__u64 to, from; // bytes
	// The device by which its packets may arrive, the gen of the settings under which it was
	// found, and when, in ticks.
	__u32 in, gen, checked, _pad;
};

struct counts {
	__u64 denied, forged; // packets
};

// The addresses, ports and protocol of a packet. For ICMP echo the identifier is the port of the
// side that sends requests.
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
	FLOW_CLOSED = 2, // both directions have ended: its place may be reused
	FLOW_RESET = 4,	 // closed by a reset
	FLOW_OUT = 8,	 // to a peer; otherwise from one if peer is not 0
};

// One direction of a flow: how its packets are translated and forwarded.
struct half {
	__be32 src, dst;
	__be16 sport, dport;
	__u8 flags;
	__u8 how;
	__u16 mtu;
	__u32 gen;     // of the settings under which it was checked
	__u32 checked; // when it was checked, in ticks
	__u32 seen;    // when the last packet came, in ticks
	__u32 in;      // device that packets come from
	__u32 out;     // device that they go to
	__u32 peer;    // id + 1
	__be32 ack;    // TCP: the last acknowledgement, as a reset needs it
	__be32 hop[4]; // next hop of HOW_NEIGH; the peer of HOW_VXLAN
	__u32 hop_family;
};

enum side { CALLS, ANSWERS };

// A flow. Packets of the first direction have the tuple name; packets of the other have the
// translated tuple of the first, with source and destination exchanged.
struct flow {
	struct tuple name;
	__u32 claim; // set before the flow is written; 0: the place is free
	__u32 from, to; // idents
	__be32 isn;	// TCP: first sequence number, SCTP: initiate tag; another value is another flow
	struct half half[2];
};

// Slots of tuples with this hash: a tag, the flow's place and the direction.
#define SLOTS 16

struct bucket {
	__u32 slot[SLOTS];
};

// A reset for the client of a TCP flow: the flow's tuple, and the sequence number that it expects.
struct reset {
	struct tuple flow;
	__be32 ack;
};

// How many places tl_end examines in one run, and how many resets it can return.
#define ENDS 1024
#define RESETS 128

// Each kind of flow has places of its own, so that many flows of one kind evict none of another.
enum kind { BRIEF, TALK, CONNECTION };

// The key of a fragmented packet's ports.
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
