package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) rolloutCmd() *cobra.Command {
	group := &cobra.Command{
		Use: "rollout", Short: "Follow and control the roll-out of a service's new version",
		Long: `Follow and control the roll-out of a service's new version.

A changed SLA is rolled out as its field update says: by default additional
instances start first, and a version that does not become healthy is replaced by
the last healthy one.`,
	}
	act := func(use, short string, do func(context.Context, *client.Client, api.ServiceID) (api.RollOut, error)) *cobra.Command {
		cmd := &cobra.Command{
			Use: use + " SERVICE…", Short: short, Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.complete("services"),
			RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
				return each(args, func(name string) error {
					s, err := serviceKind.find(ctx, c, name)
					if err != nil {
						return err
					}
					r, err := do(ctx, a, s.ID)
					if err != nil {
						return err
					}
					c.say("%s: %s", p.Short(string(s.ID)), r.Standing())
					return nil
				})
			}),
		}
		c.selectable(cmd, "services", true)
		return cmd
	}
	var to string
	undo := act("undo", "Apply an earlier version of a service", func(ctx context.Context, a *client.Client, id api.ServiceID) (api.RollOut, error) {
		n, err := strconv.ParseUint(to, 10, 64)
		if err != nil {
			return api.RollOut{}, usage("--to-revision %s: want a version, as treeline rollout history prints it", to)
		}
		return a.UndoRollOut(ctx, id, api.Revision(n))
	})
	undo.Flags().StringVar(&to, "to-revision", "0", "version to apply, as history prints it; 0: the last healthy one")
	group.AddCommand(
		c.rolloutStatusCmd(), c.rolloutHistoryCmd(),
		act("pause", "Replace no further instances until resume", func(ctx context.Context, a *client.Client, id api.ServiceID) (api.RollOut, error) {
			return a.PauseRollOut(ctx, id)
		}),
		act("resume", "Continue a roll-out that was paused or has failed", func(ctx context.Context, a *client.Client, id api.ServiceID) (api.RollOut, error) {
			return a.ResumeRollOut(ctx, id)
		}),
		act("promote", "Continue a roll-out beyond its canaries", func(ctx context.Context, a *client.Client, id api.ServiceID) (api.RollOut, error) {
			return a.PromoteRollOut(ctx, id)
		}),
		undo,
	)
	return group
}

func (c *cli) rolloutStatusCmd() *cobra.Command {
	var watch bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "status SERVICE", Short: "Wait until a roll-out is over", Args: cobra.ExactArgs(1),
		Long: `Print the state of a service's newest roll-out, and wait until it is over.

The command exits with 0 when all instances have the version and are healthy, with
1 if the version failed, even if the last healthy version has returned, and with 4
after --timeout. A roll-out that is paused or waits for a promotion is not over.`,
		ValidArgsFunction: c.complete("services"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			s, err := serviceKind.find(ctx, c, args[0])
			if err != nil {
				return err
			}
			r, err := a.RollOut(ctx, s.ID)
			if err == nil && watch {
				r, err = c.followRollOut(ctx, a, s.ID, timeout)
			}
			if err != nil {
				return err
			}
			if err := output.One(p, output.RollOuts, r); err != nil {
				return err
			}
			if !watch {
				return nil
			}
			return c.rollOutError(ctx, a, r)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&watch, "watch", "w", true, "wait until it is over")
	f.DurationVar(&timeout, "timeout", 15*time.Minute, "give up after this time; the roll-out continues")
	c.outputFlags(cmd)
	return cmd
}

// rollOutError returns why a roll-out that is over failed, nil if it did not.
func (c *cli) rollOutError(ctx context.Context, a *client.Client, r api.RollOut) error {
	name := c.progress().Short(string(r.Service))
	switch {
	case r.State == api.RollOutFailed:
		return fmt.Errorf("the roll-out of version %d of %s failed: %s", r.Version, name, r.Detail)
	case r.Failed == 0:
		return nil
	}
	h, err := a.RollOutHistory(ctx, r.Service)
	if err != nil {
		return err
	}
	why := "see treeline rollout history " + name
	for _, v := range h.Versions {
		if v.Version == r.Failed && v.Detail != "" {
			why = v.Detail
		}
	}
	return fmt.Errorf("version %d of %s failed, and version %d has returned: %s", r.Failed, name, r.Version, why)
}

// followRollOut prints the steps of a roll-out until it is over.
func (c *cli) followRollOut(ctx context.Context, a *client.Client, id api.ServiceID, timeout time.Duration) (r api.RollOut, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	said := ""
	err = serviceKind.under(a, string(id)).follow(ctx, func(seen[api.Service]) (bool, error) {
		if r, err = a.RollOut(ctx, id); err != nil {
			return false, err
		}
		if s := r.Standing(); s != said && !r.Over() {
			said = s
			c.say("  %s", s)
		}
		return !r.Over(), nil
	})
	if err != nil && errors.Is(context.Cause(ctx), api.ErrTimeout) {
		return r, fmt.Errorf("the roll-out of %s is not over: %s: %w", c.progress().Short(string(id)), r.Standing(), api.ErrTimeout)
	}
	return r, err
}

func (c *cli) rolloutHistoryCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history SERVICE", Short: "List the versions of a service", Args: cobra.ExactArgs(1), ValidArgsFunction: c.complete("services"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			s, err := serviceKind.find(ctx, c, args[0])
			if err != nil {
				return err
			}
			h, err := a.RollOutHistory(ctx, s.ID)
			if err != nil {
				return err
			}
			return output.List(p, output.Versions, api.Page[api.RollOutVersion]{Items: h.Versions})
		}),
	}
	c.unnamedFlags(cmd)
	return cmd
}
