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
		Use: "scale SERVICE N", Short: "Set the number of instances of a service", Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.complete("services"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			if len(args) == 2 == (replicas != "") {
				return usage("give the number of instances once: treeline scale %s N", args[0])
			}
			n, err := count(append(args, replicas)[1])
			if err != nil {
				return err
			}
			s, err := serviceKind.find(ctx, c, args[0])
			if err != nil {
				return err
			}
			fresh, err := a.Scale(ctx, s.ID, n, 0)
			if err != nil {
				return err
			}
			c.say("%s: %d → %d wanted", p.Short(string(s.ID)), s.Replicas, fresh.Replicas)
			return output.One(p, output.Services, fresh)
		}),
	}
	cmd.Flags().StringVar(&replicas, "replicas", "", "the number of instances, instead of the argument N")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		// A negative number is parsed as a flag.
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

func count(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, usage("%q is not a number of instances, want 0 or more", s)
	}
	return n, nil
}

func (c *cli) deleteCmd() *cobra.Command {
	group := &cobra.Command{Use: "delete", Aliases: []string{"rm"}, Short: "Delete applications, volumes, snapshots, configs, secrets and custom resources, or remove clusters and nodes"}
	var yes, wait, purge bool
	var timeout time.Duration
	var of string
	app := &cobra.Command{
		Use: "app NAME…", Aliases: []string{"apps", "application"}, Short: "Stop and delete applications",
		ValidArgsFunction: c.complete("apps"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
			defer cancel()
			return each(args, func(name string) error { return c.deleteApp(ctx, a, name, yes, wait) })
		}),
	}
	app.Flags().BoolVar(&wait, "wait", false, "wait until the last instance has stopped")
	app.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "with --wait, give up after this time")
	cluster := &cobra.Command{
		Use: "cluster NAME…", Aliases: []string{"clusters"}, Short: "Remove clusters for good",
		ValidArgsFunction: c.complete("clusters"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error { return c.deleteCluster(ctx, a, name, yes) })
		}),
	}
	node := &cobra.Command{
		Use: "node [CLUSTER/]NAME…", Aliases: []string{"nodes"}, Short: "Remove nodes for good",
		Long: `Remove nodes for good: the cluster refuses their certificates and places their
instances on other nodes. The machines keep their data and keep running workloads.

With --purge, each node stops its workloads and deletes its data first, and is
removed when it has acknowledged that. If a node is unreachable, the cluster keeps
the order until the node is back.`,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			if purge {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTimeout)
				defer cancel()
			}
			return each(args, func(name string) error { return c.deleteNode(ctx, a, of, name, yes, purge) })
		}),
	}
	c.clusterFlag(node, &of)
	node.Flags().BoolVar(&purge, "purge", false, "first stop the node's workloads and delete its containers, images, logs, keys and data")
	node.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "with --purge, give up waiting after this time; the order stays")
	for _, sub := range append([]*cobra.Command{app, cluster, node, c.deleteVolumeCmd(&yes), c.deleteSnapshotCmd(&yes)}, c.deleteCustomCmds(&yes)...) {
		sub.Args = cobra.MinimumNArgs(1)
		sub.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
		group.AddCommand(sub)
	}
	c.selectable(app, "applications", true)
	c.selectable(node, "nodes", true)
	group.AddCommand(c.deleteValuesCmds()...)
	c.takesKinds(group, "KIND NAME…", 1, func(ctx context.Context, _ output.Printer, a *client.Client, kind string, names []string) error {
		return each(customNames(kind, names), func(name string) error { return c.deleteCustom(ctx, a, name, yes) })
	})
	group.Flags().BoolVarP(&yes, "yes", "y", false, "of a custom kind: do not ask for confirmation")
	return group
}

func each[T any](args []T, fn func(T) error) error {
	errs := make([]error, len(args))
	for i, a := range args {
		errs[i] = fn(a)
	}
	return errors.Join(errs...)
}

// several is each for commands that print a text about each name, with empty lines in between.
func several(p output.Printer, args []string, fn func(string) error) error {
	first := true
	return each(args, func(name string) error {
		if !first && p.ForPeople() {
			p.Printf("")
		}
		first = false
		return fn(name)
	})
}

// item prints an object as JSON or YAML: as a document, or with several names as an item of a stream.
func item(p output.Printer, args []string, o any) error {
	if len(args) > 1 {
		return p.Line(o)
	}
	return p.Object(o)
}

