package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) moveCmd() *cobra.Command {
	group := &cobra.Command{Use: "move", Short: "Move instances to other nodes of their cluster"}
	var to string
	var away, detach bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "instance INSTANCE --to [CLUSTER/]NODE|--away", Aliases: []string{"inst"}, Short: "Move an instance to another node", Args: cobra.ExactArgs(1),
		Long: `Move one instance to another node of its cluster, and wait until it runs there.

The new placement is ready before the old one is stopped. An exclusive instance is
stopped first. Local volumes are copied if the SLA says move: volume; without it,
an instance does not leave its volumes. Nothing else is evicted to make room.

The owner of the application may move an instance away from its node. Those who see
the nodes of the cluster may name one, and the cluster's operator may move instances
of all tenants.`,
		ValidArgsFunction: c.complete("instances"),
		PreRunE: func(*cobra.Command, []string) error {
			if away == (to != "") {
				return usage("give one of --to NODE and --away")
			}
			return nil
		},
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			was, err := c.movable(ctx, a, args[0])
			if err != nil {
				return err
			}
			node := api.NodeID(to[strings.LastIndexByte(to, '/')+1:])
			now, err := a.Move(ctx, was.ID, node)
			switch {
			case err != nil:
				return err
			case now.Node == node && now.State == api.Running && node != "":
				c.say("%s is on node %s", p.Short(string(was.ID)), node)
				return nil
			case detach || was.Epoch == 0:
				c.say("%s is being moved", p.Short(string(was.ID)))
				return nil
			}
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
			defer cancel()
			return c.moved(ctx, a, was)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "node that it moves to")
	f.BoolVar(&away, "away", false, "move it to the node that its cluster chooses")
	f.BoolVar(&detach, "detach", false, "do not wait until it has moved")
	f.DurationVar(&timeout, "timeout", 10*time.Minute, "give up waiting after this time; the move continues")
	c.completeFlag(cmd, "to", "nodes")
	group.AddCommand(cmd)
	return group
}

// movable returns an instance. The operator of its cluster may not see it at the root, and gives its whole id; then the epoch is 0.
func (c *cli) movable(ctx context.Context, a *client.Client, name string) (i api.Instance, err error) {
	own := c.own()
	if own == "" {
		i, err = instanceKind.find(ctx, c, name)
		if id, perr := api.ParseInstanceID(name); perr == nil && (errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrForbidden)) {
			return api.Instance{ID: id}, nil
		}
		return i, err
	}
	all, err := a.InstancesOn(ctx, own)
	if err != nil {
		return i, err
	}
	found, err := instanceKind.match(c, name, all)
	switch {
	case err != nil:
		return i, err
	case len(found) > 1:
		return i, usage("%s has %d instances; name one, as treeline get instances prints it", name, len(found))
	}
	return found[0], nil
}

// moved waits until an instance runs under a later epoch than it did.
func (c *cli) moved(ctx context.Context, a *client.Client, was api.Instance) error {
	name := c.progress().Short(string(was.ID))
	said := was.Detail
	for {
		i, err := a.Instance(ctx, was.ID)
		switch {
		case context.Cause(ctx) != nil:
			return fmt.Errorf("%s has not moved yet; see treeline why %s: %w", name, name, context.Cause(ctx))
		case err != nil:
			return err
		case (i.Detail != said || i.Epoch > was.Epoch) && strings.HasPrefix(i.Detail, api.NotMoved):
			return fmt.Errorf("%s %s: %w", name, i.Detail, api.ErrConflict)
		case i.Epoch > was.Epoch && (i.State == api.Running || i.State == api.Completed) && i.Reason != api.ReasonNotReady && i.Reason != api.ReasonMoved:
			text := name + " has moved"
			if i.Node != "" {
				text += " to node " + string(i.Node)
			}
			if i.Detail != "" {
				text += "; " + i.Detail
			}
			c.say("%s", text)
			return nil
		case i.Detail != said && i.Detail != "":
			said = i.Detail
			c.say("  %s %s", name, i.Detail)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}
