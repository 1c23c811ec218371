package tiers

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
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
	"github.com/treeline-edge/treeline/cli/command"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	daemons "github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/internal/store/shared"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// The environment of the test binary when it runs as a replica: the store's URI, the data directory, the
// address, and the addresses of all replicas. The brokers' URLs and a join token make it a cluster.
const (
	replicaOf     = "TREELINE_TEST_REPLICA_OF"
	replicaData   = "TREELINE_TEST_REPLICA_DATA"
	replicaListen = "TREELINE_TEST_REPLICA_LISTEN"
	replicaAll    = "TREELINE_TEST_REPLICA_ALL"
	replicaBroker = "TREELINE_TEST_REPLICA_BROKER"
	replicaToken  = "TREELINE_TEST_REPLICA_TOKEN"
)

// runReplica runs the process as a replica if it is started as one.
func runReplica() {
	uri := os.Getenv(replicaOf)
	if uri == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir, listen, all := os.Getenv(replicaData), os.Getenv(replicaListen), strings.Fields(os.Getenv(replicaAll))
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var err error
	if broker := os.Getenv(replicaBroker); broker != "" {
		err = cluster.Run(ctx, clusterReplicaConfig(uri, dir, broker, os.Getenv(replicaToken), listen, all...), log)
	} else {
		err = root.Run(ctx, replicaConfig(uri, dir, listen, all...), log)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(daemons.ExitCode(err))
	}
	os.Exit(0)
}

func replicaConfig(uri, dir, listen string, all ...string) root.Config {
	cfg := root.Defaults()
	cfg.Data, cfg.Listen, cfg.Replica, cfg.Store, cfg.GossipListen = dir, listen, true, daemons.Secret(uri), "127.0.0.1:0"
	cfg.StandbyReads = true
	for _, a := range all {
		cfg.Replicas = append(cfg.Replicas, "https://"+a)
	}
	return cfg
}

// replica is a root or a cluster as a process of its own, which starts again if it ends by itself, as its unit does.
type replica struct {
	t        *testing.T
	uri, dir string
	all      []string // addresses of all replicas, its own first
	env      []string // besides
	log      *os.File

	mu    sync.Mutex // guards all below
	cmd   *exec.Cmd  // nil: stopped
	ended chan struct{}
}

func startReplica(t *testing.T, uri, dir string, all ...string) *replica {
	t.Helper()
	return startReplicaWith(t, nil, uri, dir, all...)
}

func startReplicaWith(t *testing.T, env []string, uri, dir string, all ...string) *replica {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	check(t, err)
	r := &replica{t: t, uri: uri, dir: dir, all: all, env: env, log: f}
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
	cmd.Env = append(os.Environ(), replicaOf+"="+r.uri, replicaData+"="+r.dir, replicaListen+"="+r.all[0], replicaAll+"="+strings.Join(r.all, " "))
	cmd.Env = append(cmd.Env, r.env...)
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

// process returns the present process, and what is closed after its end.
func (r *replica) process() (*os.Process, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cmd.Process, r.ended
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
	addr, err := os.ReadFile(filepath.Join(r.dir, root.AddressFile))
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

// age returns the age of a list of applications, "" if it has none.
func (r *replica) age(token, cacheControl string) string {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "https://"+r.all[0]+"/v1/apps", http.NoBody)
	check(r.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	if cacheControl != "" {
		req.Header.Set("Cache-Control", cacheControl)
	}
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	return resp.Header.Get("Age")
}

func (r *replica) active() bool {
	status, text := r.get("/readyz?verbose")
	return status == http.StatusOK && strings.Contains(text, "[+] role active ok")
}

// replicas is a pair with a client that asks whichever is active.
type replicas struct {
	t    *testing.T
	both []*replica
	tok  client.Tokens
}

// client returns a client of both, which begins at the first.
func (p *replicas) client() *client.Client {
	p.t.Helper()
	first := p.both[0]
	c, err := client.New(client.Options{
		URL: "https://" + first.all[0], CA: []byte(wait(p.t, filepath.Join(first.dir, root.CAFile))), Tokens: p.tok, Replicas: []string{"https://" + first.all[1]},
	})
	check(p.t, err)
	return c
}

// do repeats fn until it returns nil.
func (p *replicas) do(what string, fn func(*client.Client) error) {
	p.t.Helper()
	c := p.client()
	defer c.Close()
	eventually(p.t, what, func() bool { return fn(c) == nil })
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

// measureLateness returns a function that returns for how long, since then, this process waited for a
// processor in total.
func measureLateness() func() time.Duration {
	const tick = 10 * time.Millisecond
	done, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		var late time.Duration
		for {
			began := time.Now()
			select {
			case <-done:
				sum <- late
				return
			case <-time.After(tick):
				late += time.Since(began) - tick
			}
		}
	}()
	return func() time.Duration {
		close(done)
		return <-sum
	}
}

// treeline runs a command of the CLI and returns its exit code and what it wrote.
func (p *replicas) treeline(stdin string, args ...string) (code int, out string) {
	var text bytes.Buffer
	code = command.Main(p.t.Context(), args, command.IO{In: strings.NewReader(stdin), Out: &text, Err: &text, Now: time.Now, Env: func(string) string { return "" }})
	return code, text.String()
}

// copyKeys copies the files with the keys of a replica. With a secrets.key of another installation beside them, start must
// refuse the replica.
func copyKeys(t *testing.T, from, to string, start func() error, names ...string) {
	t.Helper()
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(from, name))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(to, name), b, 0o600))
	}
	name := filepath.Join(to, "secrets.key")
	right, err := os.ReadFile(name)
	check(t, err)
	check(t, os.Remove(name))
	dir, err := os.OpenRoot(to)
	check(t, err)
	defer dir.Close()
	_, err = seal.KeyFile(dir, "secrets.key", false) // creates it
	check(t, err)
	if err := start(); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "secrets.key in "+to+" is not the one of the replica at https://") {
		t.Errorf("a replica with another secrets.key: %v, want ErrConflict that names the file", err)
	}
	check(t, os.WriteFile(name, right, 0o600))
}

