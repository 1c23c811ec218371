package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

func (c *cli) getCmd() *cobra.Command {
	group := &cobra.Command{Use: "get", Short: "Show apps, services, instances, clusters or nodes"}
	for _, k := range []struct {
		use     string
		aliases []string
		short   string
		run     func(ctx context.Context, p output.Printer, args []string, watch bool) error
	}{
		{"apps [NAME]", []string{"app", "applications", "application"}, "Show applications", c.getApps},
		{"services [APP|SERVICE]", []string{"service", "svc"}, "Show services", c.getServices},
		{"instances [APP|SERVICE|INSTANCE]", []string{"instance", "inst"}, "Show instances", c.getInstances},
		{"clusters [NAME]", []string{"cluster"}, "Show clusters", c.getClusters},
	} {
		var watch bool
		kind, _, _ := strings.Cut(k.use, " ")
		cmd := &cobra.Command{
			Use: k.use, Aliases: k.aliases, Short: k.short, Args: cobra.MaximumNArgs(1), ValidArgsFunction: c.complete(kind),
			RunE: func(cmd *cobra.Command, args []string) error {
				p, err := c.printer()
				if err != nil {
					return err
				}
				return k.run(cmd.Context(), p, args, watch)
			},
		}
		cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep printing objects that change")
		c.outputFlags(cmd)
		group.AddCommand(cmd)
	}
	group.AddCommand(c.getNodesCmd())
	return group
}

// shower reads and prints objects of one kind.
type shower[T any] struct {
	source[T]
	table output.Table[T]
	kind  ref.Kind // empty: references are exact names
}

func (c *cli) getApps(ctx context.Context, p output.Printer, args []string, watch bool) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	return show(ctx, c, p, args, watch, shower[api.App]{
		source: source[api.App]{a, client.Apps, c.list(), func(o api.App) string { return string(o.ID) }},
		table:  output.Apps, kind: ref.App,
	})
}

func (c *cli) getServices(ctx context.Context, p output.Printer, args []string, watch bool) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	return show(ctx, c, p, args, watch, shower[api.Service]{
		source: source[api.Service]{a, client.Services, c.list(), func(o api.Service) string { return string(o.ID) }},
		table:  output.Services, kind: ref.Service,
	})
}

func (c *cli) getInstances(ctx context.Context, p output.Printer, args []string, watch bool) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	return show(ctx, c, p, args, watch, shower[api.Instance]{
		source: source[api.Instance]{a, client.Instances, c.list(), instanceID},
		table:  output.Instances, kind: ref.Instance,
	})
}

func (c *cli) getClusters(ctx context.Context, p output.Printer, args []string, watch bool) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	return show(ctx, c, p, args, watch, shower[api.Cluster]{
		source: source[api.Cluster]{a, client.Clusters, client.ListOptions{}, func(o api.Cluster) string { return string(o.ID) }},
		table:  output.Clusters,
	})
}

// show prints all objects, or those that a reference matches, and then changes if watch is
// set.
func show[T any](ctx context.Context, c *cli, p output.Printer, args []string, watch bool, s shower[T]) error {
	reference := ""
	if len(args) > 0 {
		reference = args[0]
		s.list.Tenant = "" // the reference may name another tenant
	}
	rows := output.NewRows(p, s.table)
	chosen := map[string]bool{}
	fits := func(id string) bool {
		return reference == "" || chosen[id] || s.kind != "" && len(ref.All(s.kind, reference, c.tenant(), []string{id})) > 0
	}
	err := s.follow(ctx, func(e seen[T]) (bool, error) {
		switch {
		case e.Whole:
			found, single, err := s.choose(c, reference, e.Items)
			if err != nil {
				if !watch || !errors.Is(err, api.ErrNotFound) {
					return false, err
				}
				found = nil // it may be created later
			}
			for _, o := range found {
				chosen[s.id(o)] = true
			}
			if !watch {
				return false, s.whole(c, p, rows, found, single, e.Rev)
			}
			return true, s.each(p, rows, found)
		case e.Object == nil && fits(e.ID):
			return true, s.gone(p, e.ID)
		case e.Object != nil && fits(e.ID):
			return true, s.each(p, rows, []T{*e.Object})
		}
		return true, nil
	})
	if watch && errors.Is(err, context.Canceled) {
		return nil // ended by Ctrl-C
	}
	return err
}

