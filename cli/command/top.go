package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

const (
	topInterval      = 5 * time.Second
	shortestInterval = time.Second // a node measures for a second
)

func (c *cli) topCmd() *cobra.Command {
	group := &cobra.Command{
		Use: "top", Short: "Show what instances and nodes use now",
		Long: `Show what instances and nodes use now: processor (1000m is one vCPU), memory without
the cache of files, and bytes received and sent per second. Each node measures when
it is asked, for a second. What a runtime cannot measure is "-". What does not answer,
or has just started, is reported, and the command fails: repeat it.`,
	}
	group.AddCommand(c.topInstancesCmd(), c.topNodesCmd())
	return group
}

// top is what the two commands have in common.
type top struct {
	cluster  string
	watch    bool
	interval time.Duration
}

func (c *cli) topFlags(cmd *cobra.Command, t *top, what string) {
	cmd.Flags().StringVar(&t.cluster, "cluster", "", "measure only the "+what+" of this cluster")
	cmd.Flags().BoolVarP(&t.watch, "watch", "w", false, "keep measuring, and print each measurement")
	cmd.Flags().DurationVar(&t.interval, "interval", topInterval, "with --watch: the time between measurements, at least 1s")
	c.completeCluster(cmd)
	c.outputFlags(cmd)
	c.sortFlag(cmd)
}

// measureAll prints a measurement, or with --watch one after the other until ctx ends.
func measureAll[T any](ctx context.Context, c *cli, p output.Printer, t *top, table output.Table[T], measure func() (api.Usages[T], error), partly func([]T) []api.Unmeasured) error {
	if t.interval < shortestInterval {
		return usage("--interval %s: want at least %s", t.interval, shortestInterval)
	}
	rows := output.NewRows(p, table)
	for {
		next := time.After(t.interval)
		got, err := measure()
		if err == nil {
			err = errors.Join(printUsages(c, p, t, table, rows, got), unmeasured(p, append(slices.Clip(got.Missing), partly(got.Items)...)))
		}
		switch {
		case !t.watch:
			return err
		case ctx.Err() != nil:
			return nil // ended by Ctrl-C
		case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrTimeout):
			c.say("%v", err)
		case err != nil:
			return err
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil // ended by Ctrl-C
		}
	}
}

// printUsages prints one measurement.
func printUsages[T any](c *cli, p output.Printer, t *top, table output.Table[T], rows *output.Rows[T], got api.Usages[T]) (err error) {
	if c.sortBy != "" {
		if err := output.Sort(p, table, got.Items, c.sortBy); err != nil {
			return usage("--sort-by %s: %v", c.sortBy, err)
		}
	}
	switch {
	case p.Format == output.Name:
		err = output.List(p, table, api.Page[T]{Items: got.Items})
	case !p.ForPeople() && t.watch:
		err = p.Line(got)
	case !p.ForPeople():
		err = p.Object(got)
	case len(got.Items) > 0:
		err = rows.Add(got.Items...)
	case len(got.Missing) == 0:
		c.say("no %s", table.Kind)
	}
	return err
}

// shownUnmeasured limits what an error names.
const shownUnmeasured = 5

// unmeasured returns an error that names what was not measured, or nil.
func unmeasured(p output.Printer, all []api.Unmeasured) error {
	if len(all) == 0 {
		return nil
	}
	texts := make([]string, 0, shownUnmeasured+1)
	for _, m := range all[:min(len(all), shownUnmeasured)] {
		var where []string
		if m.Instance != "" {
			where = append(where, p.Short(string(m.Instance)))
		}
		if m.Cluster != "" {
			where = append(where, "cluster "+string(m.Cluster))
		}
		if m.Node != "" {
			where = append(where, "node "+string(m.Node))
		}
		texts = append(texts, strings.TrimPrefix(strings.Join(where, ", ")+": "+m.Reason, ": "))
	}
	if more := len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("not measured: %s; see treeline doctor if that stays so: %w", strings.Join(texts, "; "), api.ErrUnavailable)
}

// justStarted returns the instances of which a node has counters, but not yet twice: also after a move or a restart.
func justStarted(all []api.InstanceUsage) (out []api.Unmeasured) {
	for _, u := range all {
		if u.MilliCPU < 0 && u.Memory >= 0 {
			out = append(out, api.Unmeasured{Instance: u.Instance, Cluster: u.Cluster, Node: u.Node, Reason: "it has just started there; repeat the command for its processor and network"})
		}
	}
	return out
}

func (c *cli) topInstancesCmd() *cobra.Command {
	var t top
	var node string
	cmd := &cobra.Command{
		Use: "instances [APP|SERVICE|INSTANCE…]", Aliases: []string{"instance", "inst"}, Short: "Show what running instances use",
		ValidArgsFunction: c.complete("instances"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			return measureAll(ctx, c, p, &t, output.InstanceUsages, func() (api.Usages[api.InstanceUsage], error) {
				return c.instanceUsage(ctx, a, args, t.cluster, node)
			}, justStarted)
		}),
	}
	c.topFlags(cmd, &t, "instances")
	cmd.Flags().StringVar(&node, "node", "", "measure only the instances on this node, of users who may see nodes")
	c.completeFlag(cmd, "node", "nodes")
	c.selectable(cmd, "services", false)
	return cmd
}

