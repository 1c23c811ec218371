package node

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Input is an event that a node's core handles.
type Input interface{ apply(*Core) }

type (
	// Start is the first input after Restore. Found are all workloads of the runtime. If
	// Info.RuntimeError is set, Found is empty and an Info with Fresh follows.
	Start struct {
		Info  api.NodeInfo
		Found []wire.WorkloadEvent
	}
	// Tick is the input when the last step's Wake is reached.
	Tick struct{}

	// Info is a change of the node. When the runtime answers again, Fresh is set and Found
	// are all its workloads.
	Info struct {
		Info  api.NodeInfo
		Found []wire.WorkloadEvent
		Fresh bool
	}
	// Volumes are the local volumes of the node after a change.
	Volumes struct{ Volumes []api.NodeVolume }
	// Desired is the desired set, or a change of it.
	Desired struct{ wire.Desired }
	// Lease is the answer to a heartbeat.
	Lease struct{ wire.Lease }
	// Link is a change of the connection to the cluster.
	Link struct{ Up bool }
	// Workload is an event of a workload.
	Workload struct{ wire.WorkloadEvent }
	// Brokers are the broker addresses that the cluster returned to a request.
	Brokers struct{ URLs []string }
	// Usage is the measured use of the node, in percent.
	Usage struct{ CPU, Mem uint8 }
)

func (in Start) apply(c *Core)   { c.start(in) }
func (Tick) apply(*Core)         {}
func (in Info) apply(c *Core)    { c.infoChanged(in) }
func (in Volumes) apply(c *Core) { c.volumesChanged(in.Volumes) }
func (in Desired) apply(c *Core) { c.desired(in.Desired) }
func (in Lease) apply(c *Core)   { c.lease(in.Lease) }
func (in Link) apply(c *Core)    { c.linkChanged(in.Up) }
func (in Usage) apply(c *Core)   { c.usage = in }

func (in Workload) apply(c *Core) {
	if in.Phase == wire.WorkloadGone {
		delete(c.leaving, in.Key)
	}
	if w := c.works[in.Instance]; w != nil {
		c.workloadEvent(w, in.WorkloadEvent)
	} else {
		c.unclaimedEvent(in.WorkloadEvent)
	}
}

func (in Brokers) apply(c *Core) {
	if c.learnBrokers(in.URLs) {
		c.saveMeta()
	}
}

// Volatile reports whether an input is handled while the store accepts no writes, so that a
// node with a full disk sends heartbeats and keeps its lease.
func Volatile(in Input) bool {
	switch in.(type) {
	case Tick, Lease, Usage, Load:
		return true
	}
	return false
}
