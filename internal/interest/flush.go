package interest

import (
	"container/heap"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Flush is what the subscriber is to be told of what changed, until that is room
// long (see api.Volume): first what it holds, then what is new to it. Behind says
// whether something is left for later. without is what the subscriber's digest is
// now, before it was told, if it forgot by itself whatever its wants lead to no
// longer.
func (b *Book[S]) Flush(s S, room int, v View) (r api.Records, without api.Digest) {
	u := b.subs[s]
	delete(b.dirty, s)
	if u == nil {
		return r, 0
	}
	without = u.digest ^ u.idle
	var vol api.Volume
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
		if h.wants == 0 {
			b.forget(s, u, k)
		} else {
			u.say(h, tell(&r, &vol, k, v, h))
		}
		if was && !h.sent {
			lose(&r, &vol, k)
		}
	}
	// A refusal that says otherwise than before is no answer.
	still := make(map[api.Want]bool, len(r.Refused))
	for _, f := range r.Refused {
		still[f.Want] = true
	}
	r.Answered = slices.DeleteFunc(r.Answered, func(w api.Want) bool { return still[w] })
	return r, without
}

// Behind reports whether the last Flush left something to be told.
func (b *Book[S]) Behind(s S) bool { u := b.subs[s]; return u != nil && len(u.changed) > 0 }

// Recount leaves it to Span, from the first name on, to tell the subscriber what
// has changed so far. Until Recounted the book knows how far Span came.
func (b *Book[S]) Recount(s S) {
	if u := b.subs[s]; u != nil {
		u.unchange()
	}
	delete(b.dirty, s)
	b.Recounted(s)
}

// Recounted says that the subscriber has what Span told it.
func (b *Book[S]) Recounted(s S) {
	if u := b.subs[s]; u != nil {
		u.run = nil
	}
}

// Span is all that the subscriber should hold behind a name, in the names' order
// and until that is room long, and which part of everything that is.
func (b *Book[S]) Span(s S, after string, room int, v View) (r api.Records, of api.Span, vol api.Volume) {
	u := b.subs[s]
	if u == nil {
		return r, api.Span{After: after}, vol
	}
	if u.run == nil {
		u.run = NewRun(Key.Name, CompareKeys)
	}
	of = u.run.Part(after, maps.Keys(u.held), func(k Key) bool {
		delete(u.changed, k)
		if h := u.held[k]; h != nil && h.wants == 0 {
			b.forget(s, u, k)
		} else if h != nil {
			u.say(h, tell(&r, &vol, k, v, &holding{}))
		}
		return vol.Bytes < room
	})
	return r, of, vol
}

// change notes that there is something to tell of a record. What the subscriber holds
// is told first.
func (u *sub) change(k Key) {
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

// unchange notes that nothing is left to tell.
func (u *sub) unchange() {
	clear(u.changed)
	u.used, u.fresh = nil, nil
}

// next takes out what is told next.
func (u *sub) next() (k Key, ok bool) {
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

// told is a record's digest, or that there is no such record.
type told struct {
	digest api.Digest
	ok     bool
}

// say notes what the subscriber holds now.
func (u *sub) say(h *holding, now told) {
	u.count(h)
	h.sent, h.said = now.ok, now.digest
	u.count(h)
}

// count takes a holding into the digests, or out of them.
func (u *sub) count(h *holding) {
	if !h.sent {
		return
	}
	u.digest = u.digest.Toggle(h.said)
	if h.wants == 0 {
		u.idle = u.idle.Toggle(h.said)
	}
}

// forget notes that the subscriber holds what nobody wants no more.
func (b *Book[S]) forget(s S, u *sub, k Key) {
	u.say(u.held[k], told{})
	delete(u.held, k)
	b.unheld(k, s)
}

// tell adds the record to what is told, unless the subscriber has it as it is.
func tell(r *api.Records, vol *api.Volume, k Key, v View, h *holding) told {
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
		return add(&r.Refused, k.Refusal, true, h, func(f api.Refusal) { vol.Want(f.Want) })
	}
	panic("a record of no kind")
}

func add[L ~[]R, R interface{ Digest() api.Digest }](to *L, rec R, ok bool, h *holding, count func(R)) told {
	if !ok {
		return told{}
	}
	d := rec.Digest()
	if !h.sent || d != h.said {
		*to = append(*to, rec)
		count(rec)
	}
	return told{d, true}
}

func lose(r *api.Records, vol *api.Volume, k Key) {
	vol.Want(api.Want{Service: k.Service})
	gone(r, k)
}

// gone adds to what is gone.
func gone(r *api.Records, k Key) {
	switch k.Kind {
	case Route:
		r.Gone = append(r.Gone, k.Service)
	case Source:
		r.GoneSources = append(r.GoneSources, k.Address)
	case Peer:
		r.GonePeers = append(r.GonePeers, k.Peer)
	case Refused:
		r.Answered = append(r.Answered, k.Refusal.Want)
	}
}
