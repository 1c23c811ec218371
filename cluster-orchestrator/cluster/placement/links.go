package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Links bind both ends: an instance that is placed after those that link to it must be near
// them. For each link, the instances are kept that have no instance of the other service
// near enough. A decision looks at those alone.

// maxStrict is to how many places of its siblings an instance must be near at once.
const maxStrict = 4

// inbound is a link of one service to another, which keeps it: which instances of the
// former have an instance of the latter near enough, and which have none.
type inbound struct {
	link   sched.Link
	from   api.ServiceID
	served map[api.InstanceID]string          // the node near enough; "": one of another cluster
	by     map[string]map[api.InstanceID]bool // the same by node
	open   map[api.InstanceID]api.Position    // positions of instances that have none near enough
	places sched.Places                       // the same positions

	// Changes that have not been applied yet.
	fresh map[api.InstanceID]bool // instances that moved or were removed
	come  map[string]bool         // nodes on which the other service runs now
	gone  map[string]bool         // nodes that it has left, or that moved
}

// linkKey is one link of one service.
type linkKey struct {
	from api.ServiceID
	link sched.Link
}

func keyOf(from api.ServiceID, l sched.Link) linkKey {
	l.Rigidness, l.Shared, l.Convergence = 0, false, 0
	return linkKey{from: from, link: l}
}

func newInbound(from *service, id api.ServiceID, l sched.Link) *inbound {
	w := &inbound{
		link: l, from: id, served: map[api.InstanceID]string{}, by: map[string]map[api.InstanceID]bool{},
		open: map[api.InstanceID]api.Position{}, fresh: map[api.InstanceID]bool{}, come: map[string]bool{}, gone: map[string]bool{},
	}
	for id, in := range from.instances {
		if in.Node != "" {
			w.fresh[id] = true
		}
	}
	return w
}

// comes and goes note that a service is on a node, or on it no more.
func (m *Machine) comes(s *service, node string) {
	s.places.Put(node, m.nodes[api.NodeID(node)].position())
	m.latency.SetRunning(s.id, api.NodeID(node), true)
	for _, w := range s.inbound {
		w.come[node] = true
	}
}

func (m *Machine) goes(s *service, node string) {
	s.places.Drop(node)
	m.latency.SetRunning(s.id, api.NodeID(node), false)
	for _, w := range s.inbound {
		w.gone[node] = true
		delete(w.come, node)
	}
}

// shifted notes that an instance is where it was not, or is measured against
// something else.
func (m *Machine) shifted(in *instance) {
	id := in.id().Service()
	for to := range m.apps[id.App()] {
		for _, w := range m.services[to].inbound {
			if w.from == id {
				w.fresh[in.id()] = true
			}
		}
	}
}

// dropInbound ends what is kept of a service's links to others, and of theirs to it.
func (m *Machine) dropInbound(id api.ServiceID) {
	for to := range m.apps[id.App()] {
		for k, w := range m.services[to].inbound {
			if k.from == id || to == id {
				w.places.Clear() // a table may remember them
				delete(m.services[to].inbound, k)
			}
		}
	}
}

// gone forgets an instance.
func (m *Machine) gone(in *instance) {
	id := in.id().Service()
	for to := range m.apps[id.App()] {
		for _, w := range m.services[to].inbound {
			if w.from == id {
				w.forget(in.id())
				delete(w.fresh, in.id())
			}
		}
	}
}

// inboundOf returns the links of other services to a service, up to date.
func (m *Machine) inboundOf(to api.ServiceID) (out []*inbound) {
	s := m.services[to]
	if s == nil {
		s = &service{} // it is only asked about
	}
	known := map[linkKey]*inbound{}
	for _, from := range step.Keys(m.linkers[to.App()]) {
		if from == to {
			continue
		}
		o := m.services[from]
		for _, l := range o.links {
			k := keyOf(from, l)
			if known[k] != nil || !l.Names(from, to) {
				continue
			}
			w := s.inbound[k]
			if w == nil {
				w = newInbound(o, from, l)
			}
			w.link = l // what the key leaves out may be new
			known[k] = w
			m.look(w, to, s)
			out = append(out, w)
		}
	}
	for k, w := range s.inbound {
		if known[k] == nil { // the SLA has it no more
			w.places.Clear()
		}
	}
	if s.inbound = known; len(known) == 0 {
		s.inbound = nil
	}
	return out
}

