//go:build !unix

package command

import "github.com/spf13/cobra"

// snapshotRestoreCmd returns no command: daemons run on Linux.
func (c *cli) snapshotRestoreCmd() []*cobra.Command { return nil }
