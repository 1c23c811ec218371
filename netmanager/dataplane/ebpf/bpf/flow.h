// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// Flows: how they begin, what they rest on, and how they end.
#pragma once

#include "packet.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

#define TC_REDIRECT 7
#define GO 1000 // no verdict yet

// Ticks are 2^20 ns, a little more than a millisecond.
#define TICKS(seconds) ((__u32)((seconds) * 1000000000ULL >> 20))
#define LINGER TICKS(1)	 // late packets of a closed connection find their way
#define RESET (LINGER / 16) // of one that was reset, there are few
#define CHECKED TICKS(1) // after that, a flow looks again at what it rests on

static __always_inline __u32 ticks(void) { return bpf_ktime_get_coarse_ns() >> 20; }

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

// hold gives the packet to the netmanager, unless that is where it comes from.
static __always_inline int hold(const struct settings *s, __u32 in)
{
	return in == s->hold || !s->hold ? TC_DROP : bpf_redirect(s->hold, 0);
}

static __always_inline int may(__u32 from, __u32 to)
{
	struct pair pair = {from, to};

	return bpf_map_lookup_elem(&tl_allowed, &pair) != NULL;
}

// remote is whose instance elsewhere has address a: 0 if that is not known.
static __always_inline __u32 remote(__be32 a)
{
	struct remote *r = bpf_map_lookup_elem(&tl_sources, &a);

	if (!r)
		r = bpf_map_lookup_elem(&tl_backends, &a);
	return r ? r->ident : 0;
}

// full is the IPv6 twin of a.
static __always_inline void full(const struct settings *s, __be32 a, __be32 *to)
{
	const __be32 *prefix = is_instance(s, a) ? s->instances6 : s->services6;

	to[0] = prefix[0], to[1] = prefix[1], to[2] = prefix[2], to[3] = a;
}

// turned is the key of a flow's other direction.
static __always_inline struct tuple turned(const struct tuple *t, const struct flow *f)
{
	return (struct tuple){f->dst, f->src, f->dport, f->sport, t->proto, t->family, 0};
}

static __always_inline int connected(const struct tuple *t)
{
	return t->proto == IPPROTO_TCP || t->proto == PROTO_SCTP;
}

static __always_inline int same(const struct tuple *a, const struct tuple *b)
{
	return a->src == b->src && a->dst == b->dst && a->sport == b->sport && a->dport == b->dport &&
	       a->proto == b->proto && a->family == b->family;
}

// find is a direction of a flow, NULL if there is none.
static __always_inline struct flow *find(const struct tuple *t) { return bpf_map_lookup_elem(&tl_flows, t); }

// forget ends a flow, of which t and f are a direction.
//
// It is not static, nor are place, settle, check, begin and error: the kernel proves
// each by itself, and not once more for every way that leads to it.
__noinline int forget(const struct tuple *t, const struct flow *f)
{
	struct tuple other, back;
	struct flow *o;

	if (!t || !f)
		return 0;
	other = turned(t, f);
	o = find(&other);
	if (o) {
		back = turned(&other, o);
		if (same(&back, t)) // else another's by now
			bpf_map_delete_elem(&tl_flows, &other);
	}
	bpf_map_delete_elem(&tl_flows, t);
	return 0;
}

// TRIES is how many places are looked at for one that is free. While an owner has
// three quarters of its share or less, a hundred flows end one at most.
#define TRIES 16
#define BESIDE 8 // places of an owner that lie side by side

// After so many turns it is seen whether the first place of all may be had again.
#define AGAIN 128

// spot is the n-th of the places that an owner has for flows of a kind. Which they are is
// as good as chance: who has all its own, has few of anyone's.
static __always_inline __u32 spot(const struct settings *s, __be32 owner, __u32 kind, __u32 n)
{
	__u32 h;

	n &= s->share - 1;
	h = owner * 0x9e3779b1 ^ n / BESIDE * 0x85ebca6b;
	h = (h ^ h >> 15) * 0x2c1b3c6d;
	h = (h ^ h >> 12) * 0x297a2d39;
	h ^= h >> 15;
	return kind * s->places + ((h * BESIDE + n % BESIDE) & (s->places - 1));
}

// spare says whether the flow in a place, of which it was found as f, has no more need
// of it.
static __always_inline int spare(const struct flow *f, __u32 at, __u32 now)
{
	if (!f || f->place != at)
		return 1;
	return f->flags & FLOW_CLOSED && now - f->seen >= (f->flags & FLOW_RESET ? RESET : LINGER);
}

