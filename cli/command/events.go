package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) eventsCmd() *cobra.Command {
	var watch bool
	var last int
	cmd := &cobra.Command{
		Use: "events [APP|SERVICE|INSTANCE]", Short: "List events, oldest first", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete("apps", "services", "instances"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			o := client.ListOptions{Tenant: c.tenant()}
			if len(args) > 0 {
				if o.Under, err = c.findAny(cmd.Context(), args[0]); err != nil {
					return err
				}
				o.Tenant = ""
			}
			return c.events(cmd.Context(), p, a, o, last, watch)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&watch, "watch", "w", false, "keep printing new events")
	f.IntVar(&last, "last", 0, "number of events, the newest; 0: all that the root keeps")
	c.unnamedFlags(cmd)
	return cmd
}

func (c *cli) events(ctx context.Context, p output.Printer, a *client.Client, o client.ListOptions, last int, watch bool) error {
	all, rev, err := a.Events(ctx, o, "")
	if err != nil {
		return err
	}
	if last > 0 && len(all) > last {
		all = all[len(all)-last:]
	}
	if !watch {
		if len(all) == 0 && p.ForPeople() {
			c.say("no events")
		}
		return output.List(p, output.Events, api.Page[api.Event]{Items: all, Revision: rev})
	}
	s := shower[api.Event]{source: source[api.Event]{client: a, kind: client.Events, list: o}, table: output.Events}
	rows := output.NewRows(p, s.table)
	if err := s.each(p, rows, all); err != nil {
		return err
	}
	err = s.watch(ctx, rev, func(e seen[api.Event]) (bool, error) {
		if e.Object == nil {
			return true, nil
		}
		return true, s.each(p, rows, []api.Event{*e.Object})
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// findAny returns the id of the application, service or instance that a reference names. It
// looks for them in this order.
func (c *cli) findAny(ctx context.Context, reference string) (string, error) {
	app, err := c.findApp(ctx, reference)
	if err == nil {
		return string(app.ID), nil
	}
	if !tryNext(err) {
		return "", err
	}
	service, serr := c.findService(ctx, reference)
	if serr == nil {
		return string(service.ID), nil
	}
	if !tryNext(serr) {
		return "", serr
	}
	instance, ierr := c.findInstance(ctx, reference)
	if ierr == nil {
		return string(instance.ID), nil
	}
	// An ambiguous reference is a more useful error than one without matches.
	for _, e := range []error{err, serr, ierr} {
		if !errors.Is(e, api.ErrNotFound) {
			return "", e
		}
	}
	for _, e := range []error{err, serr, ierr} { // so is a suggestion
		if _, guess, ok := strings.Cut(e.Error(), "; did you mean "); ok {
			return "", fmt.Errorf("no application, service or instance %q: %w; did you mean %s", reference, api.ErrNotFound, guess)
		}
	}
	return "", fmt.Errorf("no application, service or instance %q: %w", reference, api.ErrNotFound)
}

func tryNext(err error) bool {
	return errors.Is(err, api.ErrNotFound) || exitCode(err) == exitUsage
}
