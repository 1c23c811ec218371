package latency

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// A link between services is judged by fresh measurements of the nodes' TCP connections, or
// else by coordinates. Nodes measure the services that latency links lead from or to.
//
// A node may only report pairs of services of one application. One must run on the node
// itself, the other where the report claims or, according to the root, in another cluster.
// Both ends of a pair within the cluster report, and the shorter round trip counts, so that
// a node cannot make its services appear farther away than the other end measures.

// endpoint is a service on a node.
type endpoint struct {
	service api.ServiceID
	node    api.NodeID    // of another cluster: the text of its key
	cluster api.ClusterID // empty: this one
}

// pair has the measurements between two endpoints by the nodes of both.
type pair struct{ by map[endpoint]sample }

// sample is one end's measurement.
type sample struct {
	least       time.Duration
	connections int
	at          time.Time // when it was measured
}

const (
	maxPairs  = 1024 // of one endpoint
	maxRemote = 64   // of these, with other clusters; their existence cannot be checked here
)

// pairs has each pair under both of its ends, except ends in other clusters.
type pairs map[api.ServiceID]map[api.NodeID]map[endpoint]*pair

func (p pairs) put(a, b endpoint, of *pair) {
	if p[a.service] == nil {
		p[a.service] = map[api.NodeID]map[endpoint]*pair{}
	}
	if p[a.service][a.node] == nil {
		p[a.service][a.node] = map[endpoint]*pair{}
	}
	p[a.service][a.node][b] = of
}

func (p pairs) drop(a, b endpoint) {
	at := p[a.service][a.node]
	if delete(at, b); len(at) == 0 {
		delete(p[a.service], a.node)
	}
	if len(p[a.service]) == 0 {
		delete(p, a.service)
	}
}

func (p pairs) belowLimit(from, to endpoint) bool {
	at := p[from.service][from.node]
	if to.cluster == "" {
		return len(at) < maxPairs && len(p[to.service][to.node]) < maxPairs
	}
	remote := 0
	for e := range at {
		if e.cluster != "" {
			remote++
		}
	}
	return len(at) < maxPairs && remote < maxRemote
}

// fresh returns the first of the pair's fresh samples in the order of before; ok is false if
// all are old.
func (p *pair) fresh(now time.Time) (best sample, ok bool) {
	for _, s := range p.by {
		if now.Sub(s.at) < wire.MaxNetPairAge && (!ok || s.before(best)) {
			best, ok = s, true
		}
	}
	return best, ok
}

// before is a total order of samples: shorter round trips first, then more connections.
func (s sample) before(o sample) bool {
	return cmp.Or(cmp.Compare(s.least, o.least), cmp.Compare(o.connections, s.connections), o.at.Compare(s.at)) < 0
}

func (m *Machine) runs(e endpoint) bool {
	n := m.at[e.node]
	return n != nil && n.services[e.service]
}

// inOtherCluster reports whether the targets include instances of the service in other clusters.
func inOtherCluster(targets []api.Target, id api.ServiceID) bool {
	return slices.ContainsFunc(targets, func(t api.Target) bool { return t.Service == id && len(t.Positions) > 0 })
}

// exists reports whether the service of an endpoint runs there, or, according to targets, in
// another cluster.
func (m *Machine) exists(to endpoint, targets []api.Target) bool {
	if to.cluster != "" {
		return inOtherCluster(targets, to.service)
	}
	return m.runs(to)
}

// mayReport reports whether the node of from may report the pair.
func (m *Machine) mayReport(from, to endpoint, targets map[api.ServiceID][]api.Target) bool {
	if from == to || from.service.App() != to.service.App() || !m.runs(from) {
		return false
	}
	if to.cluster == "" {
		return m.runs(to)
	}
	return to.cluster != m.cluster && inOtherCluster(targets[from.service], to.service)
}

// Report stores a node's measurements of its services' connections. targets has the targets
// of the node's instances by service. It reports whether a round trip changed by more than a
// tenth, so that other places may meet a link. The next periodic check detects violations.
func (m *Machine) Report(by api.NodeID, measured []wire.NetPair, targets map[api.ServiceID][]api.Target) (changed bool) {
	for _, p := range measured[:min(len(measured), wire.MaxNetPairs)] {
		from, to := endpoint{service: p.Local, node: by}, endpoint{p.Remote, p.Node, p.Cluster}
		if !p.Valid() || !m.mayReport(from, to, targets) {
			continue
		}
		known := m.pairs[from.service][from.node][to]
		if known == nil {
			if !m.pairs.belowLimit(from, to) {
				continue
			}
			known = &pair{by: map[endpoint]sample{}}
			m.pairs.put(from, to, known)
			if to.cluster == "" {
				m.pairs.put(to, from, known)
			}
		}
		was, had := known.fresh(m.fx.Now)
		known.by[from] = sample{p.Least, p.Connections, m.fx.Now.Add(-p.Age)}
		if is, _ := known.fresh(m.fx.Now); !had || (is.least-was.least).Abs() > was.least/10 {
			changed = true
		}
		if !m.fx.Timers.Has(expirePairs) {
			m.fx.Timers.Set(expirePairs, m.fx.Now.Add(wire.MaxNetPairAge))
		}
	}
	return changed
}

