// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// Reading a packet's tuple and writing another one into it. Packets are not trusted; what does
// not parse is BAD.
#pragma once

#include "maps.h"

#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stddef.h>

#define TC_NEXT -1 // continue with the next program; TCX_NEXT has the same value
#define TC_DROP 2

#define PROTO_FRAGMENT 44
#define PROTO_SCTP 132
#define PROTO_UDPLITE 136

// The UAPI header of the build machine may be older than these.
#define L4_IPV6 (1ULL << 7) // BPF_F_IPV6, since Linux 6.16

enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16 };
enum { SCTP_INIT = 1, SCTP_ABORT = 6, SCTP_SHUTDOWN_COMPLETE = 14 };

enum parsed { BAD = -1, OTHER, IP };

// Which program sees a packet.
enum where {
	LEAVE,	// from a container
	ARRIVE, // from a peer, at the device that received it
	LAST,	// to a container, after the host's stack
	HELD,	// from the packet queue's or the tunnel's device
};

struct packet {
	struct tuple t;	   // src and dst are 0 if they are outside the ranges
	__be32 isn;	   // TCP, SCTP: identifies a connection that begins
	__be32 ack;	   // TCP
	__u32 l4;	   // offset of the transport header
	__u8 l4len;	   // TCP: its length
	__u8 begins, ends; // TCP, SCTP: a connection begins or ends; ends: 1 this direction, 2 both
	__u8 error;	   // an ICMP error
	__u8 fragment;	   // of a larger packet
	__u8 later;	   // a fragment without transport header
	__u8 came;	   // its path was checked where it arrived
	__u8 where;	   // enum where
	__u32 in;	   // the device that received it
	__u8 local;	   // between link-local addresses: neighbour discovery
};

static __always_inline int is_instance(const struct settings *s, __be32 a)
{
	return (a & s->instances_mask) == s->instances;
}

static __always_inline int is_service(const struct settings *s, __be32 a)
{
	return (a & s->services_mask) == s->services;
}

// short4 and short6 return the IPv4 address of an address of the ranges, 0 for others.
static __always_inline __be32 short4(const struct settings *s, __be32 a)
{
	return is_instance(s, a) || is_service(s, a) ? a : 0;
}

static __always_inline __be32 short6(const struct settings *s, const __be32 *a)
{
	if (a[0] == s->instances6[0] && a[1] == s->instances6[1] && a[2] == s->instances6[2])
		return is_instance(s, a[3]) ? a[3] : 0;
	if (a[0] == s->services6[0] && a[1] == s->services6[1] && a[2] == s->services6[2])
		return is_service(s, a[3]) ? a[3] : 0;
	return 0;
}

