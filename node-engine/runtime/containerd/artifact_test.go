package containerd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// dockerRegistry starts Debian's registry and returns its host.
func dockerRegistry(t *testing.T) string {
	t.Helper()
	programtest.Need(t, "docker-registry")
	dir := t.TempDir()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, addr)
	if err := os.WriteFile(filepath.Join(dir, "config.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "config.yml"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return addr
		}
		if time.Now().After(end) {
			t.Fatalf("docker-registry does not listen: %v\n%s", err, out.String())
		}
	}
}

// contents returns the first bytes of the files of an artifact's layers.
func contents(t *testing.T, r *Runtime, code string) (map[string]string, runtime.Artifact, error) {
	t.Helper()
	w := newWorkload(0)
	w.Spec.Code, w.Spec.Virtualization = code, api.Unikernel
	files := map[string]string{}
	a, err := r.Artifact(t.Context(), w)
	if err == nil {
		err = a.Layers(t.Context(), func(layer io.Reader) error {
			for tr := tar.NewReader(layer); ; {
				h, err := tr.Next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				b, err := io.ReadAll(io.LimitReader(tr, 100))
				if err != nil {
					return err
				}
				files[h.Name] = string(b)
			}
		})
	}
	return files, a, err
}

// TestArtifactOfARegistry pushes an image with a kernel to a registry and reads its files from there. The
// image needs no program and no operating system of containers.
func TestArtifactOfARegistry(t *testing.T) {
	host := dockerRegistry(t)
	daemon := runtimetest.StartContainerd(t)
	archive := filepath.Join(t.TempDir(), "uk.tar")
	err := image.WriteFile(archive, image.Image{
		Ref: host + "/uk:1", Files: map[string][]byte{"boot/vmlinuz": []byte("a kernel"), "boot/initrd.img": []byte("an initrd")}, Cmd: []string{"serve"}, Env: []string{"A=b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(daemon.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := namespaces.WithNamespace(t.Context(), "push")
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := c.Import(ctx, f)
	if err != nil || len(all) != 1 {
		t.Fatalf("import the image: got %v, %v, want one", all, err)
	}
	plain := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchAllHosts))})
	if err := c.Push(ctx, host+"/uk:1", all[0].Target, client.WithResolver(plain)); err != nil {
		t.Fatal(err)
	}
	// A daemon of its own, which has nothing of the image.
	cfg := testConfig(t, runtimetest.StartContainerd(t), t.TempDir())
	cfg.Registries = []Registry{{Host: host, PlainHTTP: true}}
	r := openRuntime(t, cfg)
	files, a, err := contents(t, r, host+"/uk:1")
	if err != nil || files["boot/vmlinuz"] != "a kernel" || files["boot/initrd.img"] != "an initrd" {
		t.Errorf("files: got %v, %v, want the kernel and the initrd", files, err)
	}
	if fmt.Sprint(a.Args) != "[serve]" || !strings.Contains(fmt.Sprint(a.Env), "A=b") || a.Digest == "" {
		t.Errorf("configuration: got %v, %v, %q, want the arguments and the environment", a.Args, a.Env, a.Digest)
	}
	if _, _, err := contents(t, r, host+"/uk:2"); err == nil || runtime.Reason(err) != api.ReasonImageNotFound {
		t.Errorf("another tag: got %v, want image_not_found", err)
	}
}

// hostile serves a manifest for each name, and blobs that need not be what their digests say.
type hostile struct {
	manifests map[string][]byte
	blobs     map[string][]byte
}

func (h hostile) blob(mediaType string, b []byte) v1.Descriptor {
	d := digest.FromBytes(b)
	h.blobs[d.String()] = b
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
}

func (h hostile) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/v2/"), "/") // name, kind, reference
	if len(parts) != 3 {
		http.NotFound(w, req)
		return
	}
	b, ok := h.blobs[parts[2]]
	if parts[1] == "manifests" {
		b, ok = h.manifests[parts[0]]
		w.Header().Set("Content-Type", v1.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(b).String())
	}
	if !ok {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	if req.Method == http.MethodGet {
		_, _ = w.Write(b)
	}
}

