package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// What TCP measures between two services tells how far apart their nodes are for them,
// where coordinates estimate it. Nodes tell it of those services that latency links
// lead from and to, and a link is judged by it as long as it is fresh.
//
// A node speaks for what it runs, of an application whose other end runs where it says,
// or in another cluster as the root says: of no other pair. Within the cluster both ends
// measure the same way, and the least counts: a node can make its own services seem
// farther away, by lying or by answering late, but not to somebody whose own node knows
// better.

// end is a service on a node.
type end struct {
	service api.ServiceID
	node    api.NodeID
	away    api.ClusterID // of a node of another one: its key stands for it
}

// pair is what the nodes of two ends say of the way between them.
type pair struct{ by map[end]word }

// word is what one says.
type word struct {
	least       time.Duration
	connections int
	at          time.Time // when it was measured
}

// maxPairs is with how many others one end is kept, maxAway with how many of these that
// are in other clusters: nobody here sees whether they are there.
const (
	maxPairs = 1024
	maxAway  = 64
)

// pairs are those that were told of, each by both of its ends, as far as they are nodes
// of the cluster.
type pairs map[api.ServiceID]map[api.NodeID]map[end]*pair

func (p pairs) put(a, b end, of *pair) {
	if p[a.service] == nil {
		p[a.service] = map[api.NodeID]map[end]*pair{}
	}
	if p[a.service][a.node] == nil {
		p[a.service][a.node] = map[end]*pair{}
	}
	p[a.service][a.node][b] = of
}

func (p pairs) drop(a, b end) {
	at := p[a.service][a.node]
	if delete(at, b); len(at) == 0 {
		delete(p[a.service], a.node)
	}
	if len(p[a.service]) == 0 {
		delete(p, a.service)
	}
}

// fresh is the word of the two that counts; ok is false where both are old.
func (p *pair) fresh(now time.Time) (best word, ok bool) {
	for _, w := range p.by {
		if now.Sub(w.at) < api.NetPairFor && (!ok || w.before(best)) {
			best, ok = w, true
		}
	}
	return best, ok
}

// before orders words, whatever the order that they are looked at in.
func (w word) before(o word) bool {
	if w.least != o.least {
		return w.least < o.least
	}
	if w.connections != o.connections {
		return w.connections > o.connections
	}
	return w.at.After(o.at)
}

// runs reports whether a service is on a node.
func (c *Core) runs(e end) bool {
	s := c.services[e.service]
	return s != nil && s.peers[string(e.node)] > 0
}

// away reports whether a service is said to have instances in other clusters.
func away(targets []api.Target, id api.ServiceID) bool {
	return slices.ContainsFunc(targets, func(t api.Target) bool { return t.Service == id && len(t.Positions) > 0 })
}

// there reports whether an end is where it says, for one who has those targets.
func (c *Core) there(to end, targets []api.Target) bool {
	if to.away != "" {
		return away(targets, to.service)
	}
	return c.runs(to)
}

// speaks reports whether a node may tell of a pair.
func (c *Core) speaks(n *node, from, to end) bool {
	if from == to || from.service.App() != to.service.App() || !c.runs(from) {
		return false
	}
	if to.away == "" {
		return c.runs(to)
	}
	if to.away == c.cfg.ID {
		return false
	}
	for id, in := range n.assigned {
		if id.Service() == from.service && away(in.Want.Targets, to.service) {
			return true
		}
	}
	return false
}

// room reports whether one more pair may be kept.
func (c *Core) room(from, to end) bool {
	at := c.pairs[from.service][from.node]
	if to.away == "" {
		return len(at) < maxPairs && len(c.pairs[to.service][to.node]) < maxPairs
	}
	others := 0
	for e := range at {
		if e.away != "" {
			others++
		}
	}
	return len(at) < maxPairs && others < maxAway
}

// between takes in what a node says that its services' connections measured. What that
// does to SLAs, the next look at them sees.
func (c *Core) between(n *node, said []api.NetPair) {
	for _, p := range said[:min(len(said), api.MaxNetPairs)] {
		from, to := end{service: p.Local, node: n.info.ID}, end{p.Remote, p.Node, p.Cluster}
		if !p.Valid() || !c.speaks(n, from, to) {
			continue
		}
		known := c.pairs[from.service][from.node][to]
		if known == nil {
			if !c.room(from, to) {
				continue
			}
			known = &pair{by: map[end]word{}}
			c.pairs.put(from, to, known)
			if to.away == "" {
				c.pairs.put(to, from, known)
			}
		}
		was, had := known.fresh(c.now)
		known.by[from] = word{p.Least, p.Connections, c.now.Add(-p.Age)}
		if is, _ := known.fresh(c.now); !had || (is.least-was.least).Abs() > was.least/10 {
			c.version++ // who is measured against it may fit where it did not
		}
		if key := (timerKey{what: timerPairs}); !c.timers.Has(key) {
			c.timers.Set(key, c.now.Add(api.NetPairFor))
		}
	}
}

// forgetPairs forgets those that nobody tells of any more.
func (c *Core) forgetPairs() {
	for service, at := range c.pairs {
		for node, others := range at {
			for to, p := range others {
				if _, ok := p.fresh(c.now); !ok {
					c.pairs.drop(end{service: service, node: node}, to)
					c.version++
				}
			}
		}
	}
	if len(c.pairs) > 0 {
		c.timers.Set(timerKey{what: timerPairs}, c.now.Add(api.NetPairFor))
	}
}

