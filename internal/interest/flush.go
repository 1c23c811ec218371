package interest

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Flush is what the subscriber is to be told: what changed, or all that it holds.
// without is what its digest is now, before it was told, if it forgot by itself
// whatever its wants lead to no longer.
func (b *Book[S]) Flush(s S, whole bool, v View) (r api.Records, without api.Digest) {
	u := b.subs[s]
	delete(b.dirty, s)
	if u == nil {
		return r, 0
	}
	without = u.digest
	if whole {
		u.digest = 0
		for k, h := range u.held {
			u.changed[k], h.sent = true, false
		}
	}
	keys := make([]Key, 0, len(u.changed))
	for k := range u.changed {
		keys = append(keys, k)
	}
	clear(u.changed)
	slices.SortFunc(keys, CompareKeys)
	for _, k := range keys {
		h := u.held[k]
		if h == nil {
			continue
		}
		if h.wants == 0 {
			if h.sent {
				lose(&r, k)
				u.digest, without = u.digest.Toggle(h.said), without.Toggle(h.said)
			}
			delete(u.held, k)
			take(b.holders, k, s)
			continue
		}
		was, said := h.sent, h.said
		if h.said, h.sent = tell(&r, k, v, was, said); was {
			u.digest = u.digest.Toggle(said)
		}
		if h.sent {
			u.digest = u.digest.Toggle(h.said)
		} else if was {
			lose(&r, k)
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

// tell adds the record to what is told, unless it was told as it is. It returns
// the record's digest; ok is false where there is no such record.
func tell(r *api.Records, k Key, v View, told bool, as api.Digest) (d api.Digest, ok bool) {
	switch k.Kind {
	case Route:
		rec, ok := v.Route(k.Service)
		return add(&r.Routes, rec, ok, told, as)
	case Source:
		rec, ok := v.Source(k.Address)
		return add(&r.Sources, rec, ok, told, as)
	case Peer:
		rec, ok := v.Peer(k.Peer)
		return add(&r.Peers, rec, ok, told, as)
	case Refused:
		return add(&r.Refused, k.Refusal, true, told, as)
	}
	panic("a record of no kind")
}

func add[L ~[]R, R interface{ Digest() api.Digest }](to *L, rec R, ok, told bool, as api.Digest) (api.Digest, bool) {
	if !ok {
		return 0, false
	}
	d := rec.Digest()
	if !told || d != as {
		*to = append(*to, rec)
	}
	return d, true
}

func lose(r *api.Records, k Key) {
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