// place gives a flow, t as its opener sends, one of the opener's places, by turns, which
// begin anew as soon as who had the first has no more need of them: so few places follow
// one another as can be, and the processor has them in its cache. Where that is not free,
// others by chance, all over the share. Where none of them is, the flow that was silent
// longest among those looked at makes way, and one of the opener's own before another's.
__noinline __u32 place(const struct settings *s, const struct tuple *t, __u32 kind)
{
	__u32 now = ticks(), at = 0, best = 0, most = 0, *turn, n;
	struct tuple *who, old;
	struct flow *f;

	if (!s || !t)
		return 0;
	turn = bpf_map_lookup_elem(&tl_turns, &kind);
	if (!turn)
		return 0;
	n = __sync_fetch_and_add(turn, 1);
	if (n % AGAIN == 0) {
		at = spot(s, t->src, kind, now % AGAIN);
		who = bpf_map_lookup_elem(&tl_places, &at);
		if (who && (!who->src || spare(find(who), at, now)))
			n = 0, *turn = 1;
	}
	for (__u32 i = 0; i < TRIES; i++) {
		__u32 idle;

		if (i == 1) // another owner may have the turns begin anew all the time
			n = bpf_get_prandom_u32();
		at = spot(s, t->src, kind, n + i * (s->share / TRIES + 1));
		who = bpf_map_lookup_elem(&tl_places, &at);
		if (!who)
			return 0;
		if (!who->src)
			goto take;
		old = *who;
		f = find(&old);
		if (spare(f, at, now)) {
			if (f && f->place == at)
				forget(&old, f);
			goto take;
		}
		// One that nothing has passed yet has just begun.
		idle = f->seen ? (now - f->seen) >> 2 : 0;
		if (f->flags & FLOW_CLOSED)
			idle |= 1U << 31;
		if (old.src == t->src)
			idle |= 1U << 30;
		if (idle >= most)
			most = idle, best = at;
	}
	at = best;
	who = bpf_map_lookup_elem(&tl_places, &at);
	if (!who)
		return 0;
	old = *who;
	f = find(&old);
	if (f)
		forget(&old, f);
take:
	*who = *t;
	return at;
}

// leave gives back the place of flow f, t as its opener sends.
static __always_inline void leave(const struct tuple *t, const struct flow *f)
{
	__u32 at = f->place;
	struct tuple *who = bpf_map_lookup_elem(&tl_places, &at);

	if (who && same(who, t))
		who->src = 0;
}

// settle gives a flow that was answered its lasting place: t and f are the answer's.
__noinline int settle(const struct settings *s, const struct tuple *t, const struct flow *f)
{
	struct tuple other;
	struct flow *o;

	if (!s || !t || !f)
		return 0;
	other = turned(t, f);
	o = find(&other);
	if (!o)
		return 0;
	leave(&other, o);
	o->place = place(s, &other, connected(t) ? CONNECTION : TALK);
	return 0;
}

static __always_inline struct peer *peer_of(__be32 a)
{
	struct prefix key = {32, a};

	return bpf_map_lookup_elem(&tl_peers, &key);
}

