package wiring_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	daemons "github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// replicaOf is the environment variable with the store's URI when the test binary runs as a replica;
// replicaData has its data directory.
const (
	replicaOf   = "TREELINE_TEST_REPLICA_OF"
	replicaData = "TREELINE_TEST_REPLICA_DATA"
)

func TestMain(m *testing.M) {
	if uri := os.Getenv(replicaOf); uri != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err := wiring.Run(ctx, replicaConfig(uri, os.Getenv(replicaData)), slog.New(slog.NewTextHandler(os.Stderr, nil)))
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(daemons.ExitCode(err))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func replicaConfig(uri, dir string) wiring.Config {
	cfg := wiring.Defaults()
	cfg.Data, cfg.Listen, cfg.Replica, cfg.Store = dir, "127.0.0.1:0", true, daemons.Secret(uri)
	return cfg
}

// replica is a root as a process of its own, which starts again if it ends by itself, as its unit does.
type replica struct {
	t        *testing.T
	uri, dir string
	log      *os.File

	mu    sync.Mutex // guards all below
	cmd   *exec.Cmd  // nil: stopped
	ended chan struct{}
}

func startReplica(t *testing.T, uri, dir string) *replica {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	check(t, err)
	r := &replica{t: t, uri: uri, dir: dir, log: f}
	t.Cleanup(func() {
		r.end(syscall.SIGKILL)
		if b, _ := os.ReadFile(f.Name()); t.Failed() {
			t.Logf("the end of what the replica in %s said:\n%s", dir, b[max(0, len(b)-4096):])
		}
		_ = f.Close()
	})
	r.start()
	return r
}

func (r *replica) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.launch()
}

// launch starts the process. mu is held.
func (r *replica) launch() {
	self, err := os.Executable()
	check(r.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), replicaOf+"="+r.uri, replicaData+"="+r.dir)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	ended := make(chan struct{})
	check(r.t, cmd.Start())
	r.cmd, r.ended = cmd, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		time.Sleep(100 * time.Millisecond)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.cmd == cmd { // not after end, which may be called during the pause
			r.launch()
		}
	}()
}

// end ends the process and waits for it.
func (r *replica) end(s os.Signal) {
	r.mu.Lock()
	cmd, ended := r.cmd, r.ended
	r.cmd = nil
	r.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Signal(s)
		<-ended
	}
}

