package interest

import (
	"container/heap"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Flush returns the changed resources for a subscriber, up to room bytes (see wire.Volume):
// first those that it holds, then new ones. Pending reports whether something is left. without
// is the digest of what the subscriber holds before this answer if it has already dropped the
// resources that no subscription leads to.
func (b *Subscriptions[S]) Flush(s S, room int, v View) (r wire.Records, without api.Digest) {
	delete(b.dirty, s)
	u := b.subs[s]
	if u == nil {
		return r, 0
	}
	without = u.sent ^ u.idle
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
			b.drop(s, u, k)
		} else {
			u.setVersion(h, add(&r, &vol, k, v, h))
		}
		if was && !h.sent {
			vol.Subscription(wire.Subscription{Service: k.Service})
			remove(&r, k)
		}
	}
	// A refusal that replaces another one of the same subscription is not removed.
	still := make(map[wire.Subscription]bool, len(r.Refused))
	for _, f := range r.Refused {
		still[f.Subscription] = true
	}
	r.RemovedRefusals = slices.DeleteFunc(r.RemovedRefusals, func(w wire.Subscription) bool { return still[w] })
	return r, without
}

// Pending reports whether the last Flush left something out.
func (b *Subscriptions[S]) Pending(s S) bool { return len(b.of(s).changed) > 0 }

// BeginResync moves the pending changes from Flush to Part, which starts at the first name. The
// position of Part is kept until EndResync.
func (b *Subscriptions[S]) BeginResync(s S) {
	if u := b.subs[s]; u != nil {
		u.clearChanges()
		u.cursor.Reset()
	}
	delete(b.dirty, s)
}

// EndResync records that the subscriber has received what Part returned.
func (b *Subscriptions[S]) EndResync(s S) {
	if u := b.subs[s]; u != nil {
		u.cursor.Reset()
	}
}

// Part returns the resources after a name that the subscriber should hold, in the order of names
// and up to room bytes, and the span of names that they fill.
func (b *Subscriptions[S]) Part(s S, after string, room int, v View) (r wire.Records, of wire.Span, vol wire.Volume) {
	u := b.subs[s]
	if u == nil {
		return r, wire.Span{After: after}, vol
	}
	of = u.cursor.Part(after, maps.Keys(u.held), func(k Key) bool {
		delete(u.changed, k)
		if h := u.held[k]; h != nil && h.subscriptions == 0 {
			b.drop(s, u, k)
		} else if h != nil {
			u.setVersion(h, add(&r, &vol, k, v, &resource{}))
		}
		return vol.Bytes < room
	})
	return r, of, vol
}

// change marks a resource of a subscriber as changed. Resources that it holds come first.
func (b *Subscriptions[S]) change(s S, k Key) {
	b.dirty[s] = true
	u := b.subs[s]
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

func (u *subscriber) clearChanges() {
	clear(u.changed)
	u.used, u.fresh = nil, nil
}

// next removes and returns the next marked resource.
func (u *subscriber) next() (k Key, ok bool) {
	for _, q := range []*ordered[Key]{&u.used, &u.fresh} {
		for len(*q) > 0 {
			k = heap.Pop(q).(*item[Key]).it
			if u.changed[k] { // else Part has sent it
				delete(u.changed, k)
				return k, true
			}
		}
	}
	return Key{}, false
}

// version is the digest of a resource that was sent; ok is false if the resource does not exist.
type version struct {
	digest api.Digest
	ok     bool
}

// setVersion records which version of a resource the subscriber holds now.
func (u *subscriber) setVersion(h *resource, now version) {
	u.toggle(h)
	h.sent, h.version = now.ok, now.digest
	u.toggle(h)
}

// addReferences changes the number of subscriptions that lead to a resource.
func (u *subscriber) addReferences(h *resource, by int) {
	u.toggle(h)
	h.subscriptions += by
	u.toggle(h)
}

// toggle adds a resource that was sent to the digests, or removes it.
func (u *subscriber) toggle(h *resource) {
	if !h.sent {
		return
	}
	u.sent = u.sent.Toggle(h.version)
	if h.subscriptions == 0 {
		u.idle = u.idle.Toggle(h.version)
	}
}

// drop removes a resource that no subscription of the subscriber leads to any more.
func (b *Subscriptions[S]) drop(s S, u *subscriber, k Key) {
	u.setVersion(u.held[k], version{})
	delete(u.held, k)
	b.removeSubscriber(k, s)
}

// add adds a resource to the answer, unless the subscriber holds the same version.
func add(r *wire.Records, vol *wire.Volume, k Key, v View, h *resource) version {
	switch k.Kind {
	case Route:
		rec, ok := v.Route(k.Service)
		return addTo(&r.Routes, rec, ok, h, vol.Route)
	case Source:
		rec, ok := v.Source(k.Address)
		return addTo(&r.Sources, rec, ok, h, vol.Source)
	case Peer:
		rec, ok := v.Peer(k.Peer)
		return addTo(&r.Peers, rec, ok, h, vol.Peer)
	case Refused:
		refusal := wire.Refusal{Subscription: k.Subscription, Denied: k.Denied}
		return addTo(&r.Refused, refusal, true, h, func(f wire.Refusal) { vol.Subscription(f.Subscription) })
	}
	panic("send a resource: the key has no kind")
}

func addTo[L ~[]R, R digester](to *L, rec R, ok bool, h *resource, count func(R)) version {
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
