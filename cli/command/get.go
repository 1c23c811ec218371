package command

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
	"github.com/treeline-edge/treeline/internal/lifecycle"
)

func (c *cli) getCmd() *cobra.Command {
	group := &cobra.Command{Use: "get", Short: "Show apps, services, instances, runs, volumes, snapshots, clusters, nodes, configs, secrets, replicas or custom resources"}
	group.AddCommand(
		listCmd(c, "apps [NAME…]", "Show applications", appKind, "app", "applications", "application"),
		listCmd(c, "services [APP|SERVICE…]", "Show services", serviceKind, "service", "svc"),
		listCmd(c, "instances [APP|SERVICE|INSTANCE…]", "Show instances", instanceKind, "instance", "inst"),
		listCmd(c, "clusters [NAME…]", "Show clusters", clusterKind, "cluster"),
	)
	group.AddCommand(c.getNodesCmd(), c.getVolumesCmd(), c.getSnapshotsCmd(), c.getRunsCmd(), c.getReplicasCmd())
	group.AddCommand(c.getValuesCmds()...)
	group.AddCommand(c.getKindsCmd(), c.getCustomCmd())
	var watch bool
	c.takesKinds(group, "KIND [NAME…]", 0, func(ctx context.Context, p output.Printer, a *client.Client, kind string, names []string) error {
		if len(names) == 0 {
			return c.showCustom(ctx, p, a, []string{kind}, watch)
		}
		return c.showCustom(ctx, p, a, customNames(kind, names), watch)
	})
	group.Flags().BoolVarP(&watch, "watch", "w", false, "of a custom kind: keep printing resources that change")
	c.outputFlags(group)
	c.sortFlag(group)
	return group
}

func (c *cli) getReplicasCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "replicas [NAME…]", Aliases: []string{"replica"}, Short: "Show the replicas of the root, or of a cluster at its own port",
		Long: `Show the processes of the root that share its store, as the active one sees them. For admins of the system.

SINCE is how long the active replica has seen it in this state. Without gossip_listen in the configuration, the state of the others is unknown.`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, names []string) error {
			all, err := a.Replicas(ctx)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				return list(c, p, output.Replicas, all, 0)
			}
			return named(c, p, output.Replicas, names, func(name string) (api.Replica, error) {
				for _, r := range all {
					if r.Name == name {
						return r, nil
					}
				}
				return api.Replica{}, fmt.Errorf("replica %q: see treeline get replicas: %w", name, api.ErrNotFound)
			})
		}),
	}
	c.outputFlags(cmd)
	c.sortFlag(cmd)
	return cmd
}

// psCmd is get instances under the name that users of Docker know.
func (c *cli) psCmd() *cobra.Command {
	return listCmd(c, "ps [APP|SERVICE|INSTANCE…]", "Show instances, as get instances does", instanceKind)
}

func listCmd[T any](c *cli, use, short string, kind resource[T], aliases ...string) *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use: use, Aliases: aliases, Short: short, ValidArgsFunction: c.complete(path.Base(string(kind.kind))),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			return kind.show(ctx, c, p, a, args, q)
		}),
	}
	cmd.Flags().BoolVarP(&q.watch, "watch", "w", false, "keep printing objects that change")
	switch kind.kind {
	case client.Apps, client.Services:
		q.labels.flag(cmd, "list only those with these labels")
	case client.Instances:
		q.labels.flag(cmd, "list only the instances of services with these labels")
	}
	switch kind.kind {
	case client.Apps:
		c.formatFlags(cmd, append(slices.Clone(output.Formats), slaFormat))
		show := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if q.sla = output.Format(c.format) == slaFormat; q.sla {
				if c.format = string(output.Text); q.watch {
					return usage("-o sla prints documents as they are now: omit --watch")
				}
			}
			return show(cmd, args)
		}
	case client.Instances:
		c.outputFlags(cmd)
		cmd.Flags().StringVar(&q.cluster, "cluster", "", "list only the instances in this cluster")
		c.completeCluster(cmd)
		cmd.Flags().StringVar(&q.node, "node", "", "list only the instances on this node, of users who may see nodes")
		c.completeFlag(cmd, "node", "nodes")
		cmd.Flags().StringVar(&q.state, "state", "", "list only the instances in this state, such as running or failed")
		var states []string
		for _, s := range lifecycle.States {
			states = append(states, string(s))
		}
		_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
		cmd.PreRunE = func(*cobra.Command, []string) error {
			if q.state != "" && !slices.Contains(states, q.state) {
				return fmt.Errorf("--state %s: want one of %s", q.state, strings.Join(states, ", "))
			}
			return nil
		}
	default:
		c.outputFlags(cmd)
	}
	c.sortFlag(cmd)
	return cmd
}

// slaFormat prints applications as an SLA document.
const slaFormat output.Format = "sla"

// query is what a list contains.
type query struct {
	watch, sla           bool   // sla: print the SLA documents of applications
	cluster, node, state string // of instances

	labels    selector
	selectors []api.Selector
	of        func(context.Context, api.ServiceID) (api.Labels, error) // of a service; nil: there are no selectors
}

