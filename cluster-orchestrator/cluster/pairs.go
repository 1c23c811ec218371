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
// A node speaks for what it runs, of an application whose other end runs where it says:
// of no other pair. Both ends measure the same way, and the least counts: a node can
// make its own services seem farther away, by lying or by answering late, but not to
// somebody whose own node knows better.

// end is a service on a node.
type end struct {
	service api.ServiceID
	node    api.NodeID
}

// pair is what the nodes of two ends say of the way between them.
type pair struct{ by map[end]word }

// word is what one says.
type word struct {
	least       time.Duration
	connections int
	at          time.Time // when it was measured
}

// maxPairs is with how many others one end is kept.
const maxPairs = 1024

// pairs are those that were told of, each by both of its ends.
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

// between takes in what a node says that its services' connections measured. What that
// does to SLAs, the next look at them sees.
func (c *Core) between(n *node, said []api.NetPair) {
	for _, p := range said[:min(len(said), api.MaxNetPairs)] {
		from, to := end{p.Local, n.info.ID}, end{p.Remote, p.Node}
		if !p.Valid() || from == to || p.Local.App() != p.Remote.App() || !c.runs(from) || !c.runs(to) {
			continue
		}
		known := c.pairs[from.service][from.node][to]
		if known == nil {
			if len(c.pairs[from.service][from.node]) >= maxPairs || len(c.pairs[to.service][to.node]) >= maxPairs {
				continue
			}
			known = &pair{by: map[end]word{}}
			c.pairs.put(from, to, known)
			c.pairs.put(to, from, known)
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

// forgetPairs forgets those that both ends are silent of.
func (c *Core) forgetPairs() {
	for service, at := range c.pairs {
		for node, others := range at {
			for to, p := range others {
				if _, ok := p.fresh(c.now); !ok {
					c.pairs.drop(end{service, node}, to)
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
func (c *Core) apart(from end, l sched.Link, b *sched.Bound) (far time.Duration, by word, ok bool) {
	told := map[end]bool{}
	for to, p := range c.pairs[from.service][from.node] {
		if !l.Names(from.service, to.service) || !c.runs(to) {
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
			if to := (end{id, api.NodeID(name)}); !told[to] {
				nearer(c.nodes[to.node].position())
			}
		}
	}
	for _, at := range b.Points { // in other clusters
		nearer(at)
	}
	return far, by, ok
}

// measured has a link's bound know what TCP told of the ways there, from all nodes or
// from one.
func (c *Core) measured(b *sched.Bound, self api.ServiceID, l sched.Link, only api.NodeID) {
	for node := range c.pairs[self] {
		if only != "" && node != only {
			continue
		}
		if far, _, ok := c.apart(end{self, node}, l, b); ok {
			if b.Measured == nil {
				b.Measured = map[string]time.Duration{}
			}
			b.Measured[string(node)] = far
		}
	}
}

// judgedBy says by what a link's round trip was judged, for people, and whether it was
// estimated.
func (c *Core) judgedBy(from end, l sched.Link, b *sched.Bound) (how string, estimated bool) {
	_, probed := b.Measured[string(from.node)]
	if l.User != "" && probed {
		return "measured by probes", false
	}
	if l.Service != "" {
		if _, w, ok := c.apart(from, l, b); ok && w.connections > 0 {
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
