package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) eventsCmd() *cobra.Command {
	var watch, users bool
	var last int
	var cluster string
	cmd := &cobra.Command{
		Use: "events [APP|SERVICE|INSTANCE]", Short: "List events, oldest first", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete("apps", "services", "instances"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			if cluster = cmp.Or(cluster, string(c.own())); cluster != "" {
				if len(args) > 0 || watch {
					return usage("--cluster lists the records that a cluster keeps; it goes without a reference and without --watch")
				}
				all, err := a.ClusterEvents(ctx, api.ClusterID(cluster))
				if err != nil {
					return err
				}
				return list(c, p, output.Events, newest(all, last, users), 0)
			}
			o := client.ListOptions{Tenant: c.tenant()}
			if len(args) > 0 {
				id, err := c.findAny(ctx, args[0])
				if err != nil {
					return err
				}
				o = client.ListOptions{Under: id}
			}
			return c.events(ctx, p, a, o, last, watch, users)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&watch, "watch", "w", false, "keep printing new events")
	f.BoolVar(&users, "users", false, "only what users did or were refused; -o wide shows the user")
	f.IntVar(&last, "last", 0, "number of events, the newest; 0: all that the root keeps")
	f.StringVar(&cluster, "cluster", "", "show who reached instances and changed something through the API of this cluster, which keeps these records")
	c.completeCluster(cmd)
	c.unnamedFlags(cmd)
	return cmd
}

func (c *cli) events(ctx context.Context, p output.Printer, a *client.Client, o client.ListOptions, last int, watch, users bool) error {
	all, rev, err := a.Events(ctx, o)
	if err != nil {
		return err
	}
	all = newest(all, last, users)
	if !watch {
		return list(c, p, output.Events, all, rev)
	}
	s := source[api.Event]{eventKind, a, o}
	rows := output.NewRows(p, s.table)
	if err := s.each(p, rows, all); err != nil {
		return err
	}
	err = s.watch(ctx, rev, func(e seen[api.Event]) (bool, error) {
		if e.Object == nil || users && e.Object.By == "" {
			return true, nil
		}
		return true, s.each(p, rows, []api.Event{*e.Object})
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// newest returns the last events, or all if last is 0; with users, only what users did or were refused.
func newest(all []api.Event, last int, users bool) []api.Event {
	if users {
		all = slices.DeleteFunc(all, func(e api.Event) bool { return e.By == "" })
	}
	if last > 0 && len(all) > last {
		all = all[len(all)-last:]
	}
	return all
}

// findAny returns the id of the application, service or instance that a reference identifies. It
// searches in this order.
func (c *cli) findAny(ctx context.Context, reference string) (string, error) {
	var guess string
	var ambiguous error
	for _, find := range []func(context.Context, *cli, string) (string, error){appKind.findID, serviceKind.findID, instanceKind.findID} {
		id, err := find(ctx, c, reference)
		switch {
		case err == nil:
			return id, nil
		case errors.Is(err, api.ErrNotFound):
			if _, name, ok := strings.Cut(err.Error(), "; did you mean "); ok && guess == "" {
				guess = "; did you mean " + name
			}
		case exitCode(err) != exitUsage:
			return "", err
		case ambiguous == nil:
			ambiguous = err
		}
	}
	if ambiguous != nil { // more useful than "not found"
		return "", ambiguous
	}
	return "", fmt.Errorf("no application, service or instance %q: %w%s", reference, api.ErrNotFound, guess)
}
