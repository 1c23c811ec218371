// Package demand keeps the sleeping services for which packets wait on this node, and repeats the
// demands for them until an instance takes flows or the wait is over. It does no I/O.
//
//	if m.Add(now, k) {
//		… // hold the packets; m.Take() is part of the next message to the cluster
//	}
//	m.Drop(address) // an instance takes flows
package demand

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Bound is shared by the services of a node that wait for sleeping services.
var Bound = fairshare.Declare(fairshare.Bound{
	Resource: "sleeping services that a node's packets wait for", Total: wire.MaxDemands, Share: []int{64}, Per: "service that sends",
	Beyond: "the packet is refused (ICMP host unreachable)", Attack: "TestDemandsOfOneServiceLeaveRoomForOthers",
})

const (
	// Wait is how long packets wait for a cold start.
	Wait = 30 * time.Second
	// minRepeat and maxRepeat bound the interval of repetitions, which doubles. A message may be lost.
	minRepeat, maxRepeat = 250 * time.Millisecond, 2 * time.Second
)

type entry struct {
	began time.Time
	tries int
}

// Machine has the demands of a node.
type Machine struct {
	all    map[wire.Subscription]*entry
	of     map[api.ServiceID]int // number by the service that sends
	send   map[wire.Subscription]struct{}
	timers step.Timers[wire.Subscription]
}

// New returns a machine without demands.
func New() *Machine {
	return &Machine{all: map[wire.Subscription]*entry{}, of: map[api.ServiceID]int{}, send: map[wire.Subscription]struct{}{}}
}

// Add adds a demand, and returns how long packets may still wait for it. It returns 0 if there is no
// room. A demand that exists stays as it is.
func (m *Machine) Add(now time.Time, k wire.Subscription) time.Duration {
	e := m.all[k]
	if e == nil {
		if len(m.all) >= Bound.Total || m.of[k.For] >= Bound.Share[0] {
			return 0
		}
		e = &entry{began: now}
		m.all[k] = e
		m.of[k.For]++
		m.ask(now, k, e)
	}
	return e.began.Add(Wait).Sub(now)
}

func (m *Machine) ask(now time.Time, k wire.Subscription, e *entry) {
	m.send[k] = struct{}{}
	at := now.Add(min(minRepeat<<min(e.tries, 10), maxRepeat))
	e.tries++
	if end := e.began.Add(Wait); at.After(end) {
		at = end
	}
	m.timers.Set(k, at)
}

// Drop removes the demands for an address. had reports whether there were any.
func (m *Machine) Drop(a netip.Addr) (had bool) {
	for k := range m.all {
		if k.Address == a {
			m.remove(k)
			had = true
		}
	}
	return had
}

func (m *Machine) remove(k wire.Subscription) {
	delete(m.all, k)
	delete(m.send, k)
	if m.of[k.For]--; m.of[k.For] == 0 {
		delete(m.of, k.For)
	}
	m.timers.Clear(k)
}

// Len returns the number of demands.
func (m *Machine) Len() int { return len(m.all) }

// Next returns when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Expire handles the first timer that is due. over means that the demand ended without an instance.
func (m *Machine) Expire(now time.Time) (k wire.Subscription, over bool) {
	k, ok := m.timers.Pop(now)
	if !ok {
		return k, false
	}
	e := m.all[k]
	if over = !now.Before(e.began.Add(Wait)); over {
		m.remove(k)
	} else {
		m.ask(now, k, e)
	}
	return k, over
}

// Due reports whether demands are to be sent.
func (m *Machine) Due() bool { return len(m.send) > 0 }

// Take returns the demands to be sent, in order.
func (m *Machine) Take() []wire.Subscription {
	out := sorted.Keys(m.send, wire.Subscription.Compare)
	clear(m.send)
	return out
}
