// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// The table of flows: their places, their owners, and the index that finds them. With the
// kernel's own hash maps a connection over VXLAN costs 12 microseconds, with this table less
// than half: both directions are side by side, and nothing is allocated.
//
// A processor claims a place by compare-and-exchange, so that a place has one writer. It removes
// the former flow from the index, writes the new one, adds it to the index, and then releases
// the claim; so the next writer finds in the index what it has to remove. Readers take no lock.
// A reader during a change finds no flow, or records a packet in the next flow of the place. It
// reads where a packet goes before it compares the flow's tuple once more.
#pragma once

#include "packet.h"

// A tick is 2^20 ns, a little more than a millisecond.
#define TICKS(seconds) ((__u32)((seconds) * 1000000000ULL >> 20))
#define LINGER TICKS(1)	 // for late packets of a closed connection
#define RESET (LINGER / 16) // of one that was reset: few packets are late

// A slot is a tag, a place and a side. The tag's highest bit is set, so that no slot is 0.
#define TAG 19
#define TAGGED (1U << 31)
#define AT(slot) ((slot) >> 1 & ((1U << (TAG - 1)) - 1))
#define SIDE(slot) ((slot)&1)
#define NOWHERE ~0U
#define BESIDE 64 // buckets side by side, for tuples that differ in the last bits of a port

// A claim is 0 (free), even (a processor is writing) or READY.
#define READY 1

static __always_inline __u32 ticks(void) { return bpf_ktime_get_coarse_ns() >> 20; }

// of returns the flow in a place.
static __always_inline struct flow *of(__u32 at) { return bpf_map_lookup_elem(&tl_flows, &at); }

// turned returns the tuple of a flow's answers.
static __always_inline struct tuple turned(const struct flow *f)
{
	const struct half *h = &f->half[CALLS];

	return (struct tuple){h->dst, h->src, h->dport, h->sport, f->name.proto, f->name.family, 0};
}

static __always_inline int same(const struct tuple *a, const struct tuple *b)
{
	return a->src == b->src && a->dst == b->dst && a->sport == b->sport && a->dport == b->dport &&
	       a->proto == b->proto && a->family == b->family;
}

// named reports whether a direction of the flow has the tuple t.
static __always_inline int named(const struct flow *f, __u32 side, const struct tuple *t)
{
	const struct half *h = &f->half[CALLS];

	if (side == CALLS)
		return same(&f->name, t);
	return t->src == h->dst && t->dst == h->src && t->sport == h->dport && t->dport == h->sport &&
	       t->proto == f->name.proto && t->family == f->name.family;
}

// hashed is a multiply-shift hash (Dietzfelbinger 1996): without the seed nobody can choose tuples
// that share a bucket. With one seed of some hundreds, ports in even steps share one by chance;
// then the client's own flows are evicted. The last bits of the larger port are not hashed: a
// client that opens many flows uses consecutive ports, and finds the memory of the last flow in
// the cache.
static __always_inline __u32 hashed(const struct settings *s, const struct tuple *t)
{
	__u32 a = bpf_ntohs(t->sport), b = bpf_ntohs(t->dport), last;
	__u64 h = s->seed[4];

	if (a > b)
		last = a % BESIDE, a /= BESIDE, h += s->seed[3] << 16;
	else
		last = b % BESIDE, b /= BESIDE;
	h += s->seed[0] * t->src;
	h += s->seed[1] * t->dst;
	h += s->seed[2] * (a << 16 | b);
	h += s->seed[3] * ((__u32)t->proto << 8 | t->family);
	h >>= 32;
	return (h >> TAG << TAG) | ((h + last) & ((1U << TAG) - 1));
}

static __always_inline struct bucket *bucket(const struct settings *s, __u32 hash)
{
	hash &= s->places - 1;
	return bpf_map_lookup_elem(&tl_index, &hash);
}

static __always_inline __u32 slot(__u32 hash, __u32 at, __u32 side) { return TAGGED | hash >> TAG << TAG | at << 1 | side; }

