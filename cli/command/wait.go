package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/follow"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) waitCmd() *cobra.Command {
	var what string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "wait APP|SERVICE|INSTANCE --for=running|completed|deleted", Short: "Wait until something is so", Args: cobra.ExactArgs(1),
		Long: `Wait until all wanted instances of an application or a service, or one instance,
run, have completed, or are no more. Exits with 4 when --timeout is over, with 3
if that is because something cannot be placed.`,
		ValidArgsFunction: c.complete("apps", "services", "instances"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if what != "running" && what != "completed" && what != "deleted" {
				return usage("--for=%s: it is running, completed or deleted", what)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, errTimeout)
			defer cancel()
			id, err := c.findAny(ctx, args[0])
			if errors.Is(err, api.ErrNotFound) && what == "deleted" {
				return nil
			}
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			return c.wait(ctx, a, id, what)
		},
	}
	f := cmd.Flags()
	f.StringVar(&what, "for", "running", "running, completed or deleted")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "how long at most")
	_ = cmd.RegisterFlagCompletionFunc("for", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"running", "completed", "deleted"}, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

func (c *cli) wait(ctx context.Context, a *client.Client, id, what string) error {
	name := c.progress().Short(id)
	if what == "deleted" {
		return c.waitDeleted(ctx, a, id)
	}
	services, err := goals(ctx, a, id)
	if err != nil {
		return err
	}
	last := map[string]api.Instance{}
	err = instancesOf(a, id).until(ctx, func(all map[string]api.Instance) bool {
		last = all
		return reached(services, id, what, all)
	})
	if !errors.Is(err, api.ErrTimeout) {
		return err
	}
	p := follow.New(services)
	for _, i := range last {
		p.See(i)
	}
	if u := p.Unplaced(); len(u) > 0 {
		return fmt.Errorf("%s is not %s: %s could not be placed; see treeline why %s: %w",
			name, what, output.Plural(len(u), "instance"), c.progress().Short(string(u[0].ID)), errNotPlaceable)
	}
	for _, i := range p.Behind() {
		c.say("  %s is %s %s %s", c.progress().Short(string(i.ID)), output.StateOf(i), i.Reason, i.Detail)
	}
	return fmt.Errorf("%s is not %s yet: %w", name, what, err)
}

// goals are the services of what is waited for; none for a single instance.
func goals(ctx context.Context, a *client.Client, id string) ([]api.Service, error) {
	if _, err := api.ParseInstanceID(id); err == nil {
		return nil, nil
	}
	services, _, err := a.Services(ctx, client.ListOptions{Under: id})
	return services, err
}

func reached(services []api.Service, id, what string, all map[string]api.Instance) bool {
	state := map[string]api.State{"running": api.Running, "completed": api.Completed}[what]
	if services == nil {
		return all[id].State == state
	}
	if what == "running" {
		p := follow.New(services)
		for _, i := range all {
			p.See(i)
		}
		return p.Done()
	}
	n, wanted := map[api.ServiceID]int{}, 0
	for _, i := range all {
		if i.State == state {
			n[i.Service]++
		}
	}
	for _, s := range services {
		if wanted += s.Replicas; n[s.ID] < s.Replicas {
			return false
		}
	}
	return wanted > 0
}

func (c *cli) waitDeleted(ctx context.Context, a *client.Client, id string) error {
	if _, err := api.ParseInstanceID(id); err == nil {
		return instancesOf(a, id).until(ctx, func(all map[string]api.Instance) bool { return len(all) == 0 })
	}
	// An application goes last, behind its instances; a service may go before them.
	err := source[api.App]{a, client.Apps, client.ListOptions{Under: id}, func(o api.App) string { return string(o.ID) }}.
		until(ctx, func(all map[string]api.App) bool { return len(all) == 0 })
	if err != nil {
		return err
	}
	return instancesOf(a, id).until(ctx, func(all map[string]api.Instance) bool { return len(all) == 0 })
}
