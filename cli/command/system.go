package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/internal/snapshot"
)

const systemPlaces = `FILE is a file or, with a / at its end or if it exists, a directory of this machine;
s3://BUCKET/KEY an object of an S3-compatible server, to save also s3://BUCKET/PREFIX/; - stdin
or stdout. The credentials for that server are those of the environment, as for treeline
snapshot volume.`

func (c *cli) snapshotSaveCmd() *cobra.Command {
	var to, endpoint string
	var recipients []string
	cmd := &cobra.Command{
		Use: "save --to FILE", Short: "Save a snapshot of the root, or of the cluster of the context", Args: cobra.NoArgs,
		Long: `Save a snapshot of the root or, in a context of a cluster's own port, of that cluster
orchestrator. It has all documents of the store and the keys, as of one moment, while the
daemon goes on. It is encrypted to the recipients: only who has the identity of one of them
can restore it. treeline snapshot keygen creates an identity.

If the daemon's configuration lists snapshot.recipients, only these are accepted, and used if
none is given.

` + systemPlaces,
		Example: `  treeline snapshot save --to /backup/ --recipient age1…
  treeline snapshot save --to s3://backups/root.snapshot --endpoint https://s3.example.org`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			resp, err := a.Raw(ctx, client.Request{Method: http.MethodPost, Path: "/v1/system/snapshot", Body: api.SnapshotRequest{Recipients: recipients}})
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			// The header is read first, because it is in the names of files.
			var head strings.Builder
			r, err := snapshot.Open(io.TeeReader(&exact{resp.Body}, &head))
			if err != nil {
				return err
			}
			h := r.Header()
			if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
				to = strings.TrimSuffix(to, "/") + "/" + h.FileName()
			}
			counted := &counter{}
			write := func(w io.Writer) error {
				counted.to, counted.n = w, 0
				_, err := io.Copy(counted, io.MultiReader(strings.NewReader(head.String()), resp.Body))
				if want := int64(head.Len()) + h.Size; err == nil && counted.n != want {
					err = fmt.Errorf("it ended after %d of %d bytes", counted.n, want)
				}
				if err != nil {
					return fmt.Errorf("read the snapshot: %w: %w", err, api.ErrUnavailable)
				}
				return nil
			}
			if err := c.keep(ctx, to, endpoint, h.Size, write); err != nil {
				return err
			}
			c.say("snapshot of %s saved to %s (%d bytes, %d documents)", h.Of(), to, counted.n, h.Documents)
			return nil
		}),
	}
	cmd.Flags().StringVar(&to, "to", "", "file, directory, s3://BUCKET/KEY, or - for stdout")
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "URL of the S3-compatible server")
	cmd.Flags().StringArrayVar(&recipients, "recipient", nil, "X25519 recipient of age, age1…; may be repeated")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

const schedulePath = "/v1/system/snapshot/schedule"

func (c *cli) snapshotScheduleCmd() *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use: "schedule", Short: "Show the scheduled snapshots of the root, or of the cluster of the context", Args: cobra.NoArgs,
		Long: `Show the schedule of the root or, in a context of a cluster's own port, of that cluster
orchestrator: when the next snapshot is due, why the last one failed, and those that are
there. The schedule is in the daemon's configuration: snapshot.schedule, time_zone, to, keep
and recipients. With --now, the daemon takes one at once, to the same place.`,
		Example: `  treeline snapshot schedule
  treeline snapshot schedule --now`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if now {
				if _, err := a.Do(ctx, client.Request{Method: http.MethodPost, Path: schedulePath}, nil); err != nil {
					return err
				}
			}
			var s api.SnapshotSchedule
			if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: schedulePath}, &s); err != nil {
				return err
			}
			if !p.ForPeople() {
				return p.Object(s)
			}
			if s.Cron == "" {
				c.say("no snapshots are scheduled: set snapshot.schedule in the daemon's configuration")
				return nil
			}
			p.Printf("schedule  %s (%s), to %s, %d are kept\n", s.Cron, s.TimeZone, s.To, s.Keep)
			p.Printf("next      %s\n", s.Next.Local().Format(time.DateTime))
			if s.Error != "" {
				p.Printf("failed    %s: %s\n", s.Failed.Local().Format(time.DateTime), output.Clean(s.Error))
			}
			for _, t := range s.Taken {
				p.Printf("taken     %s, %d bytes\n", output.Clean(t.Name), t.Size)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&now, "now", false, "take one now")
	c.unnamedFlags(cmd)
	return cmd
}

// exact reads single bytes, so that what reads the header through a buffer reads no more than that.
type exact struct{ io.Reader }

// Read implements io.Reader.
func (e *exact) Read(p []byte) (int, error) { return e.Reader.Read(p[:min(1, len(p))]) }

