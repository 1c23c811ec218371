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

// purgeByHand are the commands that delete a node's data on its machine.
const purgeByHand = "on the machine: systemctl stop treeline-node; node-engine purge --yes --config /etc/treeline/node.yaml; deploy/install remove node"

// The formats of the confirmations. Arguments: the node, its cluster, its status, and its number of
// instances.
const (
	removeQuestion = "This removes node %s of cluster %s (%s): its certificate becomes invalid, and its %d instances are placed on other nodes."
	purgeQuestion  = "This purges and removes node %s of cluster %s (%s): it stops its %d instances, which are placed on other nodes if there is capacity, and deletes its containers, images, logs, keys and data."
)

// deleteNode removes a node after confirmation. With purge, the node first deletes its data.
func (c *cli) deleteNode(ctx context.Context, a *client.Client, cluster, reference string, yes, purge bool) error {
	n, err := c.node(ctx, a, cluster, reference)
	if err != nil {
		return err
	}
	question, do := removeQuestion, c.remove
	if purge {
		question, do = purgeQuestion, c.purge
	}
	if err := c.confirm(yes, fmt.Sprintf(question, n.ID, n.Cluster, n.Status, n.Instances)); err != nil {
		return err
	}
	return do(ctx, a.NodesOf(n.Cluster), n)
}

// remove removes a node without changes on its machine.
func (c *cli) remove(ctx context.Context, nodes client.Nodes, n api.Node) error {
	if err := nodes.Remove(ctx, n.ID); err != nil {
		return fmt.Errorf("remove node %s of cluster %s: %w", n.ID, n.Cluster, err)
	}
	c.say("node %s of cluster %s removed", n.ID, n.Cluster)
	if n.Status == api.NodeSilent && n.Instances > 0 {
		c.say("the node was silent: %s may still run there, in addition to their replacements", output.Plural(n.Instances, "instance"))
	}
	c.say("the machine keeps its images, logs, certificate and registry passwords; to delete them, %s", purgeByHand)
	return nil
}

// purge orders a node to delete its data, and waits until the node is removed.
func (c *cli) purge(ctx context.Context, nodes client.Nodes, n api.Node) error {
	of, id := n.Cluster, n.ID
	if err := nodes.Purge(ctx, id); err != nil {
		return fmt.Errorf("purge node %s of cluster %s: %w", id, of, err)
	}
	if n, err := nodes.Get(ctx, id); err == nil && n.Status == api.NodeSilent {
		c.mayRun(n)
		return fmt.Errorf("node %s of cluster %s is unreachable, nothing was deleted there; the cluster keeps the order until the node is back. To remove the node without its answer: treeline delete node %s/%s. To delete its data: %s: %w",
			id, of, of, id, purgeByHand, api.ErrUnavailable)
	}
	return c.purged(ctx, nodes, of, id)
}

func (c *cli) mayRun(n api.Node) {
	if len(n.Remaining) == 0 {
		c.say("it ran nothing when it last reported")
		return
	}
	c.say("it may still run:")
	for _, r := range n.Remaining {
		c.say("  %s", c.progress().Short(string(r.Instance)))
	}
}

// purged waits until a node has been purged and removed.
func (c *cli) purged(ctx context.Context, nodes client.Nodes, cl api.ClusterID, id api.NodeID) error {
	var last api.Node
	reported := ""
	for {
		n, err := nodes.Get(ctx, id)
		switch {
		case errors.Is(err, api.ErrNotFound):
			c.say("node %s of cluster %s purged and removed", id, cl)
			return nil
		case err != nil && context.Cause(ctx) == nil:
			return err
		case err == nil && !n.Purging:
			return fmt.Errorf("purge node %s of cluster %s: cancelled by treeline uncordon: %w", id, cl, api.ErrConflict)
		case err == nil:
			if last = n; n.PurgeError != reported {
				reported = n.PurgeError
				c.say("  %s", reported)
			}
		}
		select {
		case <-ctx.Done():
			return c.unpurged(last, cl, id, context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}

// unpurged returns the error for a node that was not purged in time.
func (c *cli) unpurged(n api.Node, cl api.ClusterID, id api.NodeID, cause error) error {
	if !errors.Is(cause, api.ErrTimeout) {
		return cause
	}
	why := "it has not acknowledged the order (nodes of releases without --purge never do)"
	switch {
	case n.PurgeError != "":
		why = "the last attempt failed: " + n.PurgeError
	case n.Status == api.NodeSilent:
		c.mayRun(n)
		why = "it is unreachable"
	case len(n.Remaining) > 0:
		why = output.Plural(len(n.Remaining), "instance") + " are still being stopped"
	}
	return fmt.Errorf("node %s of cluster %s is not purged yet: %s. The cluster keeps the order. To delete the data by hand, %s: %w", id, cl, why, purgeByHand, cause)
}
