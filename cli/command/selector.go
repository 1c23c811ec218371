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
)

const selectorHelp = ": key=value, key!=value, key (any value) or !key (no such label); all of several, separated by commas"

// selector is the flag -l of a command.
type selector struct {
	texts []string
	cmd   *cobra.Command
}

func (s *selector) flag(cmd *cobra.Command, what string) {
	s.cmd = cmd
	cmd.Flags().StringSliceVarP(&s.texts, "selector", "l", nil, what+selectorHelp)
	_ = cmd.RegisterFlagCompletionFunc("selector", cobra.NoFileCompletions)
}

func (s *selector) given() bool { return s.cmd != nil && s.cmd.Flags().Changed("selector") }

// parse returns the selectors; none without the flag.
func (s *selector) parse() ([]api.Selector, error) {
	if s.given() && len(s.texts) == 0 {
		return nil, usage("-l is empty: want key=value, key!=value, key or !key")
	}
	all, err := api.ParseSelectors(s.texts)
	if err != nil {
		return nil, usage("-l: %v", err)
	}
	return all, nil
}

// selectable adds -l to a command that takes names: it selects the objects of a kind (applications, services,
// instances or nodes) by their labels instead. If the command acts on them, it says first which ones they are.
func (c *cli) selectable(cmd *cobra.Command, kind string, acts bool) {
	var s selector
	s.flag(cmd, "instead of names: the "+kind+" with these labels")
	check, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case s.given() && len(args) > 0:
			return fmt.Errorf("give names or -l, not both")
		case s.given() || check == nil:
			return nil
		}
		return check(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		selectors, err := s.parse()
		if err != nil {
			return err
		}
		if len(selectors) == 0 {
			return run(cmd, args)
		}
		return c.run(func(ctx context.Context, _ output.Printer, a *client.Client, _ []string) error {
			cluster, _ := cmd.Flags().GetString("cluster") // of nodes
			names, err := c.selected(ctx, a, kind, api.ClusterID(cluster), selectors)
			switch {
			case len(names) == 0 && err != nil:
				return err
			case len(names) == 0:
				return fmt.Errorf("no %s with the labels %s: %w", kind, strings.Join(s.texts, ","), api.ErrNotFound)
			case acts:
				c.say("-l %s selects %d of the %s: %s", strings.Join(s.texts, ","), len(names), kind, strings.Join(names, ", "))
			}
			return errors.Join(run(cmd, names), err)
		})(cmd, args)
	}
}

// selected returns the names of the objects of a kind whose labels match. It returns those that it found and an
// error if some clusters did not answer.
func (c *cli) selected(ctx context.Context, a *client.Client, kind string, cluster api.ClusterID, selectors []api.Selector) (names []string, err error) {
	if kind == "nodes" {
		nodes, err := c.nodes(ctx, a, cluster)
		for _, n := range nodes {
			if api.Mismatch(selectors, n.Labels) < 0 {
				names = append(names, string(n.Cluster)+"/"+string(n.ID))
			}
		}
		return names, err
	}
	if own := c.own(); own != "" {
		return nil, usage("-l selects %s by labels that only the root has, and this context is of cluster %s itself", kind, own)
	}
	all := client.ListOptions{Tenant: c.tenant()}
	if kind == "applications" {
		apps, _, err := a.Apps(ctx, all)
		for _, o := range apps {
			if api.Mismatch(selectors, o.Spec.Labels) < 0 {
				names = append(names, string(o.ID))
			}
		}
		return names, err
	}
	labels, err := serviceLabels(ctx, a, all)
	if err != nil {
		return nil, err
	}
	if kind == "services" {
		for id, has := range labels {
			if api.Mismatch(selectors, has) < 0 {
				names = append(names, string(id))
			}
		}
		slices.Sort(names)
		return names, nil
	}
	instances, _, err := a.Instances(ctx, all)
	for _, o := range instances {
		if has, known := labels[o.Service]; known && api.Mismatch(selectors, has) < 0 {
			names = append(names, string(o.ID))
		}
	}
	return names, err
}

// serviceLabels returns the labels of services.
func serviceLabels(ctx context.Context, a *client.Client, o client.ListOptions) (map[api.ServiceID]api.Labels, error) {
	services, _, err := a.Services(ctx, o)
	labels := map[api.ServiceID]api.Labels{}
	for _, s := range services {
		labels[s.ID] = s.Labels
	}
	return labels, err
}
