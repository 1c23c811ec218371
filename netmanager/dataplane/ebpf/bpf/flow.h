// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// Flows: how they begin, what they depend on, and how they end.
#pragma once

#include "table.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

#define TC_REDIRECT 7
#define GO 1000 // no verdict yet

#define CHECKED TICKS(1) // after that, the next packet checks again what its flow depends on

// The packet queue is shared: an endpoint may queue HOLDS packets in an interval of STRETCH ticks.
#define HOLDS 256
#define STRETCH (TICKS(1) / 8)

static __always_inline int denied(void)
{
	struct counts *c = bpf_map_lookup_elem(&tl_counts, &(__u32){0});

	if (c)
		c->denied++;
	return TC_DROP;
}

static __always_inline int forged(void)
{
	struct counts *c = bpf_map_lookup_elem(&tl_counts, &(__u32){0});

	if (c)
		c->forged++;
	return TC_DROP;
}

// hold sends the packet to the packet queue, unless it comes from there or its endpoint has
// queued too many.
static __always_inline int hold(const struct settings *s, __u32 in, struct endpoint *from)
{
	__u32 now = ticks();

	if (in == s->hold || !s->hold)
		return TC_DROP;
	if (from && now - from->since >= STRETCH)
		from->since = now, from->held = 0;
	if (from && from->held++ >= HOLDS)
		return TC_DROP;
	return bpf_redirect(s->hold, 0);
}

static __always_inline int may(__u32 from, __u32 to)
{
	struct pair pair = {from, to};

	return bpf_map_lookup_elem(&tl_allowed, &pair) != NULL;
}

// remote returns the ident of the remote instance with address a, 0 if it is unknown.
static __always_inline __u32 remote(__be32 a)
{
	struct remote *r = bpf_map_lookup_elem(&tl_sources, &a);

	if (!r)
		r = bpf_map_lookup_elem(&tl_backends, &a);
	return r ? r->ident : 0;
}

// full writes the IPv6 twin of a.
static __always_inline void full(const struct settings *s, __be32 a, __be32 *to)
{
	const __be32 *prefix = is_instance(s, a) ? s->instances6 : s->services6;

	to[0] = prefix[0], to[1] = prefix[1], to[2] = prefix[2], to[3] = a;
}

#define barrier() asm volatile("" ::: "memory")

static __always_inline int connected(const struct tuple *t)
{
	return t->proto == IPPROTO_TCP || t->proto == PROTO_SCTP;
}

static __always_inline struct peer *peer_of(__be32 a)
{
	struct prefix key = {32, a};

	return bpf_map_lookup_elem(&tl_peers, &key);
}

// came_by reports whether packets of the peer may arrive by the device.
static __always_inline int came_by(struct __sk_buff *skb, const struct settings *s, const struct peer *peer,
				   const struct packet *p)
{
	__u32 in = p->in;

	if (in == s->tunnel || p->came)
		return 1;
	if (in == s->vxlan) {
		struct bpf_tunnel_key key = {};

		// The outer header is known only at the device that received the packet.
		if (!(peer->path & PATH_VXLAN) || p->where != ARRIVE)
			return 0;
		if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), peer->family == AF_INET6 ? BPF_F_TUNINFO_IPV6 : 0))
			return 0;
		if (peer->family == AF_INET)
			return bpf_htonl(key.remote_ipv4) == peer->via[0];
		return key.remote_ipv6[0] == peer->via[0] && key.remote_ipv6[1] == peer->via[1] &&
		       key.remote_ipv6[2] == peer->via[2] && key.remote_ipv6[3] == peer->via[3];
	}
	if (peer->path & PATH_ROUTE) {
		struct traffic *known = bpf_map_lookup_elem(&tl_traffic, &peer->id);
		struct bpf_fib_lookup fib = {.family = peer->family, .ifindex = in};
		__u32 now = ticks();
		long r;

		if (known && known->in == in && known->gen == s->gen && now - known->checked < CHECKED)
			return 1;
		__builtin_memcpy(fib.ipv6_dst, peer->via, sizeof(fib.ipv6_dst));
		r = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
		if ((r != BPF_FIB_LKUP_RET_SUCCESS && r != BPF_FIB_LKUP_RET_NO_NEIGH) || fib.ifindex != in)
			return 0;
		if (known)
			known->in = in, known->gen = s->gen, known->checked = now;
		return 1;
	}
	return 0;
}

