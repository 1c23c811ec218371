package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

// resource is a kind of object that the root lists and watches.
type resource[T any] struct {
	kind  client.Kind
	ref   ref.Kind // empty: references are exact names
	table output.Table[T]
}

var (
	appKind      = resource[api.App]{client.Apps, ref.App, output.Apps}
	serviceKind  = resource[api.Service]{client.Services, ref.Service, output.Services}
	instanceKind = resource[api.Instance]{client.Instances, ref.Instance, output.Instances}
	clusterKind  = resource[api.Cluster]{client.Clusters, "", output.Clusters}
	eventKind    = resource[api.Event]{client.Events, "", output.Events}
)

// under returns the source of the objects of an application or service.
func (r resource[T]) under(a *client.Client, id string) source[T] {
	return source[T]{r, a, client.ListOptions{Under: id}}
}

func (r resource[T]) ids(all []T) []string {
	ids := make([]string, len(all))
	for i, o := range all {
		ids[i] = r.table.Name(o)
	}
	return ids
}

// match returns the objects that match a reference best, all of them equally well. ErrNotFound:
// there are none.
func (r resource[T]) match(c *cli, reference string, all []T) ([]T, error) {
	ids := r.ids(all)
	if r.ref == "" {
		if i := slices.Index(ids, reference); i >= 0 {
			return all[i : i+1], nil
		}
		return nil, fmt.Errorf("no cluster %q: %w", reference, api.ErrNotFound)
	}
	best := ref.All(r.ref, reference, c.tenant(), ids)
	if len(best) == 0 {
		_, err := ref.Find(r.ref, reference, c.tenant(), ids)
		return nil, err
	}
	var found []T
	for i, o := range all {
		if slices.Contains(best, ids[i]) {
			found = append(found, o)
		}
	}
	return found, nil
}

// find returns the object that a reference identifies. ErrNotFound: there is none; *ref.Ambiguous:
// there are several.
func (r resource[T]) find(ctx context.Context, c *cli, reference string) (T, error) {
	var none T
	a, err := c.api()
	if err != nil {
		return none, err
	}
	if id, ok := ref.Whole(r.ref, reference, c.tenant()); ok {
		return client.Get[T](ctx, a, string(r.kind)+"/"+api.PathOf(id))
	}
	all, _, err := client.List[T](ctx, a, string(r.kind), client.ListOptions{})
	if err != nil {
		return none, err
	}
	found, err := r.match(c, reference, all)
	switch {
	case err != nil:
		return none, err
	case len(found) > 1:
		return none, &ref.Ambiguous{Kind: r.ref, Reference: reference, Candidates: r.ids(found)}
	}
	return found[0], nil
}

// findID returns the id of the object that find returns.
func (r resource[T]) findID(ctx context.Context, c *cli, reference string) (string, error) {
	o, err := r.find(ctx, c, reference)
	if err != nil {
		return "", err
	}
	return r.table.Name(o), nil
}

// findInstances returns the instances that match a reference equally well: all of an application or
// service, or one. ErrNotFound: there are none.
func (c *cli) findInstances(ctx context.Context, a *client.Client, reference string) ([]api.Instance, error) {
	all, _, err := a.Instances(ctx, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y api.Instance) int { return ref.Compare(x.ID, y.ID) })
	return instanceKind.match(c, reference, all)
}

// completionTime limits the time of a shell completion.
const completionTime = 2 * time.Second

// complete completes the names of existing objects. Without an answer of the root it completes
// nothing.
func (c *cli) complete(kinds ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !strings.Contains(cmd.Use, "…") { // it takes one name
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := slices.DeleteFunc(c.names(cmd.Context(), kinds...), func(n string) bool {
			name, _, _ := strings.Cut(n, "\t")
			return slices.Contains(args, name)
		})
		return spelled(begun, names), cobra.ShellCompDirectiveNoFileComp
	}
}

func (c *cli) completeCluster(cmd *cobra.Command) { c.completeFlag(cmd, "cluster", "clusters") }

// completeFlag completes the values of a flag with the names of existing objects.
func (c *cli) completeFlag(cmd *cobra.Command, flag, kind string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.names(cmd.Context(), kind), cobra.ShellCompDirectiveNoFileComp
	})
}

func (c *cli) contextNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, _ := c.file().Load()
	return all.Names(), cobra.ShellCompDirectiveNoFileComp
}

// spelled returns the names that begin with the typed text. If the text contains a slash,
// services and instances are also matched in the form app/service.
func spelled(begun string, names []string) (out []string) {
	for _, n := range names {
		name, note, noted := strings.Cut(n, "\t")
		if noted {
			note = "\t" + note
		}
		for _, form := range append([]string{name}, ref.Slashed(name)...) {
			if strings.HasPrefix(form, begun) && (form == name || strings.Contains(begun, "/")) {
				out = append(out, form+note)
			}
		}
	}
	return out
}

// names returns the names of objects, each with its status after a tab if it has one.
func (c *cli) names(ctx context.Context, kinds ...string) (out []string) {
	a, err := c.api()
	if err != nil {
		return nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	own := client.ListOptions{Tenant: c.tenant()}
	short := c.progress().Short
	for _, kind := range kinds {
		switch kind {
		case "apps":
			all, _, _ := a.Apps(ctx, own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "services":
			all, _, _ := a.Services(ctx, own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "instances":
			all, _, _ := a.Instances(ctx, own)
			for _, o := range all {
				out = append(out, short(string(o.ID))+"\t"+string(o.State))
			}
		case "configs", "secrets":
			all, _, _ := a.ValuesList(ctx, api.ValueKind(strings.TrimSuffix(kind, "s")), own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "kinds":
			all, _, _ := client.List[api.CustomKind](ctx, a, string(client.CustomKinds), own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "resources":
			all, _, _ := client.List[api.CustomResource](ctx, a, string(client.CustomResources), own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "volumes":
			all, _, _ := a.Volumes(ctx, own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "snapshots":
			all, _, _ := a.Snapshots(ctx, own)
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "nodes":
			all, _ := c.nodes(ctx, a, "")
			for _, o := range all {
				out = append(out, string(o.Cluster)+"/"+string(o.ID)+"\t"+string(o.Status))
			}
		case "users":
			all, _ := a.Users(ctx)
			for _, u := range all {
				out = append(out, u.ID+"\t"+strings.Join(u.Roles, ", "))
			}
		case "operators":
			all, _ := a.Operators(ctx)
			for _, t := range all {
				out = append(out, t.Name)
			}
		case "tenants":
			all, _ := a.Tenants(ctx)
			for _, t := range all {
				out = append(out, string(t.Path))
			}
		case "clusters":
			if own := c.own(); own != "" {
				out = append(out, string(own))
				continue
			}
			all, _, _ := a.Clusters(ctx, client.ListOptions{})
			for _, o := range all {
				out = append(out, string(o.ID)+"\t"+string(o.Status))
			}
		}
	}
	return out
}
