//go:build !linux

package command

import (
	"runtime"

	"github.com/spf13/cobra"
)

func (c *cli) devCmd() *cobra.Command {
	return &cobra.Command{
		Use: "dev", Short: "Run a whole installation on this machine (Linux only)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return usage("treeline dev needs Linux, this is %s: run it in a virtual machine, and sign in to it from here with treeline login", runtime.GOOS)
		},
	}
}
