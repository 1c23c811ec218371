package latency

import "github.com/treeline-edge/treeline/internal/step"

// roundQueue decides which user is measured next. At most total rounds are under way, and at most
// share of one holder (a tenant). Other users wait. The next round goes to the holder with
// the fewest rounds under way; among equals, to the one that was served longest ago.
type roundQueue struct {
	total, share int
	underWay     int
	turn         uint64
	holders      map[string]*holder // with rounds under way or users that wait
	waiting      map[string]string  // holder by user
}

type holder struct {
	underWay int
	served   uint64 // the turn when it was served last
	users    step.Queue[string]
	waiting  int
}

func newRoundQueue(total, share int) *roundQueue {
	return &roundQueue{total: total, share: share, holders: map[string]*holder{}, waiting: map[string]string{}}
}

// begin begins a round of the user. If it returns false, the user waits until next returns
// it.
func (l *roundQueue) begin(name, user string) bool {
	if l.underWay < l.total && l.underWayOf(name) < l.share {
		l.remove(user)
		l.beginBeyondShare(name)
		return true
	}
	if !l.waits(user) {
		l.waiting[user] = name
		h := l.holder(name)
		h.users.Add(user)
		h.waiting++
	}
	return false
}

// beginBeyondShare begins a round of the holder even beyond its share, to continue a previous round.
func (l *roundQueue) beginBeyondShare(name string) {
	h := l.holder(name)
	l.turn++
	l.underWay++
	h.underWay++
	h.served = l.turn
}

func (l *roundQueue) end(name string) {
	h := l.holder(name)
	l.underWay--
	h.underWay--
	l.prune(name, h)
}

// next removes and returns the waiting user whose round may begin.
func (l *roundQueue) next() (user string, ok bool) {
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
	user = next.users.List()[0]
	l.turn++
	next.served = l.turn // even if the caller does not begin the round
	l.remove(user)
	return user, true
}

func (l *roundQueue) remove(user string) {
	name, ok := l.waiting[user]
	if !ok {
		return
	}
	h := l.holders[name]
	delete(l.waiting, user)
	h.users.Remove(user)
	h.waiting--
	l.prune(name, h)
}

func (l *roundQueue) waits(user string) bool { _, ok := l.waiting[user]; return ok }

// underWayOf returns the number of the holder's rounds under way.
func (l *roundQueue) underWayOf(name string) int {
	if h := l.holders[name]; h != nil {
		return h.underWay
	}
	return 0
}

// size returns the number of rounds under way plus the number of waiting users.
func (l *roundQueue) size() int { return l.underWay + len(l.waiting) }

func (l *roundQueue) holder(name string) *holder {
	h := l.holders[name]
	if h == nil {
		h = &holder{}
		l.holders[name] = h
	}
	return h
}

func (l *roundQueue) prune(name string, h *holder) {
	if h.underWay == 0 && h.waiting == 0 {
		delete(l.holders, name)
	}
}
