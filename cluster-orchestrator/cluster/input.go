package cluster

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Input is what can happen to a cluster.
type Input interface{ input() }

type (
	// Start comes first, once, after Restore.
	Start struct{}
	// Tick comes when the Wake of the last step is reached.
	Tick struct{}

	// Desired is what the root wants of the cluster, whole or as a change.
	Desired struct{ api.Desired }
	// Ack is the root's answer to a report.
	Ack struct{ api.ReportAck }
	// RootLink says that the stream from the root came up or went down.
	RootLink struct{ Up bool }

	// RootNet is what the root says of the overlay network.
	RootNet struct{ api.RootNet }
	// NetUp is what a node's netmanager says.
	NetUp struct {
		Node api.NodeID
		api.NetUp
	}

	// JoinNode makes a node known. Its credentials were checked outside. Token is the id of
	// its join token: a repeated request has the same one, and another one ends an order to
	// purge the node.
	JoinNode struct {
		Info  api.NodeInfo
		Token string
	}
	// NodeReport is what a node observed.
	NodeReport struct{ api.NodeReport }
	// NodeAlive is a node's sign of life.
	NodeAlive struct {
		Node api.NodeID
		api.Alive
	}
	// NodeWill is a node's connection that ended without a goodbye.
	NodeWill struct{ Node api.NodeID }

	// NodeProbed is a node's answer to a ProbeOrder.
	NodeProbed struct {
		Node api.NodeID
		api.Probed
	}
	// Ranked is the answer of the scheduler outside to a sched.Ask.
	Ranked struct{ sched.Answer }

	// Cordon keeps new instances off a node, or lets them on again.
	// Refused with ErrNotFound.
	Cordon struct {
		Node api.NodeID
		On   bool
	}
	// CapNode limits what a node counts for, beside the configuration's caps; zero Caps
	// lift what an earlier one set. Refused with ErrNotFound and ErrInvalid.
	CapNode struct {
		Node api.NodeID
		Caps api.Caps
	}
	// Drain cordons a node and moves its instances elsewhere, as far as there is room.
	// With Force, instances that fit nowhere else are stopped. Refused with ErrNotFound.
	Drain struct {
		Node  api.NodeID
		Force bool
	}
	// RemoveNode forgets a node. Refused with ErrNotFound, and with ErrConflict
	// while it is heard and holds instances.
	RemoveNode struct{ Node api.NodeID }
	// PurgeNode orders a node to stop and delete its workloads, keys and data. Its instances
	// go elsewhere or wait for room. Refused with ErrNotFound.
	PurgeNode struct{ Node api.NodeID }
	// NodePurging is the question of a node whether it is to purge itself. Its certificate
	// was checked outside. Refused with ErrNotFound.
	NodePurging struct {
		Node api.NodeID
		api.NodePurging
	}
	// NodeLeft removes a node that has deleted its workloads, keys and data, by an order or
	// by its provider. Its certificate was checked outside.
	NodeLeft struct{ Node api.NodeID }
	// LocalScale sets how many instances of a service this cluster has, while the
	// root is away. Refused with ErrConflict while the root is reachable, ErrNotFound
	// for a service with no instance here, ErrInvalid for a bad number.
	LocalScale struct {
		Service  api.ServiceID
		Replicas int
	}
)

func (Start) input()       {}
func (Tick) input()        {}
func (Desired) input()     {}
func (Ack) input()         {}
func (RootLink) input()    {}
func (RootNet) input()     {}
func (NetUp) input()       {}
func (JoinNode) input()    {}
func (NodeReport) input()  {}
func (NodeAlive) input()   {}
func (NodeWill) input()    {}
func (NodeProbed) input()  {}
func (Ranked) input()      {}
func (Cordon) input()      {}
func (CapNode) input()     {}
func (Drain) input()       {}
func (RemoveNode) input()  {}
func (PurgeNode) input()   {}
func (NodePurging) input() {}
func (NodeLeft) input()    {}
func (LocalScale) input()  {}
