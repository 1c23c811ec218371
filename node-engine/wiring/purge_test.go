package wiring

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
)

// kept is a fake runtime with workloads and images.
type kept struct {
	mu     sync.Mutex
	has    []wire.Key
	images int
	down   error
}

func (k *kept) Info(context.Context) (runtime.Info, error) { return runtime.Info{}, nil }

func (k *kept) Create(context.Context, runtime.Workload) error { return errors.ErrUnsupported }

func (k *kept) Start(context.Context, wire.Key) error                  { return errors.ErrUnsupported }
func (k *kept) Watch(ctx context.Context, _ chan<- runtime.Exit) error { <-ctx.Done(); return nil }
func (k *kept) Logs(context.Context, wire.Key, int, bool) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}
func (k *kept) Close() error { return nil }

func (k *kept) Stop(_ context.Context, key wire.Key, _ time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.has = slices.DeleteFunc(k.has, func(have wire.Key) bool { return have == key })
	return nil
}

func (k *kept) Kill(context.Context, wire.Key, time.Duration) error { return nil }

func (k *kept) List(context.Context) (all []runtime.Status, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.has {
		all = append(all, runtime.Status{Key: key})
	}
	return all, k.down
}

// Purge implements runtime.Purger.
func (k *kept) Purge(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.has) > 0 {
		return errors.New("a workload is left")
	}
	k.images = 0
	return nil
}

func (k *kept) left() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.has) + k.images
}

// purgeRig is a node that has joined, and a fake of its cluster.
type purgeRig struct {
	t   *testing.T
	cfg Config
	rt  *kept
	log *slog.Logger

	mu      sync.Mutex
	refuse  int           // number of requests to /v1/node/left to fail
	left    []string      // nodes that reported that they were purged
	had     []int         // what their runtimes had then
	failed  []string      // reported errors of purges
	refused chan struct{} // signalled when a request to /v1/node/left fails
}

func newPurgeRig(t *testing.T) *purgeRig {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	r := &purgeRig{
		t: t, rt: &kept{images: 2}, log: slog.New(slog.DiscardHandler), refused: make(chan struct{}, 8),
	}
	for i := range 3 {
		r.rt.has = append(r.rt.has, wire.Key{Instance: api.ServiceID("acme/shop.prod.web.prod").Instance(i), Epoch: 1})
	}
	now := time.Now()
	root, err := ca.NewRoot(now)
	check(err)
	key, csr, err := ca.NewRequest()
	check(err)
	chain, err := root.SignCluster(now, csr, "munich")
	check(err)
	munich, err := ca.New(ca.Pair{Chain: chain, Key: key})
	check(err)
	key, csr, err = ca.NewRequest()
	check(err)
	chain, err = munich.SignOwn(now, csr, "127.0.0.1")
	check(err)
	own := ca.Pair{Chain: chain, Key: key}
	key, csr, err = ca.NewRequest()
	check(err)
	chain, err = munich.SignNode(now, csr, "n1")
	check(err)
	verifier := trust.New(root.Root())
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		who, err := verifier.Peer(*req.TLS)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		switch req.URL.Path {
		case "/v1/node/left":
			if r.refuse > 0 {
				r.refuse--
				r.refused <- struct{}{}
				http.Error(w, "later", http.StatusServiceUnavailable)
				return
			}
			r.left, r.had = append(r.left, string(who.Node)), append(r.had, r.rt.left())
			w.WriteHeader(http.StatusNoContent)
		case "/v1/node/purge":
			var p wire.NodePurging
			_ = json.NewDecoder(req.Body).Decode(&p)
			r.failed = append(r.failed, p.Failed)
			_ = json.NewEncoder(w).Encode(wire.NodePurge{Purge: true})
		default:
			t.Errorf("request to %s, want none", req.URL.Path)
		}
	}))
	srv.TLS = verifier.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.TLS(true), nil }, true)
	srv.TLS.Certificates = []tls.Certificate{*own.TLS(true)} // otherwise httptest uses its own
	srv.StartTLS()
	t.Cleanup(srv.Close)

	r.cfg = Defaults()
	r.cfg.Data, r.cfg.Fake, r.cfg.DeviceDirs = filepath.Join(t.TempDir(), "node"), r.rt, nil
	dir, err := daemon.OpenData(r.cfg.Data)
	check(err)
	defer dir.Close()
	check(clusterlink.SavePair(dir, ca.Pair{Chain: chain, Key: key}))
	meta, err := json.Marshal(clusterlink.Credentials{ID: "n1", Cluster: "munich", URL: srv.URL, Token: "0123456789ab"})
	check(err)
	check(dir.WriteFile("node.json", meta, 0o600))
	check(dir.MkdirAll("containerd/logs", 0o700))
	check(dir.WriteFile("containerd/logs/x.log", []byte("output of a tenant"), 0o600))
	return r
}

// isEmpty fails the test if the runtime or the data directory has anything of the node.
func (r *purgeRig) isEmpty() {
	r.t.Helper()
	if n := r.rt.left(); n > 0 {
		r.t.Errorf("workloads and images in the runtime: got %d, want none", n)
	}
	entries, err := os.ReadDir(r.cfg.Data)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != leftFile {
			r.t.Errorf("data directory: got %s, want only %s", e.Name(), leftFile)
		}
	}
}