// label prepares the selection by labels.
func (q *query) label(ctx context.Context, c *cli, a *client.Client, instances bool) (err error) {
	if q.selectors, err = q.labels.parse(); err != nil || len(q.selectors) == 0 || !instances {
		return err
	}
	if own := c.own(); own != "" {
		return usage("-l selects by labels that only the root has, and this context is of cluster %s itself", own)
	}
	known, err := serviceLabels(ctx, a, client.ListOptions{})
	q.of = func(ctx context.Context, id api.ServiceID) (api.Labels, error) {
		if labels, ok := known[id]; ok {
			return labels, nil
		}
		s, err := a.Service(ctx, id) // a new service, during a watch
		if err == nil {
			known[id] = s.Labels
		}
		return s.Labels, err
	}
	return err
}

// exist returns an error if a cluster or node does not exist or the user may not see it. Empty names exist.
func (c *cli) exist(ctx context.Context, a *client.Client, cluster, node string) error {
	if err := c.notOwn(api.ClusterID(cluster)); err != nil {
		return err
	}
	if cluster != "" && c.own() == "" {
		if _, err := a.Cluster(ctx, api.ClusterID(cluster)); err != nil {
			return fmt.Errorf("--cluster %s: %w", cluster, err)
		}
	}
	if node != "" {
		if _, err := c.node(ctx, a, cluster, node); err != nil {
			return fmt.Errorf("--node %s: %w", node, err)
		}
	}
	return nil
}

// fits reports whether an object is part of the list.
func (q query) fits(ctx context.Context, to *reach, o any) bool {
	var i api.Instance
	switch o := o.(type) {
	case api.App:
		return api.Mismatch(q.selectors, o.Spec.Labels) < 0
	case api.Service:
		return api.Mismatch(q.selectors, o.Labels) < 0
	case api.Instance:
		i = o
	default:
		return true
	}
	if q.of != nil {
		if labels, err := q.of(ctx, i.Service); err != nil || api.Mismatch(q.selectors, labels) >= 0 {
			return false // an error: the service is gone, and its instances go
		}
	}
	if q.cluster != "" && string(i.Cluster) != q.cluster || q.state != "" && string(i.State) != q.state {
		return false
	}
	if q.node == "" {
		return true
	}
	n, ok := to.node(ctx, i)
	return ok && (q.node == string(n.ID) || q.node == string(n.Cluster)+"/"+string(n.ID))
}

// show prints all objects, or those that references match. With watch it then prints changes. It
// prints the objects of the other references if one matches none, and fails.
func (r resource[T]) show(ctx context.Context, c *cli, p output.Printer, a *client.Client, references []string, q query) error {
	if q.watch && c.own() != "" {
		return usage("--watch needs the root, and this context is of cluster %s itself", c.own())
	}
	if err := q.label(ctx, c, a, r.kind == client.Instances); err != nil {
		return err
	}
	s := source[T]{r, a, client.ListOptions{}}
	if len(references) == 0 && r.ref != "" {
		s.list.Tenant = c.tenant() // references may be of another tenant than the command's
	}
	r, reached := r.reachable(ctx, c, p, a, q)
	rows := output.NewRows(p, r.table)
	chosen := map[string]bool{}
	fits := func(id string) bool {
		return len(references) == 0 || chosen[id] || r.ref != "" && slices.ContainsFunc(references, func(reference string) bool {
			return len(ref.All(r.ref, reference, c.tenant(), []string{id})) > 0
		})
	}
	err := s.follow(ctx, func(e seen[T]) (bool, error) {
		switch {
		case e.Whole:
			found, err := r.matchAll(c, references, e.Items)
			if err != nil && (len(found) == 0 || q.watch) && (!q.watch || !errors.Is(err, api.ErrNotFound)) { // it may be created later
				return false, err
			}
			if reached != nil {
				instances, _ := any(found).([]api.Instance)
				reached.prepare(ctx, instances)
			}
			found = slices.DeleteFunc(found, func(o T) bool { return !q.fits(ctx, reached, o) })
			if len(found) == 0 {
				if wrong := c.exist(ctx, a, q.cluster, q.node); wrong != nil {
					return false, errors.Join(err, wrong)
				}
			}
			if !q.watch {
				err = errors.Join(r.whole(ctx, c, p, a, references, q, found, e.Rev), err)
				if reached != nil {
					err = errors.Join(err, reached.err())
				}
				return false, err
			}
			for _, id := range r.ids(found) {
				chosen[id] = true
			}
			return true, r.each(p, rows, found)
		case e.Object == nil && fits(e.ID):
			return true, gone(p, e.ID)
		case e.Object != nil && fits(e.ID) && q.fits(ctx, reached, *e.Object):
			return true, r.each(p, rows, []T{*e.Object})
		}
		return true, nil
	})
	if q.watch && errors.Is(err, context.Canceled) {
		return nil // ended by Ctrl-C
	}
	return err
}

