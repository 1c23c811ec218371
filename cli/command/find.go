package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/ref"
)

// list restricts a list to the command's tenant, unless the reference names a tenant.
func (c *cli) list() client.ListOptions { return client.ListOptions{Tenant: c.tenant()} }

// findApp returns the application that a reference names.
func (c *cli) findApp(ctx context.Context, reference string) (api.App, error) {
	a, err := c.api()
	if err != nil {
		return api.App{}, err
	}
	if id, ok := ref.Whole(ref.App, reference, c.tenant()); ok {
		return a.App(ctx, api.AppID(id))
	}
	all, _, err := a.Apps(ctx, client.ListOptions{})
	if err != nil {
		return api.App{}, err
	}
	return pick(ref.App, reference, c.tenant(), all, func(o api.App) string { return string(o.ID) })
}

func (c *cli) findService(ctx context.Context, reference string) (api.Service, error) {
	a, err := c.api()
	if err != nil {
		return api.Service{}, err
	}
	if id, ok := ref.Whole(ref.Service, reference, c.tenant()); ok {
		return a.Service(ctx, api.ServiceID(id))
	}
	all, _, err := a.Services(ctx, client.ListOptions{})
	if err != nil {
		return api.Service{}, err
	}
	return pick(ref.Service, reference, c.tenant(), all, func(o api.Service) string { return string(o.ID) })
}

func (c *cli) findInstance(ctx context.Context, reference string) (api.Instance, error) {
	a, err := c.api()
	if err != nil {
		return api.Instance{}, err
	}
	if id, ok := ref.Whole(ref.Instance, reference, c.tenant()); ok {
		return a.Instance(ctx, api.InstanceID(id))
	}
	all, err := c.instances(ctx)
	if err != nil {
		return api.Instance{}, err
	}
	return pick(ref.Instance, reference, c.tenant(), all, instanceID)
}

func instanceID(i api.Instance) string { return string(i.ID) }

// findInstances returns the instances that a reference matches equally well: all of an
// application or service, or one. ErrNotFound: it matches none.
func (c *cli) findInstances(ctx context.Context, reference string) ([]api.Instance, error) {
	all, err := c.instances(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(all))
	by := map[string]api.Instance{}
	for i, o := range all {
		ids[i] = string(o.ID)
		by[ids[i]] = o
	}
	ids = ref.All(ref.Instance, reference, c.tenant(), ids)
	if len(ids) == 0 {
		_, err := pick(ref.Instance, reference, c.tenant(), all, instanceID)
		return nil, err
	}
	ref.Sort(ids)
	found := make([]api.Instance, len(ids))
	for i, id := range ids {
		found[i] = by[id]
	}
	return found, nil
}

func (c *cli) instances(ctx context.Context) ([]api.Instance, error) {
	a, err := c.api()
	if err != nil {
		return nil, err
	}
	all, _, err := a.Instances(ctx, client.ListOptions{})
	return all, err
}

func pick[T any](kind ref.Kind, reference string, own api.Tenant, all []T, id func(T) string) (T, error) {
	ids := make([]string, len(all))
	for i, o := range all {
		ids[i] = id(o)
	}
	var none T
	found, err := ref.Find(kind, reference, own, ids)
	if err != nil {
		return none, err
	}
	for _, o := range all {
		if id(o) == found {
			return o, nil
		}
	}
	return none, err
}

// completionTime bounds the time of a shell completion.
const completionTime = 2 * time.Second

// complete completes names of existing objects. It completes nothing if the root does not
// answer.
func (c *cli) complete(kinds ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return spelled(begun, c.names(cmd.Context(), kinds...)), cobra.ShellCompDirectiveNoFileComp
	}
}

// spelled returns the names that begin with the typed text. If the text contains a slash,
// services and instances are also matched in the form app/service.
func spelled(begun string, names []string) (out []string) {
	for _, n := range names {
		name, rest, _ := strings.Cut(n, "\t")
		if rest != "" {
			rest = "\t" + rest
		}
		for _, form := range append([]string{name}, ref.Slashed(name)...) {
			if strings.HasPrefix(form, begun) && (form == name || strings.Contains(begun, "/")) {
				out = append(out, form+rest)
			}
		}
	}
	return out
}

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
	short := c.progress().Short
	for _, kind := range kinds {
		switch kind {
		case "apps":
			all, _, _ := a.Apps(ctx, c.list())
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "services":
			all, _, _ := a.Services(ctx, c.list())
			for _, o := range all {
				out = append(out, short(string(o.ID)))
			}
		case "instances":
			all, _, _ := a.Instances(ctx, c.list())
			for _, o := range all {
				out = append(out, short(string(o.ID))+"\t"+string(o.State))
			}
		case "nodes":
			all, _ := c.nodes(ctx, "")
			for _, o := range all {
				out = append(out, string(o.Cluster)+"/"+string(o.ID)+"\t"+string(o.Status))
			}
		case "clusters":
			all, _, _ := a.Clusters(ctx, client.ListOptions{})
			for _, o := range all {
				out = append(out, string(o.ID)+"\t"+string(o.Status))
			}
		}
	}
	return out
}
