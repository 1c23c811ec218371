package relations

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Links bind both ends: an instance that is placed after the instances that link to it must
// be near them. To decide quickly, each service keeps its inbound links with the instances
// that have no instance of the service near enough.

// maxStrict is the maximum number of siblings that an instance must be near at once.
const maxStrict = 4

// inbound is a link of the service from, kept at the service to which it leads. It records
// which instances of from have an instance of the latter near enough, and which have none.
type inbound struct {
	link     sched.Link
	from     api.ServiceID
	served   map[api.InstanceID]string          // the node near enough; "": in another cluster
	servedBy map[string]map[api.InstanceID]bool // served, by node
	unserved map[api.InstanceID]bool            // instances that have none near enough
	places   sched.Places                       // positions of open

	// Changes that have not been applied yet.
	changed  map[api.InstanceID]bool // instances of from that moved or were removed
	arrived  map[string]bool         // nodes to which the target service came
	departed map[string]bool         // nodes that the target service left, or that moved
}

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
		link: l, from: id, served: map[api.InstanceID]string{}, servedBy: map[string]map[api.InstanceID]bool{},
		unserved: map[api.InstanceID]bool{}, changed: map[api.InstanceID]bool{}, arrived: map[string]bool{}, departed: map[string]bool{},
	}
	for id, in := range from.instances {
		if in.node != "" {
			w.changed[id] = true
		}
	}
	return w
}

func (s *service) addNode(node string, at api.Position) {
	s.places.Put(node, at)
	for _, w := range s.inbound {
		w.arrived[node] = true
	}
}

func (s *service) removeNode(node string) {
	s.places.Drop(node)
	for _, w := range s.inbound {
		w.departed[node] = true
		delete(w.arrived, node)
	}
}

// markMoved records that the position or the targets of an instance have changed.
func (m *Machine) markMoved(in *instance) {
	id := in.id.Service()
	for to := range m.apps[id.App()] {
		for _, w := range m.services[to].inbound {
			if w.from == id {
				w.changed[in.id] = true
			}
		}
	}
}

// inboundOf updates and returns the inbound links of a service.
func (m *Machine) inboundOf(to api.ServiceID) (out []*inbound) {
	s := m.services[to]
	if s == nil {
		s = &service{} // the service has no instance
	}
	known := map[linkKey]*inbound{}
	for _, from := range step.Keys(m.linking[to.App()]) {
		if from == to {
			continue
		}
		o := m.services[from]
		for _, l := range o.sla.Links {
			k := keyOf(from, l)
			if known[k] != nil || !l.Names(from, to) {
				continue
			}
			w := s.inbound[k]
			if w == nil {
				w = newInbound(o, from, l)
			}
			w.link = l // fields that the key leaves out may have changed
			known[k] = w
			m.apply(w, to, s)
			out = append(out, w)
		}
	}
	for k, w := range s.inbound {
		if known[k] == nil { // the SLA no longer has the link
			w.places.Clear()
		}
	}
	if s.inbound = known; len(known) == 0 {
		s.inbound = nil
	}
	return out
}

// apply applies the recorded changes of an inbound link of the service to.
func (m *Machine) apply(w *inbound, to api.ServiceID, s *service) {
	for node := range w.departed {
		for id := range w.servedBy[node] {
			w.changed[id] = true
		}
	}
	for node := range w.arrived {
		for _, id := range w.places.Within(m.nodes[api.NodeID(node)].Position, w.link) {
			w.serve(api.InstanceID(id), node)
		}
	}
	for id := range w.changed {
		w.remove(id)
		in := m.instances[id]
		if in == nil || in.node == "" || !slices.ContainsFunc(in.sla.Links, func(l sched.Link) bool {
			return keyOf(w.from, l) == keyOf(w.from, w.link)
		}) {
			continue
		}
		here := m.nodes[in.node].Position
		if node, near := s.places.Nearest(here, w.link); near {
			w.serve(id, node)
		} else if m.nearTarget(w.link, in, to) {
			w.serve(id, "")
		} else {
			w.unserved[id] = true
			w.places.Put(string(id), here)
		}
	}
	clear(w.departed)
	clear(w.arrived)
	clear(w.changed)
}

func (w *inbound) serve(id api.InstanceID, node string) {
	delete(w.unserved, id)
	w.places.Drop(string(id))
	w.served[id] = node
	if w.servedBy[node] == nil {
		w.servedBy[node] = map[api.InstanceID]bool{}
	}
	w.servedBy[node][id] = true
}

