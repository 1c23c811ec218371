package command

import (
	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) whyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why INSTANCE", Short: "Explain why an instance is where it is, or why it is not placed", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.complete("instances"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			i, err := c.findInstance(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			w, err := a.Why(cmd.Context(), i.ID)
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
		},
	}
	c.outputFlags(cmd)
	return cmd
}