// reachable returns, for instances with -o wide, the kind whose table has where they are and are reached,
// and with that or --node what finds it.
func (r resource[T]) reachable(ctx context.Context, c *cli, p output.Printer, a *client.Client, q query) (resource[T], *reach) {
	table, ok := any(&r.table).(*output.Table[api.Instance])
	if !ok || p.Format != output.Wide && q.node == "" {
		return r, nil
	}
	to := c.reach(a)
	*table = output.InstancesAt(func(i api.Instance) api.NodeID {
		n, _ := to.node(ctx, i)
		return n.ID
	}, func(i api.Instance) []string { return to.urls(ctx, i) })
	return r, to
}

// matchAll returns the objects that references match, each once, and the errors of those that match
// none. Without references it returns all objects.
func (r resource[T]) matchAll(c *cli, references []string, all []T) (found []T, err error) {
	if len(references) == 0 {
		return all, nil
	}
	have := map[string]bool{}
	return found, each(references, func(reference string) error {
		some, err := r.match(c, reference, all)
		for _, o := range some {
			if id := r.table.Name(o); !have[id] {
				have[id] = true
				found = append(found, o)
			}
		}
		return err
	})
}

// whole prints a list, or a single object if the reference can match only one.
func (r resource[T]) whole(ctx context.Context, c *cli, p output.Printer, a *client.Client, references []string, q query, found []T, rev api.Revision) error {
	if q.sla {
		apps, _ := any(found).([]api.App)
		return c.showSLA(ctx, a, apps)
	}
	if len(references) == 1 && len(found) == 1 {
		_, exact := ref.Whole(r.ref, references[0], c.tenant())
		if exact || r.ref == "" || r.ref == ref.App || strings.Contains(references[0], "#") {
			return output.One(p, r.table, found[0])
		}
	}
	return list(c, p, r.table, found, rev)
}

// sortFlag adds the flag that sorts a list.
func (c *cli) sortFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.sortBy, "sort-by", "", "sort by this column of the table (also of -o wide), such as name; -name reverses the order")
}

// list prints objects. In a table format it prints a message if there are none.
func list[T any](c *cli, p output.Printer, table output.Table[T], all []T, rev api.Revision) error {
	if c.sortBy != "" {
		if err := output.Sort(p, table, all, c.sortBy); err != nil {
			return usage("--sort-by %s: %v", c.sortBy, err)
		}
	}
	if len(all) == 0 && p.ForPeople() {
		c.say("no %s", table.Kind)
	}
	return output.List(p, table, api.Page[T]{Items: all, Revision: rev})
}

// named prints the objects of names: one as itself, several as a list. It prints the others if one
// fails, and fails.
func named[T any](c *cli, p output.Printer, table output.Table[T], names []string, get func(string) (T, error)) error {
	var all []T
	failed := each(names, func(name string) error {
		o, err := get(name)
		if err == nil {
			all = append(all, o)
		}
		return err
	})
	switch {
	case len(all) == 0:
		return failed
	case len(names) == 1:
		return output.One(p, table, all[0])
	}
	return errors.Join(list(c, p, table, all, 0), failed)
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
	var labels selector
	cmd := &cobra.Command{
		Use: "nodes [[CLUSTER/]NAME…]", Aliases: []string{"node"}, Short: "List the nodes of clusters, and what runs there",
		ValidArgsFunction: c.complete("nodes"),
		Long: `List the nodes of clusters. The root asks each cluster, and the cluster checks the
rights of the user. If a cluster does not answer, the command reports it and fails.`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			selectors, err := labels.parse()
			if err != nil {
				return err
			}
			var nodes []api.Node
			if len(args) == 0 {
				nodes, err = c.nodes(ctx, a, api.ClusterID(cluster))
			} else {
				err = each(args, func(name string) error {
					n, err := c.node(ctx, a, cluster, name)
					if err == nil {
						nodes = append(nodes, n)
					}
					return err
				})
			}
			nodes = slices.DeleteFunc(nodes, func(n api.Node) bool { return api.Mismatch(selectors, n.Labels) >= 0 })
			table := output.Nodes
			if p.ForPeople() && len(nodes) > 0 {
				runs, failed := c.runs(ctx, a, nodes)
				table, err = output.NodesWith(runs), errors.Join(err, failed)
			}
			switch {
			case len(nodes) == 0 && err != nil:
				return err
			case len(args) == 1 && len(nodes) == 1:
				return errors.Join(output.One(p, table, nodes[0]), err)
			}
			return errors.Join(list(c, p, table, nodes, 0), err)
		}),
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "list only the nodes of this cluster")
	labels.flag(cmd, "list only the nodes with these labels")
	c.completeCluster(cmd)
	c.outputFlags(cmd)
	c.sortFlag(cmd)
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
	if err := c.notOwn(cluster); err != nil {
		return nil, err
	}
	if cluster != "" {
		return of(cluster)
	}
	if own := c.own(); own != "" {
		return of(own)
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
