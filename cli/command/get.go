package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

func (c *cli) getCmd() *cobra.Command {
	group := &cobra.Command{Use: "get", Short: "Show apps, services, instances, runs, volumes, clusters, nodes, configs or secrets"}
	for _, k := range []struct {
		use     string
		aliases []string
		short   string
		show    func(ctx context.Context, c *cli, p output.Printer, a *client.Client, args []string, watch bool) error
	}{
		{"apps [NAME]", []string{"app", "applications", "application"}, "Show applications", appKind.show},
		{"services [APP|SERVICE]", []string{"service", "svc"}, "Show services", serviceKind.show},
		{"instances [APP|SERVICE|INSTANCE]", []string{"instance", "inst"}, "Show instances", instanceKind.show},
		{"clusters [NAME]", []string{"cluster"}, "Show clusters", clusterKind.show},
	} {
		var watch bool
		kind, _, _ := strings.Cut(k.use, " ")
		cmd := &cobra.Command{
			Use: k.use, Aliases: k.aliases, Short: k.short, Args: cobra.MaximumNArgs(1), ValidArgsFunction: c.complete(kind),
			RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
				return k.show(ctx, c, p, a, args, watch)
			}),
		}
		cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep printing objects that change")
		c.outputFlags(cmd)
		group.AddCommand(cmd)
	}
	group.AddCommand(c.getNodesCmd(), c.getVolumesCmd(), c.getRunsCmd())
	group.AddCommand(c.getValuesCmds()...)
	return group
}

// show prints all objects, or those that a reference matches. With watch it then prints changes.
func (r resource[T]) show(ctx context.Context, c *cli, p output.Printer, a *client.Client, args []string, watch bool) error {
	s := source[T]{r, a, client.ListOptions{}}
	reference := ""
	if len(args) > 0 {
		reference = args[0] // may be of another tenant than the command's
	} else if r.ref != "" {
		s.list.Tenant = c.tenant()
	}
	rows := output.NewRows(p, r.table)
	chosen := map[string]bool{}
	fits := func(id string) bool {
		return reference == "" || chosen[id] || r.ref != "" && len(ref.All(r.ref, reference, c.tenant(), []string{id})) > 0
	}
	err := s.follow(ctx, func(e seen[T]) (bool, error) {
		switch {
		case e.Whole:
			found, err := e.Items, error(nil)
			if reference != "" {
				found, err = r.match(c, reference, e.Items)
			}
			if err != nil && (!watch || !errors.Is(err, api.ErrNotFound)) { // it may be created later
				return false, err
			}
			if !watch {
				return false, r.whole(c, p, reference, found, e.Rev)
			}
			for _, id := range r.ids(found) {
				chosen[id] = true
			}
			return true, r.each(p, rows, found)
		case e.Object == nil && fits(e.ID):
			return true, gone(p, e.ID)
		case e.Object != nil && fits(e.ID):
			return true, r.each(p, rows, []T{*e.Object})
		}
		return true, nil
	})
	if watch && errors.Is(err, context.Canceled) {
		return nil // ended by Ctrl-C
	}
	return err
}

// whole prints a list, or a single object if the reference can match only one.
func (r resource[T]) whole(c *cli, p output.Printer, reference string, found []T, rev api.Revision) error {
	_, exact := ref.Whole(r.ref, reference, c.tenant())
	if len(found) == 1 && reference != "" && (exact || r.ref == "" || r.ref == ref.App || strings.Contains(reference, "#")) {
		return output.One(p, r.table, found[0])
	}
	return list(c, p, r.table, found, rev)
}

// list prints objects. In a table format it prints a message if there are none.
func list[T any](c *cli, p output.Printer, table output.Table[T], all []T, rev api.Revision) error {
	if len(all) == 0 && p.ForPeople() {
		c.say("no %s", table.Kind)
	}
	return output.List(p, table, api.Page[T]{Items: all, Revision: rev})
}

// each prints objects as items of a stream.
func (r resource[T]) each(p output.Printer, rows *output.Rows[T], objects []T) error {
	if p.ForPeople() {
		return rows.Add(objects...)
	}
	for _, o := range objects {
		if p.Format == output.Name {
			p.Printf("%s", r.table.Name(o))
		} else if err := p.Line(o); err != nil {
			return err
		}
	}
	return nil
}

func gone(p output.Printer, id string) error {
	switch {
	case p.ForPeople():
		p.Printf("%s   gone", p.Short(id))
		return nil
	case p.Format == output.Name:
		return nil
	}
	return p.Line(map[string]any{"id": id, "gone": true})
}

func (c *cli) getNodesCmd() *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use: "nodes [[CLUSTER/]NAME]", Aliases: []string{"node"}, Short: "List the nodes of clusters", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete("nodes"),
		Long: `List the nodes of clusters. The root asks each cluster, and the cluster checks the
rights of the user. If a cluster does not answer, the command reports it and fails.`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			if len(args) > 0 {
				n, err := c.node(ctx, a, cluster, args[0])
				if err != nil {
					return err
				}
				return output.One(p, output.Nodes, n)
			}
			nodes, err := c.nodes(ctx, a, api.ClusterID(cluster))
			if err != nil {
				return errors.Join(output.List(p, output.Nodes, api.Page[api.Node]{Items: nodes}), err)
			}
			return list(c, p, output.Nodes, nodes, 0)
		}),
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "list only the nodes of this cluster")
	c.completeCluster(cmd)
	c.outputFlags(cmd)
	return cmd
}

// nodes returns the nodes of a cluster, or of all clusters if cluster is empty. If some clusters
// fail, it returns the nodes of the others and the errors.
func (c *cli) nodes(ctx context.Context, a *client.Client, cluster api.ClusterID) ([]api.Node, error) {
	of := func(cluster api.ClusterID) ([]api.Node, error) {
		nodes, err := a.NodesOf(cluster).List(ctx)
		for i := range nodes {
			nodes[i].Cluster = cluster // not what the cluster reports, which could redirect commands
		}
		return nodes, err
	}
	if cluster != "" {
		return of(cluster)
	}
	clusters, _, err := a.Clusters(ctx, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes, errs := make([][]api.Node, len(clusters)), make([]error, len(clusters))
	var wg sync.WaitGroup
	for i, cl := range clusters {
		wg.Go(func() {
			var err error
			if nodes[i], err = of(cl.ID); err != nil {
				errs[i] = fmt.Errorf("list nodes of cluster %s: %w", cl.ID, err)
			}
		})
	}
	wg.Wait()
	return slices.Concat(nodes...), errors.Join(errs...)
}

func (c *cli) getRunsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "runs APP|SERVICE|INSTANCE", Aliases: []string{"run"}, Short: "Show the last runs of scheduled services", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.complete("services"),
		Long: fmt.Sprintf(`Show the last runs of scheduled services, the newest last. The cluster of an instance
keeps its last %d runs, including the present one.`, api.MaxRuns),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			found, err := c.findInstances(ctx, a, args[0])
			if err != nil {
				return err
			}
			var all []output.InstanceRun
			for _, in := range found {
				for _, r := range in.Runs {
					all = append(all, output.InstanceRun{Instance: in.ID, Run: r})
				}
			}
			slices.SortStableFunc(all, func(a, b output.InstanceRun) int { return a.At.Compare(b.At) })
			return list(c, p, output.InstanceRuns, all, 0)
		}),
	}
	c.unnamedFlags(cmd)
	return cmd
}
