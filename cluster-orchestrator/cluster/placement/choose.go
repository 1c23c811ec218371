package placement

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// find returns the node that the built-in plugin chooses for an instance, and the request
// that the node meets. ok is false if the instance fits nowhere.
func (m *Machine) find(in *instance, avoid ...string) (req sched.Request, choice sched.Choice, ok bool) {
	avoid = append(avoid, in.avoid...)
	if in.plain() {
		req = m.requestOf(in.requestInput(), avoid...)
		if len(m.nodes) >= shortFrom && len(req.Avoid)+len(req.Bounds)+len(req.Domains) == 0 && m.short.matches(in) {
			if best, found, known := m.short.best(&m.table, &req, m.cfg.Plugin, in.seed()); known {
				return req, best, found
			}
		}
	}
	p := in.requestInput()
	p.late = m.late(in)
	return m.findFor(p, in.seed(), avoid...)
}

// findFor is find for a placing. It tries a place near all siblings that link to the
// instance, then a place near one of them, and, once the search time is over, the place where
// the bounds are violated least. If the instance fits nowhere, req is the strictest request,
// or the loosest one once the search time is over.
func (m *Machine) findFor(p requestInput, seed uint64, avoid ...string) (req sched.Request, choice sched.Choice, ok bool) {
	if req, choice, ok = m.findAt(nearAll, p, seed, avoid...); ok {
		return req, choice, true
	}
	wanted := 0
	for i := range req.Bounds {
		if req.Bounds[i].Inbound {
			wanted++
		}
	}
	if wanted > 1 {
		if less, choice, ok := m.findAt(nearOne, p, seed, avoid...); ok {
			return less, choice, true
		}
	}
	if !p.late || req.SearchTime() == 0 {
		return req, sched.Choice{}, false
	}
	req, ok = req.Relax(!p.linkedToOtherCluster(), func(r *sched.Request) (found bool) {
		choice, found = m.best(r, seed)
		return found
	})
	return req, choice, ok
}

// linkedToOtherCluster reports whether an instance has a link to a service that also runs in another
// cluster, so that the root may find a place there that meets the link. It returns false
// once the root has searched.
func (p requestInput) linkedToOtherCluster() bool {
	return !p.rootSearched && slices.ContainsFunc(p.demand.sla.Links, func(l sched.Link) bool {
		return l.Relaxable && slices.ContainsFunc(p.targets, func(t api.Target) bool {
			return len(t.Positions) > 0 && t.Service != "" && l.Names(p.id.Service(), t.Service)
		})
	})
}

// searchTime returns how long this cluster searches for a place that meets all bounds of a
// request. It is 0 if there are no bounds or the root may find a place elsewhere.
func (p requestInput) searchTime(req *sched.Request) time.Duration {
	if !p.linkedToOtherCluster() {
		return req.SearchTime()
	}
	wanted := *req
	wanted.Bounds = slices.DeleteFunc(slices.Clone(req.Bounds), func(b sched.Bound) bool { return !b.Inbound })
	return wanted.SearchTime()
}

func (m *Machine) findAt(near nearness, p requestInput, seed uint64, avoid ...string) (sched.Request, sched.Choice, bool) {
	p.near = near
	req := m.requestOf(p, avoid...)
	choice, ok := m.best(&req, seed)
	return req, choice, ok
}

// best returns the highest-ranked node for a request. ok is false if none fits.
func (m *Machine) best(req *sched.Request, seed uint64) (sched.Choice, bool) {
	avoid := req.Avoid
	for {
		choice, ok := m.table.Best(req, m.cfg.Plugin, seed)
		if !ok || m.devicesFit(req, choice.ID) {
			req.Avoid = avoid
			return choice, ok
		}
		req.Avoid = append(slices.Clip(req.Avoid), choice.ID)
	}
}

func (m *Machine) rank(req *sched.Request, seed uint64) sched.Result {
	res := m.table.Place(req, m.cfg.Plugin, seed)
	res.Rejected = slices.Clone(res.Rejected)
	for i, r := range res.Rejected {
		if n := m.nodes[api.NodeID(r.Candidate)]; n != nil {
			res.Rejected[i] = n.ExplainCaps(r)
		}
	}
	if len(req.Devices) < 2 {
		return res
	}
	res.Ranked = slices.DeleteFunc(res.Ranked, func(choice sched.Choice) bool {
		if m.devicesFit(req, choice.ID) {
			return false
		}
		last := req.Devices[len(req.Devices)-1]
		res.Rejected = append(res.Rejected, api.Rejection{
			Candidate: choice.ID, Constraint: sched.ConstraintDevice + last.Name, Shortfall: 1,
			Need: "a device for each kind", Have: "devices that are of several kinds at once",
		})
		return true
	})
	return res
}

// devicesFit reports whether one instance can get all requested devices of the node at once.
func (m *Machine) devicesFit(req *sched.Request, id string) bool {
	if len(req.Devices) < 2 {
		return true
	}
	n := m.nodes[api.NodeID(id)]
	return n.account.FitTogether(req.Devices, n.account.Left().Devices)
}

// reasons caches the explanations of kinds of instances that fit nowhere. It is valid while
// no candidate changes.
type reasons struct {
	version uint64 // of the table
	of      map[requestKind]api.Explanation
}

// requestKind identifies instances that make the same request.
type requestKind struct {
	service api.ServiceID
	rev     api.Revision
	placed  bool // on a node, which is then no candidate
	better  bool // it needs a node that meets its SLA with spareMargin
	late    bool // see placing.late
}

// requestKindOf returns the kind of an instance. ok is false if its request depends on more than its
// kind.
func (m *Machine) requestKindOf(in *instance, better bool) (k requestKind, ok bool) {
	return requestKind{in.id().Service(), in.Desired.SpecRev, in.Node != "", better, m.late(in)}, len(in.avoid)+len(in.Desired.Targets) == 0 && !in.boundByVolumes()
}

// knownNoFit returns the cached explanation why an instance without a node fits nowhere.
// known is false if there is none.
func (m *Machine) knownNoFit(in *instance) (why api.Explanation, known bool) {
	k, _ := m.requestKindOf(in, false)
	if !in.likeSiblings() || m.reasons.version != m.version {
		return why, false
	}
	why, known = m.reasons.of[k]
	return why, known
}

// explanation returns why the instance fits nowhere. It names no nodes, because the root
// receives it and because it is stored, so its size must not depend on the cluster's.
func (m *Machine) explanation(in *instance, req *sched.Request, better bool) api.Explanation {
	k, same := m.requestKindOf(in, better)
	if r := &m.reasons; r.of == nil || r.version != m.version {
		*r = reasons{m.version, map[requestKind]api.Explanation{}}
	}
	if why, known := m.reasons.of[k]; same && known {
		return why
	}
	why := sched.Redact(sched.Explain(m.rank(req, in.seed())))
	if same {
		m.reasons.of[k] = why
	}
	return why
}
