package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/internal/build"
)

// Limits of a bundle.
const (
	bundleInstances = 50 // with logs and explanation; those that do not run first
	bundleLines     = 200
	bundleLog       = 256 << 10 // bytes of one instance's log
	bundleTime      = 2 * time.Minute
)

func (c *cli) debugCmd() *cobra.Command {
	group := &cobra.Command{Use: "debug", Short: "Collect what helps to find a fault"}
	group.AddCommand(&cobra.Command{
		Use: "bundle FILE", Short: "Write versions, states, events and last logs to a tar.gz file, without secrets", Args: cobra.ExactArgs(1),
		Long: `Write what you may see to a file to attach to a report: the result of treeline doctor,
versions, applications, services, instances, clusters, nodes, events, and of up to 50
instances the explanation of their place and the last 200 lines of their logs.

Secrets are left out: tokens, values of environment variables, also where logs contain
them, commands, and files of services. Logs may contain other personal data: look at
the file before you pass it on. What could not be collected is named, and in errors.txt.`,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, bundleTime)
			defer cancel()
			f, err := os.OpenFile(args[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return usage("create the bundle: %v", err)
			}
			defer f.Close()
			missing, err := c.bundle(ctx, a, f)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			c.say("written to %s", args[0])
			if missing != nil {
				return fmt.Errorf("the bundle is incomplete: %w", missing)
			}
			return nil
		}),
	})
	return group
}

// bundle writes the archive. missing is what could not be collected.
func (c *cli) bundle(ctx context.Context, a *client.Client, to io.Writer) (missing, err error) {
	b := &bundle{now: c.Now(), files: map[string][]byte{}}
	if w, err := c.where(); err == nil {
		b.hide(w.Token, w.Access, w.Refresh)
	}
	b.add("versions.json", map[string]any{"client": build.Current(), "server": c.rootVersion(ctx)}, nil)
	b.add("doctor.json", c.examine(ctx), nil)
	services, _, err := a.Services(ctx, client.ListOptions{})
	for _, s := range services {
		for _, e := range s.Spec.Environment {
			_, value, _ := strings.Cut(e, "=")
			b.hide(value)
		}
	}
	b.add("services.json", services, err)
	apps, _, err := a.Apps(ctx, client.ListOptions{})
	b.add("apps.json", apps, err)
	clusters, _, err := a.Clusters(ctx, client.ListOptions{})
	b.add("clusters.json", clusters, err)
	nodes, err := c.nodes(ctx, a, "")
	b.add("nodes.json", nodes, nil)
	if err := unanswered(err); err != nil { // the nodes of the other clusters are kept
		b.failed = append(b.failed, fmt.Errorf("nodes.json: %w", err))
	}
	events, _, err := a.Events(ctx, client.ListOptions{})
	b.add("events.json", events, err)
	instances, _, err := a.Instances(ctx, client.ListOptions{})
	b.add("instances.json", instances, err)
	slices.SortStableFunc(instances, func(x, y api.Instance) int {
		return map[bool]int{true: 1}[x.State == api.Running] - map[bool]int{true: 1}[y.State == api.Running]
	})
	for _, i := range instances[:min(len(instances), bundleInstances)] {
		name := strings.NewReplacer("/", "~", "#", "~").Replace(string(i.ID))
		why, err := a.Why(ctx, i.ID)
		if errors.Is(err, api.ErrNotFound) {
			continue // it was deleted meanwhile
		}
		b.add("why/"+name+".json", why, err)
		text, err := lastLines(ctx, a, i.ID)
		if errors.Is(err, api.ErrConflict) || errors.Is(err, api.ErrForbidden) || errors.Is(err, api.ErrNotFound) {
			continue // it has not started or is gone, or the user may not read its logs
		}
		b.add("logs/"+name+".txt", text, err)
	}
	missing = errors.Join(b.failed...)
	if missing != nil {
		b.add("errors.txt", []byte(missing.Error()+"\n"), nil)
	}
	return missing, b.write(to)
}

func lastLines(ctx context.Context, a *client.Client, id api.InstanceID) ([]byte, error) {
	body, err := a.ReadLogs(ctx, id, client.LogOptions{Tail: bundleLines})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, bundleLog))
}

// bundle collects files, without secrets.
type bundle struct {
	now     time.Time
	secrets []string
	files   map[string][]byte
	names   []string
	failed  []error
}

// minSecret is the length from which a value is hidden wherever it occurs; shorter ones would hide words.
const minSecret = 6

const leftOut = "(left out)"

func (b *bundle) hide(values ...string) {
	for _, v := range values {
		if len(v) >= minSecret {
			b.secrets = append(b.secrets, v)
		}
	}
}

// add adds an object as JSON, or text.
func (b *bundle) add(name string, o any, err error) {
	if err != nil {
		b.failed = append(b.failed, fmt.Errorf("%s: %w", name, err))
		return
	}
	text, ok := o.([]byte)
	if !ok {
		if text, err = withoutSecrets(o); err != nil {
			b.failed = append(b.failed, fmt.Errorf("%s: %w", name, err))
			return
		}
	}
	b.names = append(b.names, name)
	b.files[name] = text
}

// secretKeys are the members of objects whose values may be secret.
var secretKeys = []string{"environment", "cmd", "command", "files", "headers", "token", "data"}

func withoutSecrets(o any) ([]byte, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, inner := range v {
				if slices.Contains(secretKeys, k) {
					v[k] = leftOut
					continue
				}
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(tree)
	return json.MarshalIndent(tree, "", "  ")
}

// tokens matches JWTs, join tokens and bearer tokens.
var tokens = regexp.MustCompile(`eyJ[-_\w]+\.[-_\w]+\.[-_\w]+|TL1\.[-_\w.]+|(?i:bearer) +[-_.~+/\w]+`)

func (b *bundle) write(to io.Writer) error {
	slices.SortFunc(b.secrets, func(x, y string) int { return len(y) - len(x) }) // a secret may contain another
	zipped := gzip.NewWriter(to)
	archive := tar.NewWriter(zipped)
	for _, name := range b.names {
		text := string(b.files[name])
		for _, s := range b.secrets {
			text = strings.ReplaceAll(text, s, leftOut)
		}
		text = tokens.ReplaceAllString(text, leftOut)
		err := archive.WriteHeader(&tar.Header{Name: "treeline-bundle/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: b.now})
		if err == nil {
			_, err = io.WriteString(archive, text)
		}
		if err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}