func (c *cli) deleteApp(ctx context.Context, a *client.Client, name string, yes, wait bool) error {
	app, err := appKind.find(ctx, c, name)
	if err != nil {
		return err
	}
	err = c.confirm(yes, fmt.Sprintf("This deletes application %s: %d services and %d instances, %d of them running.",
		app.ID, len(app.Services), app.Wanted, app.Running))
	if err != nil {
		return err
	}
	// Delete only the revision that the user has confirmed.
	if _, err := a.DeleteApp(ctx, app.ID, app.Revision); err != nil {
		return fmt.Errorf("delete %s: %w", app.ID, err)
	}
	if !wait {
		c.say("%s is being deleted; to wait: treeline wait %s --for=deleted", app.ID, app.ID)
		return nil
	}
	if err := c.waitDeleted(ctx, a, string(app.ID)); err != nil {
		return fmt.Errorf("delete %s: its instances are still stopping: %w", app.ID, err)
	}
	c.say("%s deleted", app.ID)
	return nil
}

func (c *cli) deleteCluster(ctx context.Context, a *client.Client, name string, yes bool) error {
	cl, err := a.Cluster(ctx, api.ClusterID(name))
	if err != nil {
		return err
	}
	err = c.confirm(yes, fmt.Sprintf("This removes cluster %s (%s): its certificates become invalid, and its %d instances are placed in other clusters. This includes exclusive instances: make sure that the cluster has stopped them.",
		cl.ID, cl.Status, cl.Instances))
	if err != nil {
		return err
	}
	if err := a.RemoveCluster(ctx, cl.ID, 0); err != nil {
		return fmt.Errorf("remove cluster %s: %w", name, err)
	}
	c.say("cluster %s removed", name)
	return nil
}

func (c *cli) clusterFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "cluster", "", "the node's cluster; not needed with CLUSTER/NODE, or if only one cluster has a node of this name")
	c.completeCluster(cmd)
	cmd.ValidArgsFunction = c.complete("nodes")
}

// findNode resolves a reference to a node: CLUSTER/NODE, which -o name prints, or a node's name,
// which must be unique if no cluster is given. It returns an error if a cluster does not answer,
// because that cluster may have such a node too.
func (c *cli) findNode(ctx context.Context, a *client.Client, cluster, reference string) (api.ClusterID, api.NodeID, error) {
	of, name, cut := strings.Cut(reference, "/")
	switch {
	case !cut:
		name = reference
	case cluster != "" && cluster != of:
		return "", "", usage("node %s is not in cluster %s: omit --cluster", reference, cluster)
	default:
		cluster = of
	}
	if err := c.notOwn(api.ClusterID(cluster)); err != nil {
		return "", "", err
	}
	if cluster != "" {
		return api.ClusterID(cluster), api.NodeID(name), nil
	}
	all, failed := c.nodes(ctx, a, "")
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
		return "", "", fmt.Errorf("node %q: found %s, but not all clusters answered; write CLUSTER/NODE: %w", reference, found[0], err)
	case err != nil:
		return "", "", fmt.Errorf("node %q: not found in the clusters that answered; write CLUSTER/NODE: %w", reference, err)
	case len(found) == 1:
		of, _, _ := strings.Cut(found[0], "/")
		return api.ClusterID(of), api.NodeID(name), nil
	}
	if failed != nil {
		return "", "", fmt.Errorf("node %q: %w", reference, failed)
	}
	return "", "", fmt.Errorf("node %q does not exist; see treeline get nodes: %w", reference, api.ErrNotFound)
}

// unanswered returns the errors of nodes, except those of clusters whose nodes the user may not
// see.
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

// node returns the node that findNode resolves a reference to.
func (c *cli) node(ctx context.Context, a *client.Client, cluster, reference string) (api.Node, error) {
	of, id, err := c.findNode(ctx, a, cluster, reference)
	if err != nil {
		return api.Node{}, err
	}
	n, err := a.NodesOf(of).Get(ctx, id)
	n.Cluster, n.ID = of, id // the cluster may report other names
	return n, err
}

