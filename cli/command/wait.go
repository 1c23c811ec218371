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
		Use: "wait APP|SERVICE|INSTANCE --for=running|completed|deleted", Short: "Wait for a resource to reach a state", Args: cobra.ExactArgs(1),
		Long: `Wait until all wanted instances of an application or a service, or one instance,
run, have completed, or are no more. A one_shot that has completed counts as
running, too. Exits with 1 as soon as the state cannot be reached any more, because
an instance failed for good or the service never completes; with 6 when what is
waited for is deleted; with 4 when --timeout is over, with 3 if that is because
something cannot be placed.`,
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
	if what == "deleted" {
		return c.waitDeleted(ctx, a, id)
	}
	name := c.progress().Short(id)
	p := follow.New(nil)
	if i, err := api.ParseInstanceID(id); err == nil {
		p = follow.NewInstance(i)
	}
	err := track(ctx, a, id, p, func() (bool, error) {
		if what == "completed" && p.Completed() || what == "running" && p.Done() {
			return true, nil
		}
		return false, c.unreachable(p, name, what)
	})
	if !errors.Is(err, api.ErrTimeout) {
		return err
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

// unreachable returns why a state cannot be reached without a new SLA or scale; nil: it can.
func (c *cli) unreachable(p *follow.Progress, name, what string) error {
	if p.Vanished() {
		return fmt.Errorf("%s was deleted and will not be %s: %w", name, what, api.ErrNotFound)
	}
	if endless := p.Endless(); what == "completed" && len(endless) > 0 {
		return fmt.Errorf("%s is never completed: service %s is not a one_shot, so it is started again whenever it ends",
			name, c.progress().Short(string(endless[0])))
	}
	failed := p.Failed()
	if len(failed) == 0 {
		return nil
	}
	for _, i := range failed {
		c.say("  %s is %s %s %s", c.progress().Short(string(i.ID)), output.StateOf(i), i.Reason, i.Detail)
	}
	return fmt.Errorf("%s will not be %s: %s failed for good; see treeline logs %s, then apply a changed SLA or delete and apply it again",
		name, what, output.Plural(len(failed), "instance"), c.progress().Short(string(failed[0].ID)))
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
