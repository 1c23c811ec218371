package wiring

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/yaml"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/csi"
	"github.com/treeline-edge/treeline/node-engine/files"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/volume"
)

var ErrLeft = errors.New("this machine has left its cluster, and the node's data is deleted")

// errOrdered ends the engine when its cluster has ordered the purge.
var errOrdered = errors.New("the cluster removes this node")

const (
	// purgeFile exists from the beginning of a purge until its end.
	purgeFile = "purge.json"
	// leftFile has the id of the token with which a purged node had joined. A configuration that
	// still has that token does not join the machine again.
	leftFile  = "left"
	storeFile = "node.db"
)

// purgeRecord is the content of purgeFile.
type purgeRecord struct {
	Ordered bool `json:"ordered,omitempty"` // by the cluster, which waits for an acknowledgement
	Told    bool `json:"told,omitempty"`    // the purge is acknowledged, or cannot be
}

// purgeBegun reports whether a purge has begun, with its record.
func purgeBegun(dir *os.Root) (rec purgeRecord, ok bool, err error) {
	text, err := dir.ReadFile(purgeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil {
		return rec, false, fmt.Errorf("read %s: %w", filepath.Join(dir.Name(), purgeFile), err)
	}
	return rec, true, nil
}

func (p purgeRecord) save(dir *os.Root) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return ca.WriteFile(dir, purgeFile, text, 0o600)
}

// awaitPurge asks the cluster whether to purge this node whenever the core reports that the node is
// empty, and returns errOrdered if so.
func (e *engine) awaitPurge(ctx context.Context) error {
	for {
		select {
		case <-e.empty:
		case <-ctx.Done():
			return nil
		}
		ordered, err := e.cluster.ShouldPurge(ctx, "")
		switch {
		case err != nil:
			if ctx.Err() == nil {
				e.log.Warn("cannot ask the cluster whether to purge this node", "err", err)
			}
		case ordered:
			if err := (purgeRecord{Ordered: true}).save(e.dir); err != nil {
				return err
			}
			e.log.Warn("deleting the data of this node, because the cluster removes it")
			return errOrdered
		}
	}
}

// Purge deletes everything that this machine has as a node: workloads, images, logs, keys, its data
// directory, and the secrets in its configuration file. It reports this to the cluster, which then
// removes the node. If the cluster ordered the purge, the keys are deleted only after it has
// received the report; otherwise Purge tries once. It completes a purge that was interrupted. It
// fails with ErrConflict while the engine runs, and returns ErrLeft when everything is deleted.
func Purge(ctx context.Context, cfg Config, log *slog.Logger) error {
	dir, err := daemon.OpenData(cfg.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	rec, resumed, err := purgeBegun(dir)
	if err != nil {
		return err
	}
	if !resumed && !clusterlink.Joined(dir) {
		return fmt.Errorf("this machine has not joined a cluster: no node in %s: %w", cfg.Data, api.ErrNotFound)
	}
	st, err := embedded.Open(filepath.Join(cfg.Data, storeFile)) // its lock detects a running engine
	if err != nil {
		return fmt.Errorf("purge this node: stop its engine first: %w", err)
	}
	defer st.Close()
	if err := rec.save(dir); err != nil {
		return err
	}
	creds, credsErr := clusterlink.Load(dir)
	p := &purge{cfg: cfg, dir: dir, log: log}
	if credsErr == nil {
		p.until = creds.Pair.Chain[0].NotAfter
		p.cluster = clusterlink.NewCluster(trust.New(creds.Pair.Roots()...), creds, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return creds.Pair.TLS(false), nil
		})
		defer p.cluster.HTTP.CloseIdleConnections()
	}
	if err := p.run(ctx, rec); err != nil {
		return err
	}
	if err := p.wipe(creds.Token); err != nil {
		return err
	}
	return ErrLeft
}

// purge is the state of a purge.
type purge struct {
	cfg     Config
	dir     *os.Root
	cluster *clusterlink.Cluster // nil: the node's keys are deleted
	until   time.Time            // expiry of the certificate, after which the purge cannot be acknowledged
	log     *slog.Logger
}

// The pauses between attempts of a purge that the cluster has ordered.
const (
	minPurgePause = time.Second
	maxPurgePause = time.Minute
)