// came_by says whether packets of the peer may come in by the device.
static __always_inline int came_by(struct __sk_buff *skb, const struct settings *s, const struct peer *peer,
				   const struct packet *p)
{
	__u32 in = p->in;

	if (in == s->tunnel || p->came)
		return 1;
	if (in == s->vxlan) {
		struct bpf_tunnel_key key = {};

		// Only where it was received does a packet know its outer header.
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

// route finds the next hop of a flow that leaves for a peer on plain routes.
static __always_inline void route(struct __sk_buff *skb, const struct settings *s, struct flow *f, int family, __u32 in)
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
	// One that fits everywhere is told the way with its MTU, where the neighbour is
	// known; one that fits nowhere the MTU alone.
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

// check looks at all that a direction of a flow rests on: where its packets come
// from, whether policy allows the flow, and where its packets go. GO: it stands.
__noinline int check(struct __sk_buff *skb, const struct settings *s, const struct packet *p, struct flow *f)
{
	__u32 caller, in, where;
	struct endpoint *from, *to, *here;
	const struct tuple *t;
	struct peer *peer;

	if (!s || !p || !f)
		return TC_DROP;
	t = &p->t;
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
	// Whose an address is now goes before whose it was. What is forgotten does not
	// end flows.
	if (f->flags & FLOW_ANSWER)
		caller = to ? to->ident : remote(f->dst), here = from;
	else
		caller = from ? from->ident : remote(t->src), here = to;
	if (caller)
		f->from = caller;
	if (here && here->ident != f->to && !may(f->from, here->ident))
		return denied();
	if (!may(f->from, f->to))
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

// lives says whether the packet belongs to the flow, or the flow has ended.
static __always_inline int lives(const struct settings *s, const struct packet *p, const struct flow *f, __u32 now)
{
	struct tuple other;
	struct flow *o;
	__u32 last;

	if (connected(&p->t))
		return !p->begins || f->flags & FLOW_ANSWER || f->isn == p->isn;
	if (f->seen && now - f->seen < s->unanswered)
		return 1;
	other = turned(&p->t, f);
	o = find(&other);
	if (!o)
		return 0;
	last = !f->seen || (o->seen && (__s32)(o->seen - f->seen) > 0) ? o->seen : f->seen;
	return now - last < (f->seen && o->seen ? s->answered : s->unanswered);
}

// ended notes the end of a connection, for its place to be given to others.
static __always_inline void ended(const struct packet *p, struct flow *f)
{
	struct tuple other;
	struct flow *o;
	__u32 closed;

	if (f->flags & FLOW_CLOSED)
		return;
	f->flags |= FLOW_FIN;
	other = turned(&p->t, f);
	o = find(&other);
	if (!o || (p->ends != 2 && !(o->flags & FLOW_FIN)))
		return;
	closed = p->ends == 2 ? FLOW_CLOSED | FLOW_RESET : FLOW_CLOSED;
	f->flags |= closed;
	o->flags |= closed;
}

// choose takes the service's next backend. GO, or a verdict.
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
	if (!a) // the set was replaced just now; whoever sends will send again
		return TC_DROP;
	*backend = *a;
	r = bpf_map_lookup_elem(&tl_backends, backend);
	if (r)
		__sync_fetch_and_add(&r->used, 1);
	return GO;
}

// admit has both directions of new flow f be known, which goes from t. Old is one that
// has ended under the same name, or NULL. A tuple that another flow has behind its
// backend already gets another source port there.
__noinline int admit(const struct settings *s, const struct packet *p, struct flow *f, const struct flow *old)
{
	struct flow back = {.flags = FLOW_ANSWER};
	const struct tuple *t;
	struct tuple key;

	if (!s || !p || !f)
		return TC_DROP;
	t = &p->t;
	back.src = t->dst, back.dst = t->src, back.sport = t->dport, back.dport = t->sport;
	back.from = f->from, back.to = f->to;
	if (old)
		forget(t, old);
	for (int i = 0; i < 8; i++) {
		key = turned(t, f);
		old = find(&key);
		if (!old || old->flags & FLOW_CLOSED ||
		    (old->src == back.src && old->dst == back.dst && old->sport == back.sport && old->dport == back.dport))
			goto free;
		if (!f->sport || (t->proto != IPPROTO_TCP && !checksum(t->proto)))
			break;
		f->sport = (__be16)bpf_get_prandom_u32() | bpf_htons(0x8000);
	}
	return TC_DROP;
free:
	if (old)
		forget(&key, old);
	f->place = back.place = place(s, t, BRIEF);
	if (bpf_map_update_elem(&tl_flows, &key, &back, BPF_ANY) || bpf_map_update_elem(&tl_flows, t, f, BPF_ANY))
		return TC_DROP;
	return GO;
}

// begin is what becomes of a packet that belongs to no flow. GO: it does once f, which
// begin fills in, has been checked and admitted.
__noinline int begin(struct __sk_buff *skb, const struct settings *s, const struct packet *p, struct flow *f)
{
	__u32 in, where;
	const struct tuple *t;
	struct service *svc;
	struct endpoint *from, *to;
	int r;

	if (!s || !p || !f)
		return TC_DROP;
	t = &p->t;
	in = p->in, where = p->where;
	*f = (struct flow){.src = t->src, .dst = t->dst, .sport = t->sport, .dport = t->dport, .isn = p->begins ? p->isn : 0};
	from = bpf_map_lookup_elem(&tl_endpoints, &t->src);
	if (from) {
		if (in != from->ifindex && in != s->hold)
			return forged();
		f->from = from->ident;
	} else {
		if (where == LEAVE)
			return forged();
		if (is_service(s, t->dst)) // a peer chooses itself
			return in == s->hold ? TC_DROP : forged();
		if (!bpf_map_lookup_elem(&tl_endpoints, &t->dst))
			return TC_NEXT;
		f->from = remote(t->src);
		if (!f->from) {
			struct peer *peer = peer_of(t->src);

			return in == s->hold || (peer && came_by(skb, s, peer, p)) ? hold(s, in) : forged();
		}
	}
	if (!is_service(s, t->dst)) {
		to = bpf_map_lookup_elem(&tl_endpoints, &t->dst);
		f->to = to ? to->ident : remote(t->dst);
		return f->to ? GO : hold(s, in);
	}
	svc = bpf_map_lookup_elem(&tl_services, &t->dst);
	if (!svc)
		return hold(s, in);
	f->to = svc->ident;
	if (!may(f->from, f->to))
		return denied();
	if (!svc->slots) {
		skb->mark = MARK_REFUSE;
		return TC_NEXT;
	}
	r = choose(svc, &f->dst);
	if (f->dst == t->src) // who is answered by itself must not see its own address come in
		f->src = t->dst;
	return r;
}

// emit sends the packet the way of its flow.
static __always_inline int emit(struct __sk_buff *skb, const struct packet *p, struct flow *f, int l2, enum where where)
{
	if (where == LAST)
		return TC_NEXT;
	if (f->how == HOW_PEER && where != HELD)
		return bpf_redirect_peer(f->out, 0);
	// Fragments stay together: only the stack can make one packet of them again.
	if (where == LEAVE && !p->fragment && (f->how == HOW_NEIGH || f->how == HOW_VXLAN)) {
		struct bpf_redir_neigh hop = {};
		__u32 len = skb->gso_size ? p->l4 - l2 + p->l4len + skb->gso_size : skb->len - l2;

		// What is too large is the stack's to answer.
		if (!f->mtu || len <= f->mtu) {
			if (f->how == HOW_VXLAN) {
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
			return bpf_redirect_neigh(f->out, &hop, sizeof(hop), 0);
		}
	}
	skb->mark = MARK_DONE;
	return TC_NEXT;
}

// pass deals with a packet from and to addresses of ours.
static __always_inline int pass(struct __sk_buff *skb, const struct settings *s, const struct packet *p, int l2,
				enum where where)
{
	struct flow *f = find(&p->t), *new;
	__u32 in = p->in;
	__u32 now = ticks();
	struct tuple to;
	int r = GO;

	if (!f || !lives(s, p, f, now)) {
		new = bpf_map_lookup_elem(&tl_new, &(__u32){0});
		if (!new)
			return TC_DROP;
		r = begin(skb, s, p, new);
		if (r == GO)
			r = check(skb, s, p, new);
		if (r != GO)
			return r;
		new->seen = now;
		new->ack = p->ack;
		r = admit(s, p, new, f);
		f = p->ends ? find(&p->t) : new;
		if (!f)
			return TC_DROP;
	} else {
		if (f->in != in || f->gen != s->gen || now - f->checked >= CHECKED)
			r = check(skb, s, p, f);
		if (r == GO && !f->seen && f->flags & FLOW_ANSWER && p->ends != 2)
			settle(s, &p->t, f);
		if (r == GO) {
			f->seen = now;
			if (p->ack)
				f->ack = p->ack;
		}
	}
	if (r != GO)
		return r;
	if (p->ends)
		ended(p, f);
	if (f->peer) {
		struct traffic *traffic = bpf_map_lookup_elem(&tl_traffic, &(__u32){f->peer - 1});

		if (traffic && f->flags & FLOW_OUT)
			traffic->to += skb->len - l2;
		else if (traffic)
			traffic->from += skb->len - l2;
	}
	to = (struct tuple){f->src, f->dst, f->sport, f->dport, 0, 0, 0};
	if (rewrite(skb, s, l2, p, &to))
		return TC_DROP;
	return emit(skb, p, f, l2, where);
}

// piece looks at the way that a fragment came by and leaves the rest to the last
// hop: the stack puts it together with those that come by other ways, or late.
static __always_inline int piece(struct __sk_buff *skb, const struct settings *s, const struct packet *p)
{
	struct peer *peer = peer_of(p->t.src);

	if (!bpf_map_lookup_elem(&tl_endpoints, &p->t.dst))
		return TC_NEXT;
	if (!peer || !came_by(skb, s, peer, p))
		return forged();
	skb->mark = MARK_CAME;
	return TC_NEXT;
}