// TestHostileArtifacts pulls artifacts whose metadata or content is not what it claims to be. Each fails
// with a reason, and none is read into memory without a bound.
func TestHostileArtifacts(t *testing.T) {
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	if err := errors.Join(tw.WriteHeader(&tar.Header{Name: "kernel", Mode: 0o644, Size: 6, Typeflag: tar.TypeReg}), func() error {
		_, err := tw.Write([]byte("kernel"))
		return err
	}(), tw.Close()); err != nil {
		t.Fatal(err)
	}
	var short bytes.Buffer
	z := gzip.NewWriter(&short)
	_, _ = z.Write(layer.Bytes())
	_ = z.Close()
	h := hostile{map[string][]byte{}, map[string][]byte{}}
	marshal := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	config := marshal(v1.Image{Platform: v1.Platform{OS: "qemu", Architecture: goruntime.GOARCH}})
	manifest := func(name string, config v1.Descriptor, layers ...v1.Descriptor) {
		h.manifests[name] = marshal(v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: config, Layers: layers})
	}
	good := h.blob(v1.MediaTypeImageConfig, config)
	tarball := func(b []byte) v1.Descriptor { return h.blob(v1.MediaTypeImageLayer, b) }
	manifest("good", good, tarball(layer.Bytes()))
	manifest("cut", good, h.blob(v1.MediaTypeImageLayerGzip, short.Bytes()[:short.Len()/2]))
	manifest("text", good, h.blob("text/plain", []byte(strings.Repeat("no archive ", 100))))
	manifest("config", h.blob(v1.MediaTypeImageConfig, []byte("[]")), tarball(layer.Bytes()))
	lie := tarball([]byte("something else"))
	h.blobs[lie.Digest.String()] = []byte("SOMETHING ELSE")
	manifest("lie", good, lie)
	long := tarball([]byte("longer than it says"))
	long.Size -= 5
	manifest("long", good, long)
	manifest("gone", good, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromString("gone"), Size: 4})
	large := append(append([]byte(`{"x":"`), bytes.Repeat([]byte("x"), maxMetadata)...), `"}`...)
	manifest("large-config", h.blob(v1.MediaTypeImageConfig, large), tarball(layer.Bytes()))
	manifest("large-unknown-config", h.blob("application/x", append(large, ' ')), tarball(layer.Bytes()))
	h.manifests["large-manifest"] = large
	h.manifests["no-manifest"] = []byte("text")
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	host := srv.Listener.Addr().String()
	cfg := testConfig(t, runtimetest.StartContainerd(t), t.TempDir())
	cfg.Registries = []Registry{{Host: host, PlainHTTP: true}}
	r := openRuntime(t, cfg)
	for _, c := range []struct {
		name string
		want api.Reason // empty: only an error of the layer's reader
		text string
	}{
		{"cut", "", "EOF"},
		{"text", "", "header"},
		{"config", api.ReasonImageBad, "cannot unmarshal"},
		{"lie", api.ReasonImageBad, "digest"},
		{"long", api.ReasonImageBad, "size"},
		{"gone", api.ReasonImageNotFound, ""},
		{"large-config", api.ReasonImageBad, "at most"},
		{"large-unknown-config", api.ReasonImageBad, "at most"},
		{"large-manifest", api.ReasonImageBad, "at most"},
		{"no-manifest", api.ReasonImageBad, ""},
	} {
		files, _, err := contents(t, r, host+"/"+c.name+":1")
		if err == nil || c.want != "" && runtime.Reason(err) != c.want || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, %v, want %s with %q", c.name, files, err, c.want, c.text)
		}
	}
	if files, _, err := contents(t, r, host+"/good:1"); err != nil || files["kernel"] != "kernel" {
		t.Errorf("an artifact that is as it says: got %v, %v", files, err)
	}
}