func (c *cli) snapshotKeygenCmd() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "keygen --to FILE", Short: "Create an identity for snapshots, and print its recipient", Args: cobra.NoArgs,
		Long: `Create an identity of age, which decrypts snapshots, in a new file that only its owner may
read, and print its recipient, to which snapshots are encrypted. Keep the identity away from
the machines that it restores: without it, snapshots are lost. It is the format of age-keygen.`,
		Example: `  treeline snapshot keygen --to snapshots.key`,
		RunE: func(*cobra.Command, []string) error {
			id, recipient, err := snapshot.NewIdentity()
			if err != nil {
				return err
			}
			f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(f, "# created: %s\n# public key: %s\n%s\n", time.Now().Format(time.RFC3339), recipient, id)
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.Out, recipient)
			return err
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the new file")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

func (c *cli) snapshotInspectCmd() *cobra.Command {
	var identity, endpoint string
	cmd := &cobra.Command{
		Use: "inspect FILE", Short: "Show what a snapshot is of, and with an identity check it to its end", Args: cobra.ExactArgs(1),
		Long: `Show the header of a snapshot. It is in the clear and proves nothing. With --identity, the
whole snapshot is decrypted and checked, and the kinds of its documents are counted. The
authority identifies the installation: it is the SHA-256 of the public key of its CA.

` + systemPlaces,
		Example: `  treeline snapshot inspect root.snapshot --identity snapshots.key`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []snapshot.Identity
			if identity != "" {
				var err error
				if ids, err = identities(identity); err != nil {
					return err
				}
			}
			return c.fetch(cmd.Context(), args[0], endpoint, func(in io.Reader) error {
				r, err := snapshot.Open(in)
				if err != nil {
					return err
				}
				out := inspected{Header: r.Header()}
				if ids != nil {
					out.Kinds, out.Checked = map[string]int{}, true
					err = r.Content(ids, func(string, []byte) error { return nil }, func(d snapshot.Doc) error {
						out.Kinds[d.Kind]++
						return nil
					})
				}
				if err != nil {
					return err
				}
				enc := json.NewEncoder(c.Out)
				enc.SetIndent("", "  ")
				return enc.Encode(out)
			})
		},
	}
	cmd.Flags().StringVar(&identity, "identity", "", "file with an identity of age")
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "URL of the S3-compatible server")
	return cmd
}

func (c *cli) snapshotAcceptCmd() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "accept", Short: "Let a restored root or cluster continue", Args: cobra.NoArgs,
		Long: `Let a root that was restored from a snapshot manage its clusters again. Until then clusters
keep what they run, and get no assignments. Instances that the root has no record of, because
they were created after the snapshot, are listed; they stop when the restore is accepted. To
keep their services, apply their SLAs before.

In a context of a cluster's own port, let that cluster continue. It continues by itself once
its root has sent what it wants, all nodes have reported, and all that they run has a record.
What it waits for is listed. Without the root, it continues with what it has a record of.`,
		Example: `  treeline snapshot accept`,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, _ []string) error {
			var s api.RestoreState
			if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: "/v1/system/restore"}, &s); err != nil {
				return err
			}
			if !s.Held {
				return fmt.Errorf("nothing to accept: it is not restored from a snapshot, or it continues already: %w", api.ErrConflict)
			}
			for _, u := range s.Unknown {
				where := "in cluster " + string(u.Cluster)
				if u.Node != "" {
					where = "on node " + string(u.Node)
				}
				c.say("instance %s %s has no record and will stop", u.Instance, where)
			}
			for _, n := range s.SilentNodes {
				c.say("node %s has not reported yet; what it runs is not listed", n)
			}
			if s.AwaitsRoot {
				c.say("the root has not sent what it wants; what it assigned after the snapshot will stop")
			}
			for _, at := range s.Silent {
				c.say("cluster %s has not reported yet; what it runs is not listed", at)
			}
			if err := c.confirm(yes, fmt.Sprintf("%s is as of the snapshot of %s. This stops %d instances, and lets it change what runs.",
				c.tier(), s.Taken.Local().Format("2006-01-02 15:04:05"), len(s.Unknown))); err != nil {
				return err
			}
			if _, err := a.Do(ctx, client.Request{Method: http.MethodPost, Path: "/v1/system/restore"}, nil); err != nil {
				return err
			}
			c.say("restore accepted")
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// tier names what the commands of the context manage.
func (c *cli) tier() string {
	if own := c.own(); own != "" {
		return "Cluster " + string(own)
	}
	return "The root"
}

// inspected is the output of treeline snapshot inspect.
type inspected struct {
	snapshot.Header
	Checked bool           `json:"checked"`         // the whole snapshot was decrypted and is complete
	Kinds   map[string]int `json:"kinds,omitempty"` // documents by kind
}

// identities reads a file with identities of age. Errors do not show its content.
func identities(file string) ([]snapshot.Identity, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ids, err := snapshot.Identities(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return ids, nil
}
