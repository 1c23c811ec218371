//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/snapshot/restore"
)

func (c *cli) snapshotRestoreCmd() []*cobra.Command {
	var identity, endpoint, storeFile string
	var to restore.Target
	cmd := &cobra.Command{
		Use: "restore FILE --identity FILE --data-dir DIR", Short: "Restore a snapshot into an empty data directory", Args: cobra.ExactArgs(1),
		Long: `Restore a snapshot of a root or cluster orchestrator into a data directory that does not exist
or is empty, on the machine of the daemon, while that is stopped. With --store-file, the
documents are restored into an empty MongoDB database instead, and the directory gets the
keys only: an installation moves between the stores this way. The snapshot is checked to its
end first. After an error the directory is as before.

` + systemPlaces,
		Example: `  treeline snapshot restore root.snapshot --identity snapshots.key --data-dir /var/lib/treeline/root
  treeline snapshot restore root.snapshot --identity snapshots.key --data-dir /var/lib/treeline/root --store-file uri`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := cmd.Context()
			if to.Identities, err = identities(identity); err != nil {
				return err
			}
			if to.Role != "" && storeFile == "" {
				return usage("--role is for a database: give --store-file, too")
			}
			if storeFile != "" {
				text, err := os.ReadFile(storeFile)
				if err != nil {
					return err
				}
				if to.Store = strings.TrimSpace(string(text)); !strings.HasPrefix(to.Store, "mongodb://") && !strings.HasPrefix(to.Store, "mongodb+srv://") {
					return fmt.Errorf("%s has no URI mongodb://…: %w", storeFile, api.ErrInvalid)
				}
			}
			from, release, err := c.seekable(ctx, args[0], endpoint, filepath.Dir(filepath.Clean(to.Dir)))
			if err != nil {
				return err
			}
			defer release()
			h, err := restore.Run(ctx, from, to)
			if err != nil {
				return err
			}
			c.say("%s restored into %s: as of %s, %d documents, authority %.16s…", h.Of(), to.Dir, h.Time.Local().Format("2006-01-02 15:04:05"), h.Documents, h.Authority)
			return nil
		},
	}
	cmd.Flags().StringVar(&identity, "identity", "", "file with the identity of one of the recipients")
	cmd.Flags().StringVar(&to.Dir, "data-dir", "", "data directory of the daemon, which does not exist or is empty")
	cmd.Flags().StringVar(&storeFile, "store-file", "", "file with the URI mongodb://… of the daemon's store")
	cmd.Flags().StringVar(&to.Role, "role", "", "role of the root's configuration, if it is not the default")
	cmd.Flags().StringVar(&to.Tier, "tier", "", "refuse a snapshot that is not of a root or cluster")
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "URL of the S3-compatible server")
	_, _ = cmd.MarkFlagRequired("identity"), cmd.MarkFlagRequired("data-dir")
	return []*cobra.Command{cmd}
}

// seekable opens a file, or copies an object or stdin, which are encrypted, to one without a name.
func (c *cli) seekable(ctx context.Context, from, endpoint, dir string) (*os.File, func(), error) {
	var f *os.File
	var err error
	if from == "-" || strings.Contains(from, "://") {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, nil, err
		}
		if f, err = os.CreateTemp(dir, "snapshot-*.part"); err != nil {
			return nil, nil, err
		}
		err = os.Remove(f.Name())
		if err == nil {
			err = c.fetch(ctx, from, endpoint, func(r io.Reader) error {
				_, err := io.Copy(f, r)
				return err
			})
		}
		if err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
	} else {
		f, err = os.Open(from)
	}
	if err != nil {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return nil, nil, err
	}
	return f, func() { _ = f.Close() }, nil
}
