// Package subscriptions keeps what the services of a node need to know of the
// network: the addresses and names that their instances use (subscriptions, delta-xDS
// terms), and the session with the cluster, which answers them with records or
// refusals. A subscription begins with its first use and ends when it is idle. It is
// open while the cluster has not answered it with records.
//
// It is pure. It does not know the records: the caller passes the Outcome of a
// subscription with each input, carries out the Replies, and releases the records to
// which no subscription leads after Drop.
package subscriptions

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Kind is the kind of the documents: a subscription that was answered once.
const Kind = "want"

// Config bounds the subscriptions of a node.
type Config struct {
	Idle       time.Duration // an unused subscription is dropped after that
	Negative   time.Duration // for which a refusal is valid without asking again
	Poll       time.Duration // between two polls of the plane's counters
	Quarantine time.Duration // for which the subscriptions of a service without instances are kept
	Max        int           // in all
	MaxOpen    int           // open ones per service
}

const (
	// minRetry and maxRetry bound the wait between two requests for an open subscription.
	// It doubles in between.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
	// minRecheck is the least time between two requests for a subscription that was
	// answered.
	minRecheck = 5 * time.Second
	// maxNames and maxWaiters bound the look-ups and the endpoints that wait for one
	// subscription. Others try again.
	maxNames, maxWaiters = 64, 64
	// maxSpellings bounds the subscriptions of a service to one name in other cases than
	// lower case.
	maxSpellings = 4
)

// Key is the resource of a subscription and the service that subscribes. For is empty
// where the node itself subscribes, to a peer.
type Key = wire.Subscription

// Outcome says where a subscription leads at the moment.
type Outcome uint8

const (
	// Unanswered means that the cluster has not answered.
	Unanswered Outcome = iota
	// Answered means that it leads to a record.
	Answered
	// Denied means that the subscriber may not use it.
	Denied
	// Nowhere means that there is no such resource.
	Nowhere
)

// Reply is what those who wait for a subscription are told.
type Reply struct {
	// Name is a look-up that can be answered now. If it is empty, packets that are queued
	// for Remote are released, or refused to Local with Refuse set.
	Name          string
	Local, Remote netip.Addr
	Refuse        bool
	Denied        bool // it is refused because the subscriber may not use it
}

type subscription struct {
	Key
	order   uint64        // grows with each subscription
	tries   int           // requests since the last answer
	seq     uint64        // of the message that asks to confirm a refusal
	asked   time.Time     // last request
	used    time.Time     // last use
	refusal *wire.Refusal // held
	until   time.Time     // up to which the refusal is valid
	waiting bool          // somebody waits
	locals  []netip.Addr  // whose packets are queued
	names   []string      // look-ups that wait, in lower case
	saved   bool          // there is a document
	payer   netip.Addr    // whose budget paid for the request
}

// subscriber is what one service subscribes to.
type subscriber struct{ all, open map[Key]struct{} }

// Machine has the subscriptions of a node and the session with its cluster.
type Machine struct {
	Session
	cfg       Config
	all       map[Key]*subscription
	byName    map[string]map[Key]struct{} // by service in lower case
	byAddress map[netip.Addr]map[Key]struct{}
	by        map[api.ServiceID]*subscriber
	rechecked map[Key]struct{}           // refused ones that were requested again
	overfull  map[api.ServiceID]struct{} // perhaps with too many open ones
	created   uint64
	held      api.Digest
	budgets   map[netip.Addr]*budget
	usage     plane.Usage
	journal   step.Journal
	timers    step.Timers[timer]
}

// New returns a machine without subscriptions.
func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg, all: map[Key]*subscription{}, byName: map[string]map[Key]struct{}{}, byAddress: map[netip.Addr]map[Key]struct{}{},
		by: map[api.ServiceID]*subscriber{}, rechecked: map[Key]struct{}{}, overfull: map[api.ServiceID]struct{}{}, budgets: map[netip.Addr]*budget{}, Session: newSession(),
	}
}

