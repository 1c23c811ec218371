// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// The data plane's programs. A packet is dropped, forwarded past the host's stack, passed to the
// stack with a mark (the last hop passes it then), or ignored if it does not belong to the
// overlay.

#include "error.h"

static __always_inline struct settings *settings(void)
{
	struct settings *s = bpf_map_lookup_elem(&tl_settings, &(__u32){0});

	return s && s->layout == LAYOUT ? s : NULL;
}

// beside reports whether the host reaches an address without a gateway.
static __always_inline int beside(struct __sk_buff *skb, __u8 family, const __be32 *a, __u32 *device)
{
	struct bpf_fib_lookup fib = {.ifindex = skb->ifindex, .family = family};
	long r;

	if (family == AF_INET)
		fib.ipv4_dst = a[3];
	else
		__builtin_memcpy(fib.ipv6_dst, a, 16);
	r = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	*device = fib.ifindex;
	if (r == BPF_FIB_LKUP_RET_NOT_FWDED) // the host itself, multicast
		return 1;
	if (r != BPF_FIB_LKUP_RET_SUCCESS && r != BPF_FIB_LKUP_RET_NO_NEIGH)
		return 0;
	if (family == AF_INET)
		return fib.family == AF_INET && fib.ipv4_dst == a[3];
	return fib.ipv6_dst[0] == a[0] && fib.ipv6_dst[1] == a[1] && fib.ipv6_dst[2] == a[2] && fib.ipv6_dst[3] == a[3];
}

// outside sets the mark that says what nftables does with a packet to an address outside the
// ranges.
__noinline int outside(struct __sk_buff *skb, const struct packet *p)
{
	// Unused addresses (RFC 5737, RFC 6666): they take the default route.
	const __be32 else4[4] = {0, 0, 0, bpf_htonl(0xc0000201)}, else6[4] = {bpf_htonl(0x01000000), 0, 0, bpf_htonl(1)};
	__u8 family;
	struct network to = {.len = 128};
	__u32 device, other;

	if (!p)
		return TC_DROP;
	family = p->t.family == 4 ? AF_INET : AF_INET6;
	if (family == AF_INET) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, daddr), &to.address[3], 4))
			return TC_DROP;
		to.address[2] = bpf_htonl(0xffff);
	} else if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, daddr), to.address, 16)) {
		return TC_DROP;
	}
	skb->mark = MARK_OUT;
	if (bpf_map_lookup_elem(&tl_open, &to))
		return TC_NEXT;
	// An address behind a default route of a point-to-point device is no neighbour.
	if (bpf_map_lookup_elem(&tl_closed, &to) ||
	    (beside(skb, family, to.address, &device) &&
	     !(beside(skb, family, family == AF_INET ? else4 : else6, &other) && device == other)))
		skb->mark = MARK_CLOSED;
	return TC_NEXT;
}

// leave handles packets from containers: ingress of the host's ends of their veth pairs.
SEC("tc")
int tl_leave(struct __sk_buff *skb)
{
	struct settings *s = settings();
	struct packet p = {.where = LEAVE, .in = skb->ifindex};
	__be32 *own;

	if (!s)
		return TC_DROP;
	switch (parse(skb, s, ETH_HLEN, &p)) {
	case BAD:
		return TC_DROP;
	case OTHER:
		return TC_NEXT;
	}
	if (p.t.dst && !p.error)
		return p.t.src ? pass(skb, s, &p, ETH_HLEN, LEAVE) : forged();
	own = bpf_map_lookup_elem(&tl_devices, &(__u32){skb->ifindex});
	if (!own || *own != p.t.src) {
		if (!p.local)
			return forged();
		skb->mark = MARK_CLOSED;
		return TC_NEXT;
	}
	return p.t.dst ? error(skb, s, &p) : outside(skb, &p);
}

