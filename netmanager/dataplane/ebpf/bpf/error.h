// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// ICMP errors. They contain the beginning of a packet that the flow's other direction has
// rewritten. That rewriting is reverted, so that its sender recognises the packet.
#pragma once

#include "flow.h"

// quoted reads the tuple of the packet that an error is about, with source and destination
// exchanged: a tuple of the direction that the error travels in. at is the offset of that
// packet's IP header. It returns the offset of its transport header, 0 if it has none.
static __always_inline __u32 quoted(struct __sk_buff *skb, const struct settings *s, __u32 at, int family, struct tuple *t)
{
	__be32 h[2] = {};
	__u32 l4;

	t->family = family;
	if (family == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5 ||
		    ip.frag_off & bpf_htons(0x1fff))
			return 0;
		t->src = short4(s, ip.daddr);
		t->dst = short4(s, ip.saddr);
		t->proto = ip.protocol;
		l4 = at + ip.ihl * 4;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 6)
			return 0;
		t->src = short6(s, ip.daddr.s6_addr32);
		t->dst = short6(s, ip.saddr.s6_addr32);
		t->proto = ip.nexthdr;
		l4 = at + sizeof(ip);
		if (ip.nexthdr == PROTO_FRAGMENT) {
			__u8 f[8];

			if (bpf_skb_load_bytes(skb, l4, f, 8) || f[2] || f[3] & ~7)
				return 0;
			t->proto = f[0];
			l4 += 8;
		}
	}
	if (!t->src || !t->dst || bpf_skb_load_bytes(skb, l4, h, 8))
		return 0;
	if (t->proto == IPPROTO_ICMP || t->proto == IPPROTO_ICMPV6) {
		__u8 type = bpf_ntohl(h[0]) >> 24;
		__be16 id = bpf_htons(bpf_ntohl(h[1]) >> 16);

		if (type == (family == 4 ? 8 : 128))
			t->dport = id;
		else
			t->sport = id;
	} else {
		t->dport = bpf_htons(bpf_ntohl(h[0]) >> 16);
		t->sport = bpf_htons(bpf_ntohl(h[0]));
	}
	return l4;
}

// error forwards an ICMP error about a known flow, and drops others.
__noinline int error(struct __sk_buff *skb, const struct settings *s, const struct packet *p)
{
	struct tuple t = {}, to;
	__u32 sum, at, l4, where, found;
	struct flow *flow;
	struct half *f;

	if (!s || !p)
		return TC_DROP;
	where = p->where;
	sum = p->l4 + 2, at = p->l4 + 8;
	l4 = quoted(skb, s, at, p->t.family, &t);
	if (!l4)
		goto none;
	found = find(s, &t);
	flow = of(AT(found));
	if (!found || !flow)
		goto none;
	f = &flow->half[SIDE(found)];
	to = (struct tuple){f->src, f->dst, f->sport, f->dport, t.proto, t.family, 0};
	// The quoted packet is written first: its length does not change.
	if (to.src != t.src || to.dst != t.dst) {
		if (t.family == 4) {
			struct iphdr ip;

			if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
				return TC_DROP;
			ip.check = ~fold16(fold32((__u64)(__u16)~ip.check + fold32(differ(ip.saddr, to.dst) + differ(ip.daddr, to.src))));
			ip.saddr = to.dst;
			ip.daddr = to.src;
			// A header with a correct checksum has the same sum, whatever its content is.
			if (bpf_skb_store_bytes(skb, at, &ip, sizeof(ip), 0))
				return TC_DROP;
		} else {
			__u64 d = 0;

#pragma unroll
			for (int side = 0; side < 2; side++) {
				__be32 old[4], new[4];

				if (bpf_skb_load_bytes(skb, at + 8 + side * 16, old, sizeof(old)))
					return TC_DROP;
				full(s, side ? to.src : to.dst, new);
				d += differ(old[0], new[0]) + differ(old[1], new[1]) + differ(old[2], new[2]) + differ(old[3], new[3]);
				if (bpf_skb_store_bytes(skb, at + 8 + side * 16, new, sizeof(new), 0))
					return TC_DROP;
			}
			if (bpf_l4_csum_replace(skb, sum, 0, fold32(d), 0))
				return TC_DROP;
		}
	}
	if (t.proto == IPPROTO_ICMP || t.proto == IPPROTO_ICMPV6) {
		if (to.sport != t.sport && port(skb, l4 + 4, sum, t.sport, to.sport, 0))
			return TC_DROP;
		if (to.dport != t.dport && port(skb, l4 + 4, sum, t.dport, to.dport, 0))
			return TC_DROP;
	} else {
		if (to.sport != t.sport && port(skb, l4 + 2, sum, t.sport, to.sport, 0))
			return TC_DROP;
		if (to.dport != t.dport && port(skb, l4, sum, t.dport, to.dport, 0))
			return TC_DROP;
	}
	// Then the outer header: an error comes from the other end or from a router.
	{
		__be32 src = p->t.src && p->t.src == t.src ? to.src : 0;
		__be32 dst = p->t.dst == t.dst ? to.dst : 0;
		__u32 d = addresses(skb, s, ETH_HLEN, t.family, src, dst);

		if (t.family == 6 && adjust(skb, sum, IPPROTO_ICMPV6, 6, d))
			return TC_DROP;
	}
	if (where == LEAVE)
		skb->mark = MARK_DONE;
	return TC_NEXT;
none:
	// Errors from the outside are about flows that connection tracking knows.
	return p->t.src || where == LEAVE ? TC_DROP : TC_NEXT;
}