// get asks the replica without verifying who it is, which its clients do.
func (r *replica) get(path string) (status int, body string) {
	addr, err := os.ReadFile(filepath.Join(r.dir, wiring.AddressFile))
	if err != nil {
		return 0, ""
	}
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := c.Get("https://" + strings.TrimSpace(string(addr)) + path)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func (r *replica) active() bool {
	status, text := r.get("/readyz?verbose")
	return status == http.StatusOK && strings.Contains(text, "[+] role active ok")
}

// eventually waits for an event. The machine may be loaded, so that it waits long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 90s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// replicas is a pair with a client that asks whichever is active.
type replicas struct {
	t    *testing.T
	both []*replica
	tok  client.Tokens
}

// do repeats fn at the active replica until it returns nil.
func (p *replicas) do(what string, fn func(*client.Client) error) {
	p.t.Helper()
	var last error
	eventually(p.t, what, func() bool {
		for _, r := range p.both {
			pem, err := os.ReadFile(filepath.Join(r.dir, wiring.CAFile))
			addr, err2 := os.ReadFile(filepath.Join(r.dir, wiring.AddressFile))
			if err != nil || err2 != nil {
				continue
			}
			c, err := client.New(client.Options{URL: "https://" + strings.TrimSpace(string(addr)), CA: pem, Tokens: p.tok})
			check(p.t, err)
			last = fn(c)
			c.Close()
			if last == nil {
				return true
			}
		}
		return false
	})
}

func (p *replicas) tenant(name api.Tenant) {
	p.t.Helper()
	p.do("create tenant "+string(name), func(c *client.Client) error {
		err := c.CreateTenant(p.t.Context(), name, "")
		if errors.Is(err, api.ErrConflict) {
			return nil // an earlier attempt, whose answer was lost
		}
		return err
	})
}

// onlyActive returns the active replica and the other one.
func (p *replicas) onlyActive() (active, other *replica) {
	p.t.Helper()
	eventually(p.t, "one replica is active", func() bool {
		for i, r := range p.both {
			if r.active() {
				active, other = r, p.both[1-i]
				return true
			}
		}
		return false
	})
	return active, other
}

// Two processes share a store: the second serves its role and the URL of the first, and takes over
// with everything that was acknowledged when the first one is killed or stopped.
func TestReplicasTakeOver(t *testing.T) {
	uri := mongotest.URI(t)
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	p := &replicas{t: t, both: []*replica{startReplica(t, uri, one)}}
	eventually(t, "the first replica is active", p.both[0].active)
	p.do("first sign-in", func(c *client.Client) error {
		text, err := os.ReadFile(filepath.Join(one, wiring.SignInFile))
		if err != nil {
			return err
		}
		user, code, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		s, err := c.Redeem(t.Context(), api.Redeem{User: user, Code: code, Password: password})
		p.tok = client.Static(s.Access)
		return err
	})
	p.tenant("acme")
	p.do("apply", func(c *client.Client) error {
		_, err := c.Apply(t.Context(), []byte(sla), client.ApplyOptions{Tenant: "acme"})
		return err
	})

	// Without the keys, the second one would have other ones after a takeover.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := wiring.Run(ctx, replicaConfig(uri, two), slog.New(slog.DiscardHandler))
	if !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "copy root-ca.pem, token-keys.json and secrets.key") {
		t.Fatalf("a replica without keys: %v, want ErrNotFound that names the files", err)
	}
	for _, name := range []string{"root-ca.pem", "token-keys.json", "secrets.key"} {
		b, err := os.ReadFile(filepath.Join(one, name))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(two, name), b, 0o600))
	}
	p.both = append(p.both, startReplica(t, uri, two))
	var standby *replica
	eventually(t, "a standby that names the active replica", func() bool {
		_, standby = p.onlyActive()
		status, text := standby.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "role standby") && strings.Contains(text, "the active one is https://127.0.0.1:")
	})
	eventually(t, "a standby that refuses requests", func() bool {
		_, standby = p.onlyActive()
		status, text := standby.get("/v1/apps")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "standby replica")
	})

	// Writes go on while the active replica is killed, restarted and stopped.
	var acked []api.Tenant
	for round, signal := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		for i := range 5 {
			name := api.Tenant(fmt.Sprintf("t%d-%d", round, i))
			p.tenant(name)
			acked = append(acked, name)
		}
		active, other := p.onlyActive()
		active.end(signal)
		ended := time.Now()
		eventually(t, "the takeover", other.active)
		t.Logf("the takeover after %v took %v", signal, time.Since(ended))
		active.start()
	}
	p.do("read", func(c *client.Client) error {
		tenants, err := c.Tenants(t.Context())
		if err != nil {
			return err
		}
		for _, name := range acked {
			if !slices.ContainsFunc(tenants, func(i client.TenantInfo) bool { return i.Path == name }) {
				t.Errorf("tenant %s was acknowledged and is missing", name)
			}
		}
		_, err = c.App(t.Context(), "acme/shop.prod")
		return err
	})
}

// A root without replicas becomes the first replica with its documents, and then does not start
// without replica.
func TestAStoreMovesToReplicas(t *testing.T) {
	uri := mongotest.URI(t)
	dir := t.TempDir()
	alone := replicaConfig(uri, dir)
	alone.Replica = false
	d := startWith(t, alone)
	check(t, d.admin().CreateTenant(t.Context(), "acme", "Acme"))
	d.stop()

	// An earlier first replica was killed after it had moved one document.
	old, err := mongo.Open(t.Context(), uri, "root")
	check(t, err)
	var docs []store.Doc
	check(t, old.Retire(t.Context(), func(d store.Doc) error {
		d.Version = 1
		docs = append(docs, d)
		return nil
	}))
	check(t, old.Close())
	entries, leases, err := mongo.OpenLogs(t.Context(), uri, "root")
	check(t, err)
	killed, err := shared.New(entries, leases, shared.Options{Name: "https://killed", TTL: time.Minute}).Await(t.Context(), func(shared.Lease) {})
	check(t, err)
	moved := docs[slices.IndexFunc(docs, func(d store.Doc) bool { return d.Kind != "installation" })]
	check(t, killed.Save(t.Context(), []store.Doc{moved}))
	check(t, killed.Close())

	p := &replicas{t: t, both: []*replica{startReplica(t, uri, dir)}}
	p.do("sign in", func(c *client.Client) error {
		s, err := c.Login(t.Context(), api.Login{User: "admin", Password: password})
		p.tok = client.Static(s.Access)
		return err
	})
	p.do("read", func(c *client.Client) error {
		tenants, err := c.Tenants(t.Context())
		if err == nil && !slices.ContainsFunc(tenants, func(i client.TenantInfo) bool { return i.Path == "acme" }) {
			t.Errorf("the tenants are %+v, want acme", tenants)
		}
		return err
	})
	p.both[0].end(syscall.SIGTERM)
	if err := wiring.Run(t.Context(), alone, slog.New(slog.DiscardHandler)); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "set replica") {
		t.Errorf("without replica: %v, want ErrConflict that says what to do", err)
	}
}