// arrive handles unencrypted packets from peers: ingress of the host's devices and of VXLAN.
// Packets that are not for a container of this node continue.
SEC("tc")
int tl_arrive(struct __sk_buff *skb)
{
	struct settings *s = settings();
	struct packet p = {.where = ARRIVE, .in = skb->ifindex};

	if (!s || parse(skb, s, ETH_HLEN, &p) != IP || !p.t.dst || !p.t.src || p.error)
		return TC_NEXT;
	return p.fragment ? piece(skb, s, &p) : pass(skb, s, &p, ETH_HLEN, ARRIVE);
}

// last handles packets to containers that come through the host's stack: egress of the host's ends
// of their veth pairs. Every packet to a container passes it or one of the other programs.
SEC("tc")
int tl_last(struct __sk_buff *skb)
{
	struct settings *s = settings();
	struct packet p = {.where = LAST, .in = skb->ingress_ifindex};

	if (!s)
		return TC_DROP;
	if (skb->mark == MARK_CAME) {
		skb->mark = 0;
		p.came = 1;
	}
	if (skb->mark == MARK_DONE) {
		skb->mark = 0;
		return TC_NEXT;
	}
	switch (parse(skb, s, ETH_HLEN, &p)) {
	case BAD:
		return TC_DROP;
	case OTHER:
		return TC_NEXT;
	}
	if (!p.t.dst)
		return TC_NEXT;
	if (p.error)
		return error(skb, s, &p);
	// From the host itself, or from the outside as far as nftables accepts it.
	if (!skb->ingress_ifindex || !p.t.src)
		return TC_NEXT;
	return pass(skb, s, &p, ETH_HLEN, LAST);
}

// held handles packets from the netmanager: ingress of the packet queue's and the tunnel's device,
// which have no link layer. Packets to a container of this node are left to last.
SEC("tc")
int tl_held(struct __sk_buff *skb)
{
	struct settings *s = settings();
	struct packet p = {.where = HELD, .in = skb->ifindex};

	if (!s || parse(skb, s, 0, &p) != IP || !p.t.dst || !p.t.src || p.error ||
	    (!is_service(s, p.t.dst) && !bpf_map_lookup_elem(&tl_endpoints, &p.t.src)))
		return TC_NEXT;
	return pass(skb, s, &p, 0, HELD);
}

// over ends the flow in a place if it goes to an address of tl_ending. If its client is on this
// node, it writes the client's reset into the packet at off. It returns the offset of the next
// reset.
__noinline __u32 over(struct __sk_buff *skb, const struct settings *s, __u32 at, __u32 off)
{
	struct flow *f = of(at);
	struct reset reset;
	struct half *calls;
	__u32 claim, *each;
	int tcp;

	if (!s || !f)
		return off;
	claim = f->claim;
	calls = &f->half[CALLS];
	tcp = f->name.proto == IPPROTO_TCP;
	each = bpf_map_lookup_elem(&tl_ending, &calls->dst);
	if (!each || !(claim & READY) || (!*each && !(tcp && !calls->ack)))
		return off;
	reset = (struct reset){f->name, calls->ack};
	// A client without an answer repeats its request by itself.
	if (tcp && reset.ack && !(calls->flags & FLOW_CLOSED) && bpf_map_lookup_elem(&tl_endpoints, &reset.flow.src) &&
	    !bpf_skb_store_bytes(skb, off, &reset, sizeof(reset), 0))
		off += sizeof(reset);
	forget(s, at, claim);
	return off;
}

// end is run by the netmanager with a packet: an Ethernet header, the first place to examine, a
// 0 that becomes the end of the resets, and space for resets. It returns the place at which the
// next run continues.
SEC("tc")
int tl_end(struct __sk_buff *skb)
{
	struct settings *s = settings();
	const __u32 first = ETH_HLEN + 8, end = first + RESETS * sizeof(struct reset);
	__u32 at, off = first;

	if (!s || bpf_skb_load_bytes(skb, ETH_HLEN, &at, sizeof(at)))
		return -1;
	for (__u32 i = 0; i < ENDS && off < end; i++, at++) {
		struct flow *f = of(at);

		if (!f)
			break;
		if (f->claim)
			off = over(skb, s, at, off);
	}
	bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(at), &off, sizeof(off), 0);
	return at;
}

char _license[] SEC("license") = "Dual BSD/GPL";
