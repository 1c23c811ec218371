package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) whyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why INSTANCE", Short: "Explain why an instance is where it is, or why it is not placed", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.complete("instances"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			i, err := instanceKind.find(ctx, c, args[0])
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
				return p.Object(w)
			}
			return output.Why(p, w)
		}),
	}
	c.outputFlags(cmd)
	return cmd
}
