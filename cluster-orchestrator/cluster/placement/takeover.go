package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Found is a placement of an instance that a node reports and that the store may have no record of, because it was
// restored from an older copy.
type Found struct {
	Node api.NodeID
	api.Observed
}

// up reports whether the workload exists.
func (f *Found) up() bool { return f.State == api.Created || f.State == api.Running }

const (
	// generationGap and epochGap are above the numbers of generations, and of placements of an instance within one of
	// the root's, that a cluster has used since a snapshot.
	generationGap = 1 << 24
	epochGap      = 1 << 10
	// maxFound is the limit up to which a node can raise the cluster's part of an epoch, so that no node can use up the
	// numbers.
	maxFound = 1 << 19
)

// SkipGenerations skips the generations that were used since the store was copied.
func (m *Machine) SkipGenerations() {
	m.counter.Raise(m.counter.Last()+generationGap, &m.fx.Journal, KindMeta, KeyCounter)
}

// TakeOver makes placements that nodes report those of the cluster, after Start and before nodes get their desired
// sets. An instance goes on where its record says if it runs there, otherwise under its latest placement within the
// root's present one, if the SLA permits that node. reported says whether a node has reported all that it runs. Other
// placements are ended.
func (m *Machine) TakeOver(found func(api.InstanceID) []Found, reported func(api.NodeID) bool) {
	for _, id := range step.Keys(m.instances) {
		in := m.instances[id]
		if in.Leaving || in.Withdrawn {
			continue
		}
		all := slices.DeleteFunc(found(id), func(f Found) bool { return m.nodes[f.Node] == nil })
		best, ok := m.bestFound(in, all)
		switch {
		case ok && (best.Node != in.Node || best.Epoch != in.Epoch):
			m.takeOver(in, best)
		case !ok && in.Node != "" && reported(in.Node) && !in.ended() && !slices.ContainsFunc(all, func(f Found) bool { return f.Node == in.Node }):
			m.unassign(in, false)
			if in.State != api.ClusterScheduled {
				in.State = lifecycle.Must(in.State, lifecycle.Replace)
			}
			m.waiting.Add(id)
		}
		for _, f := range all {
			if f.Node != in.Node {
				m.endFound(in, f)
			}
		}
		if in.Node == "" && !in.dormant() {
			if n := in.Epoch.Local(); n < maxFound {
				in.Epoch = api.EpochOf(in.Epoch.Root(), n+epochGap)
			}
			m.changed(in)
		}
	}
}

// bestFound returns the placement under which the instance goes on.
func (m *Machine) bestFound(in *instance, all []Found) (best Found, ok bool) {
	for _, f := range all {
		switch {
		case f.Epoch.Root() != in.Desired.Epoch.Root() || f.Epoch.Local() >= maxFound || f.Epoch < in.Epoch || in.ended() && !in.dormant():
		case f.Node == in.Node && f.up():
			return f, true
		case f.Node != in.Node && f.Epoch == in.Epoch, f.Node != in.Node && !m.permits(in, m.nodes[f.Node]):
		case !ok || f.Epoch > best.Epoch:
			best, ok = f, true
		}
	}
	return best, ok
}

// permits reports whether the SLA permits the node, whatever else runs there.
func (m *Machine) permits(in *instance, n *node) bool {
	req := in.demand.request
	req.Devices = nil
	_, ok := sched.PlaceBest(&req, []sched.Candidate{n.candidate("", account.Left{Free: n.account.Capacity()})}, m.cfg.Plugin, in.seed())
	return ok
}

func (m *Machine) takeOver(in *instance, f Found) {
	if in.dormant() {
		m.applyEvent(in, lifecycle.Wake, api.ReasonNone, "")
	}
	in.Epoch = f.Epoch - 1 // assign begins the next one
	m.assign(in, f.Node, api.ReasonNone, "it ran there when the cluster was restored")
	if f.up() {
		m.observed(m.nodes[f.Node], in, f.Observed)
	}
}

// endFound ends a placement that is not the instance's. An exclusive instance waits for that.
func (m *Machine) endFound(in *instance, f Found) {
	n, id := m.nodes[f.Node], in.id()
	m.touch(n)
	n.bookUnassigned(id, in.demand.takes.Claim)
	if !slices.ContainsFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Node == f.Node }) {
		in.OldPlacements = append(in.OldPlacements, oldPlacement{Node: f.Node, Epoch: f.Epoch, Gen: n.set.Gen(), Claim: in.demand.takes.Claim})
		m.save(in)
	}
	m.refresh(n)
}

// EpochOf returns the epoch of the newest placement of an instance that is not leaving. ok is false if there is none.
func (m *Machine) EpochOf(id api.InstanceID) (e api.Epoch, ok bool) {
	if in := m.instances[id]; in != nil && !in.Leaving {
		return in.Epoch, true
	}
	return 0, false
}
