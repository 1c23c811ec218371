package containerd

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestRegistry pulls from a registry that works and one that fails: failures have a reason, and
// concurrent pulls of one image are one pull.
func TestRegistry(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	reg := newRegistry(t, filepath.Join(imageDir(t), "hello.tar"))
	gone := httptest.NewServer(nil)
	gone.Close()
	openWith := func(t *testing.T, regs ...Registry) *Runtime {
		daemon := daemon
		if strings.HasSuffix(t.Name(), "Flipped") {
			// containerd does not fetch content that it has in another namespace.
			daemon = runtimetest.StartContainerd(t)
		}
		cfg := testConfig(t, daemon, t.TempDir())
		cfg.Registries = regs
		return openRuntime(t, cfg)
	}
	plain := Registry{Host: reg.host, PlainHTTP: true, Username: "ann", Password: "secret"}
	pull := func(t *testing.T, r *Runtime, n int, code string) error {
		w := newWorkload(n, "sleep")
		w.Spec.Code = code
		t.Cleanup(func() {
			if err := r.Stop(context.Background(), w.Key, 0); err != nil {
				t.Error(err)
			}
		})
		return r.Create(t.Context(), w)
	}

	t.Run("OnePullForMany", func(t *testing.T) {
		r := openWith(t, plain)
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				if err := pull(t, r, n, reg.host+"/hello:1"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for path, n := range reg.gets() {
			if strings.Contains(path, "/blobs/") && n != 1 {
				t.Errorf("requests for %s: got %d, want 1", path, n)
			}
		}
		for n := range 8 {
			if err := r.Stop(t.Context(), newWorkload(n).Key, 0); err != nil {
				t.Error(err)
			}
		}
	})
	for _, c := range []struct {
		name, code string
		reg        Registry
		want       api.Reason
	}{
		{"NoSuchImage", reg.host + "/nothing:1", plain, api.ReasonImageNotFound},
		{"WrongPassword", reg.host + "/hello:1", Registry{Host: reg.host, PlainHTTP: true, Username: "ann", Password: "x"}, api.ReasonImageDenied},
		{"NoPassword", reg.host + "/hello:1", Registry{Host: reg.host, PlainHTTP: true}, api.ReasonImageDenied},
		{"Down", gone.Listener.Addr().String() + "/hello:1", Registry{Host: gone.Listener.Addr().String(), PlainHTTP: true}, api.ReasonRegistryDown},
		{"Broken", reg.host + "/broken:1", plain, api.ReasonRegistryDown},
		{"Flipped", reg.host + "/flipped:1", plain, api.ReasonImageBad},
		{"NotNamedByTheOperator", reg.host + "/hello:1", Registry{}, api.ReasonRegistryDown},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := pull(t, openWith(t, c.reg), 0, c.code)
			if err == nil || runtime.Reason(err) != c.want {
				t.Fatalf("pull: got %v, want %s", err, c.want)
			}
			t.Log(err)
		})
	}
	t.Run("Mirror", func(t *testing.T) {
		r := openWith(t, Registry{Host: "registry.invalid", Mirrors: []string{"http://" + reg.host + "/open"}})
		if err := pull(t, r, 0, "registry.invalid/hello:1"); err != nil {
			t.Error(err)
		}
		if err := r.Stop(t.Context(), newWorkload(0).Key, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestImagesAreCollected reports a full disk: unused images are removed, used ones are kept.
func TestImagesAreCollected(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	cfg.UnusedFor = time.Nanosecond
	r := openRuntime(t, cfg)
	w := run(t, r, 0, "sleep")
	full := 50
	r.diskUsed = func(string) (int, error) { return full, nil }
	count := func() int {
		if err := r.Housekeep(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := r.c.ImageService().List(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := count(); n != 1 {
		t.Fatalf("images while the disk is not full: got %d, want 1", n)
	}
	full = 99
	if n := count(); n != 1 {
		t.Fatalf("images while one is in use: got %d, want 1", n)
	}
	if err := r.Stop(t.Context(), w.Key, 0); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("images on a full disk: got %d, want none", n)
	}
}

func TestUnusedImagesInOrder(t *testing.T) {
	now := time.Now()
	img := func(name string, age time.Duration) images.Image {
		return images.Image{Name: name, Labels: map[string]string{usedLabel: now.Add(-age).Format(time.RFC3339)}}
	}
	all := []images.Image{img("young", time.Minute), img("old", 3*time.Hour), img("used", 9*time.Hour), img("older", 5*time.Hour)}
	var got []string
	for _, i := range unused(all, map[string]bool{"used": true}, now.Add(-time.Hour)) {
		got = append(got, i.Name)
	}
	if fmt.Sprint(got) != "[older old]" {
		t.Errorf("unused images: got %v, want [older old]", got)
	}
}

// registry serves one archive as hello:1 with a password, and below /open without. It serves it
// damaged under other names.
type registry struct {
	host     string
	blobs    map[string][]byte
	manifest v1.Descriptor
	stop     func()

	mu    sync.Mutex // guards count
	count map[string]int
}

func newRegistry(t *testing.T, archive string) *registry {
	t.Helper()
	g := &registry{blobs: make(map[string][]byte), count: make(map[string]int)}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "index.json" {
			var index v1.Index
			if err := json.Unmarshal(b, &index); err != nil {
				t.Fatal(err)
			}
			g.manifest = index.Manifests[0]
		}
		if hex, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok {
			g.blobs["sha256:"+hex] = b
		}
	}
	srv := httptest.NewServer(g)
	t.Cleanup(srv.Close)
	g.stop = srv.Close
	g.host = srv.Listener.Addr().String()
	return g
}

func (g *registry) gets() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

func (g *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path, free := strings.CutPrefix(req.URL.Path, "/open")
	if user, password, _ := req.BasicAuth(); !free && (user != "ann" || password != "secret") {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	parts := strings.Split(strings.TrimPrefix(path, "/v2/"), "/") // name, kind, reference
	if len(parts) != 3 || parts[0] == "nothing" {
		http.NotFound(w, req)
		return
	}
	if parts[0] == "broken" {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	digest := parts[2]
	if parts[1] == "manifests" {
		digest = string(g.manifest.Digest)
		w.Header().Set("Content-Type", g.manifest.MediaType)
		w.Header().Set("Docker-Content-Digest", digest)
	}
	b, ok := g.blobs[digest]
	if !ok {
		http.NotFound(w, req)
		return
	}
	if parts[0] == "flipped" && parts[1] == "blobs" {
		b = append([]byte("X"), b[1:]...)
	}
	if req.Method == http.MethodGet && parts[0] == "hello" && !free {
		g.mu.Lock()
		g.count[req.URL.Path]++
		g.mu.Unlock()
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	if req.Method == http.MethodGet {
		_, _ = w.Write(b)
	}
}

// TestDiskIsThatOfContainerdsRoot measures the disk of the directory that containerd exports.
func TestDiskIsThatOfContainerdsRoot(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	var asked string
	r.diskUsed = func(dir string) (int, error) {
		asked = dir
		return diskUsed(dir)
	}
	if err := r.Housekeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(asked, daemon.Dir+"/root/") {
		t.Errorf("measured disk: got %s, want that of %s/root", asked, daemon.Dir)
	}
	daemon.Kill()
	if again := Root(t.Context(), r.cfg); again != asked {
		t.Errorf("Root while containerd does not run: got %s, want %s", again, asked)
	}
}
