package interest

import (
	"cmp"
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
	without = u.digest
	used, fresh := least{most: room}, least{most: room / leastSize}
	for k := range u.changed {
		h := u.held[k]
		if h != nil && h.wants == 0 && h.sent {
			without = without.Toggle(h.said)
		}
		if room > 0 && (h == nil || h.sent) {
			used.add(k)
		} else if room > 0 {
			fresh.add(k)
		}
	}
	var vol api.Volume
	for _, n := range append(used.sorted(), fresh.sorted()...) {
		k := n.key
		if vol.Bytes >= room {
			break
		}
		delete(u.changed, k)
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
		clear(u.changed)
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

// leastSize is what the shortest record counts: no more of them than this goes into
// a room find place in it.
const leastSize = 100

// least gathers the first of many keys in the order of their names, about most of
// them: sorting all for each part would cost more than the parts.
type least struct {
	most  int
	all   []named
	limit string // no key behind it is among them; empty: all are
}

type named struct {
	name string
	key  Key
}

func (l *least) add(k Key) {
	name := k.Name()
	if l.limit != "" && name > l.limit {
		return
	}
	if l.all = append(l.all, named{name, k}); len(l.all) < 2*l.most+2 {
		return
	}
	l.sorted()
	n := l.most + 1
	for n < len(l.all) && l.all[n].name == l.all[n-1].name {
		n++
	}
	if n < len(l.all) {
		l.all, l.limit = l.all[:n], l.all[n-1].name
	}
}

func (l *least) sorted() []named {
	slices.SortFunc(l.all, func(x, y named) int {
		if x.name != y.name {
			return cmp.Compare(x.name, y.name)
		}
		return CompareKeys(x.key, y.key)
	})
	return l.all
}

// told is a record's digest, or that there is no such record.
type told struct {
	digest api.Digest
	ok     bool
}

// say notes what the subscriber holds now.
func (u *sub) say(h *holding, now told) {
	if h.sent {
		u.digest = u.digest.Toggle(h.said)
	}
	if h.sent, h.said = now.ok, now.digest; now.ok {
		u.digest = u.digest.Toggle(now.digest)
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
