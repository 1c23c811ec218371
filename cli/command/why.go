package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) whyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why INSTANCE…", Short: "Explain why instances are where they are, or why they are not placed", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete("instances"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			return several(p, args, func(name string) error {
				i, err := instanceKind.find(ctx, c, name)
				if err != nil {
					return err
				}
				w, err := a.Why(ctx, i.ID)
				if err != nil {
					return err
				}
				switch {
				case p.Format == output.Name:
					p.Printf("%s", i.ID)
					return nil
				case !p.ForPeople():
					return errors.Join(item(p, args, w), c.unexplained(ctx, a, w))
				}
				return errors.Join(output.Why(p, w), c.unexplained(ctx, a, w))
			})
		}),
	}
	c.outputFlags(cmd)
	c.selectable(cmd, "instances", false)
	return cmd
}

// unexplained returns an error if the cluster of an instance did not answer although the user may see its nodes.
func (c *cli) unexplained(ctx context.Context, a *client.Client, w api.Why) error {
	of := w.Instance.Cluster
	if of == "" || slices.ContainsFunc(w.Clusters, func(k api.ClusterWhy) bool { return k.Cluster == of }) {
		return nil
	}
	_, err := c.nodes(ctx, a, of)
	if errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrTimeout) {
		return fmt.Errorf("cluster %s does not explain the place of %s: %w", of, w.Instance.ID, err)
	}
	return nil // the user may not see its nodes
}
