// Package nodeset keeps the desired set of one node: which entries it has, its generation and
// digest, and what the present step changed. Placement decides about the entries, and keeps their
// content.
//
//	s.Put(assignment)           // or Drop, Keep, EndKept
//	s.Begin(generation)         // at least once in a step with changes
//	d := s.Changes(now, content)
package nodeset

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	resend   = time.Second // minimum time until a set is sent again to a node that does not hold it
	largeSet = 32          // larger sets are sent as changes
)

// Set is the desired set of a node. The zero Set is empty. It is not safe for concurrent use.
type Set struct {
	gen     api.Generation
	from    api.Generation // before this step's changes; 0: the node has none
	digest  api.Digest
	entries map[api.InstanceID]api.Digest
	kept    map[api.InstanceID]wire.Assignment // old placements that continue until the new one runs elsewhere
	put     map[api.InstanceID]bool            // added or changed in this step; it may have been dropped or kept since
	drop    map[api.InstanceID]bool            // removed in this step
	sentAt  time.Time
}

func (s *Set) Gen() api.Generation { return s.gen }

// Digest returns the digest of all entries, including kept ones.
func (s *Set) Digest() api.Digest { return s.digest }

// Begin begins a generation before or after the changes of a step. next must exceed all
// generations of earlier processes.
func (s *Set) Begin(next api.Generation) { s.from, s.gen = s.gen, max(next, s.gen+1) }

// Raise makes later generations exceed gen, which only the node knows: the store was restored from
// an older copy. Begin must follow.
func (s *Set) Raise(gen api.Generation) { s.gen = gen }

// Put adds or replaces the entry of an instance.
func (s *Set) Put(a wire.Assignment) {
	if s.entries == nil {
		s.entries, s.put, s.drop = map[api.InstanceID]api.Digest{}, map[api.InstanceID]bool{}, map[api.InstanceID]bool{}
	}
	s.digest = s.digest.Toggle(s.entries[a.Instance]).Toggle(a.Digest())
	s.entries[a.Instance] = a.Digest()
	s.put[a.Instance] = true
	delete(s.drop, a.Instance)
}

func (s *Set) Drop(id api.InstanceID) {
	s.digest = s.digest.Toggle(s.entries[id])
	delete(s.entries, id)
	s.drop[id] = true
}

// Keep keeps an old placement after Drop: the node continues it until EndKept or a Put of its
// instance after that.
func (s *Set) Keep(a wire.Assignment) {
	if s.kept == nil {
		s.kept = map[api.InstanceID]wire.Assignment{}
	}
	s.kept[a.Instance] = a
	s.digest = s.digest.Toggle(a.Digest())
	delete(s.drop, a.Instance)
}

// EndKept removes a kept placement. It reports whether there was one.
func (s *Set) EndKept(id api.InstanceID) bool {
	a, ok := s.kept[id]
	if ok {
		delete(s.kept, id)
		s.digest = s.digest.Toggle(a.Digest())
		if s.drop == nil {
			s.drop = map[api.InstanceID]bool{}
		}
		s.drop[id] = true
	}
	return ok
}

func (s *Set) Kept(id api.InstanceID) (wire.Assignment, bool) {
	a, ok := s.kept[id]
	return a, ok
}

// AllKept returns the instances with kept placements, sorted by id.
func (s *Set) AllKept() []api.InstanceID { return step.Keys(s.kept) }

// Overdue reports whether the set must be sent again to a node that reports a generation and a
// digest.
func (s *Set) Overdue(now time.Time, gen api.Generation, digest api.Digest) bool {
	return (gen != s.gen || digest != s.digest) && now.Sub(s.sentAt) >= resend
}

// Changes returns the message about this step's changes, or the whole set if that is shorter.
// content returns the entry of an instance.
func (s *Set) Changes(now time.Time, content func(api.InstanceID) wire.Assignment) wire.Desired {
	defer clear(s.put)
	defer clear(s.drop)
	if len(s.entries) <= largeSet || s.from == 0 || len(s.put)+len(s.drop) > len(s.entries)/2 {
		return s.Whole(now, content)
	}
	s.sentAt = now
	d := wire.Desired{Gen: s.gen, From: s.from, Digest: s.digest, Drop: step.Keys(s.drop)}
	for _, id := range step.Keys(s.put) {
		if a, ok := s.kept[id]; ok {
			d.Put = append(d.Put, a)
		} else if _, ok := s.entries[id]; ok {
			d.Put = append(d.Put, content(id))
		}
	}
	return d
}

// Whole returns the message with the whole set.
func (s *Set) Whole(now time.Time, content func(api.InstanceID) wire.Assignment) wire.Desired {
	s.sentAt = now
	d := wire.Desired{Gen: s.gen, Digest: s.digest}
	for _, id := range step.Keys(s.entries) {
		d.Put = append(d.Put, content(id))
	}
	for _, id := range s.AllKept() {
		d.Put = append(d.Put, s.kept[id])
	}
	return d
}
