package ipam

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// set tracks which of the numbers [0, n) are taken or in quarantine. next and take
// allocate from [low, high) only.
type set struct {
	bits       bitmap // taken or in quarantine
	low, high  int
	after      int // where next begins its search
	taken      int
	quarantine time.Duration
	queue      []quarantined // oldest first; may have numbers whose quarantine ended early
	until      map[int]time.Time
}

type quarantined struct {
	i     int
	until time.Time
}

func newSet(n, low, high int, quarantine time.Duration) *set {
	return &set{bits: make(bitmap, (n+63)/64), low: low, high: high, after: low, quarantine: quarantine, until: map[int]time.Time{}}
}

// endQuarantines frees the numbers whose quarantine is over.
func (s *set) endQuarantines(now time.Time) {
	for len(s.queue) > 0 && !s.queue[0].until.After(now) {
		r := s.queue[0]
		s.queue = s.queue[1:]
		if s.until[r.i].Equal(r.until) {
			delete(s.until, r.i)
			s.bits.clear(r.i)
		}
	}
}

func (s *set) take(now time.Time, i int) error {
	s.endQuarantines(now)
	switch {
	case i < s.low || i >= s.high:
		return fmt.Errorf("reserved: %w", api.ErrInvalid)
	case s.inQuarantine(i):
		return fmt.Errorf("in quarantine for another %s: %w", s.until[i].Sub(now), api.ErrUnavailable)
	case s.bits.has(i):
		return fmt.Errorf("taken: %w", api.ErrConflict)
	}
	s.bits.set(i)
	s.taken++
	return nil
}

func (s *set) next(now time.Time) (int, bool) {
	s.endQuarantines(now)
	i, ok := s.bits.zero(s.after, s.high)
	if !ok {
		if i, ok = s.bits.zero(s.low, s.after); !ok {
			return 0, false
		}
	}
	s.bits.set(i)
	s.taken++
	if s.after = i + 1; s.after >= s.high {
		s.after = s.low
	}
	return i, true
}

// takeEarly takes the number that has been in quarantine longest, if that is at least least.
func (s *set) takeEarly(now time.Time, least time.Duration) (int, bool) {
	s.endQuarantines(now)
	for len(s.queue) > 0 {
		r := s.queue[0]
		if !s.until[r.i].Equal(r.until) { // mark has taken it
			s.queue = s.queue[1:]
			continue
		}
		if r.until.Add(least-s.quarantine).After(now) || r.i < s.low || r.i >= s.high {
			return 0, false
		}
		s.queue = s.queue[1:]
		delete(s.until, r.i)
		s.taken++
		return r.i, true
	}
	return 0, false
}

// mark takes i, even if it is in quarantine, and reports false if it was taken already.
func (s *set) mark(i int) bool {
	if s.inQuarantine(i) {
		delete(s.until, i)
		s.taken++
		return true
	}
	if s.bits.has(i) {
		return false
	}
	s.bits.set(i)
	s.taken++
	return true
}

func (s *set) give(now time.Time, i int) {
	s.endQuarantines(now)
	if !s.bits.has(i) || s.inQuarantine(i) {
		return
	}
	s.taken--
	if s.quarantine <= 0 {
		s.bits.clear(i)
		return
	}
	t := now.Add(s.quarantine)
	s.until[i] = t
	s.queue = append(s.queue, quarantined{i, t})
}

func (s *set) inQuarantine(i int) bool { _, ok := s.until[i]; return ok }

func (s *set) resting() int { return len(s.until) }

func (s *set) free(now time.Time) int {
	s.endQuarantines(now)
	return s.bits.zeros(s.low, s.high)
}

type bitmap []uint64

func (b bitmap) has(i int) bool { return b[i/64]>>(i%64)&1 == 1 }
func (b bitmap) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) clear(i int)    { b[i/64] &^= 1 << (i % 64) }

// zero returns the first i in [from, to) that is not in b.
func (b bitmap) zero(from, to int) (int, bool) {
	for i := from; i < to; i = (i/64 + 1) * 64 {
		if w := ^b[i/64] >> (i % 64); w != 0 {
			i += bits.TrailingZeros64(w)
			return i, i < to
		}
	}
	return 0, false
}

// zeros counts the i in [from, to) that are not in b.
func (b bitmap) zeros(from, to int) int {
	n := 0
	for i := from; i < to; i = (i/64 + 1) * 64 {
		w := ^b[i/64] >> (i % 64)
		if left := to - i; left < 64 {
			w &= 1<<left - 1
		}
		n += bits.OnesCount64(w)
	}
	return n
}
