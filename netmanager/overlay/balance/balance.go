// Package balance chooses the backends of a service's semantic addresses and their weights. It keeps the
// loads that the weights are based on, and which backends are close, so that small changes do not move
// flows. It does no I/O: the caller passes each backend with the state of its node.
//
//	balance.Resolve(backends)
//	changed := m.Weigh(now, id, addresses, backends, peer, false)
//	services := m.Services(id, ident, addresses, backends, use)
package balance

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

const (
	// switchAfter is how many consecutive updates must agree before a backend becomes close or stops
	// being close.
	switchAfter = 3
	// recheck is the interval at which an estimated distance counts as an update.
	recheck = 2 * time.Second
	// stale is the age of a node's last path report from which on its distance counts as estimated.
	stale = 10 * time.Second
	// loadStep is how many percentage points a load must change to change a weight.
	loadStep  = 10
	maxWeight = 16

	relayCost    = 5 * time.Millisecond
	relayTLSCost = 20 * time.Millisecond
	lossCost     = 200 * time.Millisecond // of a path that loses every packet
)

// Unknown is the distance to a backend whose node was never measured.
const Unknown = time.Second

// Backend is an instance that flows may go to, with the state of its node.
type Backend struct {
	Instance api.InstanceID
	Epoch    api.Epoch
	Address  netip.Addr
	Local    bool // on this node
	Peer     api.PeerKey
	Draining bool
	Gone     bool          // its node reported that it does not exist
	Silent   bool          // its node does not answer
	Lossy    bool          // the path to its node loses packets
	Load     uint8         // of its node in percent; 0: not known
	Distance time.Duration // see Distance; 0 if Local
	Updated  time.Time     // of the last path report of its node
}

// Distance returns the cost of a path: its round trip, or estimate if there is none, plus surcharges for
// relays and losses.
func Distance(kind api.PathKind, rtt time.Duration, loss float64, estimate time.Duration) time.Duration {
	d := estimate
	if rtt > 0 && kind != api.PathNone {
		d = rtt
	}
	switch kind {
	case api.PathRelay:
		d += relayCost
	case api.PathRelayTLS:
		d += relayTLSCost
	}
	return d + time.Duration(min(max(loss, 0), 1)*float64(lossCost))
}

// Resolve marks the backends that have a newer placement as draining, and sorts all by address.
func Resolve(all []Backend) {
	newest := map[api.InstanceID]api.Epoch{}
	for _, b := range all {
		if !b.Gone {
			newest[b.Instance] = max(newest[b.Instance], b.Epoch)
		}
	}
	for i := range all {
		all[i].Draining = all[i].Draining || all[i].Epoch < newest[all[i].Instance]
	}
	slices.SortFunc(all, func(a, b Backend) int { return a.Address.Compare(b.Address) })
}

// Open returns the backends to which new flows go: the best class that is not empty. A backend whose node
// does not answer is better than none. So is one that its node does not know, because the node may have
// lost its store and not found its workloads yet.
func Open(all []Backend) []Backend {
	if left := filter(all, func(b Backend) bool { return !b.Gone }); len(left) > 0 {
		all = left
	}
	for _, good := range []func(Backend) bool{
		func(b Backend) bool { return !b.Draining && !b.Silent },
		func(b Backend) bool { return !b.Silent },
		func(b Backend) bool { return !b.Draining },
	} {
		if some := filter(all, good); len(some) > 0 {
			return some
		}
	}
	return all
}

func filter(all []Backend, keep func(Backend) bool) []Backend {
	return slices.DeleteFunc(slices.Clone(all), func(b Backend) bool { return !keep(b) })
}

// Machine keeps the balancing state of services.
type Machine struct {
	services map[api.ServiceID]*service
	timers   step.Timers[api.ServiceID]
}

type service struct {
	loads map[netip.Addr]uint8 // on which the weights are based
	near  map[netip.Addr]*near // for services with a closest address
}

// near is whether a backend is close.
type near struct {
	chosen bool
	streak int // consecutive updates that contradict chosen
}

// New returns a machine without state.
func New() *Machine { return &Machine{services: map[api.ServiceID]*service{}} }

func (m *Machine) service(id api.ServiceID) *service {
	s := m.services[id]
	if s == nil {
		s = &service{loads: map[netip.Addr]uint8{}, near: map[netip.Addr]*near{}}
		m.services[id] = s
	}
	return s
}

// Remove drops the state of a service.
func (m *Machine) Remove(id api.ServiceID) { delete(m.services, id) }

// Next returns when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Expire returns a service for which the caller calls Weigh with tick set.
func (m *Machine) Expire(now time.Time) (api.ServiceID, bool) { return m.timers.Pop(now) }

