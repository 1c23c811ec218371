package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/follow"
	"github.com/treeline-edge/treeline/cli/output"
)

var waitStates = []string{"running", "healthy", "completed", "deleted"}

func (c *cli) waitCmd() *cobra.Command {
	var what string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "wait APP|SERVICE|INSTANCE… --for=running|healthy|completed|deleted", Short: "Wait for resources to reach a state", Args: cobra.MinimumNArgs(1),
		Long: `Wait until one instance, or all wanted instances of an application or service, are
running, completed or deleted; healthy is another word for running, because an
instance counts as running when its health checks have passed. A one_shot that has
completed counts as running, too.

Meanwhile, each event is printed to stderr in a line, with the time since the first
event and the tier that reported it: (root), (cluster munich) or (node n07).

The command exits with 1 as soon as the state cannot be reached, because an instance
failed for good or the service never completes, and with 6 if the resource is
deleted. After --timeout it exits with 3 if an instance could not be placed,
otherwise with 4. It never exits with the code of the workload, which would look
like one of these: treeline attach does, and get instances -o json has exit_code.`,
		ValidArgsFunction: c.complete("apps", "services", "instances"),
		PreRunE: func(*cobra.Command, []string) error {
			if !slices.Contains(waitStates, what) {
				return fmt.Errorf("--for=%s: want running, healthy, completed or deleted", what)
			}
			if what == "healthy" {
				what = "running"
			}
			return nil
		},
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
			defer cancel()
			return each(args, func(name string) error {
				id, err := c.findAny(ctx, name)
				if errors.Is(err, api.ErrNotFound) && what == "deleted" {
					return nil
				}
				if err != nil {
					return err
				}
				return c.wait(ctx, a, id, what)
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&what, "for", "running", "state to wait for: running (and ready), healthy (the same), completed or deleted")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "give up after this time")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(waitStates, cobra.ShellCompDirectiveNoFileComp))
	c.selectable(cmd, "services", false)
	return cmd
}

func (c *cli) wait(ctx context.Context, a *client.Client, id, what string) error {
	if what == "deleted" {
		return c.waitDeleted(ctx, a, id)
	}
	since, err := revision(ctx, a)
	if err != nil {
		return err
	}
	steps := &steps{out: c.progress(), after: since}
	name := c.progress().Short(id)
	p := follow.New(nil)
	if i, err := api.ParseInstanceID(id); err == nil {
		p = follow.NewInstance(i)
	}
	err = track(ctx, a, id, p, func() (bool, error) {
		if what == "completed" && p.Completed() || what == "running" && p.Done() {
			return true, nil
		}
		return false, c.unreachable(p, name, what)
	}, func(ctx context.Context, hand post) error { return c.follow(ctx, a, id, steps, hand) })
	if err == nil {
		return c.lastSteps(ctx, a, id, steps)
	}
	if !errors.Is(err, api.ErrTimeout) {
		return err
	}
	if u := p.Unplaced(); len(u) > 0 {
		return fmt.Errorf("%s is not %s: %s could not be placed; see treeline why %s: %w",
			name, what, output.Plural(len(u), "instance"), c.progress().Short(string(u[0].ID)), errNotPlaceable)
	}
	for _, i := range p.Unsettled() {
		c.say("  %s is %s %s %s", c.progress().Short(string(i.ID)), output.StateOf(i), i.Reason, i.Detail)
	}
	if u := p.Unready(); what == "running" && len(u) > 0 {
		return fmt.Errorf("%s is not %s yet, %s: %w", name, what, c.unready(u), err)
	}
	return fmt.Errorf("%s is not %s yet: %w", name, what, err)
}

// unready describes instances that run and whose health checks have not passed.
func (c *cli) unready(u []api.Instance) string {
	return fmt.Sprintf("%d not ready, because health checks have not passed (treeline why %s)", len(u), c.progress().Short(string(u[0].ID)))
}

// unreachable returns why a state cannot be reached without a change of the SLA or of the number of
// replicas, nil if it can.
func (c *cli) unreachable(p *follow.Progress, name, what string) error {
	if p.Deleted() {
		return fmt.Errorf("%s was deleted and will not be %s: %w", name, what, api.ErrNotFound)
	}
	if unending := p.NeverComplete(); what == "completed" && len(unending) > 0 {
		return fmt.Errorf("%s never completes: service %s is not a one_shot, so its instances are restarted when they exit",
			name, c.progress().Short(string(unending[0])))
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

// waitDeleted waits until an object and its instances are gone, and prints their events.
func (c *cli) waitDeleted(ctx context.Context, a *client.Client, id string) error {
	since, err := revision(ctx, a)
	if err != nil {
		return err
	}
	steps := &steps{out: c.progress(), after: since}
	alone, end := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() {
		// An error is not the result of the command: the objects themselves are watched below.
		_ = c.follow(alone, a, id, steps, func(change func()) bool { change(); return true })
	})
	err = c.untilDeleted(ctx, a, id)
	end()
	follower.Wait()
	if err == nil {
		return c.lastSteps(ctx, a, id, steps)
	}
	return err
}

func (c *cli) untilDeleted(ctx context.Context, a *client.Client, id string) error {
	if _, err := api.ParseInstanceID(id); err != nil {
		// An application is deleted after its instances. A service may be deleted before them.
		if err := appKind.under(a, id).untilGone(ctx); err != nil {
			return err
		}
	}
	return instanceKind.under(a, id).untilGone(ctx)
}
