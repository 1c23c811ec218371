package command

import (
	"context"

	"github.com/spf13/cobra"

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
					return item(p, args, w)
				}
				return output.Why(p, w)
			})
		}),
	}
	c.outputFlags(cmd)
	c.selectable(cmd, "instances", false)
	return cmd
}
