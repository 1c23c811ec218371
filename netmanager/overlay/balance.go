package overlay

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// backend is an instance that flows could go to.
type backend struct {
	instance api.InstanceID
	epoch    api.Epoch
	address  netip.Addr
	peer     *peer // nil: on this node
	draining bool
	gone     bool // its node knows of nobody there
	load     uint8
}

func (b backend) silent() bool { return b.peer != nil && b.peer.path.Silent }

// backends are those of the service that a packet can reach, by address. Of this
// node's own, what is attached and listens counts, and not what the cluster has
// heard of it.
func (c *Core) backends(s *service) []backend {
	var out []backend
	newest := map[api.InstanceID]api.Epoch{}
	if s.route != nil {
		for _, b := range s.route.Backends {
			p := c.peers[b.Peer]
			if p == nil || c.at[b.Address] != nil || b.Instance.Service() != s.id {
				continue
			}
			if k, ok := c.peerAt(b.Address); !ok || k != b.Peer || c.owners[b.Address] != s.id {
				continue
			}
			// That a record says otherwise of the same placement is older than its node's word.
			m, marked := p.marked(b)
			if marked && m.Gone && m.Named {
				continue
			}
			out = append(out, backend{b.Instance, b.Epoch, b.Address, p, b.State == api.BackendDraining || marked, marked && m.Gone, b.Load})
		}
	}
	for k, a := range s.local {
		if !a.Ready {
			continue
		}
		out = append(out, backend{k.Instance, k.Epoch, a.Address, nil, a.Draining, false, c.ownLoad(s, k)})
	}
	for _, b := range out {
		if b.gone {
			continue // nobody's successor
		}
		newest[b.instance] = max(newest[b.instance], b.epoch)
	}
	for i := range out {
		// A placement that has a successor is on its way out, whatever is said of it.
		out[i].draining = out[i].draining || out[i].epoch < newest[out[i].instance]
	}
	slices.SortFunc(out, func(a, b backend) int { return a.address.Compare(b.address) })
	return out
}

func (c *Core) ownLoad(s *service, k api.Key) uint8 {
	if s.route != nil {
		for _, b := range s.route.Backends {
			if b.Instance == k.Instance && b.Epoch == k.Epoch {
				return b.Load
			}
		}
	}
	return 0
}

// open are the backends that new flows go to: the best kind of which there is one.
// A backend of which one must fear that it is dead is better than none, and even one of
// which its node knows nothing: what was stored may be lost there, and what runs not yet
// be found.
func open(all []backend) []backend {
	if left := slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return b.gone }); len(left) > 0 {
		all = left
	}
	for _, good := range []func(backend) bool{
		func(b backend) bool { return !b.draining && !b.silent() },
		func(b backend) bool { return !b.silent() },
		func(b backend) bool { return !b.draining },
	} {
		if some := slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return !good(b) }); len(some) > 0 {
			return some
		}
	}
	return all
}

// planeServices are the service's semantic addresses as the plane should have them.
func (c *Core) planeServices(s *service) []plane.Service {
	a := c.addresses(s)
	if s.route == nil && len(s.local) == 0 {
		return nil
	}
	var out []plane.Service
	all := c.backends(s)
	add := func(v netip.Addr, some []backend, weight func(backend) int) {
		if !v.IsValid() || c.vips[v] != s.id {
			return
		}
		if s.route == nil && len(c.pointing[v]) == 0 {
			return // nobody asked for it: whoever does shall learn of the others, too
		}
		p := plane.Service{Address: v, Ident: s.ident}
		for _, b := range some {
			p.Backends = append(p.Backends, plane.Backend{Address: b.address, Weight: weight(b)})
		}
		reduce(p.Backends)
		out = append(out, p)
	}
	equal := func(backend) int { return 1 }
	some := open(all)
	add(a.RoundRobin, some, c.weights(s, some))
	if a.Closest.IsValid() {
		add(a.Closest, nearest(s, some), equal)
	}
	for _, n := range sortedKeys(a.Instances) {
		one := slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return b.instance.Number() != n })
		if one = open(one); len(one) > 1 {
			one = []backend{slices.MaxFunc(one, func(a, b backend) int { return cmp.Compare(a.epoch, b.epoch) })}
		}
		add(a.Instances[n], one, equal)
	}
	return out
}

