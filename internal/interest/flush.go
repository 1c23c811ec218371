package interest

import (
	"container/heap"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Flush returns the changed resources for a subscriber, up to room bytes (see wire.Volume):
// first those that it holds, then new ones. Behind reports whether something is left. without
// is the digest of what the subscriber holds before this answer if it has removed by itself
// what its subscriptions do not lead to any more.
func (b *Subscriptions[S]) Flush(s S, room int, v View) (r wire.Records, without api.Digest) {
	u := b.subs[s]
	delete(b.dirty, s)
	if u == nil {
		return r, 0
	}
	without = u.digest ^ u.idle
	var vol wire.Volume
	for vol.Bytes < room {
		k, ok := u.next()
		if !ok {
			break
		}
		h := u.held[k]
		if h == nil {
			continue
		}
		was := h.sent
		if h.subscriptions == 0 {
			b.forget(s, u, k)
		} else {
			u.say(h, tell(&r, &vol, k, v, h))
		}
		if was && !h.sent {
			lose(&r, &vol, k)
		}
	}
	// A refusal with another content than before is not an answer.
	still := make(map[wire.Subscription]bool, len(r.Refused))
	for _, f := range r.Refused {
		still[f.Subscription] = true
	}
	r.RemovedRefusals = slices.DeleteFunc(r.RemovedRefusals, func(w wire.Subscription) bool { return still[w] })
	return r, without
}

// Behind reports whether the last Flush left something out.
func (b *Subscriptions[S]) Pending(s S) bool { u := b.subs[s]; return u != nil && len(u.changed) > 0 }

// Recount makes Span, from the first name on, send what has changed so far. Until Recounted
// the book tracks how far Span has come.
func (b *Subscriptions[S]) BeginResync(s S) {
	if u := b.subs[s]; u != nil {
		u.unchange()
	}
	delete(b.dirty, s)
	b.EndResync(s)
}

// Recounted records that the subscriber has received what Span returned.
func (b *Subscriptions[S]) EndResync(s S) {
	if u := b.subs[s]; u != nil {
		u.run = nil
	}
}

// Span returns all resources after a name that the subscriber should hold, in the order of
// names and up to room bytes, and the span of names that they fill.
func (b *Subscriptions[S]) Part(s S, after string, room int, v View) (r wire.Records, of wire.Span, vol wire.Volume) {
	u := b.subs[s]
	if u == nil {
		return r, wire.Span{After: after}, vol
	}
	if u.run == nil {
		u.run = NewCursor(Key.Name, CompareKeys)
	}
	of = u.run.Part(after, maps.Keys(u.held), func(k Key) bool {
		delete(u.changed, k)
		if h := u.held[k]; h != nil && h.subscriptions == 0 {
			b.forget(s, u, k)
		} else if h != nil {
			u.say(h, tell(&r, &vol, k, v, &resource{}))
		}
		return vol.Bytes < room
	})
	return r, of, vol
}

// change marks a resource as changed. Resources that the subscriber holds come first.
func (u *subscriber) change(k Key) {
	if u.changed[k] {
		return
	}
	u.changed[k] = true
	q := &u.fresh
	if h := u.held[k]; h != nil && h.sent {
		q = &u.used
	}
	heap.Push(q, &item[Key]{k.Name(), k})
}

// unchange clears the marks.
func (u *subscriber) unchange() {
	clear(u.changed)
	u.used, u.fresh = nil, nil
}

// next removes and returns the next marked resource.
func (u *subscriber) next() (k Key, ok bool) {
	for _, q := range []*ordered[Key]{&u.used, &u.fresh} {
		for len(*q) > 0 {
			k = heap.Pop(q).(*item[Key]).it
			if u.changed[k] { // Span did not tell it
				delete(u.changed, k)
				return k, true
			}
		}
	}
	return Key{}, false
}

// told is the digest of a resource as it was sent, or that it does not exist.
type version struct {
	digest api.Digest
	ok     bool
}

// say records what the subscriber holds now.
func (u *subscriber) say(h *resource, now version) {
	u.count(h)
	h.sent, h.version = now.ok, now.digest
	u.count(h)
}

// count toggles a holding in the digests.
func (u *subscriber) count(h *resource) {
	if !h.sent {
		return
	}
	u.digest = u.digest.Toggle(h.version)
	if h.subscriptions == 0 {
		u.idle = u.idle.Toggle(h.version)
	}
}

// forget drops a resource that no subscription of the subscriber leads to any more.
func (b *Subscriptions[S]) forget(s S, u *subscriber, k Key) {
	u.say(u.held[k], version{})
	delete(u.held, k)
	b.unheld(k, s)
}

// tell adds the resource to the answer, unless the subscriber has the same version.
func tell(r *wire.Records, vol *wire.Volume, k Key, v View, h *resource) version {
	switch k.Kind {
	case Route:
		rec, ok := v.Route(k.Service)
		return add(&r.Routes, rec, ok, h, vol.Route)
	case Source:
		rec, ok := v.Source(k.Address)
		return add(&r.Sources, rec, ok, h, vol.Source)
	case Peer:
		rec, ok := v.Peer(k.Peer)
		return add(&r.Peers, rec, ok, h, vol.Peer)
	case Refused:
		return add(&r.Refused, k.Refusal, true, h, func(f wire.Refusal) { vol.Subscription(f.Subscription) })
	}
	panic("a record of no kind")
}

func add[L ~[]R, R interface{ Digest() api.Digest }](to *L, rec R, ok bool, h *resource, count func(R)) version {
	if !ok {
		return version{}
	}
	d := rec.Digest()
	if !h.sent || d != h.version {
		*to = append(*to, rec)
		count(rec)
	}
	return version{d, true}
}

func lose(r *wire.Records, vol *wire.Volume, k Key) {
	vol.Subscription(wire.Subscription{Service: k.Service})
	gone(r, k)
}

// gone adds a removal to the answer.
func gone(r *wire.Records, k Key) {
	switch k.Kind {
	case Route:
		r.RemovedRoutes = append(r.RemovedRoutes, k.Service)
	case Source:
		r.RemovedSources = append(r.RemovedSources, k.Address)
	case Peer:
		r.RemovedPeers = append(r.RemovedPeers, k.Peer)
	case Refused:
		r.RemovedRefusals = append(r.RemovedRefusals, k.Refusal.Subscription)
	}
}