// Restore takes a document of an earlier process. keep decides whether its
// subscription is kept; otherwise the document is deleted.
func (m *Machine) Restore(d store.Doc, keep func(Key) bool) error {
	m.journal.Restored(d)
	var k Key
	if err := json.Unmarshal(d.Data, &k); err != nil {
		return err
	}
	if keep(k) {
		m.put(&subscription{Key: k, saved: true})
	} else {
		m.journal.Delete(d.Kind, d.Key)
	}
	return nil
}

// Restored ends Restore: with the outcome of each subscription it is known which are
// open.
func (m *Machine) Restored(outcome func(Key) Outcome) {
	for k := range m.all {
		if outcome(k) != Answered {
			m.by[k.For].open[k] = struct{}{}
		}
	}
	m.Session = newSession()
}

// Start begins a process lifetime. When subscriptions were used last is not saved, so
// that all count as used now.
func (m *Machine) Start(now time.Time) {
	m.resetIdle(now)
	if len(m.all) > 0 {
		m.timers.Set(timer{kind: timerPoll}, now.Add(m.cfg.Poll))
	}
	m.Session.whole, m.Session.self, m.Session.lost = true, true, now
}

// Save returns the documents that changed.
func (m *Machine) Save() []store.Doc { return m.journal.Take() }

// Held is the digest of the refusals.
func (m *Machine) Held() api.Digest { return m.held }

// Len is the number of subscriptions.
func (m *Machine) Len() int { return len(m.all) }

// Status is the state of a subscription for people.
type Status struct {
	Asked, Used time.Time
	Refused     bool
	Scheduled   bool // it is going to be requested again
}

// Get returns the state of a subscription.
func (m *Machine) Get(k Key) (st Status, ok bool) {
	s := m.all[k]
	if s == nil {
		return st, false
	}
	return Status{s.asked, s.used, s.refusal != nil, m.timers.Has(timer{kind: timerAsk, key: k})}, true
}

// Has reports whether there is a subscription.
func (m *Machine) Has(k Key) bool { return m.all[k] != nil }

// Refusal returns the refusal of a subscription, or nil.
func (m *Machine) Refusal(k Key) *wire.Refusal {
	if s := m.all[k]; s != nil {
		return s.refusal
	}
	return nil
}

// Refused lists, in no order, the subscriptions with a refusal.
func (m *Machine) Refused(yield func(Key) bool) {
	for k, s := range m.all {
		if s.refusal != nil && !yield(k) {
			return
		}
	}
}

// Room makes room for a subscription of a service. If victim is set the caller has to
// drop it and call Room again. ok is false if there is no room.
//
// A service with too many open subscriptions loses its oldest open one. If there are
// too many in all, the service with the most subscriptions loses one, an open one if
// possible. If that is the subscriber itself, and none is open, there is no room.
func (m *Machine) Room(id api.ServiceID) (victim *Key, ok bool) {
	a := m.by[id]
	if a == nil {
		a = &subscriber{}
	}
	if len(a.open) >= m.cfg.MaxOpen {
		return m.oldest(a.open), true
	}
	if len(m.all) < m.cfg.Max {
		return nil, true
	}
	most := a
	for _, other := range m.Subscribers() {
		if o := m.by[other]; len(o.all) > len(most.all) {
			most = o
		}
	}
	switch {
	case len(most.open) > 0:
		return m.oldest(most.open), true
	case most == a:
		return nil, false
	}
	return m.oldest(most.all), true
}

// Excess returns a subscription to drop, because a service has too many open ones.
func (m *Machine) Excess() *Key {
	for _, id := range sorted.Ordered(m.overfull) {
		if a := m.by[id]; a != nil && len(a.open) > m.cfg.MaxOpen {
			return m.oldest(a.open)
		}
		delete(m.overfull, id)
	}
	return nil
}

func (m *Machine) oldest(among map[Key]struct{}) *Key {
	var first *subscription
	for k := range among {
		if s := m.all[k]; first == nil || s.order < first.order {
			first = s
		}
	}
	return &first.Key
}