// look takes in what has changed of a way.
func (m *Machine) look(w *inbound, to api.ServiceID, s *service) {
	for node := range w.gone {
		for id := range w.by[node] {
			w.fresh[id] = true
		}
	}
	for node := range w.come {
		at := m.nodes[api.NodeID(node)].position()
		for _, id := range w.places.Within(at, w.link) {
			w.serve(api.InstanceID(id), node)
		}
	}
	for id := range w.fresh {
		w.forget(id)
		in := m.instances[id]
		if in == nil || in.Node == "" || in.Leaving || in.Withdrawn || !slices.ContainsFunc(in.demand.links, func(l sched.Link) bool {
			return keyOf(w.from, l) == keyOf(w.from, w.link)
		}) {
			continue
		}
		here := m.nodes[in.Node].position()
		if node, near := s.places.Nearest(here, w.link); near {
			w.serve(id, node)
		} else if m.nearTarget(w.link, in, to) {
			w.serve(id, "")
		} else {
			w.open[id] = here
			w.places.Put(string(id), here)
		}
	}
	clear(w.gone)
	clear(w.come)
	clear(w.fresh)
}

func (w *inbound) serve(id api.InstanceID, node string) {
	delete(w.open, id)
	w.places.Drop(string(id))
	w.served[id] = node
	if w.by[node] == nil {
		w.by[node] = map[api.InstanceID]bool{}
	}
	w.by[node][id] = true
}

func (w *inbound) forget(id api.InstanceID) {
	delete(w.open, id)
	w.places.Drop(string(id))
	if node, ok := w.served[id]; ok {
		delete(w.served, id)
		if delete(w.by[node], id); len(w.by[node]) == 0 {
			delete(w.by, node)
		}
	}
}

// nearTarget reports whether an instance of a service in another cluster is near.
func (m *Machine) nearTarget(l sched.Link, in *instance, to api.ServiceID) bool {
	here := m.nodes[in.Node].position()
	return slices.ContainsFunc(in.Want.Targets, func(t api.Target) bool {
		return t.Service == to && slices.ContainsFunc(t.Positions, func(at api.Position) bool { return keeps(l, here, at) })
	})
}

// servedOnlyFrom are those that only one node of a service serves.
func (m *Machine) servedOnlyFrom(w *inbound, to api.ServiceID, node string) (out []api.InstanceID) {
	var others []api.Position
	for name := range m.services[to].peers {
		if name != node {
			others = append(others, m.nodes[api.NodeID(name)].position())
		}
	}
	for _, id := range step.Keys(w.by[node]) {
		in := m.instances[id]
		here := m.nodes[in.Node].position()
		if !slices.ContainsFunc(others, func(at api.Position) bool { return keeps(w.link, here, at) }) && !m.nearTarget(w.link, in, to) {
			out = append(out, id)
		}
	}
	return out
}

// wantedNear are the links of placed siblings to this service, of which none of
// its other instances is near enough: it has to be near to each of them or, where
// they are many or that cannot be, to one of them. The others then move, or
// the next instance serves them.
func (m *Machine) wantedNear(p placing) (out []sched.Bound) {
	self := p.id.Service()
	ways, count := m.inboundOf(self), 0
	lone := ""
	if s := m.services[self]; s != nil && s.instances[p.id] != nil && s.peers[string(p.node)] == 1 {
		lone = string(p.node) // what only it serves it must go on to serve
	}
	own := make([][]api.InstanceID, len(ways))
	for i, w := range ways {
		if lone != "" {
			own[i] = m.servedOnlyFrom(w, self, lone)
		}
		count += len(w.open) + len(own[i])
	}
	for i, w := range ways {
		here := func(id api.InstanceID) api.Position { return m.nodes[m.instances[id].Node].position() }
		bound := func(at ...api.Position) sched.Bound { return w.link.WantedBy(w.from, w.link.Bound(at...)) }
		if p.near == nearOne || count > maxStrict {
			b := bound()
			for _, id := range own[i] {
				b.Points = append(b.Points, here(id))
			}
			switch {
			case w.places.Len() == 0:
			case m.services[self] == nil: // nobody keeps it
				b.Points = append(b.Points, w.places.Points()...)
			default:
				b.Places = []*sched.Places{&w.places}
			}
			if len(b.Points)+len(b.Places) > 0 {
				out = append(out, b)
			}
			continue
		}
		for _, id := range append(step.Keys(w.open), own[i]...) {
			out = append(out, bound(here(id)))
		}
	}
	return out
}
