// Package rounds decides which targets of latency constraints are measured next. A
// bounded number of rounds is under way, of one holder (a tenant) at most a share of
// them. The others wait: the next place goes to the holder with fewest rounds under
// way, then to the one that was served longest ago.
//
// It is a sub-machine of the cluster's core, and not safe for concurrent use.
package rounds

import "github.com/treeline-edge/treeline/internal/step"

// Line is the rounds under way and the targets that wait for one.
type Line struct {
	total, share int
	underWay     int
	turn         uint64
	holders      map[string]*holder // with rounds under way or targets that wait
	waiting      map[string]string  // holder by target
}

type holder struct {
	underWay int
	served   uint64 // the turn when it was served last
	targets  step.Queue[string]
	waiting  int
}

// New makes a Line with nothing under way.
func New(total, share int) *Line {
	return &Line{total: total, share: share, holders: map[string]*holder{}, waiting: map[string]string{}}
}

// Begin takes a place for a round of the target and reports true, or has the target
// wait until Next returns it.
func (l *Line) Begin(name, target string) bool {
	if l.underWay < l.total && l.UnderWay(name) < l.share {
		l.Remove(target)
		l.Take(name)
		return true
	}
	if !l.Waits(target) {
		l.waiting[target] = name
		h := l.of(name)
		h.targets.Add(target)
		h.waiting++
	}
	return false
}

// Take takes a place for the holder, whatever it has: its round goes on.
func (l *Line) Take(name string) {
	h := l.of(name)
	l.turn++
	l.underWay++
	h.underWay++
	h.served = l.turn
}

// End gives a place of the holder back.
func (l *Line) End(name string) {
	h := l.of(name)
	l.underWay--
	h.underWay--
	l.tidy(name, h)
}

// Next takes the target whose round is to begin out of those that wait.
func (l *Line) Next() (target string, ok bool) {
	if l.underWay >= l.total {
		return "", false
	}
	var next *holder
	for _, name := range step.Keys(l.holders) {
		h := l.holders[name]
		if h.waiting == 0 || h.underWay >= l.share {
			continue
		}
		if next == nil || h.underWay < next.underWay || h.underWay == next.underWay && h.served < next.served {
			next = h
		}
	}
	if next == nil {
		return "", false
	}
	target = next.targets.List()[0]
	l.turn++
	next.served = l.turn // also where the round does not begin after all
	l.Remove(target)
	return target, true
}

// Remove takes a target out of those that wait, if it is there.
func (l *Line) Remove(target string) {
	name, ok := l.waiting[target]
	if !ok {
		return
	}
	h := l.holders[name]
	delete(l.waiting, target)
	h.targets.Remove(target)
	h.waiting--
	l.tidy(name, h)
}

// Waits reports whether the target waits for a round.
func (l *Line) Waits(target string) bool { _, ok := l.waiting[target]; return ok }

// UnderWay is the number of rounds of the holder that are under way.
func (l *Line) UnderWay(name string) int {
	if h := l.holders[name]; h != nil {
		return h.underWay
	}
	return 0
}

// Size is the number of rounds under way and of targets that wait.
func (l *Line) Size() int { return l.underWay + len(l.waiting) }

func (l *Line) of(name string) *holder {
	h := l.holders[name]
	if h == nil {
		h = &holder{}
		l.holders[name] = h
	}
	return h
}

func (l *Line) tidy(name string, h *holder) {
	if h.underWay == 0 && h.waiting == 0 {
		delete(l.holders, name)
	}
}
