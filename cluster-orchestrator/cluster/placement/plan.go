package placement

import (
	"cmp"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Plan returns where instances would be placed if nothing else changed, and which others
// would be preempted. It plans the most urgent first. An instance that the cluster already
// has is planned as its replacement: its node stops the old placement before it starts the
// new one. A plan may wait for leaving instances and for those of r.Gone. Nothing is reserved.
func (m *Machine) Plan(r api.ClusterPlanRequest) api.ClusterPlan {
	t := dryRun{m: m, placed: map[api.NodeID]int{}, gone: r.Gone}
	defer func() {
		for _, u := range slices.Backward(t.undo) {
			u()
		}
	}()
	out := api.ClusterPlan{Instances: make([]api.InstancePlan, len(r.Instances))}
	order := make([]int, len(r.Instances))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(r.Instances[b].Spec.Urgency(), r.Instances[a].Spec.Urgency())
	})
	for _, i := range order {
		out.Instances[i] = t.plan(&r.Instances[i])
	}
	if !slices.ContainsFunc(out.Instances, func(v api.InstancePlan) bool { return v.Action == planWait }) {
		return out
	}
	turn := map[api.InstanceID]int{}
	for i, id := range m.waitingByUrgency() {
		turn[id] = i - len(m.instances) // instances that wait already come first
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &r.Instances[a], &r.Instances[b]
		return cmp.Or(cmp.Compare(y.Spec.Urgency(), x.Spec.Urgency()), cmp.Compare(turn[x.Instance], turn[y.Instance]))
	})
	// A removed instance leaves its domains at once, but takes capacity until it has stopped.
	for _, free := range []func(){t.takeOffGone, t.releaseGone} {
		free()
		for _, i := range order {
			if out.Instances[i].Action == planWait {
				out.Instances[i] = t.plan(&r.Instances[i])
			}
		}
	}
	for _, i := range order {
		if out.Instances[i].Action == planWait {
			if v, ok := t.planLate(t.m.questionInstance(&r.Instances[i])); ok {
				out.Instances[i] = v
			}
		}
	}
	for i := range out.Instances {
		if out.Instances[i].Action == planWait { // explain it with all others placed
			if v := t.choose(t.m.questionInstance(&r.Instances[i])); v.Action == planWait {
				out.Instances[i] = v
			}
		}
	}
	return out
}

// questionInstance returns the instance that a question is about. It has no node.
func (m *Machine) questionInstance(q *api.WhyRequest) *instance {
	in := &instance{demand: m.demandOf(q.Instance, &q.Spec)}
	in.Desired = wire.Assignment{Instance: q.Instance, Spec: q.Spec, Targets: q.Targets, Searched: q.Searched}
	return in
}

// dryRun is an unfinished plan. It replaces nodes in the Machine by copies and changes
// them, so that each planned instance counts for the next ones. undo restores the Machine.
type dryRun struct {
	m      *Machine
	placed map[api.NodeID]int // number of planned instances by node; has each copied node
	held   api.Resources      // change of Machine.used
	gone   []api.InstanceID   // removed or replaced instances; they take capacity until leave
	shrink []func()           // reduce the bookings of replaced instances to the new placement
	undo   []func()           // run in reverse order
}

// plan plans an instance. Like rewant, it prefers the instance's present node.
func (t *dryRun) plan(q *api.WhyRequest) api.InstancePlan {
	in := t.m.questionInstance(q)
	if now := t.m.instances[q.Instance]; now != nil && t.m.nodes[now.Node] != nil && t.m.nodes[now.Node].assigned[q.Instance] != nil {
		if v, ok := t.replaceInPlace(in, now.Node); ok {
			return v
		}
		t.takeOff(q.Instance, now.Node)
	}
	v := t.choose(in)
	if v.Action == planPlace {
		t.assign(v.Node, in)
	}
	return v
}