// weights are 1 to 16, in proportion to what the backends' nodes have left, as far
// as it is known; half of that where packets are lost on the way. A load counts
// anew when it moved by 10 points, so that weights do not flutter.
func (c *Core) weights(s *service, of []backend) func(backend) int {
	left, known := 0, 0
	for a := range s.loads {
		if !slices.ContainsFunc(of, func(b backend) bool { return b.address == a }) {
			delete(s.loads, a)
		}
	}
	for _, b := range of {
		if b.load > 0 {
			if old, ok := s.loads[b.address]; !ok || max(old, b.load)-min(old, b.load) >= 10 {
				s.loads[b.address] = b.load
			}
			left += 100 - min(int(s.loads[b.address]), 100)
			known++
		}
	}
	return func(b backend) int {
		w := 16
		if known > 0 {
			share := left / known
			if b.load > 0 {
				share = 100 - min(int(s.loads[b.address]), 100)
			}
			w = (share*16 + 50) / 100
		}
		if b.peer != nil && lossy(b.peer.path) {
			w /= 2
		}
		return min(max(w, 1), 16)
	}
}

// reduce divides the weights by what divides them all.
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

// near is what is known of how close a backend is.
type near struct {
	chosen bool
	streak int // updates in a row that speak for the opposite
}

const (
	switchAfter = 3
	// lookAgain is when a distance that is only estimated counts as an update.
	lookAgain = 2 * time.Second
	stale     = 10 * time.Second
	unknown   = time.Second // the distance to whom nothing is known of
)

// cost is how far away a backend is. A relay and losses make it farther than its
// round trip says.
func (c *Core) cost(b backend) time.Duration {
	if b.peer == nil {
		return 0
	}
	p := b.peer.path
	d := unknown
	switch {
	case p.RTT > 0 && p.Kind != api.PathNone:
		d = p.RTT
	case vivaldi.Valid(b.peer.record.Coord):
		d = vivaldi.Distance(c.coord.now, *b.peer.record.Coord)
	}
	switch p.Kind {
	case api.PathRelay:
		d += 5 * time.Millisecond
	case api.PathRelayTLS:
		d += 20 * time.Millisecond
	}
	return d + time.Duration(min(max(p.Loss, 0), 1)*float64(200*time.Millisecond))
}

// weigh decides which backends a closest address leads to: those within the larger
// of 5 ms and a fifth of the best. One joins or leaves after three updates that
// agree; an update is news of its own peer (of), or, where no news comes, time.
func (c *Core) weigh(s *service, of api.PeerKey, tick bool) {
	if !c.addresses(s).Closest.IsValid() {
		clear(s.near)
		return
	}
	some := open(c.backends(s))
	for a := range s.near {
		if !slices.ContainsFunc(some, func(b backend) bool { return b.address == a }) {
			delete(s.near, a)
		}
	}
	best := time.Duration(-1)
	for _, b := range some {
		if d := c.cost(b); best < 0 || d < best {
			best = d
		}
	}
	margin := max(5*time.Millisecond, best/5)
	anyChosen := chosen(s.near) > 0
	pending, changed := false, false
	for _, b := range some {
		n := s.near[b.address]
		if n == nil {
			n = &near{}
			s.near[b.address] = n
		}
		within := c.cost(b) <= best+margin
		if within == n.chosen {
			n.streak = 0
			continue
		}
		quiet := b.peer == nil || c.now.Sub(b.peer.heard) > stale
		if b.peer != nil && b.peer.record.Key == of || tick && quiet {
			n.streak++
		}
		if within && (n.streak >= switchAfter || !anyChosen) {
			n.chosen, n.streak, changed = true, 0, true
			continue
		}
		pending = true
	}
	for _, b := range some { // those that left too far; the last stays until another has joined
		n := s.near[b.address]
		if n.chosen && n.streak >= switchAfter && chosen(s.near) > 1 {
			n.chosen, n.streak, changed = false, 0, true
		}
	}
	if pending {
		c.timers.SetEarlier(timerKey{what: timerClosest, service: s.id}, c.now.Add(lookAgain))
	}
	if changed {
		c.touch(s.id)
	}
}

func chosen(all map[netip.Addr]*near) int {
	n := 0
	for _, x := range all {
		if x.chosen {
			n++
		}
	}
	return n
}

// nearest are the chosen of those that are open; all where nothing was chosen yet.
func nearest(s *service, some []backend) []backend {
	few := slices.DeleteFunc(slices.Clone(some), func(b backend) bool { n := s.near[b.address]; return n == nil || !n.chosen })
	if len(few) == 0 {
		return some
	}
	return few
}
