package sim

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// scales makes some services scale, by a number from 0 to 2 on.
func (o Options) scales(m api.Microservice) api.Microservice {
	if !o.Scale || m.OneShot || m.Exclusive || len(m.Volumes) > 0 {
		return m
	}
	least, down, most := max(0, len(m.Code)%4-1), 5, max(1, *m.Replicas)
	least = min(least, most)
	m.Replicas = nil
	m.Scale = &api.Scale{Min: &least, Max: most, Connections: 10, IdleTime: 5, StabilisationDown: &down}
	if len(m.Code)%2 == 0 {
		m.Scale.Connections, m.Scale.Requests = 0, &api.RequestGoal{Target: 10, Port: 80, Counter: "hits"}
	}
	return m
}

// loads reports a random load of the node's workloads, also impossible ones, while there are faults. Later nothing
// is reported, so that numbers stay as they are, until everything rests.
func (n *NodeMachine) loads() {
	w := n.w
	if !w.opts.Scale {
		return
	}
	w.after(w.between(2*time.Second, 8*time.Second), n.loads)
	if !w.resting && w.chaos != nil && w.chaos.ended || !n.proc.running() {
		return
	}
	var all []wire.InstanceUsage
	for _, id := range step.Keys(n.runtime.have) {
		for _, v := range n.runtime.have[id] {
			if v.phase != wire.WorkloadRunning || v.spec.Scale == nil {
				continue
			}
			u := wire.InstanceUsage{Key: v.Key, Idle: time.Hour}
			open, known := w.load[id.Service()]
			switch {
			case w.chaos == nil && !known:
				continue
			case known && open > 0:
				u.Connections, u.Idle = open, 0
			case w.chaos != nil && !w.resting:
				u.Connections, u.Idle = w.chance.IntN(40), w.between(0, 10*time.Second)-1
				if u.Requests = int64(1000 * (u.Connections - 1)); u.Requests < 0 {
					u.Requests, u.Fault = -1, "connection refused"
				}
			}
			if w.opts.Plant == PlantNeverIdle {
				u.Idle = 0
			}
			all = append(all, u)
		}
	}
	if len(all) > 0 {
		n.proc.give(node.Load{All: all})
	}
}
