package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

func (c *cli) scaleCmd() *cobra.Command {
	var replicas string
	cmd := &cobra.Command{
		Use: "scale SERVICE N", Short: "Set how many instances a service should have", Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.complete("services"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			if len(args) == 2 == (replicas != "") {
				return usage("the number of instances is missing: treeline scale %s N", args[0])
			}
			n, err := count(append(args, replicas)[1])
			if err != nil {
				return err
			}
			s, err := c.findService(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			fresh, err := a.Scale(cmd.Context(), s.ID, n, 0)
			if err != nil {
				return err
			}
			c.say("%s: %d → %d wanted", p.Short(string(s.ID)), s.Replicas, fresh.Replicas)
			return output.One(p, output.Services, fresh)
		},
	}
	cmd.Flags().StringVar(&replicas, "replicas", "", "the number, for those who are used to a flag")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		// A number below 0 looks like a flag.
		if i := strings.LastIndex(err.Error(), " in -"); i >= 0 {
			if _, cerr := count(err.Error()[i+len(" in "):]); cerr != nil {
				return cerr
			}
		}
		return err
	})
	c.outputFlags(cmd)
	return cmd
}

// count reads a number of instances.
func count(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, usage("%q is not a number of instances, want 0 or more", s)
	}
	return n, nil
}