func TestPurgeDeletesEverything(t *testing.T) {
	r := newPurgeRig(t)
	r.cfg.File = filepath.Join(t.TempDir(), "node.yaml")
	r.cfg.Containerd.Registries = []containerd.Registry{{Host: "r.example", Username: "u", Password: "hunter2"}}
	text := "name: n1\ncontainerd:\n  registries:\n  - host: r.example\n    password: hunter2\n"
	if err := os.WriteFile(r.cfg.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
	if !slices.Equal(r.left, []string{"n1"}) || !slices.Equal(r.had, []int{0}) {
		t.Errorf("reports to the cluster: got %v with %v workloads and images left, want one of n1 with none", r.left, r.had)
	}
	got, err := os.ReadFile(r.cfg.File)
	if err != nil || strings.Contains(string(got), "hunter2") || !strings.Contains(string(got), "name: n1") {
		t.Errorf("configuration: got %q, %v, want it without the password", got, err)
	}
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("second purge: got %v, want ErrNotFound", err)
	}
	r.cfg.Token = ""
	if err := Run(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Errorf("Run of a purged node: got %v, want ErrLeft", err)
	}
}

// TestOrderedPurgeIsCompletedAfterACrash interrupts a purge while the cluster rejects its
// acknowledgement: the keys are kept, and the next start continues.
func TestOrderedPurgeIsCompletedAfterACrash(t *testing.T) {
	r := newPurgeRig(t)
	dir, err := daemon.OpenData(r.cfg.Data)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := (purgeRecord{Ordered: true}).save(dir); err != nil {
		t.Fatal(err)
	}
	r.refuse = 2
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, r.cfg, r.log) }()
	select {
	case <-r.refused:
	case err := <-ended:
		t.Fatalf("Run returned %v, want it to wait for the cluster", err)
	case <-time.After(30 * time.Second):
		t.Fatal("no report to the cluster within 30 s")
	}
	cancel()
	if err := <-ended; err == nil || errors.Is(err, ErrLeft) {
		t.Fatalf("interrupted purge: got %v, want another error than ErrLeft", err)
	}
	if _, err := clusterlink.Load(dir); err != nil {
		t.Fatalf("keys before the cluster acknowledged: got %v, want them", err)
	}
	if err := Run(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
	if len(r.left) != 1 {
		t.Errorf("reports to the cluster: got %d, want 1", len(r.left))
	}
	if !slices.ContainsFunc(r.failed, func(s string) bool { return s != "" }) {
		t.Error("reported errors: got none, want one")
	}
}

func TestProvidersPurgeNeedsNoCluster(t *testing.T) {
	r := newPurgeRig(t)
	r.refuse = 1
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
	if len(r.left) != 0 {
		t.Errorf("reports to the cluster: got %v, want none", r.left)
	}
}

func TestPurgeFailsWithoutTheRuntime(t *testing.T) {
	r := newPurgeRig(t)
	r.rt.down = errors.New("it does not answer")
	if err := Purge(t.Context(), r.cfg, r.log); err == nil || errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), "it does not answer") {
		t.Fatalf("purge without the runtime: got %v, want its error", err)
	}
	if len(r.left) != 0 {
		t.Error("reports to the cluster: got one of a node with workloads, want none")
	}
	r.rt.down = nil
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
}

// TestPurgeRemovesSecretsFromTheConfiguration: no part of a secret is left, and the rest is kept if
// possible.
func TestPurgeRemovesSecretsFromTheConfiguration(t *testing.T) {
	cfg := Defaults()
	cfg.Token = "join-me"
	cfg.Containerd.Registries = []containerd.Registry{
		{Host: "r.example", Password: `hun"ter2`}, {Host: "m.example", Mirrors: []string{"https://u:mirror-me@m2.example"}},
	}
	for name, c := range map[string]struct{ file, want string }{
		"plain":                       {"name: n1\ntoken: join-me\n", "name: n1\ntoken: \"\"\n"},
		"in a list":                   {"containerd:\n  registries:\n  - password: 'hun\"ter2'\n    host: r.example\n", "containerd:\n  registries:\n  - password: \"\"\n    host: r.example\n"},
		"escaped":                     {"name: n1\npassword: \"hun\\\"ter2\"\n", "name: n1\npassword: \"\"\n"},
		"quoted key":                  {"name: n1\n\"token\": join-me\n", "name: n1\n\"token\": \"\"\n"},
		"of an earlier configuration": {"name: n1\npassword: older\n", "name: n1\npassword: \"\"\n"},
		"flow style":                  {"{name: n1, token: join-me}\n", ""},
		"flow style, escaped":         {"{name: n1, password: \"hun\\x22ter2\"}\n", ""},
		"block":                       {"name: n1\ntoken: |\n  join-me\n", ""},
		"over two lines, escaped":     {"name: n1\npassword: \"hun\\\n  \\x22ter2\"\n", ""},
		"within another value":        {"name: n1\nmirrors: [\"https://u:mirror-me@m2.example\"]\n", ""},
		"within a comment":            {"name: n1 # was join-me\n", ""},
		"none":                        {"name: n1\n# token: \"\"\n", "name: n1\n# token: \"\"\n"},
		"nothing":                     {"", ""},
		"not YAML":                    {"name: [n1\n", ""},
		"only comments":               {"# the node's id\n#name: \"\"\n", "# the node's id\n#name: \"\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.File = filepath.Join(t.TempDir(), "node.yaml")
			if err := os.WriteFile(cfg.File, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := cfg.wipeSecrets(); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(cfg.File)
			if err != nil && !errors.Is(err, fs.ErrNotExist) || string(got) != c.want {
				t.Errorf("wipeSecrets of %q: got %q (%v), want %q", c.file, got, err, c.want)
			}
		})
	}
}
