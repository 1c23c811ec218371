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
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// kept is a runtime that has workloads and images.
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

func (k *kept) List(context.Context) (all []runtime.Status, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.has {
		all = append(all, runtime.Status{Key: key})
	}
	return all, k.down
}

// Purge is runtime.Purger's.
func (k *kept) Purge(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.has) > 0 {
		return errors.New("a workload is there")
	}
	k.images = 0
	return nil
}

func (k *kept) left() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.has) + k.images
}

// purgeRig is a node that has joined, and its cluster's end.
type purgeRig struct {
	t   *testing.T
	cfg Config
	rt  *kept
	log *slog.Logger

	mu      sync.Mutex
	refuse  int           // calls of left that fail
	told    []string      // who has left
	had     []int         // and what its runtime had then
	failed  []string      // why purges failed
	refused chan struct{} // signalled when a call of left fails
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
			r.told, r.had = append(r.told, string(who.Node)), append(r.had, r.rt.left())
			w.WriteHeader(http.StatusNoContent)
		case "/v1/node/purge":
			var p wire.NodePurging
			_ = json.NewDecoder(req.Body).Decode(&p)
			r.failed = append(r.failed, p.Failed)
			_ = json.NewEncoder(w).Encode(wire.NodePurge{Purge: true})
		default:
			t.Errorf("%s is called", req.URL.Path)
		}
	}))
	srv.TLS = verifier.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.TLS(true), nil }, true)
	srv.TLS.Certificates = []tls.Certificate{*own.TLS(true)} // else httptest shows one of its own
	srv.StartTLS()
	t.Cleanup(srv.Close)

	r.cfg = Defaults()
	r.cfg.Data, r.cfg.Fake, r.cfg.DeviceDirs = filepath.Join(t.TempDir(), "node"), r.rt, nil
	dir, err := openData(r.cfg)
	check(err)
	defer dir.Close()
	check(clusterlink.SavePair(dir, ca.Pair{Chain: chain, Key: key}))
	meta, err := json.Marshal(clusterlink.Credentials{ID: "n1", Cluster: "munich", URL: srv.URL, Token: "0123456789ab"})
	check(err)
	check(dir.WriteFile("node.json", meta, 0o600))
	check(dir.MkdirAll("containerd/logs", 0o700))
	check(dir.WriteFile("containerd/logs/x.log", []byte("a tenant's words"), 0o600))
	return r
}

// isEmpty fails where the runtime or the data directory has anything of the node.
func (r *purgeRig) isEmpty() {
	r.t.Helper()
	if n := r.rt.left(); n > 0 {
		r.t.Errorf("the runtime still has %d workloads and images", n)
	}
	entries, err := os.ReadDir(r.cfg.Data)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != leftFile {
			r.t.Errorf("%s is left in the data directory", e.Name())
		}
	}
}

func TestPurgeLeavesNothing(t *testing.T) {
	r := newPurgeRig(t)
	r.cfg.File = filepath.Join(t.TempDir(), "node.yaml")
	r.cfg.Containerd.Registries = []RegistryConfig{{Host: "r.example", Username: "u", Password: "hunter2"}}
	text := "name: n1\ncontainerd:\n  registries:\n  - host: r.example\n    password: hunter2\n"
	if err := os.WriteFile(r.cfg.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
	if !slices.Equal(r.told, []string{"n1"}) || !slices.Equal(r.had, []int{0}) {
		t.Errorf("the cluster was told by %v, when %v were left", r.told, r.had)
	}
	got, err := os.ReadFile(r.cfg.File)
	if err != nil || strings.Contains(string(got), "hunter2") || !strings.Contains(string(got), "name: n1") {
		t.Errorf("the configuration is now %q, %v", got, err)
	}
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a second purge: %v", err)
	}
	r.cfg.Token = ""
	if err := Run(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Errorf("the engine of a purged node: %v", err)
	}
}

// TestPurgeOfTheClusterIsCompletedAfterACrash cuts a purge off while the cluster cannot
// take its acknowledgement: the keys stay until it can, and the next start goes on.
func TestPurgeOfTheClusterIsCompletedAfterACrash(t *testing.T) {
	r := newPurgeRig(t)
	dir, err := openData(r.cfg)
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
		t.Fatalf("the purge ended before the cluster refused: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("the cluster is not told")
	}
	cancel()
	if err := <-ended; err == nil || errors.Is(err, ErrLeft) {
		t.Fatalf("the purge that was cut off: %v", err)
	}
	if _, err := clusterlink.Load(dir); err != nil {
		t.Fatalf("the keys are gone before the cluster knows: %v", err)
	}
	if err := Run(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
	if len(r.told) != 1 {
		t.Errorf("the cluster was told %d times", len(r.told))
	}
	if !slices.ContainsFunc(r.failed, func(s string) bool { return s != "" }) {
		t.Error("the cluster does not know why it took longer")
	}
}

func TestProviderPurgesWithoutTheCluster(t *testing.T) {
	r := newPurgeRig(t)
	r.refuse = 1
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
	if len(r.told) != 0 {
		t.Errorf("the cluster was told by %v", r.told)
	}
}

func TestPurgeKeepsWhatItCannotDelete(t *testing.T) {
	r := newPurgeRig(t)
	r.rt.down = errors.New("it does not answer")
	if err := Purge(t.Context(), r.cfg, r.log); err == nil || errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), "it does not answer") {
		t.Fatalf("purge without the runtime: %v", err)
	}
	if len(r.told) != 0 {
		t.Error("the cluster removes a node that still has its workloads")
	}
	r.rt.down = nil
	if err := Purge(t.Context(), r.cfg, r.log); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	r.isEmpty()
}

// TestPurgeLeavesNoSecretInTheConfiguration: however the file is written, no part of a
// secret stays, and what is no secret stays where it can.
func TestPurgeLeavesNoSecretInTheConfiguration(t *testing.T) {
	cfg := Defaults()
	cfg.Token = "join-me"
	cfg.Containerd.Registries = []RegistryConfig{
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
				t.Errorf("%q becomes %q (%v), want %q", c.file, got, err, c.want)
			}
		})
	}
}