// route finds the next hop of a flow to a peer on a plain route.
static __always_inline void route(struct __sk_buff *skb, const struct settings *s, struct half *f, int family, __u32 in)
{
	struct bpf_fib_lookup fib = {.ifindex = in}, largest;
	__u16 mtu = 0;
	long r;

	if (family == 4) {
		fib.family = AF_INET;
		fib.ipv4_src = f->src;
		fib.ipv4_dst = f->dst;
	} else {
		fib.family = AF_INET6;
		full(s, f->src, fib.ipv6_src);
		full(s, f->dst, fib.ipv6_dst);
	}
	// For a packet that fits every path the look-up returns the next hop, if the neighbour
	// is known, and the MTU; for one that is too large the MTU alone.
	largest = fib;
	largest.tot_len = 65535;
	fib.tot_len = 1;
	r = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (r == BPF_FIB_LKUP_RET_SUCCESS)
		mtu = fib.mtu_result;
	else if (r == BPF_FIB_LKUP_RET_NO_NEIGH &&
		 bpf_fib_lookup(skb, &largest, sizeof(largest), 0) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		mtu = largest.mtu_result;
	if (mtu && (!f->mtu || mtu < f->mtu))
		f->mtu = mtu;
	if ((r != BPF_FIB_LKUP_RET_SUCCESS && r != BPF_FIB_LKUP_RET_NO_NEIGH) || fib.ifindex == s->tunnel ||
	    fib.ifindex == s->hold)
		return;
	f->hop_family = fib.family;
	__builtin_memcpy(f->hop, fib.ipv6_dst, sizeof(f->hop));
	f->out = fib.ifindex;
	f->how = HOW_NEIGH;
}

// check checks what one direction of a flow depends on: where its packets come from, whether
// policy allows the flow, and where its packets go. It returns GO if the flow may go on.
__noinline int check(struct __sk_buff *skb, const struct settings *s, const struct packet *p, struct flow *flow, __u32 side)
{
	__u32 caller, in, where;
	struct endpoint *from, *to, *here;
	const struct tuple *t;
	struct half *f;
	struct peer *peer;

	if (!s || !p || !flow)
		return TC_DROP;
	t = &p->t;
	f = &flow->half[side & 1];
	in = p->in, where = p->where;
	from = bpf_map_lookup_elem(&tl_endpoints, &t->src);
	to = bpf_map_lookup_elem(&tl_endpoints, &f->dst);
	f->peer = 0;
	f->flags &= ~FLOW_OUT;
	f->mtu = 0;
	if (from) {
		if (in != from->ifindex && in != s->hold)
			return forged();
	} else if (in != s->hold) {
		struct remote *source = bpf_map_lookup_elem(&tl_sources, &t->src);

		peer = peer_of(t->src);
		if (!peer || !came_by(skb, s, peer, p))
			return forged();
		if (in != s->tunnel)
			f->peer = peer->id + 1;
		if (source)
			__sync_fetch_and_add(&source->used, 1);
	}
	// The present owner of an address counts, or the former one if there is none: dropping
	// a record ends no flows.
	if (side == ANSWERS)
		caller = to ? to->ident : remote(f->dst), here = from;
	else
		caller = from ? from->ident : remote(t->src), here = to;
	if (caller)
		flow->from = caller;
	if (here && here->ident != flow->to && !may(flow->from, here->ident))
		return denied();
	if (!may(flow->from, flow->to))
		return denied();
	f->how = HOW_STACK;
	if (to) {
		f->out = to->ifindex;
		if (!to->queued)
			f->how = HOW_PEER;
	} else {
		peer = peer_of(f->dst);
		if (peer && peer->send != PATH_TUNNEL) {
			f->peer = peer->id + 1;
			f->flags |= FLOW_OUT;
			f->mtu = peer->mtu;
			if (where == LEAVE && peer->send == PATH_ROUTE) {
				route(skb, s, f, t->family, in);
			} else if (where == LEAVE && peer->family == AF_INET && s->vxlan) {
				f->how = HOW_VXLAN;
				f->out = s->vxlan;
				f->hop[0] = peer->via[0];
			}
		}
	}
	f->in = in == s->hold ? 0 : in;
	f->gen = s->gen;
	f->checked = ticks();
	return GO;
}

// lives reports whether the packet belongs to the flow; otherwise the flow has ended.
static __always_inline int lives(const struct settings *s, const struct packet *p, const struct flow *f, __u32 side, __u32 now)
{
	int both = f->half[CALLS].seen && f->half[ANSWERS].seen;

	if (connected(&p->t))
		return !p->begins || side == ANSWERS || f->isn == p->isn;
	return idle(f, now) < (both ? s->answered : s->unanswered);
}

// ended records the end of a connection, so that its place can be reused.
static __always_inline void ended(const struct packet *p, struct flow *f, __u32 side)
{
	__u8 closed = p->ends == 2 ? FLOW_CLOSED | FLOW_RESET : FLOW_CLOSED;
	struct half *from = &f->half[side & 1], *to = &f->half[~side & 1];

	if (from->flags & FLOW_CLOSED)
		return;
	from->flags |= FLOW_FIN;
	if (p->ends != 2 && !(to->flags & FLOW_FIN))
		return;
	from->flags |= closed;
	to->flags |= closed;
}

// choose takes the service's next backend. It returns GO or a verdict.
static __always_inline int choose(struct service *svc, __be32 *backend)
{
	struct slot slot = {.set = svc->set};
	__u32 slots = svc->slots;
	struct remote *r;
	__be32 *a;

	if (!slots)
		return TC_DROP;
	slot.index = __sync_fetch_and_add(&svc->turn, 1) % slots;
	a = bpf_map_lookup_elem(&tl_slots, &slot);
	if (!a) // the set was just replaced; the sender will repeat the packet
		return TC_DROP;
	*backend = *a;
	r = bpf_map_lookup_elem(&tl_backends, backend);
	if (r)
		__sync_fetch_and_add(&r->used, 1);
	return GO;
}

// admit gives a new flow, which begin and check have filled in, a place, and adds the tuples of
// both directions to the index. old is the slot of a flow with the same tuple that has ended,
// or 0. If another flow already has the tuple towards the backend, this one gets another
// source port there.
__noinline int admit(const struct settings *s, const struct packet *p, struct flow *new, __u32 old)
{
	const struct tuple *t;
	struct half *calls, *answers;
	__u32 at, other, claim;
	struct tuple key;
	struct flow *f;

	if (!s || !p || !new)
		return TC_DROP;
	t = &p->t;
	calls = &new->half[CALLS];
	f = of(AT(old));
	if (old && f) {
		claim = f->claim;
		if (named(f, SIDE(old), t)) // otherwise another flow has the place by now
			forget(s, AT(old), claim);
	}
	for (int i = 0; i < 8; i++) {
		key = (struct tuple){calls->dst, calls->src, calls->dport, calls->sport, t->proto, t->family, 0};
		other = find(s, &key);
		if (!other)
			goto unique;
		f = of(AT(other));
		if (f && (f->half[CALLS].flags & FLOW_CLOSED || same(&f->name, t))) {
			forget(s, AT(other), f->claim);
			goto unique;
		}
		if (!calls->sport || (t->proto != IPPROTO_TCP && !checksum(t->proto)))
			break;
		calls->sport = (__be16)bpf_get_prandom_u32() | bpf_htons(0x8000);
	}
	return TC_DROP;
unique:
	at = place(s, t->src, BRIEF);
	f = of(at);
	if (!f)
		return TC_DROP;
	f->name = *t, f->from = new->from, f->to = new->to, f->isn = new->isn;
	f->half[CALLS] = *calls;
	answers = &f->half[ANSWERS];
	__builtin_memset(answers, 0, sizeof(*answers));
	answers->src = t->dst, answers->dst = t->src, answers->sport = t->dport, answers->dport = t->sport;
	if (enter(s, &key, slot(0, at, ANSWERS)))
		goto none;
	if (enter(s, t, slot(0, at, CALLS))) {
		swap(s, &key, slot(0, at, ANSWERS), 0);
		goto none;
	}
	ready(f); // only now: a processor that claims the place must find the flow in the index
	return GO;
none:
	f->claim = 0;
	return TC_DROP;
}

// begin decides about a packet that belongs to no flow, and fills in the new flow. It returns GO
// if the flow is to be checked and admitted, or a verdict.
__noinline int begin(struct __sk_buff *skb, const struct settings *s, const struct packet *p, struct flow *new)
{
	__u32 in, where;
	const struct tuple *t;
	struct half *f;
	struct service *svc;
	struct endpoint *from, *to;
	int r;

	if (!s || !p || !new)
		return TC_DROP;
	t = &p->t;
	in = p->in, where = p->where;
	f = &new->half[CALLS];
	*f = (struct half){.src = t->src, .dst = t->dst, .sport = t->sport, .dport = t->dport};
	new->isn = p->begins ? p->isn : 0;
	from = bpf_map_lookup_elem(&tl_endpoints, &t->src);
	if (from) {
		if (in != from->ifindex && in != s->hold)
			return forged();
		new->from = from->ident;
	} else {
		if (where == LEAVE)
			return forged();
		if (is_service(s, t->dst)) // the peer itself chooses a backend
			return in == s->hold ? TC_DROP : forged();
		if (!bpf_map_lookup_elem(&tl_endpoints, &t->dst))
			return TC_NEXT;
		new->from = remote(t->src);
		if (!new->from) {
			struct peer *peer = peer_of(t->src);

			return in == s->hold || (peer && came_by(skb, s, peer, p)) ? hold(s, in, NULL) : forged();
		}
	}
	if (!is_service(s, t->dst)) {
		to = bpf_map_lookup_elem(&tl_endpoints, &t->dst);
		new->to = to ? to->ident : remote(t->dst);
		return new->to ? GO : hold(s, in, from);
	}
	svc = bpf_map_lookup_elem(&tl_services, &t->dst);
	if (!svc)
		return hold(s, in, from);
	new->to = svc->ident;
	if (!may(new->from, new->to))
		return denied();
	if (!svc->slots) {
		skb->mark = MARK_REFUSE;
		return TC_NEXT;
	}
	r = choose(svc, &f->dst);
	if (f->dst == t->src) // an instance that is its own backend drops packets from its own address
		f->src = t->dst;
	return r;
}

// emit sends the packet as the direction of its flow says.
__noinline int emit(struct __sk_buff *skb, const struct packet *p, const struct half *f, __u32 how, __u32 out)
{
	__u32 l2, where, len;

	if (!p || !f)
		return TC_DROP;
	where = p->where;
	l2 = where == HELD ? 0 : ETH_HLEN;
	if (where == LAST)
		return TC_NEXT;
	if (how == HOW_PEER && where != HELD)
		return bpf_redirect_peer(out, 0);
	len = skb->gso_size ? p->l4 - l2 + p->l4len + skb->gso_size : skb->len - l2;
	// All fragments go through the stack, because only the stack can reassemble them. The
	// stack also answers packets that are too large.
	if (where == LEAVE && !p->fragment && (how == HOW_NEIGH || how == HOW_VXLAN) && (!f->mtu || len <= f->mtu)) {
		struct bpf_redir_neigh hop = {};

		if (how == HOW_VXLAN) {
			struct bpf_tunnel_key key = {.tunnel_id = 1, .remote_ipv4 = bpf_ntohl(f->hop[0]), .tunnel_ttl = 64};

			if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), BPF_F_ZERO_CSUM_TX))
				return TC_DROP;
			hop.nh_family = AF_INET6;
			hop.ipv6_nh[0] = bpf_htonl(0xfe800000);
			hop.ipv6_nh[3] = f->hop[0];
		} else {
			hop.nh_family = f->hop_family;
			__builtin_memcpy(hop.ipv6_nh, f->hop, sizeof(hop.ipv6_nh));
		}
		return bpf_redirect_neigh(out, &hop, sizeof(hop), 0);
	}
	skb->mark = MARK_DONE;
	return TC_NEXT;
}

