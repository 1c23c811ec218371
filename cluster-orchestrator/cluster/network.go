package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/latency"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// flushNetwork passes the step's changes to the netbook, which sends them to nodes. It runs
// before the nodes' desired sets are sent, so that new flows avoid an instance before its
// node stops it.
func (c *Core) flushNetwork() {
	for _, id := range step.Keys(c.instances) {
		if spec, ok := c.place.Spec(id); ok {
			c.netbook.SetInstance(id, spec)
		} else {
			c.netbook.DropInstance(id)
		}
	}
	clear(c.instances)
	places := make([]routes.Place, 0, len(c.places))
	for p := range c.places {
		places = append(places, p)
	}
	slices.SortFunc(places, routes.ComparePlaces)
	for _, p := range places {
		hosted, backend := c.place.Backend(p)
		if c.netbook.SetPlace(p, hosted, backend) && c.place.Linked(p.Instance.Service().App()) {
			c.netbook.MarkDue(p.Node) // it may have to measure other services now
		}
	}
	clear(c.places)
	c.netbook.Flush(c.measures)
}

func (in NetUp) apply(c *Core) error {
	return takeBounded(c, in.Node, in.NetUp, func(up wire.NetUp) { c.netUp(in.Node, up) })
}

func (c *Core) netUp(id api.NodeID, up wire.NetUp) {
	if _, ok := c.members.Node(id); !ok {
		return
	}
	r, ok := c.netbook.Up(id, up)
	if !ok {
		return
	}
	if up.Self != nil && c.place.MoveNode(id, up.Self.Coord) {
		c.latencyFacts(id)
		c.place.ShowPositions(id)
	}
	c.networkChanged(r)
	c.demanded(r.Demands, true)
	var targets map[api.ServiceID][]api.Target
	if slices.ContainsFunc(up.Between, func(p wire.NetPair) bool { return p.Cluster != "" }) {
		targets = c.place.Targets(id)
	}
	c.retryMeasured(latency.Result{Changed: c.latency.Report(id, up.Between, targets)})
}

// networkChanged passes the result of a netbook call to the other sub-machines.
func (c *Core) networkChanged(r netbook.Result) {
	for _, id := range r.Leased {
		c.place.SetSubnet(id, c.netbook.Subnet(id))
	}
	for _, id := range r.Save {
		if _, ok := c.members.Node(id); ok {
			c.latencyFacts(id)
			c.saveNode(id)
		}
	}
	for _, id := range r.Places {
		c.place.NoteNode(id)
	}
	for _, id := range r.Members {
		for _, by := range c.latency.MeasuredBy(id) {
			c.netbook.MarkDue(by)
		}
	}
	if r.Report {
		c.uplink.Due()
	}
}

func (in RootNet) apply(c *Core) error {
	changed, r := c.netbook.FromRoot(in.RootNet)
	for _, id := range changed {
		c.latency.SetRemote(id, c.netbook.Remote(id))
	}
	c.networkChanged(r)
	c.demanded(r.Demands, false)
	return nil
}

func (c *Core) Lease(id api.NodeID) (wire.NetLease, bool) { return c.netbook.Lease(id) }

// Interest returns the number of subscriptions of nodes, and how many have no answer yet.
func (c *Core) Interest() (all, open int) { return c.netbook.Totals() }

func (in NodeProbed) apply(c *Core) error {
	return takeBounded(c, in.Node, in.Probed, func(p wire.Probed) { c.retryMeasured(c.latency.Probed(in.Node, p)) })
}

func (in Ranked) apply(c *Core) error {
	c.place.Answered(in.Answer)
	return nil
}

// retryMeasured retries placements that depend on new measurements.
func (c *Core) retryMeasured(r latency.Result) {
	if r.Changed {
		c.place.Invalidate()
	}
	for _, id := range r.Measured {
		c.place.RetryInstance(id)
	}
}

// measures returns the peers and services that a node measures.
func (c *Core) measures(id api.NodeID) netbook.Measures {
	peers, chosen := c.latency.Peers(id)
	if !chosen {
		return netbook.Measures{}
	}
	return netbook.Measures{Known: true, Peers: peers, Services: c.latency.Reports(id)}
}
