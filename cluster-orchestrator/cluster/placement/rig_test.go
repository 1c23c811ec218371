package placement

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// noLatency is a Latency without measurements.
type noLatency struct{}

func (noLatency) UserBound(l sched.Link) sched.Bound { return l.Unknown("nothing is measured") }
func (noLatency) Measured(*sched.Bound, api.ServiceID, sched.Link, []api.Target, api.NodeID) {
}
func (noLatency) Measure([]string) bool { return false }
func (noLatency) HowMeasured(api.ServiceID, api.NodeID, sched.Link, *sched.Bound, []api.Target) (string, bool) {
	return "estimated", true
}
func (noLatency) SetLinks(api.ServiceID, []sched.Link) []api.NodeID { return nil }
func (noLatency) SetRunning(api.ServiceID, api.NodeID, bool)        {}
func (noLatency) Refer([]string, api.InstanceID, api.NodeID)        {}
func (noLatency) Unrefer([]string, api.InstanceID)                  {}

// rig is a Machine with nodes that have reported that they run nothing.
type rig struct {
	*Machine
	fx    *effects.Sink
	facts map[api.NodeID]membership.Node
	seq   uint64
}

func newRig(t testing.TB, nodes int, preempt bool, capacity func(i int) api.Resources) *rig {
	fx := &effects.Sink{}
	fx.Begin(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	r := &rig{fx: fx, facts: map[api.NodeID]membership.Node{}}
	r.Machine = New(Config{
		Cluster: "munich", Plugin: rom.Plugin{}, Share: 1, Preempt: preempt, SaveNode: func(api.NodeID) {},
	}, fx, noLatency{})
	for i := range nodes {
		id := api.NodeID(fmt.Sprintf("n%d", i))
		r.facts[id] = membership.Node{Heard: true, Info: api.NodeInfo{
			ID: id, Arch: "amd64", OS: "linux", Capacity: capacity(i), Runtimes: []string{"container"}, Network: api.NetworkOverlay,
		}}
		r.AddNode(r.facts[id], netip.Prefix{}, 0, nil)
		r.report(id, true)
	}
	return r
}

// report sends a report of a node.
func (r *rig) report(id api.NodeID, whole bool, observed ...api.Observed) {
	r.seq++
	rep := wire.NodeReport{Node: id, Seq: r.seq, Gen: r.nodes[id].set.Gen(), Whole: whole, Observed: observed}
	r.Acknowledge(rep)
	r.Observe(rep)
	r.Retry()
}

func (r *rig) cordon(id api.NodeID, on bool) {
	n := r.facts[id]
	n.Cordoned = on
	r.facts[id] = n
	r.SetNode(n)
	r.Cordon(id, on)
	r.Retry()
}

const web = api.ServiceID("acme/shop.prod.web.prod")

func assignment(n int, spec api.Microservice) wire.Assignment {
	spec.Name, spec.Namespace, spec.Virtualization = "web", "prod", "container"
	return wire.Assignment{Instance: web.Instance(n), Epoch: api.EpochOf(1, 0), SpecRev: 1, Spec: spec}
}