// choose returns the objects that the reference matches. single means that it can match
// only one.
func (s shower[T]) choose(c *cli, reference string, all []T) (found []T, single bool, err error) {
	if reference == "" {
		return all, false, nil
	}
	ids := make([]string, len(all))
	for i, o := range all {
		ids[i] = s.id(o)
	}
	var keep []string
	if s.kind == "" {
		if i := slices.Index(ids, reference); i >= 0 {
			return all[i : i+1], true, nil
		}
		return nil, false, fmt.Errorf("no cluster %q: %w", reference, api.ErrNotFound)
	}
	keep = ref.All(s.kind, reference, c.tenant(), ids)
	if len(keep) == 0 {
		if _, err := ref.Find(s.kind, reference, c.tenant(), ids); err != nil {
			return nil, false, err
		}
	}
	for i, o := range all {
		if slices.Contains(keep, ids[i]) {
			found = append(found, o)
		}
	}
	_, exact := ref.Whole(s.kind, reference, c.tenant())
	single = len(found) == 1 && (exact || s.kind == ref.App || strings.Contains(reference, "#"))
	return found, single, nil
}

func (s shower[T]) whole(c *cli, p output.Printer, rows *output.Rows[T], found []T, single bool, rev api.Revision) error {
	if single {
		return output.One(p, s.table, found[0])
	}
	if len(found) == 0 && p.ForPeople() {
		c.say("no %s", s.table.Kind)
	}
	return output.List(p, s.table, api.Page[T]{Items: found, Revision: rev})
}

func (s shower[T]) each(p output.Printer, rows *output.Rows[T], objects []T) error {
	if p.ForPeople() {
		return rows.Add(objects...)
	}
	for _, o := range objects {
		if p.Format == output.Name {
			p.Printf("%s", s.table.Name(o))
		} else if err := p.Line(o); err != nil {
			return err
		}
	}
	return nil
}

// gone prints that an object was deleted; in JSON as the API's change without an object.
func (s shower[T]) gone(p output.Printer, id string) error {
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
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				_, n, err := c.node(cmd.Context(), cluster, args[0])
				if err != nil {
					return err
				}
				return output.One(p, output.Nodes, n)
			}
			nodes, err := c.nodes(cmd.Context(), api.ClusterID(cluster))
			if len(nodes) == 0 && err == nil && p.ForPeople() {
				c.say("no nodes")
			}
			return errors.Join(output.List(p, output.Nodes, api.Page[api.Node]{Items: nodes}), err)
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "list only the nodes of this cluster")
	c.completeCluster(cmd)
	c.outputFlags(cmd)
	return cmd
}

// nodes returns the nodes of a cluster, or of all clusters if cluster is empty. If some
// clusters fail, it returns the nodes of the others and the errors.
func (c *cli) nodes(ctx context.Context, cluster api.ClusterID) ([]api.Node, error) {
	a, err := c.api()
	if err != nil {
		return nil, err
	}
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
	type answer struct {
		nodes []api.Node
		err   error
	}
	answers := make([]chan answer, len(clusters))
	for i, cl := range clusters {
		answers[i] = make(chan answer, 1)
		go func() {
			nodes, err := of(cl.ID)
			answers[i] <- answer{nodes, err}
		}()
	}
	var all []api.Node
	var errs []error
	for i, ch := range answers {
		got := <-ch
		if got.err != nil {
			errs = append(errs, fmt.Errorf("list nodes of cluster %s: %w", clusters[i].ID, got.err))
		}
		all = append(all, got.nodes...)
	}
	return all, errors.Join(errs...)
}