// transport reads the header after the IP headers, at offset at.
static __always_inline int transport(struct __sk_buff *skb, __u32 at, struct packet *p)
{
	__be32 h[4] = {};

	p->l4 = at;
	switch (p->t.proto) {
	case IPPROTO_TCP: {
		__u8 flags;

		if (bpf_skb_load_bytes(skb, at, h, 16))
			return BAD;
		flags = bpf_ntohl(h[3]) >> 16;
		p->l4len = (bpf_ntohl(h[3]) >> 28) * 4;
		p->ack = flags & TCP_ACK ? h[2] : 0;
		p->begins = (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
		p->isn = h[1];
		p->ends = flags & TCP_RST ? 2 : flags & TCP_FIN ? 1 : 0;
		break;
	}
	case IPPROTO_UDP:
	case PROTO_UDPLITE:
		if (bpf_skb_load_bytes(skb, at, h, 8))
			return BAD;
		p->l4len = 8;
		break;
	case PROTO_SCTP: {
		__u8 chunk;

		if (bpf_skb_load_bytes(skb, at, h, 16))
			return BAD;
		chunk = bpf_ntohl(h[3]) >> 24;
		p->begins = chunk == SCTP_INIT;
		p->ends = chunk == SCTP_ABORT || chunk == SCTP_SHUTDOWN_COMPLETE ? 2 : 0;
		if (p->begins && bpf_skb_load_bytes(skb, at + 16, &p->isn, 4))
			return BAD;
		break;
	}
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6: {
		int v6 = p->t.proto == IPPROTO_ICMPV6;
		__u8 type;
		__be16 id;

		if (bpf_skb_load_bytes(skb, at, h, 8))
			return BAD;
		type = bpf_ntohl(h[0]) >> 24;
		id = bpf_htons(bpf_ntohl(h[1]) >> 16);
		h[0] = 0;
		if (type == (v6 ? 128 : 8))
			p->t.sport = id;
		else if (type == (v6 ? 129 : 0))
			p->t.dport = id;
		else if (v6 ? type < 128 : type == 3 || type == 4 || type == 5 || type == 11 || type == 12)
			p->error = 1;
		return IP;
	}
	default:
		return IP;
	}
	p->t.sport = bpf_htons(bpf_ntohl(h[0]) >> 16);
	p->t.dport = bpf_htons(bpf_ntohl(h[0]));
	return IP;
}

// fragmented gives later fragments the ports of the first one.
static __always_inline int fragmented(struct packet *p, __be32 id, int first)
{
	struct fragment key = {p->t.src, p->t.dst, id, p->t.proto, p->t.family, 0};
	struct ports ports = {p->t.sport, p->t.dport}, *known;

	if (first)
		return bpf_map_update_elem(&tl_fragments, &key, &ports, BPF_ANY) ? BAD : IP;
	known = bpf_map_lookup_elem(&tl_fragments, &key);
	if (!known)
		return BAD;
	p->t.sport = known->sport;
	p->t.dport = known->dport;
	return IP;
}

static __always_inline int parse4(struct __sk_buff *skb, const struct settings *s, int l2, struct packet *p)
{
	struct iphdr *ip = (void *)(long)skb->data + l2;
	__u32 hlen, offset, more;
	__be32 id;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return BAD;
	hlen = ip->ihl * 4;
	if (ip->version != 4 || hlen < sizeof(*ip))
		return BAD;
	p->t.family = 4;
	p->t.proto = ip->protocol;
	p->t.src = short4(s, ip->saddr);
	p->t.dst = short4(s, ip->daddr);
	offset = bpf_ntohs(ip->frag_off) & 0x1fff;
	more = ip->frag_off & bpf_htons(0x2000);
	id = ip->id;
	if (!p->t.dst && !p->t.src)
		return IP;
	p->later = offset != 0;
	p->fragment = offset || more;
	if (p->fragment && p->where == ARRIVE)
		return IP;
	if (!p->later && transport(skb, l2 + hlen, p) == BAD)
		return BAD;
	if (p->fragment)
		return p->t.src && p->t.dst ? fragmented(p, id, !offset) : IP;
	return IP;
}

static __always_inline int parse6(struct __sk_buff *skb, const struct settings *s, int l2, struct packet *p)
{
	struct ipv6hdr *ip = (void *)(long)skb->data + l2;
	__u32 at = l2 + sizeof(*ip);
	int fragment = 0;
	__be32 id = 0;
	__u8 next;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end || ip->version != 6)
		return BAD;
	p->t.family = 6;
	p->t.src = short6(s, ip->saddr.s6_addr32);
	p->t.dst = short6(s, ip->daddr.s6_addr32);
	next = ip->nexthdr;
	// fe80::/10 or :: to fe80::/10 or ff00::/8.
	p->local = ((ip->saddr.s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
		    !(ip->saddr.s6_addr32[0] | ip->saddr.s6_addr32[1] | ip->saddr.s6_addr32[2] | ip->saddr.s6_addr32[3])) &&
		   ((ip->daddr.s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
		    (ip->daddr.s6_addr32[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000));
	if (!p->t.dst && !p->t.src)
		return IP;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u8 h[8];

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS && next != IPPROTO_ROUTING && next != PROTO_FRAGMENT)
			break;
		if (bpf_skb_load_bytes(skb, at, h, 8))
			return BAD;
		if (next == PROTO_FRAGMENT) {
			__u16 offset = h[2] << 8 | h[3];

			if (fragment)
				return BAD;
			fragment = offset & ~7 ? 2 : offset & 1;
			__builtin_memcpy(&id, h + 4, 4);
			at += 8;
		} else {
			at += (h[1] + 1) * 8;
		}
		next = h[0];
		if (fragment == 2)
			break;
	}
	if (fragment != 2 &&
	    (next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS || next == IPPROTO_ROUTING || next == PROTO_FRAGMENT))
		return BAD;
	p->t.proto = next;
	p->later = fragment == 2;
	p->fragment = fragment != 0;
	if (p->fragment && p->where == ARRIVE)
		return IP;
	if (!p->later && transport(skb, at, p) == BAD)
		return BAD;
	if (fragment)
		return p->t.src && p->t.dst ? fragmented(p, id, fragment == 1) : IP;
	return IP;
}

// parse reads the packet whose IP header is at l2.
static __always_inline int parse(struct __sk_buff *skb, const struct settings *s, int l2, struct packet *p)
{
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return OTHER;
	if ((void *)(long)skb->data + l2 + sizeof(struct ipv6hdr) > (void *)(long)skb->data_end) {
		__u32 want = l2 + sizeof(struct ipv6hdr);

		bpf_skb_pull_data(skb, skb->len < want ? skb->len : want);
	}
	return skb->protocol == bpf_htons(ETH_P_IP) ? parse4(skb, s, l2, p) : parse6(skb, s, l2, p);
}

// A difference of checksums, as bpf_l4_csum_replace takes it.
static __always_inline __u32 fold32(__u64 d)
{
	d = (d & 0xffffffff) + (d >> 32);
	return (d & 0xffffffff) + (d >> 32);
}

static __always_inline __u16 fold16(__u32 d)
{
	d = (d & 0xffff) + (d >> 16);
	return (d & 0xffff) + (d >> 16);
}

static __always_inline __u64 differ(__be32 old, __be32 new)
{
	return (__u64)(__u32)~old + new;
}

// addresses writes src and dst, unless they are 0, into the IP header at l2, and returns the
// difference to checksums.
static __always_inline __u32 addresses(struct __sk_buff *skb, const struct settings *s, int l2, int family, __be32 src,
				       __be32 dst)
{
	__u64 d = 0;

	if (family == 4) {
		struct iphdr *ip = (void *)(long)skb->data + l2;

		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return 0;
		src = src ? src : ip->saddr;
		dst = dst ? dst : ip->daddr;
		d = differ(ip->saddr, src) + differ(ip->daddr, dst);
		ip->saddr = src;
		ip->daddr = dst;
		ip->check = ~fold16(fold32((__u64)(__u16)~ip->check + fold32(d)));
	} else {
		struct ipv6hdr *ip = (void *)(long)skb->data + l2;
		__be32 *a;
		const __be32 *prefix;

		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return 0;
		if (src) {
			a = ip->saddr.s6_addr32;
			prefix = is_instance(s, src) ? s->instances6 : s->services6;
			d += differ(a[0], prefix[0]) + differ(a[1], prefix[1]) + differ(a[2], prefix[2]) + differ(a[3], src);
			a[0] = prefix[0], a[1] = prefix[1], a[2] = prefix[2], a[3] = src;
		}
		if (dst) {
			a = ip->daddr.s6_addr32;
			prefix = is_instance(s, dst) ? s->instances6 : s->services6;
			d += differ(a[0], prefix[0]) + differ(a[1], prefix[1]) + differ(a[2], prefix[2]) + differ(a[3], dst);
			a[0] = prefix[0], a[1] = prefix[1], a[2] = prefix[2], a[3] = dst;
		}
	}
	return fold32(d);
}

// checksum returns the offset of a transport's checksum, 0 if there is none that covers addresses
// or ports.
static __always_inline int checksum(int proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return 16;
	case IPPROTO_UDP:
	case PROTO_UDPLITE:
		return 6;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 2;
	}
	return 0;
}

