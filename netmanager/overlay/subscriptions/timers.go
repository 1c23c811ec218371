package subscriptions

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

type timer struct {
	kind    timerKind
	key     Key
	service api.ServiceID
}

type timerKind uint8

const (
	timerAsk  timerKind = iota // the subscription has not been answered
	timerIdle                  // the subscription may be idle
	timerLeft                  // the service has had no instances for Config.Quarantine
	timerPoll                  // poll the plane's counters
)

// Due is a timer that the caller has to handle.
type Due struct {
	Poll bool          // poll the plane's counters (Usage)
	Ask  Key           // call RequestAgain
	Idle Key           // call Idle
	Left api.ServiceID // drop the subscriptions of this service if it has no instance
}

// Next returns when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return step.Earliest(m.timers.Next(), m.Session.timers.Next()) }

// Expire handles the first timer that is due.
func (m *Machine) Expire(now time.Time) (d Due) {
	t, ok := m.timers.Pop(now)
	if !ok {
		m.Session.expire(now, len(m.all) > 0)
		return d
	}
	switch t.kind {
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

// RequestAgain requests a subscription that is still unanswered. It does nothing while the cluster is
// disconnected; after SetLink the caller calls Retry.
func (m *Machine) RequestAgain(now time.Time, k Key, o Outcome) {
	if s := m.all[k]; s != nil && m.Session.up && (o == Unanswered || s.waiting) {
		m.ask(now, s)
	}
}

// Idle reports whether to drop a subscription that has not been used for Config.Idle. It waits
// Config.Poll longer, so that the plane's counters have been polled.
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

// SetLink sets whether the cluster is connected. If connected is true, the caller calls Retry for
// unanswered subscriptions.
func (m *Machine) SetLink(now time.Time, up bool) (connected bool) {
	if connected = m.setLink(now, up); connected {
		m.resetIdle(now)
	}
	return connected
}

// Confirm returns the rechecked subscriptions whose refusal the cluster has confirmed by acknowledging
// seq. The caller has applied the records of the message before.
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

func (m *Machine) resetIdle(now time.Time) {
	for _, id := range m.Subscribers() {
		for _, k := range m.inOrder(m.by[id].all) {
			m.all[k].used = now
			m.timers.Set(timer{kind: timerIdle, key: k}, now.Add(m.cfg.Idle))
		}
	}
}

// kept reports whether a subscription is kept even if it is idle: it leads to a record that the
// disconnected cluster cannot send again.
func (m *Machine) kept(o Outcome) bool { return !m.Session.up && o == Answered }

// DropAfterLeaving reports whether to drop a subscription of a service whose last instance left the node:
// it is open or idle. The caller keeps the others for a while, since the instance may restart.
func (m *Machine) DropAfterLeaving(now time.Time, id api.ServiceID, k Key, o Outcome) (drop bool) {
	s, open := m.all[k], m.by[id].open
	if _, ok := open[k]; ok {
		return true
	}
	return now.Sub(s.used) >= m.cfg.Idle && !m.kept(o)
}

// KeepFor keeps the subscriptions of a service without instances for a while.
func (m *Machine) KeepFor(now time.Time, id api.ServiceID) {
	if m.by[id] != nil {
		m.timers.Set(timer{kind: timerLeft, service: id}, now.Add(m.cfg.Quarantine))
	}
}

// Inherit sets the last use of a subscription that replaces another one.
func (m *Machine) Inherit(k Key, from time.Time) { m.all[k].used = from }

// InQuarantine reports whether the subscriptions of a service without instances are kept for a
// while.
func (m *Machine) InQuarantine(id api.ServiceID) bool {
	return m.timers.Has(timer{kind: timerLeft, service: id})
}