// pass handles a packet from and to addresses of the ranges.
static __always_inline int pass(struct __sk_buff *skb, const struct settings *s, const struct packet *p, int l2,
				enum where where)
{
	__u32 found = find(s, &p->t), side = SIDE(found), in = p->in, now = ticks();
	struct flow *flow = found ? of(AT(found)) : NULL;
	__u32 how, out;
	struct half *f;
	struct tuple to;
	int r = GO;

	if (!flow || !lives(s, p, flow, side, now)) {
		flow = bpf_map_lookup_elem(&tl_new, &(__u32){0});
		side = CALLS;
		if (!flow)
			return TC_DROP;
		f = &flow->half[CALLS];
		r = begin(skb, s, p, flow);
		if (r == GO)
			r = check(skb, s, p, flow, CALLS);
		if (r != GO)
			return r;
		f->seen = now;
		f->ack = p->ack;
		if (p->ends)
			f->flags |= p->ends == 2 ? FLOW_FIN | FLOW_CLOSED | FLOW_RESET : FLOW_FIN;
		r = admit(s, p, flow, found);
		found = 0;
	} else {
		f = &flow->half[side];
		if (f->in != in || f->gen != s->gen || now - f->checked >= CHECKED)
			r = check(skb, s, p, flow, side);
		if (r == GO && side == ANSWERS && AT(found) < s->places && p->ends != 2) {
			flow = of(settle(s, AT(found), connected(&p->t) ? CONNECTION : TALK));
			if (!flow)
				return TC_DROP;
			f = &flow->half[side];
		}
		if (r == GO) {
			f->seen = now;
			if (p->ack)
				f->ack = p->ack;
			if (p->ends)
				ended(p, flow, side);
		}
	}
	if (r != GO)
		return r;
	if (f->peer) {
		struct traffic *traffic = bpf_map_lookup_elem(&tl_traffic, &(__u32){f->peer - 1});

		if (traffic && f->flags & FLOW_OUT)
			traffic->to += skb->len - l2;
		else if (traffic)
			traffic->from += skb->len - l2;
	}
	to = (struct tuple){f->src, f->dst, f->sport, f->dport, 0, 0, 0};
	how = f->how, out = f->out;
	barrier();
	if (found && !named(flow, side, &p->t)) // another flow has just got the place
		return TC_DROP;
	if (rewrite(skb, s, l2, p, &to))
		return TC_DROP;
	return emit(skb, p, f, how, out);
}

// piece checks by which path a fragment arrived and leaves the rest to the last hop: the stack
// reassembles it with fragments that arrive by other paths, or late.
__noinline int piece(struct __sk_buff *skb, const struct settings *s, const struct packet *p)
{
	struct peer *peer;

	if (!s || !p)
		return TC_DROP;
	peer = peer_of(p->t.src);
	if (!bpf_map_lookup_elem(&tl_endpoints, &p->t.dst))
		return TC_NEXT;
	if (!peer || !came_by(skb, s, peer, p))
		return forged();
	skb->mark = MARK_CAME;
	return TC_NEXT;
}