func (c *cli) instanceUsage(ctx context.Context, a *client.Client, references []string, cluster, node string) (out api.Usages[api.InstanceUsage], err error) {
	if err := c.notOwn(api.ClusterID(cluster)); err != nil {
		return out, err
	}
	o := client.UsageOptions{Tenant: c.tenant(), Cluster: api.ClusterID(cluster)}
	named := map[api.InstanceID]bool{}
	if len(references) > 0 {
		o.Tenant = "" // references may be of another tenant than the command's
		var found []api.Instance
		err := each(references, func(reference string) error {
			some, err := c.findInstances(ctx, a, reference)
			found = append(found, some...)
			return err
		})
		if err != nil {
			return out, err
		}
		for _, i := range found {
			named[i.ID] = true
			if i.State != api.Running {
				c.say("%s uses nothing: it is %s", i.ID, i.Standing())
			}
		}
		o.Under = common(found)
	}
	if c.own() != "" {
		o.Cluster = ""
	}
	out, err = a.InstanceUsage(ctx, o)
	wrong := func(i api.InstanceID, at api.ClusterID, on api.NodeID) bool {
		return i != "" && len(references) > 0 && !named[i] || node != "" && node != string(on) && node != string(at)+"/"+string(on)
	}
	out.Items = slices.DeleteFunc(out.Items, func(u api.InstanceUsage) bool { return wrong(u.Instance, u.Cluster, u.Node) })
	out.Missing = slices.DeleteFunc(out.Missing, func(m api.Unmeasured) bool { return wrong(m.Instance, m.Cluster, m.Node) })
	if err == nil && len(out.Items)+len(out.Missing) == 0 {
		err = c.exist(ctx, a, cluster, node)
	}
	return out, err
}

// common returns the id of the instance, or of the service or application of all instances; empty: they
// have none in common.
func common(all []api.Instance) string {
	if len(all) == 0 {
		return ""
	}
	for _, under := range []string{string(all[0].ID), string(all[0].Service), string(all[0].Service.App())} {
		if !slices.ContainsFunc(all, func(i api.Instance) bool { return !api.Under(string(i.ID), under) }) {
			return under
		}
	}
	return ""
}

func (c *cli) topNodesCmd() *cobra.Command {
	var t top
	cmd := &cobra.Command{
		Use: "nodes [[CLUSTER/]NAME…]", Aliases: []string{"node"}, Short: "Show what nodes use",
		Long: `Show what the machines of nodes use, with everything that runs on them. With -o wide,
also what the instances use of that. Percentages are of what the nodes offer.`,
		ValidArgsFunction: c.complete("nodes"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			return measureAll(ctx, c, p, &t, output.NodeUsages, func() (api.Usages[api.NodeUsage], error) {
				return c.nodeUsage(ctx, a, args, api.ClusterID(t.cluster))
			}, func([]api.NodeUsage) []api.Unmeasured { return nil })
		}),
	}
	c.topFlags(cmd, &t, "nodes")
	c.selectable(cmd, "nodes", false)
	return cmd
}

// nodeUsage measures nodes by their names, or all of a cluster or of all clusters that the user may see.
func (c *cli) nodeUsage(ctx context.Context, a *client.Client, names []string, cluster api.ClusterID) (out api.Usages[api.NodeUsage], err error) {
	type target struct {
		cluster api.ClusterID
		node    api.NodeID
	}
	var targets []target
	if err := c.notOwn(cluster); err != nil {
		return out, err
	}
	switch own := c.own(); {
	case len(names) > 0:
		err := each(names, func(name string) error {
			of, id, err := c.findNode(ctx, a, string(cluster), name)
			targets = append(targets, target{of, id})
			return err
		})
		if err != nil {
			return out, err
		}
	case cluster != "":
		targets = []target{{cluster: cluster}}
	case own != "":
		targets = []target{{cluster: own}}
	default:
		clusters, _, err := a.Clusters(ctx, client.ListOptions{})
		if err != nil {
			return out, err
		}
		for _, cl := range clusters {
			targets = append(targets, target{cluster: cl.ID})
		}
	}
	got, errs := make([]api.Usages[api.NodeUsage], len(targets)), make([]error, len(targets))
	var wg sync.WaitGroup
	for i, at := range targets {
		wg.Go(func() { got[i], errs[i] = a.NodeUsage(ctx, at.cluster, at.node) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			out.Missing = append(out.Missing, api.Unmeasured{Cluster: targets[i].cluster, Node: targets[i].node, Reason: err.Error()})
			continue
		}
		out.Items = append(out.Items, got[i].Items...)
		out.Missing = append(out.Missing, got[i].Missing...)
	}
	if len(out.Items) == 0 {
		out.Items = []api.NodeUsage{}
		return out, errors.Join(errs...)
	}
	return out, nil
}