// replaceInPlace plans the replacement of an instance on its own node. ok is false if it does not fit
// there even without its present placement.
func (t *dryRun) replaceInPlace(in *instance, home api.NodeID) (api.InstancePlan, bool) {
	m, id := t.m, in.id()
	n := t.nodeCopy(home)
	undo := m.countTentatively(id.Service(), home, -1)
	cand := n.without(id)
	req := m.requestOf(in.requestInput())
	best, ok := sched.PlaceBest(&req, []sched.Candidate{cand}, m.cfg.Plugin, in.seed())
	undo()
	if !ok || !n.account.FitTogether(req.Devices, cand.Slots[0].Devices) {
		return api.InstancePlan{}, false
	}
	v := api.InstancePlan{
		ID: id, Action: planPlace, Cluster: m.cfg.Cluster, Node: home, Score: best.Score, Headroom: headroom(&req, &cand),
	}
	had := n.account.Booked(id)
	t.takeOff(id, home)
	t.book(n, id, account.Claim{})
	t.assign(home, in)
	// As with take, the larger claim and the ports of both are booked until the node reports
	// the new placement.
	claim := n.withoutVolumes(id, in.demand.takes.Claim)
	t.book(n, in.id()+planned, had.Max(claim))
	t.updateCandidate(n)
	t.shrink = append(t.shrink, func() {
		t.book(n, in.id()+planned, claim)
		t.updateCandidate(n)
	})
	return v, true
}

// takeOff takes an instance off its node. Its claim stays booked until leave.
func (t *dryRun) takeOff(id api.InstanceID, home api.NodeID) {
	n := t.nodeCopy(home)
	delete(n.assigned, id)
	t.undo = append(t.undo, t.m.countTentatively(id.Service(), home, -1))
	t.gone = append(t.gone, id)
	t.updateCandidate(n)
}

func (t *dryRun) takeOffGone() {
	for _, id := range slices.Clone(t.gone) {
		if in := t.m.instances[id]; in != nil && t.m.nodes[in.Node] != nil && t.m.nodes[in.Node].assigned[id] != nil {
			t.takeOff(id, in.Node)
		}
	}
}

// releaseGone releases the claims of leaving and dismissed instances.
func (t *dryRun) releaseGone() {
	for _, s := range t.shrink {
		s()
	}
	for _, id := range t.gone {
		in := t.m.instances[id]
		if in == nil || t.m.nodes[in.Node] == nil {
			continue
		}
		n := t.nodeCopy(in.Node)
		t.remove(n, id)
		t.updateCandidate(n)
	}
	for _, id := range step.Keys(t.m.nodes) {
		if len(t.m.nodes[id].ending()) > 0 {
			t.evict(id, nil)
		}
	}
}

func (t *dryRun) book(n *node, id api.InstanceID, k account.Claim) {
	t.held = t.held.Minus(n.account.Booked(id).Resources).Plus(k.Resources)
	n.account.Book(id, k)
}

// planned is appended to an instance's id to book its planned placement beside its present
// one.
const planned = " planned"

// remove releases what an instance takes on a copied node.
func (t *dryRun) remove(n *node, id api.InstanceID) {
	t.book(n, id, account.Claim{})
	n.account.Release(id)
}

// The actions of an InstancePlan of a cluster.
const (
	planPlace = "place"
	planWait  = "wait"
)

func (t *dryRun) choose(in *instance) api.InstancePlan {
	p := in.requestInput()
	p.late = in.Desired.Searched
	return t.chooseFor(in, p)
}

// planLate plans an instance that fits nowhere as if its search time were over. ok is false
// if that does not help.
func (t *dryRun) planLate(in *instance) (v api.InstancePlan, ok bool) {
	p := in.requestInput()
	req := t.m.requestOf(p)
	d := p.searchTime(&req)
	if in.Desired.Searched || d == 0 || t.m.explainOverShare(in) != nil {
		return v, false
	}
	p.late = true
	if v = t.chooseFor(in, p); v.Action != planPlace {
		return v, false
	}
	v.After = d.Seconds()
	t.assign(v.Node, in)
	return v, true
}