// Add subscribes. Room comes first. payer is the endpoint whose budget paid.
func (m *Machine) Add(now time.Time, k Key, payer netip.Addr, o Outcome) []Reply {
	s := &subscription{Key: k, used: now, payer: payer}
	m.put(s)
	m.by[k.For].open[k] = struct{}{}
	m.timers.Set(timer{kind: timerIdle, key: k}, now.Add(m.cfg.Idle))
	if len(m.all) == 1 {
		m.timers.Set(timer{kind: timerPoll}, now.Add(m.cfg.Poll))
	}
	m.Session.timers.SetEarlier(timerRenew, now.Add(m.Session.renewal))
	if o == Unanswered {
		m.ask(now, s)
		return nil
	}
	m.Session.add(k) // the record came for another subscription: the cluster must know of this one
	return m.Settle(now, k, o)
}

// Drop unsubscribes.
func (m *Machine) Drop(k Key) []Reply {
	s := m.all[k]
	delete(m.all, k)
	delete(m.rechecked, k)
	a := m.by[k.For]
	delete(a.all, k)
	delete(a.open, k)
	if len(a.all) == 0 {
		delete(m.by, k.For)
	}
	m.timers.Clear(timer{kind: timerAsk, key: k})
	m.timers.Clear(timer{kind: timerIdle, key: k})
	if s.saved {
		m.journal.Delete(Kind, docKey(k))
	}
	m.setRefusal(time.Time{}, s, nil)
	m.Session.drop(k)
	if k.Service != "" {
		removeFrom(m.byName, strings.ToLower(string(k.Service)), k)
	} else {
		removeFrom(m.byAddress, k.Address, k)
	}
	return s.refuse(false)
}

func (s *subscription) refuse(denied bool) (out []Reply) {
	for _, l := range s.locals {
		out = append(out, Reply{Local: l, Remote: s.Address, Refuse: true, Denied: denied})
	}
	return out
}

// SetRefusal sets or, with nil, removes the refusal of a subscription. It reports
// whether there is such a subscription, and whether the refusal is the first.
func (m *Machine) SetRefusal(now time.Time, k Key, r *wire.Refusal) (ok, first bool) {
	s := m.all[k]
	if s == nil || s.refusal == nil && r == nil {
		return false, false
	}
	first = s.refusal == nil
	m.setRefusal(now, s, r)
	return true, first
}

func (m *Machine) setRefusal(now time.Time, s *subscription, r *wire.Refusal) {
	if s.refusal != nil {
		m.held = m.held.Toggle(s.refusal.Digest())
	}
	s.refusal = r
	if r != nil {
		m.held = m.held.Toggle(r.Digest())
		s.until = now.Add(m.cfg.Negative)
	}
}

// Settle follows a possible change of a subscription's outcome.
func (m *Machine) Settle(now time.Time, k Key, o Outcome) (out []Reply) {
	s := m.all[k]
	if s == nil {
		return nil
	}
	a := m.by[k.For]
	if o == Answered {
		m.Refund(k)
		delete(a.open, k)
		if !s.saved {
			s.saved = true
			m.journal.Put(Kind, docKey(k), k)
		}
	} else {
		if a.open[k] = struct{}{}; len(a.open) > m.cfg.MaxOpen {
			m.overfull[k.For] = struct{}{}
		}
	}
	if o == Unanswered {
		if !m.timers.Has(timer{kind: timerAsk, key: k}) && m.Session.up {
			m.ask(now, s)
		}
		return nil
	}
	s.tries = 0
	m.timers.Clear(timer{kind: timerAsk, key: k})
	if !s.waiting {
		return nil
	}
	s.waiting = false
	switch {
	case !k.Address.IsValid() || k.For == "":
	case o == Answered:
		out = []Reply{{Remote: k.Address}}
	default:
		out = s.refuse(o == Denied)
	}
	for _, n := range s.names {
		out = append(out, Reply{Name: n})
	}
	s.locals, s.names = nil, nil
	return out
}

// ask requests a subscription from the cluster, and again after a wait that doubles.
func (m *Machine) ask(now time.Time, s *subscription) {
	wait := min(minRetry<<min(s.tries, 10), maxRetry)
	s.tries++
	s.asked = now
	m.Session.add(s.Key)
	m.timers.Set(timer{kind: timerAsk, key: s.Key}, now.Add(wait))
}

// Retry requests an unanswered subscription when a connection begins.
func (m *Machine) Retry(now time.Time, k Key) {
	s := m.all[k]
	s.tries = 0
	m.ask(now, s)
}

