package node

import "github.com/treeline-edge/treeline/api"

// Input is what can happen to a node.
type Input interface{ input() }

type (
	// Start comes first, once, after Restore, with every workload that the runtime
	// found. Nothing of it is ended unless the cluster does not want it. With a
	// RuntimeError in Info, Found is not known yet and comes with a Fresh Info.
	Start struct {
		Info  api.NodeInfo
		Found []api.WorkloadEvent
	}
	// Tick comes when the Wake of the last step is reached.
	Tick struct{}

	// Info is a change of what the node is: its runtime fell silent or came back.
	// Found is set when the runtime came back: what it has now.
	Info struct {
		Info  api.NodeInfo
		Found []api.WorkloadEvent
		Fresh bool // Found is meant, even if empty
	}
	// Desired is what the cluster wants of the node, whole or as a change.
	Desired struct{ api.Desired }
	// Lease answers a sign of life.
	Lease struct{ api.Lease }
	// Link says that the connection to the cluster came up or went down.
	Link struct{ Up bool }
	// Workload is what the runtime says of a workload.
	Workload struct{ api.WorkloadEvent }
	// Brokers has the broker's addresses from the cluster's answer to a request.
	Brokers struct{ URLs []string }
	// Usage is what the node's probe measured, in percent.
	Usage struct{ CPU, Mem uint8 }
)

func (Start) input()    {}
func (Tick) input()     {}
func (Info) input()     {}
func (Desired) input()  {}
func (Lease) input()    {}
func (Link) input()     {}
func (Workload) input() {}
func (Usage) input()    {}
func (Brokers) input()  {}

// Volatile reports whether an input may be taken while nothing can be saved: a
// node whose disk is full goes on saying that it lives, and keeps its lease.
func Volatile(in Input) bool {
	switch in.(type) {
	case Tick, Lease, Usage:
		return true
	}
	return false
}
