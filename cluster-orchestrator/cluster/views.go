package cluster

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Nodes lists the cluster's nodes in the order of their ids, without Remaining.
func (c *Core) Nodes() []api.Node { return c.place.Nodes() }

// Node returns a node; ok is false if the cluster does not have it.
func (c *Core) Node(id api.NodeID) (api.Node, bool) { return c.place.Node(id) }

func (c *Core) NoSuchNode(id api.NodeID) error { return c.members.NotFound(id) }

// Instances lists the cluster's instances, with their nodes, in the order of their ids.
func (c *Core) Instances() []api.Instance { return c.place.Instances() }

func (c *Core) Instance(id api.InstanceID) (api.Instance, bool) { return c.place.Instance(id) }

// Disrupting returns the instances of services with a disruption budget whose voluntary disruption is under way, in
// the order of their ids.
func (c *Core) Disrupting() []api.InstanceID { return c.place.Disrupting() }

// Volume returns the nodes that have a local volume, in the order of their ids, and whether an instance
// has it or may have it again.
func (c *Core) Volume(id api.VolumeID) (at []api.NodeID, used bool) { return c.place.Volume(id) }

// VolumeAt returns the node that has a local volume as it was written last, "" if there is none.
func (c *Core) VolumeAt(id api.VolumeID) api.NodeID { return c.place.VolumeAt(id) }

// Why explains for each node whether an instance could be placed there now, and why not. ok
// is false for an instance that the cluster does not have.
func (c *Core) Why(id api.InstanceID) (ex api.Explanation, ok bool) {
	ex, ok = c.place.Why(id)
	if s, scales := c.scale.Standing(c.fx.Now, id); ok && scales {
		ex.Scale = &s
	}
	node, volumes := c.place.CSIOf(id)
	for _, v := range volumes {
		if _, why := c.KeptAttached(v, node); why != "" {
			ex.Causes = append(ex.Causes, api.Cause{Constraint: sched.ConstraintVolume, Count: 1, Detail: why})
		}
	}
	return ex, ok
}

// Latencies returns the known round trips of the links of an application's running instances.
func (c *Core) Latencies(app api.AppID) []api.LinkStatus { return c.place.Latencies(app) }

// WhyOf is Why for an instance that the root has not offered to the cluster.
func (c *Core) WhyOf(r api.WhyRequest) api.Explanation { return c.place.WhyOf(r) }

// Plan returns where instances would be placed if nothing else changed, in the order of
// their priority, and which others would be preempted. It reserves nothing.
func (c *Core) Plan(r api.ClusterPlanRequest) api.ClusterPlan { return c.place.Plan(r) }

// Values returns the configs and secrets that the instances need, sorted.
func (c *Core) Values() placement.Needed { return c.place.Values() }

// ValueFor returns the config or secret that a node requests, if an instance assigned to it needs it, or one that
// moves there needs it to fetch its image.
func (c *Core) ValueFor(id api.NodeID, w wire.WantValue) (wire.ValueKey, bool) {
	return c.place.ValueFor(id, w)
}

// Gen returns the generation of the root's desired set that the cluster holds.
func (c *Core) Gen() api.Generation { return c.uplink.Gen() }

func (c *Core) Digests() (desired, observed api.Digest) { return c.uplink.Digests() }

func (c *Core) RootUp() bool { return c.uplink.Up() }

// RefusedValues returns the number of values in messages of nodes that were out of bounds
// since the start of the process.
func (c *Core) RefusedValues() uint64 { return c.members.RefusedValues() }

// publish sends the views that have changed in this step to watchers: of nodes, of instances, and the cluster itself, without
// an object, when its connection to the root begins or ends. A removed object has no view.
func (c *Core) publish() {
	w := &c.watched
	for _, id := range step.Keys(w.nodes) {
		ch := api.Change{Kind: "node", ID: string(id)}
		if n, ok := c.Node(id); ok {
			ch.Object = n
		}
		c.fx.Emit(wire.ToWatchers, ch)
	}
	for _, id := range step.Keys(w.instances) {
		ch := api.Change{Kind: "instance", ID: string(id), Tenant: id.Tenant()}
		if in, ok := c.Instance(id); ok {
			ch.Object = in
		}
		c.fx.Emit(wire.ToWatchers, ch)
	}
	if w.root {
		c.fx.Emit(wire.ToWatchers, api.Change{Kind: "cluster", ID: string(c.cfg.ID)})
	}
	clear(w.nodes)
	clear(w.instances)
	w.root = false
}
