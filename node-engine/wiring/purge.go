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
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/yaml"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// ErrLeft is the error of a machine whose node was purged.
var ErrLeft = errors.New("this machine has left its cluster, and the node's data is deleted")

// errOrdered ends the engine when its cluster has ordered the purge.
var errOrdered = errors.New("the cluster removes this node")

const (
	// purgeFile exists while a purge has begun and is not complete. It is removed last.
	purgeFile = "purge.json"
	// leftFile has the id of the token with which a purged node had joined, so that the
	// same token left in the configuration does not join the machine again.
	leftFile  = "left"
	storeFile = "node.db"
)

// purgeRecord is what purgeFile holds.
type purgeRecord struct {
	Ordered bool `json:"ordered,omitempty"` // by the cluster, which waits for the acknowledgement
	Told    bool `json:"told,omitempty"`    // the purge is acknowledged, or cannot be
}

// begun reads whether a purge has begun.
func begun(dir *os.Root) (rec purgeRecord, ok bool, err error) {
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

// awaitPurge asks the cluster for the order to purge whenever the core reports that the
// node is empty, and ends the engine (errOrdered) on that order.
func (e *engine) awaitPurge(ctx context.Context, dir *os.Root) error {
	for {
		select {
		case <-e.empty:
		case <-ctx.Done():
			return nil
		}
		ordered, err := clusterlink.Purging(ctx, e.client, e.creds.URL, "")
		switch {
		case err != nil:
			if ctx.Err() == nil {
				e.log.Warn("order to purge this node cannot be confirmed with the cluster", "err", err)
			}
		case ordered:
			if err := (purgeRecord{Ordered: true}).save(dir); err != nil {
				return err
			}
			e.log.Warn("the cluster removes this node, and its data is deleted")
			return errOrdered
		}
	}
}

// Purge deletes all that this machine has as a node: workloads, images, logs, its keys
// and its data directory, and the secrets in its configuration file. The cluster is
// told, so that it removes the node. One that ordered the purge is told before the
// keys go, however long that takes; else one attempt is made. A purge that was cut off
// is completed by the next. The engine must not run (ErrConflict). It returns ErrLeft
// when nothing is left.
func Purge(ctx context.Context, cfg Config, log *slog.Logger) error {
	dir, err := openData(cfg)
	if err != nil {
		return err
	}
	defer dir.Close()
	rec, resumed, err := begun(dir)
	if err != nil {
		return err
	}
	if !resumed && !clusterlink.Joined(dir) {
		return fmt.Errorf("this machine has not joined a cluster: there is no node in %s: %w", cfg.Data, api.ErrNotFound)
	}
	st, err := embedded.Open(filepath.Join(cfg.Data, storeFile)) // its lock keeps an engine away
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
		p.client, p.url = clusterlink.Client(trust.New(creds.Pair.Root()), creds, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return creds.Pair.TLS(false), nil
		}), creds.URL
		defer p.client.CloseIdleConnections()
	}
	if err := p.run(ctx, rec); err != nil {
		return err
	}
	if err := p.wipe(creds.Token); err != nil {
		return err
	}
	return ErrLeft
}

// purge is one purge.
type purge struct {
	cfg    Config
	dir    *os.Root
	client *http.Client // nil: the node's keys are gone
	url    string
	until  time.Time // end of the node's certificate, after which the purge cannot be acknowledged
	log    *slog.Logger
}

// The pauses between attempts of a purge that the cluster has ordered.
const (
	purgeAgain = time.Second
	purgeSlow  = time.Minute
)

// run removes what the runtime has and acknowledges the purge to the cluster. A purge that
// the cluster ordered is tried until it succeeds, one of the provider once.
func (p *purge) run(ctx context.Context, rec purgeRecord) error {
	for pause := purgeAgain; !rec.Told; pause = min(2*pause, purgeSlow) {
		err := p.runtime(ctx)
		switch {
		case err != nil:
		case p.client == nil || !time.Now().Before(p.until):
			p.log.Warn("purge not acknowledged to the cluster: the node has no valid certificate; its operator removes the node with treeline delete node")
		default:
			if err = clusterlink.Left(ctx, p.client, p.url); err != nil && !rec.Ordered && ctx.Err() == nil {
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
		p.log.Error("purge is not complete and is tried again", "err", err, "retry_in", pause)
		if p.client != nil {
			_, _ = clusterlink.Purging(ctx, p.client, p.url, err.Error()) // reports the error to the operator
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// runtime removes all that the runtime has.
func (p *purge) runtime(ctx context.Context) error {
	cfg := p.cfg
	var err error
	if cfg.Runtime, err = cfg.keptRuntime(p.dir); err != nil {
		return err
	}
	found, err := openDevices(cfg, p.log)
	if err != nil {
		return err
	}
	rt, closeRuntime, err := runtimeOf(cfg, found, p.log)
	if err != nil {
		return err
	}
	defer closeRuntime()
	return runtime.Purge(ctx, rt)
}

// wipe removes the secrets in the configuration file and all files of the data
// directory, the record of the purge last.
func (p *purge) wipe(token string) error {
	if err := p.cfg.wipeSecrets(); err != nil {
		return err
	}
	// Before the credentials, which have the token's id, go. It was kept before a crash
	// where these are gone.
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

// commentLine is a line of a configuration file that is only a comment.
var commentLine = regexp.MustCompile(`(?m)^\s*#.*$`)

// secretLine is a line of a configuration file that has a secret.
var secretLine = regexp.MustCompile(`(?m)^(\s*(?:-\s+)?["']?(?:token|password)["']?\s*:).*$`)

// wipeSecrets removes the join token and the registries' passwords from the
// configuration file. A file that is written so that they are not found by line is
// removed.
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

// hasSecrets reports whether a configuration file has a secret, however it is written:
// as the value of a key for one, or the text of one anywhere. One that cannot be read as
// YAML may have any.
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

// mayJoin refuses to join again with the token of a node that was purged (ErrLeft).
func (c Config) mayJoin(dir *os.Root) error {
	if clusterlink.Joined(dir) {
		return nil
	}
	last, err := dir.ReadFile(leftFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which token this machine joined with: %w", err)
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