// find returns the slot of a tuple, 0 if no flow has it.
//
// It is not static, nor are others here and in flow.h: the kernel verifies such a function once
// and not again for every path that leads to it.
__noinline __u32 find(const struct settings *s, const struct tuple *t)
{
	struct bucket *b;
	__u32 hash, want;

	if (!s || !t)
		return 0;
	hash = hashed(s, t);
	want = slot(hash, 0, 0) >> TAG;
	b = bucket(s, hash);
	if (!b)
		return 0;
	for (__u32 i = 0; i < SLOTS; i++) {
		__u32 is = *(volatile __u32 *)&b->slot[((hash >> TAG) + i) & (SLOTS - 1)];
		struct flow *f;

		if (is >> TAG != want)
			continue;
		f = of(AT(is));
		if (f && named(f, SIDE(is), t))
			return is;
	}
	return 0;
}

// swap replaces the tuple's slot old by new. It returns 0 on success.
__noinline int swap(const struct settings *s, const struct tuple *t, __u32 old, __u32 new)
{
	struct bucket *b;
	__u32 hash;

	if (!s || !t)
		return -1;
	hash = hashed(s, t);
	b = bucket(s, hash);
	if (!b)
		return -1;
	old = old ? slot(hash, AT(old), SIDE(old)) : 0;
	new = new ? slot(hash, AT(new), SIDE(new)) : 0;
	for (__u32 i = 0; i < SLOTS; i++) {
		__u32 *is = &b->slot[((hash >> TAG) + i) & (SLOTS - 1)];

		if (*(volatile __u32 *)is == old && __sync_val_compare_and_swap(is, old, new) == old)
			return 0;
	}
	return -1;
}

// take claims a place, whose claim was old, and removes its flow from the index. It returns 0 if
// another processor was first.
__noinline __u32 take(const struct settings *s, __u32 at, __u32 old)
{
	__u32 mine = (bpf_get_prandom_u32() | 2) & ~READY;
	struct tuple name, answers;
	struct flow *f = of(at);

	if (!s || !f || (old && !(old & READY)) || __sync_val_compare_and_swap(&f->claim, old, mine) != old)
		return 0;
	if (old) {
		name = f->name, answers = turned(f);
		swap(s, &name, slot(0, at, CALLS), 0);
		swap(s, &answers, slot(0, at, ANSWERS), 0);
	}
	return mine;
}

// ready releases the claim of a place after the flow in it is written; the barrier orders the writes.
static __always_inline void ready(struct flow *f)
{
	__u32 mine = f->claim;

	__sync_val_compare_and_swap(&f->claim, mine, mine | READY);
}

// forget ends the flow in a place if the place still has that claim.
__noinline int forget(const struct settings *s, __u32 at, __u32 claim)
{
	struct flow *f = of(at);

	if (!s || !f || !claim || !take(s, at, claim))
		return -1;
	f->claim = 0;
	return 0;
}

// idle returns for how many ticks the flow has been silent.
static __always_inline __u32 idle(const struct flow *f, __u32 now)
{
	__u32 calls = f->half[CALLS].seen, answers = f->half[ANSWERS].seen;
	__u32 silent = now - (answers && (__s32)(answers - calls) > 0 ? answers : calls);

	// Another processor may have recorded a packet after this one read the clock.
	return (__s32)silent < 0 ? 0 : silent;
}

// spare reports whether the flow in a place has ended or timed out.
static __always_inline int spare(const struct flow *f, __u32 now)
{
	__u8 flags = f->half[CALLS].flags;

	if (!(f->claim & READY))
		return !f->claim;
	return flags & FLOW_CLOSED && idle(f, now) >= (flags & FLOW_RESET ? RESET : LINGER);
}

// worth returns how readily a flow is evicted for one that owner opens.
static __always_inline __u32 worth(const struct flow *f, __be32 owner, __u32 now)
{
	__u32 w = idle(f, now) >> 2;

	if (f->half[CALLS].flags & FLOW_CLOSED)
		w |= 1U << 31;
	if (f->name.src == owner)
		w |= 1U << 30;
	return w;
}

// enter adds a tuple's slot to the index. If the bucket is full, as one of thousands is when every
// place is in use, the flow that has been silent longest is evicted.
__noinline int enter(const struct settings *s, const struct tuple *t, __u32 where)
{
	__u32 hash, best = NOWHERE, most = 0, now = ticks();
	struct bucket *b;
	struct flow *f;
	__be32 owner;

	if (!s || !t)
		return -1;
	if (!swap(s, t, 0, where))
		return 0;
	hash = hashed(s, t);
	b = bucket(s, hash);
	if (!b)
		return -1;
	f = of(AT(where));
	if (!f)
		return -1;
	owner = f->name.src;
	for (__u32 i = 0; i < SLOTS; i++) {
		__u32 is = *(volatile __u32 *)&b->slot[i], w;

		f = of(AT(is));
		if (!is || !f || !(f->claim & READY))
			continue;
		w = worth(f, owner, now);
		if (w >= most)
			most = w, best = AT(is);
	}
	f = of(best);
	if (!f || forget(s, best, f->claim))
		return -1;
	return swap(s, t, 0, where);
}

