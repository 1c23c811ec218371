package cluster

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Input is what can happen to a cluster.
type Input interface{ apply(*Core) error }

type (
	// Start comes first, once, after Restore.
	Start struct{}
	// Tick comes when the Wake of the last step is reached.
	Tick struct{}

	// Desired is what the root wants of the cluster, whole or as a change.
	Desired struct{ wire.Desired }
	// Ack is the root's answer to a report.
	Ack struct{ wire.ReportAck }
	// RootLink says that the stream from the root came up or went down.
	RootLink struct{ Up bool }

	// RootNet is what the root says of the overlay network.
	RootNet struct{ wire.RootNet }
	// NetUp is what a node's netmanager says.
	NetUp struct {
		Node api.NodeID
		wire.NetUp
	}

	// JoinNode makes a node known. Its credentials were checked outside. Token is the id of
	// its join token: a repeated request has the same one, and another one ends an order to
	// purge the node.
	JoinNode struct {
		Info  api.NodeInfo
		Token string
	}
	// NodeReport is what a node observed.
	NodeReport struct{ wire.NodeReport }
	// NodeAlive is a node's sign of life.
	NodeAlive struct {
		Node api.NodeID
		wire.Alive
	}
	// NodeWill is a node's connection that ended without a goodbye.
	NodeWill struct{ Node api.NodeID }

	// NodeProbed is a node's answer to a ProbeOrder.
	NodeProbed struct {
		Node api.NodeID
		wire.Probed
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
		wire.NodePurging
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

func (Start) apply(c *Core) error {
	c.start()
	return nil
}

func (in Desired) apply(c *Core) error {
	c.desired(in.Desired)
	return nil
}

func (in Ack) apply(c *Core) error {
	c.acked(in.ReportAck)
	return nil
}

func (in RootLink) apply(c *Core) error {
	c.uplink.SetUp(in.Up)
	return nil
}

func (in RootNet) apply(c *Core) error {
	c.rootNet(in.RootNet)
	return nil
}

func (in NetUp) apply(c *Core) error {
	return within(c, in.Node, in.NetUp, func(up wire.NetUp) { c.netUp(in.Node, up) })
}

func (in JoinNode) apply(c *Core) error {
	info, bad, _ := bounds.Take(in.Info)
	if err := bad.Err(); err != nil {
		return fmt.Errorf("join node: %w", err)
	}
	c.joinNode(info, in.Token)
	return nil
}

func (in NodeReport) apply(c *Core) error { return within(c, in.Node, in.NodeReport, c.nodeReport) }
func (in NodeAlive) apply(c *Core) error {
	return within(c, in.Node, in.Alive, func(a wire.Alive) { c.nodeAlive(in.Node, a) })
}

func (in NodeWill) apply(c *Core) error {
	c.suspect(in.Node) // it may be back in a moment
	return nil
}

func (in NodeProbed) apply(c *Core) error {
	return within(c, in.Node, in.Probed, func(p wire.Probed) { c.measured(c.latency.Probed(in.Node, p)) })
}

func (in Ranked) apply(c *Core) error {
	c.place.Answered(in.Answer)
	return nil
}

func (in Cordon) apply(c *Core) error {
	return c.order(in.Node, func() error { return c.cordon(in.Node, in.On) })
}

func (in CapNode) apply(c *Core) error {
	return c.order(in.Node, func() error { return c.capNode(in.Node, in.Caps) })
}

func (in Drain) apply(c *Core) error {
	return c.order(in.Node, func() error { return c.drain(in.Node, in.Force) })
}

func (in RemoveNode) apply(c *Core) error { return c.removeNode(in.Node, false) }
func (in PurgeNode) apply(c *Core) error {
	return c.order(in.Node, func() error { return c.purgeNode(in.Node) })
}

func (in NodePurging) apply(c *Core) error {
	return c.order(in.Node, func() error { return c.nodePurging(in.Node, in.NodePurging) })
}

func (in NodeLeft) apply(c *Core) error   { return c.nodeLeft(in.Node) }
func (in LocalScale) apply(c *Core) error { return c.localScale(in.Service, in.Replicas) }
func (Tick) apply(*Core) error            { return nil }
