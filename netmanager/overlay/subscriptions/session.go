package subscriptions

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

const (
	// minAck and maxAck bound the wait for an acknowledgement, which doubles in between.
	minAck, maxAck = time.Second, 30 * time.Second
	// maxCompare bounds the wait after the digests differed.
	maxCompare = time.Minute
	// defaultRenewal is for clusters that do not say how long a subscription lasts.
	defaultRenewal = 100 * time.Second
)

// session is the exchange with the cluster: what it has to be told, and what it
// confirmed. Delivery is not reliable.
type session struct {
	up      bool
	lost    time.Time // since when it is not up
	seq     uint64    // of the last message to the cluster (the nonce)
	rev     uint64    // of the last message from the cluster (the version)
	fresh   bool      // the connection is new: its first message is in order
	whole   bool      // name all subscriptions
	self    bool      // describe the node
	digest  bool      // send a message in any case
	adds    map[Key]struct{}
	drops   map[Key]struct{}
	unacked uint64 // seq of the last message that has to be acknowledged; 0: none
	tries   int    // since the last acknowledgement
	differs int    // comparisons in a row that failed
	renewal time.Duration
}

func newSession() session {
	return session{adds: map[Key]struct{}{}, drops: map[Key]struct{}{}, renewal: defaultRenewal}
}

type timer struct {
	kind    timerKind
	key     Key
	service api.ServiceID
}

type timerKind uint8

const (
	timerAsk     timerKind = iota // the subscription has not been answered
	timerIdle                     // the subscription may be idle
	timerLeft                     // the service has no instances for long
	timerPoll                     // poll the plane's counters
	timerAck                      // the last message was not acknowledged
	timerRenew                    // all subscriptions have to be named again
	timerCompare                  // the digests differed
)

func (l *session) add(k Key) {
	delete(l.drops, k)
	l.adds[k] = struct{}{}
}

func (l *session) drop(k Key) {
	delete(l.adds, k)
	l.drops[k] = struct{}{}
}

// Due is a timer that the caller has to handle.
type Due struct {
	Poll bool          // poll the plane's counters (Usage)
	Ask  Key           // call AskAgain
	Idle Key           // call Idle
	Left api.ServiceID // drop the subscriptions of this service if it has no instance
}

// Next is when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Expire handles the first timer that is due.
func (m *Machine) Expire(now time.Time) (d Due) {
	t, ok := m.timers.Pop(now)
	if !ok {
		return d
	}
	l := &m.session
	switch t.kind {
	case timerAck:
		if l.unacked != 0 {
			l.tries++
			l.whole, l.self = true, true
		}
	case timerCompare:
		l.whole, l.self = true, true
	case timerRenew:
		l.whole = l.whole || len(m.all) > 0
	case timerPoll:
		if d.Poll = len(m.all) > 0; d.Poll {
			m.timers.Set(t, now.Add(m.cfg.Poll))
		}
	case timerAsk:
		d.Ask = t.key
	case timerIdle:
		d.Idle = t.key
	case timerLeft:
		d.Left = t.service
	}
	return d
}

// AskAgain requests a subscription that is still unanswered. While the cluster is
// disconnected nothing is requested; SetLink continues.
func (m *Machine) AskAgain(now time.Time, k Key, o Outcome) {
	if s := m.all[k]; s != nil && m.session.up && (o == Unanswered || s.waiting) {
		m.ask(now, s)
	}
}

// Idle reports whether a subscription has to be dropped because nobody uses it. The
// plane's counters were polled since, so that its last use is known.
func (m *Machine) Idle(now time.Time, k Key, o Outcome) (drop bool) {
	s := m.all[k]
	if s == nil || m.kept(o) {
		return false
	}
	if end := s.used.Add(m.cfg.Idle + m.cfg.Poll); end.After(now) {
		m.timers.Set(timer{kind: timerIdle, key: k}, end)
		return false
	}
	return true
}

// SetRenewal sets how long a subscription lasts at the cluster; 0: not known. It is
// renewed three times in that time.
func (m *Machine) SetRenewal(lasts time.Duration) {
	if m.session.renewal = defaultRenewal; lasts > 0 {
		m.session.renewal = max(lasts/3, time.Second)
	}
}

// Up reports whether the cluster is connected.
func (m *Machine) Up() bool { return m.session.up }

// SetLink takes whether the cluster is connected. connected is true if it was not
// before: then the caller retries unanswered subscriptions.
func (m *Machine) SetLink(now time.Time, up bool) (connected bool) {
	l := &m.session
	was := l.up
	l.up = up
	if was && !up {
		l.lost = now
	}
	if !up || was {
		return false
	}
	// The digest shows what was lost with the old connection.
	l.digest, l.fresh = true, true
	if l.unacked != 0 {
		l.whole, l.self = true, true
	}
	m.resetIdle(now)
	return true
}