// TRIES is how many places are examined for a free one. As long as an owner uses at most three
// quarters of its share, a hundred new flows evict one at most.
#define TRIES 16
#define BLOCK 8 // places of an owner that are side by side

// After so many turns it is checked whether the owner's first place is free again.
#define AGAIN 128

// spot returns the n-th of the places that an owner may use for flows of a kind. They are
// pseudo-random: an owner that uses all of its places uses few of any other owner's.
static __always_inline __u32 spot(const struct settings *s, __be32 owner, __u32 kind, __u32 n)
{
	__u32 h;

	n &= s->share - 1;
	h = owner * 0x9e3779b1 ^ n / BLOCK * 0x85ebca6b;
	h = (h ^ h >> 15) * 0x2c1b3c6d;
	h = (h ^ h >> 12) * 0x297a2d39;
	h ^= h >> 15;
	return kind * s->places + ((h * BLOCK + n % BLOCK) & (s->places - 1));
}

// place claims one of an owner's places, in turn. The turns start again as soon as the first place
// is free, so that few places are in use and stay in the processor's cache. If that place is in
// use, random ones of the share are tried. If all are in use, the flow among them that has been
// silent longest is evicted, the owner's own flows first. NOWHERE: other processors have just
// claimed all of them.
__noinline __u32 place(const struct settings *s, __be32 owner, __u32 kind)
{
	__u32 now = ticks(), at = 0, best = NOWHERE, seen = 0, most = 0, *turn, n;
	struct flow *f;

	if (!s)
		return NOWHERE;
	turn = bpf_map_lookup_elem(&tl_turns, &kind);
	if (!turn)
		return NOWHERE;
	n = __sync_fetch_and_add(turn, 1);
	if (n % AGAIN == 0) {
		f = of(spot(s, owner, kind, now % AGAIN));
		if (f && spare(f, now))
			n = 0, *turn = 1;
	}
	for (__u32 i = 0; i < TRIES; i++) {
		__u32 claim, w;

		if (i == 1) // another owner may restart the turns all the time
			n = bpf_get_prandom_u32();
		at = spot(s, owner, kind, n + i * (s->share / TRIES + 1));
		f = of(at);
		if (!f)
			return NOWHERE;
		claim = f->claim;
		if (spare(f, now)) {
			if (take(s, at, claim))
				return at;
			continue;
		}
		if (!(claim & READY))
			continue;
		w = worth(f, owner, now);
		if (w >= most)
			most = w, best = at, seen = claim;
	}
	return seen && take(s, best, seen) ? best : NOWHERE;
}

// settle moves a flow that was answered to a place of a lasting kind, and returns its place.
__noinline __u32 settle(const struct settings *s, __u32 at, __u32 kind)
{
	struct flow *f = of(at), *to;
	struct tuple name, answers;
	__u32 new, claim, mine;

	if (!s || !f || at >= s->places) // it has one already
		return at;
	claim = f->claim;
	new = place(s, f->name.src, kind);
	to = of(new);
	if (!to)
		return at;
	mine = (bpf_get_prandom_u32() | 2) & ~READY;
	if (!(claim & READY) || __sync_val_compare_and_swap(&f->claim, claim, mine) != claim) {
		to->claim = 0;
		return at;
	}
	to->name = f->name, to->from = f->from, to->to = f->to, to->isn = f->isn;
	to->half[CALLS] = f->half[CALLS];
	to->half[ANSWERS] = f->half[ANSWERS];
	name = f->name, answers = turned(f);
	swap(s, &name, slot(0, at, CALLS), slot(0, new, CALLS));
	swap(s, &answers, slot(0, at, ANSWERS), slot(0, new, ANSWERS));
	ready(to); // only now, for whoever takes it must find it in the index
	f->claim = 0;
	return new;
}
