package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Links bind both ways: who is placed after those that link to it has to be near to
// them. Of a service's ways it is kept, as instances come and go, to whom of the
// others none of its own is near enough, so that each decision looks at those alone.

// maxStrict is to how many places of its siblings an instance must be near at once.
const maxStrict = 4

// way is a link of one service's instances to another service, which has it.
type way struct {
	link   sched.Link
	from   api.ServiceID
	served map[api.InstanceID]string          // by which node of the other; "": by another cluster's
	by     map[string]map[api.InstanceID]bool // the same by node
	open   map[api.InstanceID]api.Position    // served by none, and where they are
	places sched.Places                       // of those

	// Changes that were not looked at yet.
	fresh map[api.InstanceID]bool // who is where it was not, or is gone
	come  map[string]bool         // nodes that the other is on now
	gone  map[string]bool         // and those where it is no more, or that moved
}

// wayKey is one link of one service.
type wayKey struct {
	from api.ServiceID
	link sched.Link
}

func keyOf(from api.ServiceID, l sched.Link) wayKey {
	l.Rigidness, l.Shared, l.Convergence = 0, false, 0
	return wayKey{from: from, link: l}
}

func newWay(from *service, id api.ServiceID, l sched.Link) *way {
	w := &way{
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
func (c *Core) comes(s *service, node string) {
	s.places.Put(node, c.nodes[api.NodeID(node)].position())
	for _, w := range s.ways {
		w.come[node] = true
	}
}

func (c *Core) goes(s *service, node string) {
	s.places.Drop(node)
	for _, w := range s.ways {
		w.gone[node] = true
		delete(w.come, node)
	}
}

// shifted notes that an instance is where it was not, or is measured against
// something else.
func (c *Core) shifted(in *instance) {
	id := in.id().Service()
	for to := range c.apps[id.App()] {
		for _, w := range c.services[to].ways {
			if w.from == id {
				w.fresh[in.id()] = true
			}
		}
	}
}

// forgetWays ends what is kept of a service's links to others, and of theirs to it.
func (c *Core) forgetWays(id api.ServiceID) {
	for to := range c.apps[id.App()] {
		for k, w := range c.services[to].ways {
			if k.from == id || to == id {
				w.places.Clear() // a table may remember them
				delete(c.services[to].ways, k)
			}
		}
	}
}

// gone forgets an instance.
func (c *Core) gone(in *instance) {
	id := in.id().Service()
	for to := range c.apps[id.App()] {
		for _, w := range c.services[to].ways {
			if w.from == id {
				w.forget(in.id())
				delete(w.fresh, in.id())
			}
		}
	}
}

// ways are those that lead to a service, up to date.
func (c *Core) ways(to api.ServiceID) (out []*way) {
	s := c.services[to]
	if s == nil {
		s = &service{} // it is only asked about
	}
	known := map[wayKey]*way{}
	for _, from := range step.Keys(c.linkers[to.App()]) {
		if from == to {
			continue
		}
		o := c.services[from]
		for _, l := range o.links {
			k := keyOf(from, l)
			if known[k] != nil || !l.Names(from, to) {
				continue
			}
			w := s.ways[k]
			if w == nil {
				w = newWay(o, from, l)
			}
			w.link = l // what the key leaves out may be new
			known[k] = w
			c.look(w, to, s)
			out = append(out, w)
		}
	}
	for k, w := range s.ways {
		if known[k] == nil { // the SLA has it no more
			w.places.Clear()
		}
	}
	if s.ways = known; len(known) == 0 {
		s.ways = nil
	}
	return out
}

// look takes in what has changed of a way.
func (c *Core) look(w *way, to api.ServiceID, s *service) {
	for node := range w.gone {
		for id := range w.by[node] {
			w.fresh[id] = true
		}
	}
	for node := range w.come {
		at := c.nodes[api.NodeID(node)].position()
		for _, id := range w.places.Within(at, w.link) {
			w.serve(api.InstanceID(id), node)
		}
	}
	for id := range w.fresh {
		w.forget(id)
		in := c.instances[id]
		if in == nil || in.Node == "" || in.Leaving || in.Withdrawn || !slices.ContainsFunc(in.demand.links, func(l sched.Link) bool {
			return keyOf(w.from, l) == keyOf(w.from, w.link)
		}) {
			continue
		}
		here := c.nodes[in.Node].position()
		if node, near := s.places.Nearest(here, w.link); near {
			w.serve(id, node)
		} else if c.nearTarget(w.link, in, to) {
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

func (w *way) serve(id api.InstanceID, node string) {
	delete(w.open, id)
	w.places.Drop(string(id))
	w.served[id] = node
	if w.by[node] == nil {
		w.by[node] = map[api.InstanceID]bool{}
	}
	w.by[node][id] = true
}

func (w *way) forget(id api.InstanceID) {
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
func (c *Core) nearTarget(l sched.Link, in *instance, to api.ServiceID) bool {
	here := c.nodes[in.Node].position()
	return slices.ContainsFunc(in.Want.Targets, func(t api.Target) bool {
		return t.Service == to && slices.ContainsFunc(t.Positions, func(at api.Position) bool { return keeps(l, here, at) })
	})
}

// bereft are those that only one node of a service serves.
func (c *Core) bereft(w *way, to api.ServiceID, node string) (out []api.InstanceID) {
	var others []api.Position
	for name := range c.services[to].peers {
		if name != node {
			others = append(others, c.nodes[api.NodeID(name)].position())
		}
	}
	for _, id := range step.Keys(w.by[node]) {
		in := c.instances[id]
		here := c.nodes[in.Node].position()
		if !slices.ContainsFunc(others, func(at api.Position) bool { return keeps(w.link, here, at) }) && !c.nearTarget(w.link, in, to) {
			out = append(out, id)
		}
	}
	return out
}

// wantedNear are the links of placed siblings to this service, of which none of
// its other instances is near enough: it has to be near to each of them or, where
// they are many or that cannot be, to one of them. The others then move, or
// the next instance serves them.
func (c *Core) wantedNear(p placing) (out []sched.Bound) {
	self := p.id.Service()
	ways, count := c.ways(self), 0
	lone := ""
	if s := c.services[self]; s != nil && s.instances[p.id] != nil && s.peers[string(p.node)] == 1 {
		lone = string(p.node) // what only it serves it must go on to serve
	}
	own := make([][]api.InstanceID, len(ways))
	for i, w := range ways {
		if lone != "" {
			own[i] = c.bereft(w, self, lone)
		}
		count += len(w.open) + len(own[i])
	}
	for i, w := range ways {
		here := func(id api.InstanceID) api.Position { return c.nodes[c.instances[id].Node].position() }
		bound := func(at ...api.Position) sched.Bound { return w.link.WantedBy(w.from, w.link.Bound(at...)) }
		if p.near == nearOne || count > maxStrict {
			b := bound()
			for _, id := range own[i] {
				b.Points = append(b.Points, here(id))
			}
			switch {
			case w.places.Len() == 0:
			case c.services[self] == nil: // nobody keeps it
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
