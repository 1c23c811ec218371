package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/remote"
	"github.com/treeline-edge/treeline/internal/s3"
)

const snapshotPlaces = `FILE is a file of this machine, s3://BUCKET/KEY an object of an S3-compatible server, and -
stdin or stdout. This command talks to that server itself: the credentials are those of the
environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION) and do
not leave this machine. The server is --endpoint, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL,
otherwise Amazon's.`

func (c *cli) snapshotCmd() *cobra.Command {
	var to, endpoint, name string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "volume INSTANCE:NAME --to FILE", Aliases: []string{"vol"}, Short: "Copy the files of a local volume, or take a snapshot of a CSI volume", Args: cobra.ExactArgs(1),
		Long: `Copy the files of a local volume, to restore them later. An instance may use the volume
meanwhile: its writes wait until its node has copied the files on its own disk, so that they
are as of one moment. A copy that is interrupted is not left behind.

With --name, have the driver of a CSI volume take a snapshot, which the driver keeps. New
volumes are created from it (snapshot of volumes in the SLA).

` + snapshotPlaces,
		Example: `  treeline snapshot volume shop/db#0:data --to db.snapshot
  treeline snapshot volume shop/db#0:data --to s3://backups/shop/monday --endpoint https://s3.example.org
  treeline snapshot volume shop/db#0:data --name monday`,
		ValidArgsFunction: c.complete("volumes"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			v, err := c.volume(ctx, a, args[0])
			if err != nil {
				return err
			}
			switch {
			case (to == "") == (name == ""):
				return usage("give --to FILE for a local volume, or --name NAME for one of a CSI driver")
			case name != "" && v.Driver == "":
				return usage("volume %s is local: copy its files with --to", p.Short(string(v.ID)))
			case name == "" && v.Driver != "":
				return usage("volume %s is one of CSI driver %s, which keeps its snapshots: give --name instead of --to", p.Short(string(v.ID)), v.Driver)
			case name != "":
				ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
				defer cancel()
				return c.takeSnapshot(ctx, p, a, v, name)
			}
			counted := &counter{}
			read := func(w io.Writer) error {
				counted.to = w
				return remote.Snapshot(ctx, a, v.ID, counted)
			}
			if err := c.keep(ctx, to, endpoint, v.SizeMB<<20, read); err != nil {
				return err
			}
			c.say("volume %s copied to %s (%d bytes)", p.Short(string(v.ID)), to, counted.n)
			return nil
		}),
	}
	cmd.Flags().StringVar(&to, "to", "", "file, s3://BUCKET/KEY, or - for stdout")
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "URL of the S3-compatible server")
	cmd.Flags().StringVar(&name, "name", "", "take a snapshot of this name by the driver of a CSI volume")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "with --name, give up waiting after this time")
	group := &cobra.Command{Use: "snapshot", Short: "Save and restore the root and clusters, and copy the data of volumes"}
	group.AddCommand(cmd, c.snapshotSaveCmd(), c.snapshotInspectCmd(), c.snapshotKeygenCmd(), c.snapshotScheduleCmd(), c.snapshotAcceptCmd())
	group.AddCommand(c.snapshotRestoreCmd()...)
	return group
}

func (c *cli) restoreCmd() *cobra.Command {
	var from, endpoint string
	var yes bool
	cmd := &cobra.Command{
		Use: "volume INSTANCE:NAME --from FILE", Aliases: []string{"vol"}, Short: "Replace the files of a local volume by those of a snapshot", Args: cobra.ExactArgs(1),
		Long: `Replace the files of a local volume by those of a snapshot. A volume that an instance has is
not restored: scale its service to 0 first. The files are replaced all at once after the
whole snapshot was checked; if anything fails before, the volume stays as it is. The node
needs disk space for both. The snapshot of another volume may be restored, too.

` + snapshotPlaces,
		Example: `  treeline scale shop/db 0
  treeline restore volume shop/db#0:data --from db.snapshot --yes
  treeline scale shop/db 1`,
		ValidArgsFunction: c.complete("volumes"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			v, err := c.volume(ctx, a, args[0])
			if errors.Is(err, api.ErrNotFound) {
				return fmt.Errorf("%w\nA volume is created by the first start of its instance, with the size and on a node of its SLA: apply the SLA, "+
					"wait until the instance has run, treeline scale its service to 0, and restore the volume then", err)
			}
			if err != nil {
				return err
			}
			if err := c.confirm(yes, fmt.Sprintf("This replaces the files of volume %s by those of %s.", v.ID, from)); err != nil {
				return err
			}
			write := func(r io.Reader) error { return remote.Restore(ctx, a, v.ID, r) }
			if err := c.fetch(ctx, from, endpoint, write); err != nil {
				return err
			}
			c.say("volume %s restored from %s", p.Short(string(v.ID)), from)
			return nil
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "file, s3://BUCKET/KEY, or - for stdin")
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "URL of the S3-compatible server")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	_ = cmd.MarkFlagRequired("from")
	group := &cobra.Command{Use: "restore", Short: "Restore the data of volumes"}
	group.AddCommand(cmd)
	return group
}

type counter struct {
	to io.Writer
	n  int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}

// keep writes what read passes on, of about size bytes, to a file, an object or stdout.
func (c *cli) keep(ctx context.Context, to, endpoint string, size int64, read func(io.Writer) error) error {
	switch {
	case strings.HasPrefix(to, s3.Scheme):
		o, err := s3.Parse(to, s3.Options{Endpoint: endpoint, Env: c.Env})
		if err != nil {
			return err
		}
		return o.Write(ctx, size, read)
	case endpoint != "":
		return usage("--endpoint is for s3://BUCKET/KEY, not for %s", to)
	case to == "-":
		return read(c.Out)
	}
	return writeFile(to, read)
}

// writeFile creates or replaces a file when its content is complete and on the disk. Only its owner may
// read it.
func writeFile(path string, fill func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// fetch passes the content of a file, an object or stdin to write.
func (c *cli) fetch(ctx context.Context, from, endpoint string, write func(io.Reader) error) error {
	switch {
	case strings.HasPrefix(from, s3.Scheme):
		o, err := s3.Parse(from, s3.Options{Endpoint: endpoint, Env: c.Env})
		if err != nil {
			return err
		}
		return o.Read(ctx, write)
	case endpoint != "":
		return usage("--endpoint is for s3://BUCKET/KEY, not for %s", from)
	case from == "-":
		return write(c.In)
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s is a directory: %w", from, api.ErrInvalid))
	}
	return write(f)
}
