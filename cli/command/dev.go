package command

import "github.com/spf13/cobra"

func (c *cli) devCmd() *cobra.Command {
	return &cobra.Command{Use: "dev", RunE: func(*cobra.Command, []string) error { return nil }}
}