// adjust corrects a transport's checksum for changed addresses.
static __always_inline int adjust(struct __sk_buff *skb, __u32 at, int proto, int family, __u32 d)
{
	__u64 flags = BPF_F_PSEUDO_HDR | (proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);

	if (family == 4)
		return bpf_l4_csum_replace(skb, at, 0, d, flags);
	// A kernel without the flag does not need it, or has the bug that the flag avoids.
	return bpf_l4_csum_replace(skb, at, 0, d, flags | L4_IPV6) ? bpf_l4_csum_replace(skb, at, 0, d, flags) : 0;
}

// port writes one port, or ICMP's identifier.
static __always_inline int port(struct __sk_buff *skb, __u32 at, int sum, __be16 old, __be16 new, __u64 flags)
{
	if (bpf_l4_csum_replace(skb, sum, old, new, flags | 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &new, 2, 0);
}

// rewrite writes the tuple to into the packet. SCTP's ports do not change, because a CRC covers
// them.
static __always_inline int rewrite(struct __sk_buff *skb, const struct settings *s, int l2, const struct packet *p,
				   const struct tuple *to)
{
	const struct tuple *t = &p->t;
	int sum = p->later ? 0 : checksum(t->proto);

	if (t->src != to->src || t->dst != to->dst) {
		__u32 d = addresses(skb, s, l2, t->family, to->src, to->dst);

		if (sum && t->proto != IPPROTO_ICMP && adjust(skb, p->l4 + sum, t->proto, t->family, d))
			return -1;
	}
	if (sum && (t->sport != to->sport || t->dport != to->dport)) {
		__u64 flags = t->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
		int icmp = t->proto == IPPROTO_ICMP || t->proto == IPPROTO_ICMPV6;

		if (t->sport != to->sport &&
		    port(skb, p->l4 + (icmp ? 4 : 0), p->l4 + sum, t->sport, to->sport, flags))
			return -1;
		if (t->dport != to->dport &&
		    port(skb, p->l4 + (icmp ? 4 : 2), p->l4 + sum, t->dport, to->dport, flags))
			return -1;
	}
	return 0;
}