// Request requests a subscription whose answer may be old, if the last request is
// long enough ago. It reports whether it did.
func (m *Machine) Request(now time.Time, k Key) bool {
	s := m.all[k]
	if now.Sub(s.asked) < minRecheck {
		return false
	}
	s.asked = now
	m.Session.add(k)
	return true
}

// RequestPeer is Request for a subscription to a peer whose session is unknown.
func (m *Machine) RequestPeer(now time.Time, k Key, o Outcome) {
	s := m.all[k]
	if since := now.Sub(s.asked); since >= minRecheck || o != Answered && since >= minRetry {
		m.ask(now, s)
	}
}

// Wait notes an endpoint whose packets are queued for a subscription.
func (m *Machine) Wait(k Key, local netip.Addr) {
	s := m.all[k]
	s.waiting = true
	if len(s.locals) < maxWaiters && !slices.Contains(s.locals, local) {
		s.locals = append(s.locals, local)
	}
}

// Unwait ends the wait for a subscription. With refuse set those who wait are refused.
func (m *Machine) Unwait(k Key, refuse bool) (out []Reply) {
	s := m.all[k]
	s.waiting = false
	if refuse {
		out = s.refuse(true)
	}
	s.locals = nil
	return out
}

// Valid reports whether the refusal of a subscription can be used without asking the
// cluster again, or has to be because the cluster is not connected.
func (m *Machine) Valid(now time.Time, k Key) bool {
	return m.all[k].until.After(now) || !m.Session.up
}

// Recheck requests a refused subscription again, on the budget of an endpoint. If the
// cluster does not change its answer, it confirms it (see Acknowledge).
func (m *Machine) Recheck(now time.Time, k Key, payer netip.Addr) {
	s := m.all[k]
	s.payer, s.tries = payer, 0
	m.ask(now, s)
	s.seq = m.Session.seq + 1
	m.rechecked[k] = struct{}{}
}

// Query takes a look-up of a name that leads to a subscription. If wait is false it
// can be answered now.
func (m *Machine) Query(now time.Time, k Key, name string, local netip.Addr, o Outcome) (wait bool) {
	s := m.all[k]
	s.used = now
	switch {
	case o == Unanswered && m.hopeless(now, s):
		return false
	case o == Answered:
		m.Refund(k)
		return false
	case o != Unanswered:
		// Nobody waits for the recheck: the cluster sends by itself when there is such a
		// service, and the search list makes names from outside look like ours often.
		if !s.until.After(now) && m.Session.up && m.Spend(now, local) {
			m.Recheck(now, k, local)
		}
		return false
	}
	s.waiting = true
	if len(s.names) < maxNames && !slices.Contains(s.names, name) {
		s.names = append(s.names, name)
	}
	return true
}

// Hopeless reports whether waiting for the answer of a subscription is useless.
func (m *Machine) Hopeless(now time.Time, k Key) bool {
	s := m.all[k]
	return s == nil || m.hopeless(now, s)
}

// hopeless reports whether the cluster is disconnected for longer than a netmanager
// or a node engine takes to restart, or was asked more than a second ago and has not
// answered. The subscription stays, and a later look-up finds the answer.
func (m *Machine) hopeless(now time.Time, s *subscription) bool {
	if !m.Session.up {
		return now.Sub(m.Session.lost) >= time.Second
	}
	return s.tries > 2
}

// Use notes that subscriptions are used.
func (m *Machine) Use(now time.Time, keys ...Key) {
	for _, k := range keys {
		m.all[k].used = now
	}
}

// Usage takes the plane's counters and returns the semantic addresses and the
// instances' addresses whose counters changed.
func (m *Machine) Usage(u plane.Usage) (services, instances []netip.Addr) {
	was := m.usage
	m.usage = u
	moved := func(now, before map[netip.Addr]uint64) (out []netip.Addr) {
		for a, n := range now {
			if n != before[a] {
				out = append(out, a)
			}
		}
		return out
	}
	return moved(u.Services, was.Services), append(moved(u.Backends, was.Backends), moved(u.Sources, was.Sources)...)
}