// nodeCmd returns a command that calls do for each node in its arguments.
func (c *cli) nodeCmd(verb, short, done string, do func(context.Context, client.Nodes, api.ClusterID, api.NodeID) error) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use: verb + " [CLUSTER/]NODE…", Short: short, Args: cobra.MinimumNArgs(1),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error {
				of, id, err := c.findNode(ctx, a, cluster, name)
				if err != nil {
					return err
				}
				if err := do(ctx, a.NodesOf(of), of, id); err != nil {
					return fmt.Errorf("%s node %s of %s: %w", verb, id, of, err)
				}
				if done != "" {
					c.say("node %s of cluster %s %s", id, of, done)
				}
				return nil
			})
		}),
	}
	c.clusterFlag(cmd, &cluster)
	c.selectable(cmd, "nodes", true)
	return cmd
}

func (c *cli) cordonCmd() *cobra.Command {
	return c.nodeCmd("cordon", "Mark nodes unschedulable: they get no new instances", "cordoned",
		func(ctx context.Context, nodes client.Nodes, _ api.ClusterID, id api.NodeID) error {
			return nodes.Cordon(ctx, id)
		})
}

func (c *cli) uncordonCmd() *cobra.Command {
	return c.nodeCmd("uncordon", "Mark nodes schedulable again", "uncordoned",
		func(ctx context.Context, nodes client.Nodes, _ api.ClusterID, id api.NodeID) error {
			return nodes.Uncordon(ctx, id)
		})
}

// drainCmd asks for no confirmation, because instances move and only --force stops any.
func (c *cli) drainCmd() *cobra.Command {
	var force, detach bool
	var timeout time.Duration
	cmd := c.nodeCmd("drain", "Cordon nodes and move their instances to other nodes", "", func(ctx context.Context, nodes client.Nodes, cl api.ClusterID, n api.NodeID) error {
		order := nodes.Drain
		if force {
			order = nodes.ForceDrain
		}
		if err := order(ctx, n); err != nil {
			return err
		}
		if detach {
			c.say("node %s of cluster %s is being drained; for what is left: treeline describe node %s/%s", n, cl, cl, n)
			return nil
		}
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
		return c.drained(ctx, nodes, cl, n)
	})
	cmd.Long = `Cordon nodes, move their instances to other nodes, and wait until the nodes are
empty. An instance that fits on no other node keeps running, and so does one that
waits for the disruption budget of its service, unless --force stops it; it is then
placed as soon as there is capacity.

After --timeout the command lists the instances that are left, with the reason for
each, and exits with 3 if one of them fits on no other node, otherwise with 4. The
nodes stay cordoned, and the instances move as soon as there is capacity.`
	f := cmd.Flags()
	f.BoolVar(&force, "force", false, "stop instances that fit on no other node or wait for the disruption budget of their service")
	f.BoolVar(&detach, "detach", false, "do not wait until the nodes are empty")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "give up waiting after this time; the drain continues")
	return cmd
}

// pollInterval is the interval at which a node is read, because nodes have no watch.
const pollInterval = 500 * time.Millisecond

// drained waits until a node has no instances, and prints the instances that fit on no other node.
func (c *cli) drained(ctx context.Context, nodes client.Nodes, cl api.ClusterID, id api.NodeID) error {
	reported := map[api.InstanceID]string{}
	for {
		n, err := nodes.Get(ctx, id)
		switch {
		case err != nil && context.Cause(ctx) == nil:
			return err
		case err == nil && len(n.Remaining) == 0:
			c.say("node %s of cluster %s drained", id, cl)
			return nil
		case err == nil:
			for _, r := range n.Remaining {
				if (r.Stuck || r.Reason == api.ReasonDisruption) && reported[r.Instance] != r.Why {
					reported[r.Instance] = r.Why
					c.say("  %s %s", c.progress().Short(string(r.Instance)), r.Why)
				}
			}
		}
		select {
		case <-ctx.Done():
			return c.undrained(context.WithoutCancel(ctx), nodes, id, context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}

// undrained prints the instances that a node still has at the timeout, and returns the error.
func (c *cli) undrained(ctx context.Context, nodes client.Nodes, id api.NodeID, cause error) error {
	if !errors.Is(cause, api.ErrTimeout) {
		return cause
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	n, err := nodes.Get(ctx, id)
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
	if len(n.Remaining) == api.MaxRemaining {
		count = "at least " + count
	}
	return fmt.Errorf("%s left; add capacity, or stop them with treeline drain --force: %w", count, kind)
}
