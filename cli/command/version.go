package command

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/build"
)

const versionTime = 2 * time.Second

func (c *cli) versionCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Show the versions of this program and, if reachable, of the root", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			mine := build.Current()
			root := c.rootVersion(cmd.Context())
			if !p.ForPeople() {
				return p.Object(map[string]any{"client": mine, "root": root})
			}
			p.Printf("treeline %s %s %s", mine.Version, mine.Commit, mine.Go)
			if root != nil {
				p.Printf("root     %s %s %s", root.Version, root.Commit, root.Go)
			}
			return nil
		},
	}
	c.unnamedFlags(cmd)
	return cmd
}

func (c *cli) rootVersion(ctx context.Context) *build.Info {
	a, err := c.api()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	var b build.Info
	if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: "/version", Open: true}, &b); err != nil {
		return nil
	}
	return &b
}
