// Package subscriptions keeps a node's subscriptions (delta xDS): the addresses and names that its
// instances use. It also keeps the session with the cluster, which answers them with records or refusals.
// A subscription begins with its first use and ends when it is idle. It is open until the cluster answers
// it with records.
//
// It does no I/O and has no records. The caller passes the Outcome of a subscription with each input,
// carries out the Replies, and after Drop releases the records to which no subscription leads.
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

// Kind is the kind of the documents: subscriptions that were answered with records at least once. The
// value is from an earlier name of subscriptions, and stays because stores contain it.
const Kind = "want"

// Config bounds the subscriptions of a node.
type Config struct {
	Idle       time.Duration // an unused subscription is dropped after that
	Negative   time.Duration // how long a refusal is valid without asking again
	Poll       time.Duration // between two polls of the plane's counters
	Quarantine time.Duration // how long the subscriptions of a service without instances are kept
	Max        int           // in all
	MaxOpen    int           // open ones per service
}

const (
	// minRetry and maxRetry bound the wait between two requests for an open subscription, which doubles.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
	// minRecheck is the least time between two requests for a subscription that was
	// answered.
	minRecheck = 5 * time.Second
	// maxNames and maxWaiters bound the look-ups and the endpoints that wait for one subscription. Others
	// have to try again.
	maxNames, maxWaiters = 64, 64
	// maxSpellings bounds a service's subscriptions to one name in spellings other than lower case.
	maxSpellings = 4
)

// Key is the resource of a subscription and the subscribing service. For is empty if the node itself
// subscribes to a peer.
type Key = wire.Subscription

// Outcome is where a subscription leads at the moment.
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

// Reply ends the wait of a look-up, or of packets, for a subscription.
type Reply struct {
	// Name is a look-up that has an answer. If it is empty, packets that are queued for Remote are
	// released or, with Refuse, those from Local are refused.
	Name          string
	Local, Remote netip.Addr
	Refuse        bool
	Denied        bool // refused because the subscriber may not use it
}

type subscription struct {
	Key
	order   uint64        // grows with each subscription
	tries   int           // requests since the last answer
	seq     uint64        // of the message that asked the cluster to confirm the refusal
	asked   time.Time     // last request
	used    time.Time     // last use
	refusal *wire.Refusal // nil: none
	until   time.Time     // up to which the refusal is valid
	waiting bool          // packets or look-ups wait
	locals  []netip.Addr  // endpoints whose packets are queued
	names   []string      // look-ups that wait, in lower case
	saved   bool          // there is a document
	payer   netip.Addr    // the endpoint whose budget paid for the request
}

// subscriber has the subscriptions of one service.
type subscriber struct{ all, open map[Key]struct{} }