func (c *cli) deleteCmd() *cobra.Command {
	group := &cobra.Command{Use: "delete", Aliases: []string{"rm"}, Short: "Delete applications; forget clusters and nodes"}
	var yes, wait bool
	var timeout time.Duration
	app := &cobra.Command{
		Use: "app NAME…", Aliases: []string{"apps", "application"}, Short: "Stop and delete applications", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete("apps"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, errTimeout)
			defer cancel()
			return each(args, func(name string) error { return c.deleteApp(ctx, name, yes, wait) })
		},
	}
	app.Flags().BoolVar(&wait, "wait", false, "wait until the last instance has stopped")
	app.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long at most, with --wait")
	cluster := &cobra.Command{
		Use: "cluster NAME…", Aliases: []string{"clusters"}, Short: "Forget clusters for good", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete("clusters"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error { return c.deleteCluster(cmd.Context(), name, yes) })
		},
	}
	var of string
	var purge bool
	var purgeTime time.Duration
	node := &cobra.Command{
		Use: "node [CLUSTER/]NAME…", Aliases: []string{"nodes"}, Short: "Forget nodes for good", Args: cobra.MinimumNArgs(1),
		Long: `Forget nodes for good: their certificates are refused from now on. The machines keep
what they have, and what runs there goes on, unless --purge has each node stop and
delete everything first. A node with --purge is removed once it has acknowledged that.
For one that is not reachable the order is kept until it is back.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if purge {
				ctx, cancel := context.WithTimeoutCause(cmd.Context(), purgeTime, errTimeout)
				defer cancel()
				return each(args, func(name string) error { return c.removeNode(ctx, of, name, yes, purgeNode) })
			}
			return each(args, func(name string) error { return c.removeNode(cmd.Context(), of, name, yes, forgetNode) })
		},
	}
	c.clusterFlag(node, &of)
	node.Flags().BoolVar(&purge, "purge", false, "have the node stop all processes and delete its containers, images, logs, keys and data first")
	node.Flags().DurationVar(&purgeTime, "timeout", 5*time.Minute, "how long to wait at most, with --purge")
	for _, sub := range []*cobra.Command{app, cluster, node} {
		sub.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
		group.AddCommand(sub)
	}
	return group
}

// each goes on with the others when one fails; a part that failed fails the whole.
func each(args []string, fn func(string) error) error {
	errs := make([]error, len(args))
	for i, a := range args {
		errs[i] = fn(a)
	}
	return errors.Join(errs...)
}

func (c *cli) deleteApp(ctx context.Context, name string, yes, wait bool) error {
	app, err := c.findApp(ctx, name)
	if err != nil {
		return err
	}
	err = c.confirm(yes, fmt.Sprintf("This deletes application %s: %d services, %d instances of which %d run.",
		app.ID, len(app.Services), app.Wanted, app.Running))
	if err != nil {
		return err
	}
	a, err := c.api()
	if err != nil {
		return err
	}
	// What was asked about is what dies: the revision that the question named.
	if _, err := a.DeleteApp(ctx, app.ID, app.Revision); err != nil {
		return fmt.Errorf("delete %s: %w", app.ID, err)
	}
	if !wait {
		c.say("%s is being stopped; treeline wait %s --for=deleted", app.ID, app.ID)
		return nil
	}
	if err := c.waitDeleted(ctx, a, string(app.ID)); err != nil {
		return fmt.Errorf("delete %s: it is being stopped: %w", app.ID, err)
	}
	c.say("%s is deleted", app.ID)
	return nil
}

func (c *cli) deleteCluster(ctx context.Context, name string, yes bool) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	cl, err := a.Cluster(ctx, api.ClusterID(name))
	if err != nil {
		return err
	}
	err = c.confirm(yes, fmt.Sprintf("This forgets cluster %s (%s): its certificates are refused from now on, and its %d instances are placed elsewhere, exclusive ones too: make sure that it has stopped them.",
		cl.ID, cl.Status, cl.Instances))
	if err != nil {
		return err
	}
	if err := a.ForgetCluster(ctx, cl.ID, 0); err != nil {
		return fmt.Errorf("forget cluster %s: %w", name, err)
	}
	c.say("cluster %s is forgotten", name)
	return nil
}

func (c *cli) clusterFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "cluster", "", "the node's cluster; not needed for CLUSTER/NODE, or where one cluster alone has such a node")
	c.completeCluster(cmd)
	cmd.ValidArgsFunction = c.complete("nodes")
}

// findNode returns the node of a reference: CLUSTER/NODE, as -o name prints it, or a name,
// of the given cluster or of the one that has such a node. A name alone
// is refused while a cluster does not answer: that one may have such a node, too.
func (c *cli) findNode(ctx context.Context, cluster, reference string) (api.ClusterID, api.NodeID, error) {
	of, name, cut := strings.Cut(reference, "/")
	switch {
	case !cut:
		name = reference
	case cluster != "" && cluster != of:
		return "", "", usage("node %s is not of cluster %s: leave --cluster out", reference, cluster)
	default:
		cluster = of
	}
	if cluster != "" {
		return api.ClusterID(cluster), api.NodeID(name), nil
	}
	all, failed := c.nodes(ctx, "")
	err := unanswered(failed)
	var found []string
	for _, n := range all {
		if string(n.ID) == name {
			found = append(found, string(n.Cluster)+"/"+name)
		}
	}
	switch {
	case len(found) > 1:
		return "", "", &ref.Ambiguous{Kind: "node", Reference: reference, Candidates: found}
	case err != nil && len(found) == 1:
		return "", "", fmt.Errorf("node %q: is it %s? not all clusters answered; write CLUSTER/NODE: %w", reference, found[0], err)
	case err != nil:
		return "", "", fmt.Errorf("node %q: no cluster that answered has it; write CLUSTER/NODE: %w", reference, err)
	case len(found) == 1:
		of, _, _ := strings.Cut(found[0], "/")
		return api.ClusterID(of), api.NodeID(name), nil
	}
	if failed != nil {
		return "", "", fmt.Errorf("node %q: %w", reference, failed)
	}
	return "", "", fmt.Errorf("no node is %q; see treeline get nodes: %w", reference, api.ErrNotFound)
}

// unanswered returns the errors of cli.nodes without those of clusters whose nodes the
// user may not see.
func unanswered(err error) error {
	all, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err)
	if !ok {
		return err
	}
	return errors.Join(slices.DeleteFunc(slices.Clone(all.Unwrap()), func(e error) bool {
		return errors.Is(e, api.ErrForbidden) || errors.Is(e, api.ErrNotFound)
	})...)
}

// node is the node that a reference means, as findNode finds it.
func (c *cli) node(ctx context.Context, cluster, reference string) (*client.Client, api.Node, error) {
	a, err := c.api()
	if err != nil {
		return nil, api.Node{}, err
	}
	of, id, err := c.findNode(ctx, cluster, reference)
	if err != nil {
		return nil, api.Node{}, err
	}
	n, err := a.Node(ctx, of, id)
	n.Cluster, n.ID = of, id // whatever the cluster says
	return a, n, err
}

func (c *cli) completeCluster(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("cluster", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.names(cmd.Context(), "clusters"), cobra.ShellCompDirectiveNoFileComp
	})
}

type onNode func(a *client.Client, ctx context.Context, cluster api.ClusterID, node api.NodeID) error

func (c *cli) nodeCmd(verb, short, done string, do onNode) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use: verb + " [CLUSTER/]NODE…", Short: short, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := c.api()
			if err != nil {
				return err
			}
			return each(args, func(name string) error {
				of, id, err := c.findNode(cmd.Context(), cluster, name)
				if err != nil {
					return err
				}
				if err := do(a, cmd.Context(), of, id); err != nil {
					return fmt.Errorf("%s node %s of %s: %w", verb, id, of, err)
				}
				if done != "" {
					c.say("node %s of cluster %s %s", id, of, done)
				}
				return nil
			})
		},
	}
	c.clusterFlag(cmd, &cluster)
	return cmd
}

func (c *cli) cordonCmd() *cobra.Command {
	return c.nodeCmd("cordon", "Keep new work off nodes", "takes no new work", func(a *client.Client, ctx context.Context, cl api.ClusterID, n api.NodeID) error {
		return a.Cordon(ctx, cl, n)
	})
}

func (c *cli) uncordonCmd() *cobra.Command {
	return c.nodeCmd("uncordon", "Let new work onto nodes again", "takes work again", func(a *client.Client, ctx context.Context, cl api.ClusterID, n api.NodeID) error {
		return a.Uncordon(ctx, cl, n)
	})
}

// drainCmd needs no confirmation: instances move, and only --force stops any.
func (c *cli) drainCmd() *cobra.Command {
	var force, detach bool
	var timeout time.Duration
	cmd := c.nodeCmd("drain", "Keep new work off nodes and move away what they run", "", func(a *client.Client, ctx context.Context, cl api.ClusterID, n api.NodeID) error {
		order := a.Drain
		if force {
			order = a.ForceDrain
		}
		if err := order(ctx, cl, n); err != nil {
			return err
		}
		if detach {
			c.say("node %s of cluster %s is being drained; see what is left with treeline describe node %s/%s", n, cl, cl, n)
			return nil
		}
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
		return c.drained(ctx, a, cl, n)
	})
	cmd.Long = `Keep new work off nodes and move away what they run, and wait until they are empty.
What fits nowhere else goes on where it is, unless --force has it stop: then it
waits for room. When --timeout is over, what is left is listed with the reason; the
exit code is then 3 if something fits on no other node, else 4. The nodes stay
cordoned, and what is left moves as soon as there is room.`
	f := cmd.Flags()
	f.BoolVar(&force, "force", false, "stop what fits on no other node")
	f.BoolVar(&detach, "detach", false, "do not wait")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait at most")
	return cmd
}

// drainLook is the interval at which a node is polled: nodes have no watch.
const drainLook = 500 * time.Millisecond

// drained waits until a node has no instance left, and prints those that are stuck.
func (c *cli) drained(ctx context.Context, a *client.Client, cl api.ClusterID, id api.NodeID) error {
	told := map[api.InstanceID]string{}
	for {
		n, err := a.Node(ctx, cl, id)
		switch {
		case err != nil && context.Cause(ctx) == nil:
			return err
		case err == nil && len(n.Remaining) == 0:
			c.say("node %s of cluster %s is drained", id, cl)
			return nil
		case err == nil:
			for _, r := range n.Remaining {
				if r.Stuck && told[r.Instance] != r.Why {
					told[r.Instance] = r.Why
					c.say("  %s %s", c.progress().Short(string(r.Instance)), r.Why)
				}
			}
		}
		select {
		case <-ctx.Done():
			return c.undrained(context.WithoutCancel(ctx), a, cl, id, context.Cause(ctx))
		case <-time.After(drainLook):
		}
	}
}

// undrained prints what a node still has at the timeout, and returns the error for it.
func (c *cli) undrained(ctx context.Context, a *client.Client, cl api.ClusterID, id api.NodeID, cause error) error {
	if !errors.Is(cause, api.ErrTimeout) {
		return cause
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	n, err := a.Node(ctx, cl, id)
	if err != nil {
		return err
	}
	kind := cause
	for _, r := range n.Remaining {
		c.say("  %s %s", c.progress().Short(string(r.Instance)), r.Why)
		if r.Stuck {
			kind = errNotPlaceable
		}
	}
	count := output.Plural(len(n.Remaining), "instance")
	if len(n.Remaining) == api.MostRemaining {
		count = "at least " + count
	}
	return fmt.Errorf("%s left; make room, or stop them with treeline drain --force: %w", count, kind)
}
