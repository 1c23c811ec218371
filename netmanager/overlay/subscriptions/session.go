package subscriptions

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

const (
	// minAck and maxAck bound the wait for an acknowledgement, which doubles.
	minAck, maxAck = time.Second, 30 * time.Second
	// maxCompare bounds the wait after a difference of the digests, which doubles.
	maxCompare = time.Minute
	// defaultRenewal is used if the cluster does not report how long a subscription lasts.
	defaultRenewal = 100 * time.Second
)

// Session is the exchange with the cluster: what is to be sent, and what the cluster
// acknowledged. Delivery is not reliable.
type Session struct {
	up      bool
	lost    time.Time // when the connection was lost
	seq     uint64    // of the last message to the cluster (the nonce)
	rev     uint64    // of the last message from the cluster (the version)
	fresh   bool      // the connection is new: accept any revision
	whole   bool      // send all subscriptions
	self    bool      // send the node's description
	digest  bool      // send a message even without changes
	adds    map[Key]struct{}
	drops   map[Key]struct{}
	unacked uint64 // seq of the last message that has to be acknowledged; 0: none
	tries   int    // since the last acknowledgement
	differs int    // consecutive comparisons that failed
	renewal time.Duration
	timers  step.Timers[sessionTimer]
}

type sessionTimer uint8

const (
	timerAck     sessionTimer = iota // the last message was not acknowledged
	timerRenew                       // all subscriptions have to be renewed
	timerCompare                     // the digests differed
)

func newSession() Session {
	return Session{adds: map[Key]struct{}{}, drops: map[Key]struct{}{}, renewal: defaultRenewal}
}

func (l *Session) add(k Key) {
	delete(l.drops, k)
	l.adds[k] = struct{}{}
}

func (l *Session) drop(k Key) {
	delete(l.adds, k)
	l.drops[k] = struct{}{}
}

func (l *Session) expire(now time.Time, subscribed bool) {
	t, ok := l.timers.Pop(now)
	switch {
	case !ok:
	case t == timerAck && l.unacked != 0:
		l.tries++
		l.whole, l.self = true, true
	case t == timerCompare:
		l.whole, l.self = true, true
	case t == timerRenew:
		l.whole = l.whole || subscribed
	}
}

// SetRenewal sets how long a subscription lasts at the cluster; 0: not known. Subscriptions are renewed
// after a third of that time.
func (l *Session) SetRenewal(lasts time.Duration) {
	if l.renewal = defaultRenewal; lasts > 0 {
		l.renewal = max(lasts/3, time.Second)
	}
}

// Up reports whether the cluster is connected.
func (l *Session) Up() bool { return l.up }

// setLink sets whether the cluster is connected. connected is true if it was not connected before.
func (l *Session) setLink(now time.Time, up bool) (connected bool) {
	was := l.up
	l.up = up
	if was && !up {
		l.lost = now
	}
	if !up || was {
		return false
	}
	// The cluster compares the digest, and finds what was lost with the old connection.
	l.digest, l.fresh = true, true
	if l.unacked != 0 {
		l.whole, l.self = true, true
	}
	return true
}

// Position returns the seq of the last message to the cluster and the revision of the
// last one from it.
func (l *Session) Position() (seq, rev uint64) { return l.seq, l.rev }

// Queued returns how many subscriptions the next message adds and drops.
func (l *Session) Queued() int { return len(l.adds) + len(l.drops) }

// Describe adds the node's description to the next message.
func (l *Session) Describe() { l.self = true }

// Take stores the revision of a message from the cluster. It returns false for a message that is out of
// order.
func (l *Session) Take(rev uint64) bool {
	if rev < l.rev && !l.fresh {
		return false
	}
	l.rev, l.fresh = rev, false
	return true
}

// Acknowledge stores the seq of the last message that the cluster received.
func (l *Session) Acknowledge(seq uint64) {
	if l.unacked != 0 && seq >= l.unacked {
		l.unacked, l.tries = 0, 0
		l.timers.Clear(timerAck)
	}
}

// Requested stores whether the cluster requests the digest, or all subscriptions.
func (l *Session) Requested(digest, whole bool) {
	l.digest = l.digest || digest
	l.whole, l.self = l.whole || whole, l.self || whole
}

// Compare compares the digest of the node's records with the cluster's, if the cluster has received all
// messages (seq). After a difference all subscriptions are sent, at growing intervals.
func (l *Session) Compare(now time.Time, held, theirs api.Digest, seq uint64) {
	switch {
	case theirs == 0 || seq != l.seq || l.Queued() > 0:
	case theirs == held:
		l.differs = 0
		l.timers.Clear(timerCompare)
	case !l.timers.Has(timerCompare):
		l.timers.Set(timerCompare, now.Add(min(minAck<<min(l.differs, 10), maxCompare)))
		l.differs++
	}
}

// Message is the session's part of the next message to the cluster.
type Message struct {
	Seq, Rev  uint64
	Self      bool // describe the node
	Whole     bool // Add has all subscriptions
	Resync    bool // the cluster may have lost all state
	Add, Drop []Key
}

// Message returns the next message to the cluster if there is something to send or force is set. It
// returns none unless ready is set.
func (m *Machine) Message(now time.Time, ready, force bool) (msg Message, ok bool) {
	l := &m.Session
	// Changes accumulate while the cluster is disconnected. If there are more than subscriptions are
	// allowed, all subscriptions are sent instead.
	if l.Queued() > m.cfg.Max {
		l.whole = true
		clear(l.adds)
		clear(l.drops)
	}
	if !l.up || !ready || !force && !l.whole && !l.self && !l.digest && l.Queued() == 0 {
		return msg, false
	}
	l.seq++
	msg = Message{Seq: l.seq, Rev: l.rev, Self: l.self || l.seq == 1, Whole: l.whole || l.seq == 1, Resync: l.whole && l.self}
	if msg.Whole {
		msg.Add = inOrder(m.all)
		l.timers.Clear(timerRenew)
		if len(m.all) > 0 {
			l.timers.Set(timerRenew, now.Add(l.renewal))
		}
	} else {
		msg.Add, msg.Drop = inOrder(l.adds), inOrder(l.drops)
	}
	if msg.Whole || msg.Self || l.Queued() > 0 {
		l.unacked = l.seq
		l.timers.SetEarlier(timerAck, now.Add(min(minAck<<min(l.tries, 10), maxAck)))
	}
	l.whole, l.self, l.digest = false, false, false
	clear(l.adds)
	clear(l.drops)
	return msg, true
}

func inOrder[V any](keys map[Key]V) []Key { return sorted.Keys(keys, Key.Compare) }
