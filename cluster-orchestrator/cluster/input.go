package cluster

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Input is an input of a Core: a message, an order, or a timer.
type Input interface{ apply(*Core) error }

type (
	// Start comes first, once, after Restore.
	Start struct{}
	// Tick comes when the Wake of the last step is reached.
	Tick struct{}

	// Desired is the root's desired set for the cluster, whole or as a change.
	Desired struct{ wire.Desired }
	// Ack is the root's answer to a report.
	Ack struct{ wire.ReportAck }
	// RootLink reports that the stream from the root opened or ended.
	RootLink struct{ Up bool }

	// RootNet is the root's message about the overlay network.
	RootNet struct{ wire.RootNet }
	// NetUp is a message of a node's netmanager.
	NetUp struct {
		Node api.NodeID
		wire.NetUp
	}

	// JoinNode adds a node, or handles another join of a known node. The caller has checked
	// its credentials. Token is the id of its join token: a repeated request has the same
	// one, and a different one ends an order to purge the node.
	JoinNode struct {
		Info  api.NodeInfo
		Token string
	}
	// NodeReport is what a node observed.
	NodeReport struct{ wire.NodeReport }
	// NodeAlive is a node's heartbeat.
	NodeAlive struct {
		Node api.NodeID
		wire.Alive
	}
	// NodeWill reports that a node's connection broke.
	NodeWill struct{ Node api.NodeID }

	// NodeProbed is a node's answer to a ProbeOrder.
	NodeProbed struct {
		Node api.NodeID
		wire.Probed
	}
	// Ranked is the external scheduler's answer to a sched.Ask.
	Ranked struct{ sched.Answer }

	// Queried is the value of a service's Prometheus expression, or why there is none.
	Queried struct {
		Service api.ServiceID
		Query   string
		Value   float64
		Fault   string
	}
	// Cordon keeps new instances off a node, or allows them again. Refused with ErrNotFound.
	Cordon struct {
		Node api.NodeID
		On   bool
	}
	// CapNode caps the resources that a node reports, in addition to the configured caps. It
	// replaces the caps of an earlier CapNode; zero Caps lift them. Running instances stay.
	// Refused with ErrNotFound and ErrInvalid.
	CapNode struct {
		Node api.NodeID
		Caps api.Caps
	}
	// Drain cordons a node and moves its instances elsewhere, as far as other nodes have
	// capacity. With Force, instances that fit nowhere else are stopped. Refused with
	// ErrNotFound.
	Drain struct {
		Node  api.NodeID
		Force bool
	}
	// MoveInstance moves one instance to a node, or to the best other node if To is empty. Refused with
	// ErrNotFound, and with ErrConflict if it fits nowhere else, moves already or does not run.
	MoveInstance struct {
		Instance api.InstanceID
		To       api.NodeID
	}
	// RemoveNode removes a node. Refused with ErrNotFound, and with ErrConflict while it is
	// alive and has instances.
	RemoveNode struct{ Node api.NodeID }
	// PurgeNode orders a node, which may be silent, to stop and delete its workloads, keys and
	// data. Its instances go elsewhere or wait for capacity. Refused with ErrNotFound.
	PurgeNode struct{ Node api.NodeID }
	// NodePurging is a node's question whether it must purge itself. The caller has checked
	// its certificate. Refused with ErrNotFound.
	NodePurging struct {
		Node api.NodeID
		wire.NodePurging
	}
	// NodeLeft removes a node that has deleted its workloads, keys and data because of an
	// order or its provider. The caller has checked its certificate. It may be repeated.
	NodeLeft struct{ Node api.NodeID }
	// VolumesCopied is the result of an attempt at a task of a move.
	VolumesCopied struct{ moves.Result }
	// Accessed is a notice to the root that a user reached an instance through the cluster's own port.
	Accessed struct{ Text string }
	// LocalScale sets the number of instances of a service in this cluster, while the root is
	// unreachable. Refused with ErrConflict while the root is reachable, ErrNotFound for a
	// service without an instance here, and ErrInvalid for an invalid number.
	LocalScale struct {
		Service  api.ServiceID
		Replicas int
	}
)