// Services returns the plane's entries for a service's semantic addresses. use selects the addresses.
func (m *Machine) Services(id api.ServiceID, ident plane.Ident, a api.ServiceAddresses, all []Backend, use func(netip.Addr) bool) []plane.Service {
	var out []plane.Service
	add := func(v netip.Addr, some []Backend, weight func(Backend) int) {
		if !v.IsValid() || !use(v) {
			return
		}
		p := plane.Service{Address: v, Ident: ident}
		for _, b := range some {
			p.Backends = append(p.Backends, plane.Backend{Address: b.Address, Weight: weight(b)})
		}
		reduce(p.Backends)
		out = append(out, p)
	}
	equal := func(Backend) int { return 1 }
	some := Open(all)
	add(a.RoundRobin, some, m.weights(id, some))
	if a.Closest.IsValid() {
		add(a.Closest, m.Nearest(id, some), equal)
	}
	for _, n := range sorted.Ordered(a.Instances) {
		one := Open(filter(all, func(b Backend) bool { return b.Instance.Number() == n }))
		if len(one) > 1 {
			one = []Backend{slices.MaxFunc(one, func(a, b Backend) int { return cmp.Compare(a.Epoch, b.Epoch) })}
		}
		add(a.Instances[n], one, equal)
	}
	return out
}

// weights returns weights from 1 to maxWeight in proportion to the free capacity of the backends' nodes.
// An unknown load counts as the mean of the known ones. A lossy path halves the weight.
func (m *Machine) weights(id api.ServiceID, of []Backend) func(Backend) int {
	loads := m.service(id).loads
	maps.DeleteFunc(loads, func(a netip.Addr, _ uint8) bool {
		return !slices.ContainsFunc(of, func(b Backend) bool { return b.Address == a })
	})
	free := func(b Backend) int { return 100 - min(int(loads[b.Address]), 100) }
	sum, known := 0, 0
	for _, b := range of {
		if b.Load > 0 {
			if old, ok := loads[b.Address]; !ok || max(old, b.Load)-min(old, b.Load) >= loadStep {
				loads[b.Address] = b.Load
			}
			sum += free(b)
			known++
		}
	}
	return func(b Backend) int {
		w := maxWeight
		if known > 0 {
			share := sum / known
			if b.Load > 0 {
				share = free(b)
			}
			w = (share*maxWeight + 50) / 100
		}
		if b.Lossy {
			w /= 2
		}
		return min(max(w, 1), maxWeight)
	}
}

func reduce(b []plane.Backend) {
	g := 0
	for _, x := range b {
		for y := x.Weight; y != 0; {
			g, y = y, g%y
		}
	}
	for i := range b {
		b[i].Weight /= g
	}
}

// Weigh decides which backends are close: those whose distance exceeds the least one by at most 5 ms or a
// fifth of it, whichever is larger. A backend becomes close, or stops being close, after switchAfter
// updates that agree. An update is a path report on its peer (of) or, with tick, an estimated distance.
// Weigh reports whether the choice changed.
func (m *Machine) Weigh(now time.Time, id api.ServiceID, a api.ServiceAddresses, all []Backend, of api.PeerKey, tick bool) (changed bool) {
	s := m.service(id)
	if !a.Closest.IsValid() {
		clear(s.near)
		return false
	}
	some := Open(all)
	maps.DeleteFunc(s.near, func(a netip.Addr, _ *near) bool {
		return !slices.ContainsFunc(some, func(b Backend) bool { return b.Address == a })
	})
	best := time.Duration(-1)
	for _, b := range some {
		if best < 0 || b.Distance < best {
			best = b.Distance
		}
	}
	margin := max(5*time.Millisecond, best/5)
	anyChosen := s.chosen() > 0
	pending := false
	for _, b := range some {
		n := s.near[b.Address]
		if n == nil {
			n = &near{}
			s.near[b.Address] = n
		}
		within := b.Distance <= best+margin
		if within == n.chosen {
			n.streak = 0
			continue
		}
		estimated := b.Local || now.Sub(b.Updated) > stale
		if !b.Local && b.Peer == of || tick && estimated {
			n.streak++
		}
		if within && (n.streak >= switchAfter || !anyChosen) {
			n.chosen, n.streak, changed = true, 0, true
			continue
		}
		pending = true
	}
	for _, b := range some { // the last close backend stays until another one is close
		n := s.near[b.Address]
		if n.chosen && n.streak >= switchAfter && s.chosen() > 1 {
			n.chosen, n.streak, changed = false, 0, true
		}
	}
	if pending {
		m.timers.SetEarlier(id, now.Add(recheck))
	}
	return changed
}

func (s *service) chosen() (n int) {
	for _, x := range s.near {
		if x.chosen {
			n++
		}
	}
	return n
}

// Nearest returns the close backends among the open ones, or all open ones if none is close yet.
func (m *Machine) Nearest(id api.ServiceID, open []Backend) []Backend {
	near := m.service(id).near
	few := filter(open, func(b Backend) bool { n := near[b.Address]; return n != nil && n.chosen })
	if len(few) == 0 {
		return open
	}
	return few
}
