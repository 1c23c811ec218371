package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

// purgeByHand is how to delete a node's data on its machine.
const purgeByHand = "on the machine: systemctl stop treeline-node; node-engine purge --yes --config /etc/treeline/node.yaml; deploy/install remove node"

// removal is a way to remove a node: what a person agrees to, with places for the
// node, its cluster, its status and its number of instances, and what is done then.
type removal struct {
	question string
	do       func(*cli, context.Context, *client.Client, api.Node) error
}

var (
	forgetNode = removal{"This forgets node %s of cluster %s (%s): its certificate is refused from now on, and its %d instances are placed elsewhere.", (*cli).forget}
	purgeNode  = removal{"This purges node %s of cluster %s (%s): it stops its %d instances, which are placed elsewhere as far as there is room, deletes its containers, images, logs, keys and data, and is forgotten then.", (*cli).purge}
)

// removeNode removes the node that a reference means, once a person has agreed.
func (c *cli) removeNode(ctx context.Context, cluster, reference string, yes bool, r removal) error {
	a, n, err := c.node(ctx, cluster, reference)
	if err != nil {
		return err
	}
	if err := c.confirm(yes, fmt.Sprintf(r.question, n.ID, n.Cluster, n.Status, n.Instances)); err != nil {
		return err
	}
	return r.do(c, ctx, a, n)
}

// forget has a cluster refuse a node's certificates.
func (c *cli) forget(ctx context.Context, a *client.Client, n api.Node) error {
	if err := a.ForgetNode(ctx, n.Cluster, n.ID); err != nil {
		return fmt.Errorf("forget node %s of %s: %w", n.ID, n.Cluster, err)
	}
	c.say("node %s of cluster %s is forgotten", n.ID, n.Cluster)
	if n.Status == api.NodeSilent && n.Instances > 0 {
		c.say("it was not heard: %s may still run there, beside what is placed elsewhere", output.Plural(n.Instances, "instance"))
	}
	c.say("the machine keeps its data: images, logs, its certificate and registry passwords; %s", purgeByHand)
	return nil
}

// purge has a node delete all that it has, and waits until it is removed.
func (c *cli) purge(ctx context.Context, a *client.Client, n api.Node) error {
	of, id := n.Cluster, n.ID
	if err := a.PurgeNode(ctx, of, id); err != nil {
		return fmt.Errorf("purge node %s of %s: %w", id, of, err)
	}
	if n, err := a.Node(ctx, of, id); err == nil && n.Status == api.NodeSilent {
		c.mayRun(n)
		return fmt.Errorf("node %s of cluster %s is not reachable, and nothing was deleted there: the order is kept until it is back; to forget it without, treeline delete node %s/%s; %s: %w",
			id, of, of, id, purgeByHand, api.ErrUnavailable)
	}
	return c.purged(ctx, a, of, id)
}

// mayRun says what a silent node may still run.
func (c *cli) mayRun(n api.Node) {
	if len(n.Remaining) == 0 {
		c.say("nothing ran there when it was last heard")
		return
	}
	c.say("it may still run:")
	for _, r := range n.Remaining {
		c.say("  %s", c.progress().Short(string(r.Instance)))
	}
}

// purged waits until a node that is being purged is removed.
func (c *cli) purged(ctx context.Context, a *client.Client, cl api.ClusterID, id api.NodeID) error {
	var last api.Node
	told := ""
	for {
		n, err := a.Node(ctx, cl, id)
		switch {
		case errors.Is(err, api.ErrNotFound):
			c.say("node %s of cluster %s has deleted what it had, and is forgotten", id, cl)
			return nil
		case err != nil && context.Cause(ctx) == nil:
			return err
		case err == nil && !n.Purging:
			return fmt.Errorf("purge node %s of %s: the order was taken back by treeline uncordon: %w", id, cl, api.ErrConflict)
		case err == nil:
			if last = n; n.PurgeError != told {
				told = n.PurgeError
				c.say("  %s", told)
			}
		}
		select {
		case <-ctx.Done():
			return c.unpurged(last, cl, id, context.Cause(ctx))
		case <-time.After(drainLook):
		}
	}
}

// unpurged says what is known of a node that was not purged in time.
func (c *cli) unpurged(n api.Node, cl api.ClusterID, id api.NodeID, cause error) error {
	if !errors.Is(cause, api.ErrTimeout) {
		return cause
	}
	why := "it has not acknowledged the order: a node of a release without --purge never does"
	switch {
	case n.PurgeError != "":
		why = "the last attempt failed: " + n.PurgeError
	case n.Status == api.NodeSilent:
		c.mayRun(n)
		why = "it is not reachable"
	case len(n.Remaining) > 0:
		why = output.Plural(len(n.Remaining), "instance") + " are still being stopped"
	}
	return fmt.Errorf("node %s of cluster %s is not purged yet: %s; the order is kept; %s: %w", id, cl, why, purgeByHand, cause)
}