// Position returns the seq of the last message to the cluster and the revision of the
// last one from it.
func (m *Machine) Position() (seq, rev uint64) { return m.session.seq, m.session.rev }

// Queued is how many subscriptions the next message adds and drops.
func (m *Machine) Queued() int { return len(m.session.adds) + len(m.session.drops) }

// Describe has the next message describe the node.
func (m *Machine) Describe() { m.session.self = true }

// Take takes the revision of a message from the cluster. It is false if the message
// is late.
func (m *Machine) Take(rev uint64) bool {
	l := &m.session
	if rev < l.rev && !l.fresh {
		return false
	}
	l.rev, l.fresh = rev, false
	return true
}

// Acknowledge takes the seq of the last message that the cluster took in.
func (m *Machine) Acknowledge(seq uint64) {
	if l := &m.session; l.unacked != 0 && seq >= l.unacked {
		l.unacked, l.tries = 0, 0
		m.timers.Clear(timer{kind: timerAck})
	}
}

// Confirm returns the refused subscriptions that the cluster was asked to confirm and
// did not change. It comes after the records of the message.
func (m *Machine) Confirm(now time.Time, seq uint64) (settle []Key) {
	for _, k := range m.inOrder(m.rechecked) {
		if s := m.all[k]; seq >= s.seq {
			delete(m.rechecked, k)
			s.until = now.Add(m.cfg.Negative)
			settle = append(settle, k)
		}
	}
	return settle
}

// Requested takes what the cluster wants to be told.
func (m *Machine) Requested(digest, whole bool) {
	l := &m.session
	l.digest = l.digest || digest
	l.whole, l.self = l.whole || whole, l.self || whole
}

// Compare compares the digest of what the node holds with what the cluster says,
// once the cluster has taken in all messages (seq). After a difference all
// subscriptions are named, at growing intervals if that does not help.
func (m *Machine) Compare(now time.Time, held, theirs api.Digest, seq uint64) {
	l := &m.session
	if theirs == 0 || seq != l.seq || len(l.adds)+len(l.drops) > 0 {
		return
	}
	key := timer{kind: timerCompare}
	if theirs == held {
		l.differs = 0
		m.timers.Clear(key)
		return
	}
	if !m.timers.Has(key) {
		m.timers.Set(key, now.Add(min(minAck<<min(l.differs, 10), maxCompare)))
		l.differs++
	}
}

// Message is what the next message to the cluster has of the session.
type Message struct {
	Seq, Rev  uint64
	Self      bool // describe the node
	Whole     bool // Add has all subscriptions
	Resync    bool // the cluster may have lost everything
	Add, Drop []Key
}

// Message returns the next message to the cluster, if there is something to send or
// force is set. Without ready nothing is sent.
func (m *Machine) Message(now time.Time, ready, force bool) (msg Message, ok bool) {
	l := &m.session
	// While the cluster is disconnected, changes accumulate. They must not exceed what a
	// message with all subscriptions has.
	if len(l.adds)+len(l.drops) > m.cfg.Max {
		l.whole = true
		clear(l.adds)
		clear(l.drops)
	}
	if !l.up || !ready || !force && !l.whole && !l.self && !l.digest && len(l.adds)+len(l.drops) == 0 {
		return msg, false
	}
	l.seq++
	msg = Message{Seq: l.seq, Rev: l.rev, Self: l.self || l.seq == 1, Whole: l.whole || l.seq == 1, Resync: l.whole && l.self}
	if msg.Whole {
		msg.Add = inOrder(m.all)
	} else {
		msg.Add, msg.Drop = inOrder(l.adds), inOrder(l.drops)
	}
	if msg.Whole || msg.Self || len(msg.Add)+len(msg.Drop) > 0 {
		l.unacked = l.seq
		m.timers.SetEarlier(timer{kind: timerAck}, now.Add(min(minAck<<min(l.tries, 10), maxAck)))
	}
	if msg.Whole {
		m.timers.Clear(timer{kind: timerRenew})
		if len(m.all) > 0 {
			m.timers.Set(timer{kind: timerRenew}, now.Add(l.renewal))
		}
	}
	l.whole, l.self, l.digest = false, false, false
	clear(l.adds)
	clear(l.drops)
	return msg, true
}

func inOrder[V any](keys map[Key]V) []Key {
	return sorted.Keys(keys, func(a, b Key) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Service, b.Service), cmp.Compare(a.For, b.For))
	})
}