// Two processes share a store: the second serves its role and forwards requests to the first, and takes
// over with everything that was acknowledged when the first one is killed or stopped. A cluster and the
// CLI find the active one by themselves.
func TestReplicasTakeOver(t *testing.T) {
	uri := mongotest.URI(t)
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	addr1, err := freeport.Addr()
	check(t, err)
	addr2, err := freeport.Addr()
	check(t, err)
	p := &replicas{t: t, both: []*replica{startReplica(t, uri, one, addr1, addr2)}}
	eventually(t, "the first replica is active", p.both[0].active)

	// The CLI learns of the second replica when it signs in, and the cluster when it joins.
	config := filepath.Join(t.TempDir(), "config.yaml")
	wait(t, filepath.Join(one, root.SignInFile))
	if code, out := p.treeline("correct horse battery\n", "login", "https://"+addr1, "--user", "admin", "--code-file", filepath.Join(one, root.SignInFile),
		"--password-stdin", "--ca", filepath.Join(one, root.CAFile), "--config", config); code != 0 {
		t.Fatalf("login: %d %s", code, out)
	}
	if _, out := p.treeline("", "ctx", "show", "-o", "json", "--config", config); !strings.Contains(out, "https://"+addr2) {
		t.Errorf("the context is %s, want it to have the address %s of the second replica", out, addr2)
	}
	var joinToken string
	p.do("sign in", func(c *client.Client) error {
		s, err := c.Login(t.Context(), api.Login{User: "admin", Password: "correct horse battery"})
		p.tok = client.Static(s.Access)
		return err
	})
	p.do("join token", func(c *client.Client) error {
		tok, err := c.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
		joinToken = tok.Token
		return err
	})
	munich := newCluster(t, anchorOf(t, one), joinToken)
	munich.run(t)
	heard := func(after time.Time) {
		t.Helper()
		p.do("the cluster is connected", func(c *client.Client) error {
			m, err := c.Cluster(t.Context(), "munich")
			if err == nil && !m.Heard.After(after) {
				err = api.ErrUnavailable
			}
			return err
		})
	}
	heard(time.Time{})
	if saved := wait(t, filepath.Join(munich.cfg.Data, "cluster.json")); !strings.Contains(saved, "https://"+addr2) {
		t.Errorf("the cluster's credentials are %s, want them to have the address %s of the second replica", saved, addr2)
	}

	// Without the keys, the second one would have other ones after a takeover.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = root.Run(ctx, replicaConfig(uri, two, addr2), slog.New(slog.DiscardHandler))
	if !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "copy root-ca.pem, token-keys.json and secrets.key") {
		t.Fatalf("a replica without keys: %v, want ErrNotFound that names the files", err)
	}
	copyKeys(t, one, two, func() error {
		return root.Run(ctx, replicaConfig(uri, two, addr2), slog.New(slog.DiscardHandler))
	}, "root-ca.pem", "token-keys.json", "secrets.key")
	p.both = append(p.both, startReplica(t, uri, two, addr2, addr1))
	var standby *replica
	eventually(t, "a standby that names the active replica", func() bool {
		_, standby = p.onlyActive()
		status, text := standby.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "role standby") && strings.Contains(text, "the active one is https://127.0.0.1:")
	})
	eventually(t, "a standby that forwards requests of people", func() bool {
		_, standby = p.onlyActive()
		status, _ := standby.get("/v1/apps")
		return status == http.StatusUnauthorized
	})
	eventually(t, "a standby that refuses requests of clusters", func() bool {
		_, standby = p.onlyActive()
		status, text := standby.get("/v1/cluster/keys")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "standby replica")
	})
	eventually(t, "a standby with the metrics of its process, and the number of replicas at the active one", func() bool {
		var active *replica
		active, standby = p.onlyActive()
		mine, own := standby.get("/metrics")
		status, all := active.get("/metrics")
		return mine == http.StatusOK && strings.Contains(own, "process_start_time_seconds") &&
			status == http.StatusOK && strings.Contains(all, `treeline_replicas{state="alive"} 2`)
	})
	if code, out := p.treeline("", "tenant", "create", "acme", "--addr", "https://"+standby.all[0], "--config", config); code != 0 {
		t.Errorf("a command at the standby: %d %s", code, out)
	}

	token, err := p.tok.Token(t.Context(), "")
	check(t, err)
	eventually(t, "a standby that lists from its copy, and forwards what must be new", func() bool {
		_, standby = p.onlyActive()
		return standby.age(token, "") == "1" && standby.age(token, "no-cache") == "" && standby.age("unknown", "") == ""
	})

	shows := func(active, other *replica, state api.ReplicaState) {
		t.Helper()
		var all []api.Replica
		what := fmt.Sprintf("%s is active, and %s is %s", active.all[0], other.all[0], state)
		eventually(t, what, func() bool {
			_, out := p.treeline("", "get", "replicas", "-o", "json", "--config", config)
			var page api.Page[api.Replica]
			if err := json.Unmarshal([]byte(out), &page); err != nil {
				return false
			}
			all = page.Items
			var here, there api.Replica
			for _, r := range all {
				switch r.Name {
				case active.all[0]:
					here = r
				case other.all[0]:
					there = r
				}
			}
			return len(all) == 2 && here.Role == api.ReplicaActive && here.State == api.ReplicaAlive && there.State == state && there.Role != api.ReplicaActive
		})
	}

	// Numbered requests go on while the active replica is killed, restarted and stopped. None is repeated
	// by the test, so that those that are lost with their answer are not acknowledged.
	acked := []api.Tenant{"acme"}
	number := 0
	var slowest time.Duration // of the requests while a replica is active
	create := func() bool {
		number++
		name := fmt.Sprintf("t%d", number)
		began := time.Now()
		code, out := p.treeline("", "tenant", "create", name, "--config", config)
		if number <= 3 {
			slowest = max(slowest, time.Since(began))
		}
		if code == 0 {
			acked = append(acked, api.Tenant(name))
		} else {
			t.Logf("request %d is not acknowledged: %s", number, out)
		}
		return code == 0
	}
	for _, stop := range []struct {
		signal  os.Signal
		within  time.Duration
		becomes api.ReplicaState
	}{{syscall.SIGKILL, 5 * time.Second, api.ReplicaFailed}, {syscall.SIGTERM, time.Second, api.ReplicaLeft}} {
		for range 3 {
			create()
		}
		active, other := p.onlyActive()
		shows(active, other, api.ReplicaAlive)
		signal := stop.signal
		late := measureLateness()
		ended := time.Now()
		active.end(signal)
		eventually(t, "a request is acknowledged after the takeover", create)
		// On a machine that is too busy, everything takes longer: a takeover consists of some twenty requests
		// to the store, and of what waits for a processor meanwhile.
		took, busy := time.Since(ended), late()+20*slowest
		t.Logf("after %v, a request was acknowledged in %v; the machine may have added %v", signal, took, busy)
		if took > stop.within+busy {
			t.Errorf("after %v, a request was acknowledged in %v, want at most %v and the %v of a busy machine", signal, took, stop.within, busy)
		}
		if !other.active() {
			t.Errorf("a request was acknowledged, and the replica at %s is not active", other.all[0])
		}
		shows(other, active, stop.becomes)
		heard(ended)
		t.Logf("after %v, the cluster was connected in %v", signal, time.Since(ended))
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
		return nil
	})
}

// A root without replicas becomes the first replica with its documents, and then does not start
// without replica.
func TestAStoreMovesToReplicas(t *testing.T) {
	uri := mongotest.URI(t)
	r := startRoot(t, func(cfg *root.Config) { cfg.Store = daemons.Secret(uri) })
	alone, dir := r.cfg, r.cfg.Data
	check(t, r.admin.CreateTenant(t.Context(), "acme", "Acme"))
	r.stop()

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

	addr, err := freeport.Addr()
	check(t, err)
	unused, err := freeport.Addr()
	check(t, err)
	p := &replicas{t: t, both: []*replica{startReplica(t, uri, dir, addr, unused)}}
	eventually(t, "the replica is active", p.both[0].active)
	p.do("sign in", func(c *client.Client) error {
		s, err := c.Login(t.Context(), api.Login{User: "admin", Password: "correct horse battery"})
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
	if err := root.Run(t.Context(), alone, slog.New(slog.DiscardHandler)); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "set replica") {
		t.Errorf("without replica: %v, want ErrConflict that says what to do", err)
	}
}