// Machine has the subscriptions of a node and the session with its cluster.
type Machine struct {
	Session
	cfg       Config
	all       map[Key]*subscription
	byName    map[string]map[Key]struct{} // by service in lower case
	byAddress map[netip.Addr]map[Key]struct{}
	by        map[api.ServiceID]*subscriber
	rechecked map[Key]struct{}           // refused subscriptions that were requested again
	overfull  map[api.ServiceID]struct{} // services that may have too many open subscriptions
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

// Restore loads a document of an earlier process. It deletes the document unless keep returns true.
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

// Restored ends Restore. It determines which subscriptions are open.
func (m *Machine) Restored(outcome func(Key) Outcome) {
	for k := range m.all {
		if outcome(k) != Answered {
			m.by[k.For].open[k] = struct{}{}
		}
	}
	m.Session = newSession()
}

// Start begins a process lifetime. Last uses are not saved, so all subscriptions count as used now.
func (m *Machine) Start(now time.Time) {
	m.resetIdle(now)
	if len(m.all) > 0 {
		m.timers.Set(timer{kind: timerPoll}, now.Add(m.cfg.Poll))
	}
	m.Session.whole, m.Session.self, m.Session.lost = true, true, now
}

// Save returns the documents that changed.
func (m *Machine) Save() []store.Doc { return m.journal.Take() }

// Held returns the digest of the refusals.
func (m *Machine) Held() api.Digest { return m.held }

// Len returns the number of subscriptions.
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

// MakeRoom checks that a service may add a subscription. If victim is set, the caller drops it and calls
// MakeRoom again. ok is false if there is no room.
//
// A service with too many open subscriptions loses its oldest open one. If there are too many in all, the
// service with the most loses its oldest open one, else its oldest one. If that service is the subscriber
// and has no open one, there is no room.
func (m *Machine) MakeRoom(id api.ServiceID) (victim *Key, ok bool) {
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

// Excess returns a subscription to drop because its service has too many open ones, or nil.
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

// Add adds a subscription. The caller has called MakeRoom. payer is the endpoint whose budget paid.
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
	m.Session.add(k) // another subscription brought the record, but the cluster must also have this one
	return m.Settle(now, k, o)
}

// Drop removes a subscription, and refuses the packets that wait for it.
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

// Settle applies the outcome of a subscription, which may have changed.
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

// ask requests a subscription from the cluster and schedules the next request.
func (m *Machine) ask(now time.Time, s *subscription) {
	wait := min(minRetry<<min(s.tries, 10), maxRetry)
	s.tries++
	s.asked = now
	m.Session.add(s.Key)
	m.timers.Set(timer{kind: timerAsk, key: s.Key}, now.Add(wait))
}

// Retry requests an unanswered subscription at once, because the cluster was connected.
func (m *Machine) Retry(now time.Time, k Key) {
	s := m.all[k]
	s.tries = 0
	m.ask(now, s)
}

// Request requests a subscription again whose answer may be out of date. It reports false if the last
// request is less than minRecheck ago.
func (m *Machine) Request(now time.Time, k Key) bool {
	s := m.all[k]
	if now.Sub(s.asked) < minRecheck {
		return false
	}
	s.asked = now
	m.Session.add(k)
	return true
}

// RequestPeer requests a subscription to a subnet again, because a peer without a record claims the
// subnet.
func (m *Machine) RequestPeer(now time.Time, k Key, o Outcome) {
	s := m.all[k]
	if since := now.Sub(s.asked); since >= minRecheck || o != Answered && since >= minRetry {
		m.ask(now, s)
	}
}

// Wait records that packets from an endpoint are queued for a subscription.
func (m *Machine) Wait(k Key, local netip.Addr) {
	s := m.all[k]
	s.waiting = true
	if len(s.locals) < maxWaiters && !slices.Contains(s.locals, local) {
		s.locals = append(s.locals, local)
	}
}

// EndWait ends the wait of packets for a subscription. refuse returns their refusals.
func (m *Machine) EndWait(k Key, refuse bool) (out []Reply) {
	s := m.all[k]
	s.waiting = false
	if refuse {
		out = s.refuse(true)
	}
	s.locals = nil
	return out
}

// Valid reports whether the refusal of a subscription may be used without asking the cluster again. While
// the cluster is disconnected, every refusal is valid.
func (m *Machine) Valid(now time.Time, k Key) bool {
	return m.all[k].until.After(now) || !m.Session.up
}

// Recheck requests a refused subscription again. The caller has charged payer's budget. The cluster
// changes its answer or confirms it (see Confirm).
func (m *Machine) Recheck(now time.Time, k Key, payer netip.Addr) {
	s := m.all[k]
	s.payer, s.tries = payer, 0
	m.ask(now, s)
	s.seq = m.Session.seq + 1
	m.rechecked[k] = struct{}{}
}

// Query starts the look-up of a name that leads to a subscription. wait is false if there is an answer
// now.
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
		// The look-up does not wait for the recheck: the cluster sends a record when such a service
		// appears, and the search list often makes names from outside look like names of services.
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

// Hopeless reports whether waiting for the answer to a subscription is pointless.
func (m *Machine) Hopeless(now time.Time, k Key) bool {
	s := m.all[k]
	return s == nil || m.hopeless(now, s)
}

// hopeless reports whether the cluster is disconnected for longer than a netmanager or a node engine
// takes to restart, or has not answered the first two requests (1.5 s). The subscription stays, and a
// later look-up finds the answer.
func (m *Machine) hopeless(now time.Time, s *subscription) bool {
	if !m.Session.up {
		return now.Sub(m.Session.lost) >= time.Second
	}
	return s.tries > 2
}

// Use marks subscriptions as used.
func (m *Machine) Use(now time.Time, keys ...Key) {
	for _, k := range keys {
		m.all[k].used = now
	}
}

// Usage stores the plane's counters and returns the semantic addresses and the instances' addresses whose
// counters changed since the last call.
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
