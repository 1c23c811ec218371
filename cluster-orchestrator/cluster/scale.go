package cluster

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToPrometheus is the address of the component that evaluates expressions. It gets autoscale.Queries, all
// that there are, and answers with Queried.
const ToPrometheus api.Addr = "prometheus"

func (in Queried) apply(c *Core) error {
	c.scale.Value(c.fx.Now, in.Service, in.Query, in.Value, in.Fault)
	return nil
}

// autoscale passes changed instances to scaling, and carries out its decisions.
func (c *Core) autoscale() {
	for again := true; again; {
		for _, id := range step.Keys(c.scaled) {
			if st, ok := c.place.ScaleState(id); ok {
				c.scale.Set(c.fx.Now, id, st)
			} else {
				c.scale.Remove(id)
			}
		}
		clear(c.scaled)
		again = false
		for _, d := range c.scale.Decide(c.fx.Now) {
			if d.Wake {
				c.place.Wake(d.Instance, d.Why)
			} else {
				c.place.Sleep(d.Instance, api.ReasonIdle, d.Why)
			}
			c.scaled[d.Instance], again = true, true
		}
		c.route()
	}
	if all, changed := c.scale.Queries(); changed {
		c.fx.Emit(ToPrometheus, all)
	}
	for _, f := range c.scale.Faults() {
		c.place.SetScaleFault(f.Instance, f.Text)
	}
	c.route()
	if next := c.scale.Next(); next.IsZero() {
		c.fx.Timers.Clear(effects.Key{Kind: effects.Scale})
	} else {
		c.fx.Timers.Set(effects.Key{Kind: effects.Scale}, next)
	}
}

// demanded wakes the services for which packets wait. Demands for services that sleep in other
// clusters go to the root, unless they come from it.
func (c *Core) demanded(all []routes.Wanted, forward bool) {
	for _, x := range all {
		number := autoscale.Any
		if x.Number != routes.AnyNumber {
			number = x.Number
		}
		if !c.scale.Demand(c.fx.Now, x.Service, number) && forward && c.netbook.Forward(x.Subscription) {
			c.uplink.Due()
		}
	}
}

// usage takes the load of instances that a node reports. It counts only for placements on that node.
func (c *Core) usage(on api.NodeID, all []wire.InstanceUsage) {
	for _, u := range all {
		if c.place.RunsOn(u.Instance, u.Epoch, on) {
			c.scale.Sample(c.fx.Now, u.Instance, autoscale.Sample{
				MilliCPU: u.MilliCPU, MemoryMB: u.MemoryMB, Connections: u.Connections, Idle: u.Idle, Requests: u.Requests, Fault: u.Fault,
			})
		}
	}
}