// run removes everything from the runtime and acknowledges the purge to the cluster. It retries a
// purge that the cluster ordered until it succeeds. It tries one that the provider ordered once.
func (p *purge) run(ctx context.Context, rec purgeRecord) error {
	for pause := minPurgePause; !rec.Told; pause = min(2*pause, maxPurgePause) {
		err := p.runtime(ctx)
		switch {
		case err != nil:
		case p.cluster == nil || !time.Now().Before(p.until):
			p.log.Warn("purge not acknowledged to the cluster: the node has no valid certificate; its operator removes the node with treeline delete node")
		default:
			if err = p.cluster.ReportPurged(ctx); err != nil && !rec.Ordered && ctx.Err() == nil {
				p.log.Warn("purge not acknowledged to the cluster; its operator removes the node with treeline delete node", "err", err)
				err = nil
			}
		}
		switch {
		case err == nil:
			rec.Told = true
			return rec.save(p.dir)
		case !rec.Ordered || ctx.Err() != nil:
			return fmt.Errorf("purge this node: %w", err)
		}
		p.log.Error("purge incomplete, retrying", "err", err, "retry_in", pause)
		if p.cluster != nil {
			_, _ = p.cluster.ShouldPurge(ctx, err.Error()) // reports the error to the operator
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// runtime removes everything from the runtime.
func (p *purge) runtime(ctx context.Context) error {
	cfg := p.cfg
	var err error
	if cfg.Runtime, err = cfg.savedRuntime(p.dir); err != nil {
		return err
	}
	found, err := openDevices(cfg, p.log)
	if err != nil {
		return err
	}
	rt, err := openRuntime(cfg, found, p.log)
	if err != nil {
		return err
	}
	defer cfg.closeRuntime(rt)
	if err := runtime.Purge(ctx, rt); err != nil {
		return err
	}
	volumes, err := cfg.openCSI(csi.Options{Log: p.log})
	if err == nil && volumes != nil {
		err = volumes.Purge(ctx)
	}
	if err != nil {
		return err
	}
	return volume.Purge(cfg.volumesDir())
}

// wipe removes the secrets in the configuration file and all files of the data
// directory, the record of the purge last.
func (p *purge) wipe(token string) error {
	if err := p.cfg.wipeSecrets(); err != nil {
		return err
	}
	if p.cfg.FilesDir != "" {
		if err := files.Delete(p.cfg.filesDir()); err != nil {
			return fmt.Errorf("delete the files of workloads: %w", err)
		}
	}
	// The token's id is in the credentials. If token is empty because they are deleted, an
	// interrupted purge has already written the file.
	if _, err := p.dir.Stat(leftFile); token != "" || err != nil {
		if err := ca.WriteFile(p.dir, leftFile, []byte(token), 0o600); err != nil {
			return err
		}
	}
	entries, err := fs.ReadDir(p.dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("delete the node's data: %w", err)
	}
	for _, e := range entries {
		if e.Name() == purgeFile || e.Name() == leftFile {
			continue
		}
		if err := p.dir.RemoveAll(e.Name()); err != nil {
			return fmt.Errorf("delete the node's data: %w", err)
		}
	}
	if err := p.dir.Remove(purgeFile); err != nil {
		return fmt.Errorf("delete the node's data: %w", err)
	}
	return nil
}

var commentLine = regexp.MustCompile(`(?m)^\s*#.*$`)

var secretLine = regexp.MustCompile(`(?m)^(\s*(?:-\s+)?["']?(?:token|password)["']?\s*:).*$`)

// wipeSecrets removes the join token and the registries' passwords from the configuration file. It
// removes a file whose secrets cannot be found line by line.
func (c Config) wipeSecrets() error {
	if c.File == "" {
		return nil
	}
	text, err := os.ReadFile(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete the secrets in the configuration: %w", err)
	}
	if !c.hasSecrets(text) {
		return nil
	}
	if clean := secretLine.ReplaceAll(text, []byte(`$1 ""`)); c.hasSecrets(clean) {
		err = os.Remove(c.File)
	} else {
		err = os.WriteFile(c.File, clean, 0o600)
	}
	if err != nil {
		return fmt.Errorf("delete the secrets in the configuration: %w", err)
	}
	return nil
}

// hasSecrets reports whether a configuration file may contain a secret: a value of a key token or
// password, or the text of a secret anywhere. It is true for a file that is no valid YAML.
func (c Config) hasSecrets(file []byte) bool {
	secrets := []string{c.Token.Reveal()}
	for _, r := range c.Containerd.Registries {
		secrets = append(secrets, r.Password.Reveal())
		for _, m := range r.Mirrors {
			if u, err := url.Parse(m); err == nil {
				password, _ := u.User.Password()
				secrets = append(secrets, password)
			}
		}
	}
	has := func(text string) bool {
		return slices.ContainsFunc(secrets, func(s string) bool { return s != "" && strings.Contains(text, s) })
	}
	if has(string(file)) {
		return true
	}
	if len(bytes.TrimSpace(commentLine.ReplaceAll(file, nil))) == 0 {
		return false
	}
	text, err := yaml.ToJSON(file)
	if err != nil {
		return true
	}
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		return true
	}
	var within func(v any) bool
	within = func(v any) bool {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				if (key == "token" || key == "password") && value != "" && value != nil || within(value) {
					return true
				}
			}
		case []any:
			return slices.ContainsFunc(v, within)
		case string:
			return has(v)
		}
		return false
	}
	return within(doc)
}

// mayJoin fails with ErrLeft if the node was purged and there is no new token.
func (c Config) mayJoin(dir *os.Root) error {
	if clusterlink.Joined(dir) {
		return nil
	}
	last, err := dir.ReadFile(leftFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the token with which this machine joined: %w", err)
	}
	if c.Token == "" {
		return ErrLeft
	}
	t, err := jointoken.Parse(c.Token.Reveal())
	if err != nil {
		return err
	}
	if t.ID() == string(last) {
		return fmt.Errorf("%w: to join again, use a new token", ErrLeft)
	}
	return nil
}