func (t *dryRun) chooseFor(in *instance, p requestInput) api.InstancePlan {
	m := t.m
	used := m.used
	m.used = used.Plus(t.held) // count earlier parts of the plan
	defer func() { m.used = used }()
	v := api.InstancePlan{ID: in.id(), Action: planPlace, Cluster: m.cfg.Cluster}
	if r := m.tooLarge(in); r != nil {
		return waitPlan(in.id(), *m.explainRejection(r, r.Have))
	}
	over := m.explainOverShare(in)
	req, best, ok := m.findFor(p, in.seed())
	v.Node, v.Score = api.NodeID(best.ID), best.Score
	if !ok || over != nil {
		n, victims := m.findVictims(in, &req)
		switch {
		case n == nil && over != nil:
			return waitPlan(in.id(), *over)
		case n == nil:
			return waitPlan(in.id(), sched.Explain(m.rank(&req, in.seed())))
		}
		v.Node, v.Preempts, v.Score = n.Info.ID, len(victims) > 0, 0
		for _, other := range victims {
			v.Preempted = append(v.Preempted, other.id())
		}
		slices.Sort(v.Preempted)
		t.evict(n.Info.ID, victims)
	}
	if p.late {
		req = m.requestOf(p) // for the headroom: by how much bounds are violated
	}
	v.Headroom = headroom(&req, m.table.Get(string(v.Node)))
	return v
}

func waitPlan(id api.InstanceID, why api.Explanation) api.InstancePlan {
	return api.InstancePlan{ID: id, Action: planWait, Why: &why}
}

// nodeCopy returns the copy of a node that the plan changes.
func (t *dryRun) nodeCopy(id api.NodeID) *node {
	m := t.m
	n := m.nodes[id]
	if _, copied := t.placed[id]; copied {
		return n
	}
	own, cand := *n, *m.table.Get(string(id))
	own.assigned, own.account = maps.Clone(n.assigned), n.account.Clone()
	m.nodes[id], t.placed[id] = &own, 0
	t.undo = append(t.undo, func() {
		m.nodes[id] = n
		m.table.Put(cand)
	})
	return &own
}

func (t *dryRun) assign(id api.NodeID, in *instance) {
	n, key := t.nodeCopy(id), in.id()+planned
	t.book(n, key, n.withoutVolumes(in.id(), in.demand.takes.Claim))
	n.account.Publish(key, in.demand.takes.Ports)
	t.placed[id]++
	t.undo = append(t.undo, t.m.countTentatively(in.id().Service(), id, +1))
	t.updateCandidate(n)
}

// evict takes victims and leaving instances off a node's copy.
func (t *dryRun) evict(id api.NodeID, victims []*instance) {
	n := t.nodeCopy(id)
	for gone := range n.ending() {
		t.remove(n, gone)
	}
	for _, v := range victims {
		t.remove(n, v.id())
		delete(n.assigned, v.id())
		t.undo = append(t.undo, t.m.countTentatively(v.id().Service(), id, -1))
	}
	t.updateCandidate(n)
}

func (t *dryRun) updateCandidate(n *node) {
	cand := n.candidate(n.out(), n.account.Left())
	cand.Load += t.placed[n.Info.ID]
	t.m.table.Put(cand)
}

// countTentatively adds by (1 or -1) to the instances of a service on a node until undo is called.
func (m *Machine) countTentatively(id api.ServiceID, node api.NodeID, by int) (undo func()) {
	changed, uncount := m.relations.CountTentatively(id, node, by)
	if changed {
		m.latency.SetRunning(id, node, by > 0)
	}
	return func() {
		uncount()
		if changed {
			m.latency.SetRunning(id, node, by < 0)
		}
	}
}

// headroom describes what is left of a node after a request is placed there.
func headroom(req *sched.Request, cand *sched.Candidate) []string {
	devices := maps.Clone(cand.Slots[0].Devices)
	for _, d := range req.Devices {
		devices[d.Name] -= d.Count
	}
	return append(sched.Headroom(req, cand.Free.Minus(req.Needs), devices), sched.Margins(req, cand)...)
}