// ExpirePairs drops pairs without a fresh sample and reports whether there were any.
func (m *Machine) ExpirePairs() (changed bool) {
	for service, at := range m.pairs {
		for node, others := range at {
			for to, p := range others {
				if _, ok := p.fresh(m.fx.Now); !ok {
					m.pairs.drop(endpoint{service: service, node: node}, to)
					changed = true
				}
			}
		}
	}
	if len(m.pairs) > 0 {
		m.fx.Timers.Set(expirePairs, m.fx.Now.Add(wire.MaxNetPairAge))
	}
	return changed
}

// nearest returns the round trip from a service on a node to the nearest instance of a
// service that the link names. Fresh samples take precedence over coordinates. by is the
// sample that was used, or zero if the nearest instance is on the same node or was found by
// coordinates. ok is false if there is no sample at all.
func (m *Machine) nearest(from endpoint, l sched.Link, targets []api.Target) (rtt time.Duration, by sample, ok bool) {
	var siblings map[api.ServiceID]*service
	if a := m.apps[from.service.App()]; a != nil {
		siblings = a.services
	}
	for id, s := range siblings {
		if s.nodes[from.node] && l.Names(from.service, id) {
			return 0, sample{}, true // on the same node
		}
	}
	measured := map[endpoint]bool{}
	for to, p := range m.pairs[from.service][from.node] {
		if !l.Names(from.service, to.service) || !m.exists(to, targets) {
			continue
		}
		if s, fresh := p.fresh(m.fx.Now); fresh {
			measured[to] = true
			if !ok || s.before(by) {
				rtt, by, ok = s.least, s, true
			}
		}
	}
	n := m.at[from.node]
	if !ok || rtt <= l.RTT || n == nil || n.Coord == nil {
		return rtt, by, ok
	}
	// An instance without connections to this node may be nearer.
	estimate := func(at *api.Coordinate) {
		if at == nil {
			return
		}
		if d := vivaldi.Distance(*n.Coord, *at); d < rtt {
			rtt, by = d, sample{}
		}
	}
	for id, s := range siblings {
		if !l.Names(from.service, id) {
			continue
		}
		for on := range s.nodes {
			if !measured[endpoint{service: id, node: on}] {
				estimate(m.at[on].Coord)
			}
		}
	}
	for _, t := range targets {
		if t.Service == "" || !l.Names(from.service, t.Service) || m.allMeasured(measured, t) {
			continue
		}
		for _, at := range t.Positions {
			estimate(at.Coord)
		}
	}
	return rtt, by, ok
}

// allMeasured reports whether a service was measured on all its nodes in other clusters:
// the nodes in its route, and at least as many as t has positions. The route is known only
// if an instance in this cluster calls the service; several nodes may share a position.
func (m *Machine) allMeasured(measured map[endpoint]bool, t api.Target) bool {
	on := 0
	for e := range measured {
		if e.cluster != "" && e.service == t.Service {
			on++
		}
	}
	if on == 0 || on < len(t.Positions) {
		return false
	}
	for e := range m.remote[t.Service] {
		if !measured[e] {
			return false
		}
	}
	return true
}

// Measured adds the round trips that TCP connections measured to a link's bound: from all
// nodes, or from the node only if it is set.
func (m *Machine) Measured(b *sched.Bound, self api.ServiceID, l sched.Link, targets []api.Target, only api.NodeID) {
	for node := range m.pairs[self] {
		if only != "" && node != only {
			continue
		}
		if rtt, _, ok := m.nearest(endpoint{service: self, node: node}, l, targets); ok {
			if b.Measured == nil {
				b.Measured = map[string]time.Duration{}
			}
			b.Measured[string(node)] = rtt
		}
	}
}

// HowMeasured returns how the round trip of a service's link from a node was determined, and
// whether it was only estimated. b is the link's bound.
func (m *Machine) HowMeasured(self api.ServiceID, on api.NodeID, l sched.Link, b *sched.Bound, targets []api.Target) (how string, estimated bool) {
	if _, probed := b.Measured[string(on)]; l.User != "" && probed {
		return "measured by probes", false
	}
	if l.Service != "" {
		if _, s, ok := m.nearest(endpoint{service: self, node: on}, l, targets); ok && s.connections > 0 {
			by := "1 connection"
			if s.connections > 1 {
				by = fmt.Sprintf("%d connections", s.connections)
			}
			return fmt.Sprintf("measured by %s at %s", by, m.fx.Real(s.at).UTC().Format("15:04:05 UTC")), false
		}
	}
	return "estimated by coordinates", true
}

// Reports returns, in order, the services on a node whose connections it must measure: those
// that latency links lead from or to.
func (m *Machine) Reports(on api.NodeID) (out []api.ServiceID) {
	if n := m.at[on]; n != nil {
		for s := range n.services {
			if m.linked(s) {
				out = append(out, s)
			}
		}
	}
	slices.Sort(out)
	return out
}

// linked reports whether a latency link leads from or to a service.
func (m *Machine) linked(id api.ServiceID) bool {
	a := m.apps[id.App()]
	if a.linking == 0 {
		return false
	}
	latency := func(l sched.Link) bool { return l.Service != "" && l.RTT > 0 }
	if slices.ContainsFunc(a.services[id].links, latency) {
		return true
	}
	for other, s := range a.services {
		if slices.ContainsFunc(s.links, func(l sched.Link) bool { return latency(l) && l.Names(other, id) }) {
			return true
		}
	}
	return false
}