func (w *inbound) remove(id api.InstanceID) {
	delete(w.unserved, id)
	w.places.Drop(string(id))
	if node, ok := w.served[id]; ok {
		delete(w.served, id)
		if delete(w.servedBy[node], id); len(w.servedBy[node]) == 0 {
			delete(w.servedBy, node)
		}
	}
}

// nearTarget reports whether an instance of the service to in another cluster is near enough.
func (m *Machine) nearTarget(l sched.Link, in *instance, to api.ServiceID) bool {
	here := m.nodes[in.node].Position
	return slices.ContainsFunc(in.targets, func(t api.Target) bool {
		return t.Service == to && slices.ContainsFunc(t.Positions, func(at api.Position) bool { return within(l, here, at) })
	})
}

// servedOnlyFrom returns the instances of an inbound link of the service to for which only
// its instances on one node are near enough.
func (m *Machine) servedOnlyFrom(w *inbound, to api.ServiceID, node string) (out []api.InstanceID) {
	var others []api.Position
	for name := range m.services[to].peers {
		if name != node {
			others = append(others, m.nodes[api.NodeID(name)].Position)
		}
	}
	for _, id := range step.Keys(w.servedBy[node]) {
		in := m.instances[id]
		here := m.nodes[in.node].Position
		if !slices.ContainsFunc(others, func(at api.Position) bool { return within(w.link, here, at) }) && !m.nearTarget(w.link, in, to) {
			out = append(out, id)
		}
	}
	return out
}

// Bound returns the bound of a service's link to another service or to an area. binds is
// false for a link to a service without instances: it binds that service when it is placed.
func (m *Machine) Bound(self api.ServiceID, l sched.Link, targets []api.Target) (b sched.Bound, binds bool) {
	b = l.Bound()
	if l.Area != "" {
		if p := m.areas[strings.ToLower(l.Area)]; p != nil {
			b.Places = []*sched.Places{p}
		}
	} else {
		for _, id := range step.Keys(m.apps[self.App()]) {
			if s := m.services[id]; s.places.Len() > 0 && l.Names(self, id) {
				b.Places = append(b.Places, &s.places)
			}
		}
	}
	for _, t := range targets {
		if l.Area != "" && strings.EqualFold(t.Area, l.Area) || t.Service != "" && l.Names(self, t.Service) {
			b.Points = append(b.Points, t.Positions...)
		}
	}
	binds = len(b.Points)+len(b.Places) > 0
	if l.Area != "" && !binds {
		return l.Unknown("its location is unknown"), true
	}
	return b, binds
}

// InboundBounds returns the bounds that inbound links impose on an instance. It must be near each
// placed sibling that has no other instance of its service near enough. With nearOne, or if
// there are more than maxStrict such siblings, it must be near one of them: the others move,
// or the next instance is placed near them. on is the instance's present node or "".
func (m *Machine) InboundBounds(id api.InstanceID, on api.NodeID, nearOne bool) (out []sched.Bound) {
	self := id.Service()
	links, count := m.inboundOf(self), 0
	lone := ""
	if s := m.services[self]; s != nil && s.instances[id] != nil && s.peers[string(on)] == 1 {
		lone = string(on) // it must stay near the siblings that only it serves
	}
	own := make([][]api.InstanceID, len(links))
	for i, w := range links {
		if lone != "" {
			own[i] = m.servedOnlyFrom(w, self, lone)
		}
		count += len(w.unserved) + len(own[i])
	}
	here := func(id api.InstanceID) api.Position { return m.nodes[m.instances[id].node].Position }
	for i, w := range links {
		bound := func(at ...api.Position) sched.Bound { return w.link.Inbound(w.from, w.link.Bound(at...)) }
		if !nearOne && count <= maxStrict {
			for _, id := range append(step.Keys(w.unserved), own[i]...) {
				out = append(out, bound(here(id)))
			}
			continue
		}
		b := bound()
		for _, id := range own[i] {
			b.Points = append(b.Points, here(id))
		}
		switch {
		case w.places.Len() == 0:
		case m.services[self] == nil: // w is temporary, so its places must be copied
			b.Points = append(b.Points, w.places.Points()...)
		default:
			b.Places = []*sched.Places{&w.places}
		}
		if len(b.Points)+len(b.Places) > 0 {
			out = append(out, b)
		}
	}
	return out
}