// apart is how far a service on a node is from the nearest of those that a link leads
// to: by TCP where it told, and else by coordinates. ok is false where TCP told of none.
// by is the zero word where the nearest is one by coordinates.
func (c *Core) apart(from end, l sched.Link, targets []api.Target) (far time.Duration, by word, ok bool) {
	for id := range c.apps[from.service.App()] {
		if l.Names(from.service, id) && c.runs(end{service: id, node: from.node}) {
			return 0, word{}, true // on the same node
		}
	}
	told := map[end]bool{}
	for to, p := range c.pairs[from.service][from.node] {
		if !l.Names(from.service, to.service) || !c.there(to, targets) {
			continue
		}
		if w, fresh := p.fresh(c.now); fresh {
			told[to] = true
			if !ok || w.before(by) {
				far, by, ok = w.least, w, true
			}
		}
	}
	n := c.nodes[from.node]
	if !ok || far <= l.RTT || n == nil || n.coord == nil {
		return far, by, ok
	}
	// Another may be near enough that it has no connections to.
	nearer := func(at api.Position) {
		if at.Coord == nil {
			return
		}
		if d := vivaldi.Distance(*n.coord, *at.Coord); d < far {
			far, by = d, word{}
		}
	}
	for id := range c.apps[from.service.App()] {
		if !l.Names(from.service, id) {
			continue
		}
		for name := range c.services[id].peers {
			if to := (end{service: id, node: api.NodeID(name)}); !told[to] {
				nearer(c.nodes[to.node].position())
			}
		}
	}
	for _, t := range targets {
		if t.Service == "" || !l.Names(from.service, t.Service) || c.covers(told, t) {
			continue
		}
		for _, at := range t.Positions {
			nearer(at)
		}
	}
	return far, by, ok
}

// covers reports whether a service was measured wherever it is in other clusters: on all
// nodes that its route has, of which several may be at one position. Where nobody here
// calls it, for it is the one that calls, no position is left where as many of its nodes
// were measured.
func (c *Core) covers(told map[end]bool, t api.Target) bool {
	on := 0
	for e := range told {
		if e.away != "" && e.service == t.Service {
			on++
		}
	}
	if on == 0 || on < len(t.Positions) {
		return false
	}
	now := map[end]bool{}
	r, _ := c.net.book.RouteOf(t.Service)
	for _, p := range r.Peers {
		if p.Cluster != c.cfg.ID {
			now[end{t.Service, api.NodeID(p.Key.String()), p.Cluster}] = true
		}
	}
	for e := range now {
		if !told[e] {
			return false
		}
	}
	return true
}

// measured has a link's bound know what TCP told of the ways there, from all nodes or
// from one.
func (c *Core) measured(b *sched.Bound, self api.ServiceID, l sched.Link, targets []api.Target, only api.NodeID) {
	for node := range c.pairs[self] {
		if only != "" && node != only {
			continue
		}
		if far, _, ok := c.apart(end{service: self, node: node}, l, targets); ok {
			if b.Measured == nil {
				b.Measured = map[string]time.Duration{}
			}
			b.Measured[string(node)] = far
		}
	}
}

// judgedBy says by what a link's round trip was judged, for people, and whether it was
// estimated.
func (c *Core) judgedBy(from end, l sched.Link, b *sched.Bound, targets []api.Target) (how string, estimated bool) {
	_, probed := b.Measured[string(from.node)]
	if l.User != "" && probed {
		return "measured by probes", false
	}
	if l.Service != "" {
		if _, w, ok := c.apart(from, l, targets); ok && w.connections > 0 {
			by := "1 connection"
			if w.connections > 1 {
				by = fmt.Sprintf("%d connections", w.connections)
			}
			return fmt.Sprintf("measured by %s at %s", by, c.clock.Real(w.at).UTC().Format("15:04:05 UTC")), false
		}
	}
	return "estimated by coordinates", true
}

// asksAbout are the services of a node that latency links lead from or to.
func (c *Core) asksAbout(n *node) (out []api.ServiceID) {
	seen := map[api.ServiceID]bool{}
	for id := range n.assigned {
		s := id.Service()
		if len(c.linkers[s.App()]) == 0 || seen[s] {
			continue
		}
		if seen[s] = true; c.bounded(s) {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

// bounded reports whether an SLA bounds the round trip between a service and another.
func (c *Core) bounded(s api.ServiceID) bool {
	latent := func(l sched.Link) bool { return l.Service != "" && l.RTT > 0 }
	if slices.ContainsFunc(c.services[s].links, latent) {
		return true
	}
	for other := range c.linkers[s.App()] {
		if slices.ContainsFunc(c.services[other].links, func(l sched.Link) bool { return latent(l) && l.Names(other, s) }) {
			return true
		}
	}
	return false
}

// askAnew has the nodes that run an application told what is asked of it now.
func (c *Core) askAnew(app api.AppID) {
	for _, id := range step.Keys(c.apps[app]) {
		for name := range c.services[id].peers {
			c.net.talk[api.NodeID(name)] = true
		}
	}
}
