package artifact_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/artifact"
	"github.com/treeline-edge/treeline/internal/addon"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/programtest"
)

const shipped = "../../deploy/addons/mqtt"

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mqtt(t *testing.T) artifact.Artifact {
	t.Helper()
	p, err := artifact.ReadDirectory(shipped)
	check(t, err)
	a, err := artifact.New(p)
	check(t, err)
	return a
}

func TestTheShippedAddonIsValid(t *testing.T) {
	a := mqtt(t)
	f, err := addon.Fill(a.Package, nil)
	check(t, err)
	sla, err := api.ParseSLA(f.SLA)
	check(t, err)
	if s := sla.Applications[0].Services[0]; s.Code != "eclipse-mosquitto:2.0.22" || s.Memory != 64 || len(a.Package.Kinds) != 1 || len(a.Package.Resources) != 1 {
		t.Errorf("service %+v, kinds %v, resources %v", s, a.Package.Kinds, a.Package.Resources)
	}
}

func TestALayoutIsReadAsItWasWritten(t *testing.T) {
	a := mqtt(t)
	var first, second bytes.Buffer
	check(t, a.WriteLayout(&first))
	check(t, mqtt(t).WriteLayout(&second))
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same package makes two files")
	}
	b, err := artifact.ReadLayout(&first)
	check(t, err)
	if b.Digest() != a.Digest() || b.Package.Name != "mqtt" {
		t.Errorf("read %s of %q, want %s", b.Digest(), b.Package.Name, a.Digest())
	}
}

func TestHostileFilesAreRefused(t *testing.T) {
	a := mqtt(t)
	layout := func(change func(*tar.Header, []byte) []byte) *bytes.Buffer {
		var in, out bytes.Buffer
		check(t, a.WriteLayout(&in))
		r, w := tar.NewReader(&in), tar.NewWriter(&out)
		for h, err := r.Next(); err == nil; h, err = r.Next() {
			var data bytes.Buffer
			_, err := data.ReadFrom(r)
			check(t, err)
			text := change(h, data.Bytes())
			h.Size = int64(len(text))
			check(t, w.WriteHeader(h))
			_, err = w.Write(text)
			check(t, err)
		}
		check(t, w.Close())
		return &out
	}
	many := func() *bytes.Buffer {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for i := range 1000 {
			check(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeReg}))
		}
		check(t, w.Close())
		return &out
	}
	large := func() *bytes.Buffer {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		check(t, w.WriteHeader(&tar.Header{Name: "index.json", Typeflag: tar.TypeReg, Size: 8 << 20}))
		_, err := w.Write(make([]byte, 8<<20))
		check(t, err)
		return &out
	}
	for what, file := range map[string]*bytes.Buffer{
		"no archive":   bytes.NewBufferString(strings.Repeat("x", 2000)),
		"empty":        {},
		"many entries": many(),
		"large":        large(),
		"another layer": layout(func(h *tar.Header, b []byte) []byte {
			return bytes.Replace(b, []byte(`"name":"mqtt"`), []byte(`"name":"evil"`), 1)
		}),
		"another manifest": layout(func(h *tar.Header, b []byte) []byte {
			return bytes.Replace(b, []byte(`image.title":"mqtt"`), []byte(`image.title":"evil"`), 1)
		}),
		"a digest with a path": layout(func(h *tar.Header, b []byte) []byte {
			if h.Name == "index.json" {
				b = bytes.Replace(b, []byte(a.Digest().Encoded()), []byte("../../etc/passwd"), 1)
			}
			return b
		}),
	} {
		if _, err := artifact.ReadLayout(file); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
}

func TestHostileDirectoriesAreRefused(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.yaml")
	check(t, os.WriteFile(secret, []byte("kind: kind\nname: a\nschema: {}\n"), 0o600))
	for what, change := range map[string]func(dir string) error{
		"a link":         func(dir string) error { return os.Symlink(secret, filepath.Join(dir, "kinds", "a.yaml")) },
		"a linked part":  func(dir string) error { return os.Symlink(filepath.Dir(secret), filepath.Join(dir, "resources")) },
		"another file":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "run.sh"), nil, 0o600) },
		"another folder": func(dir string) error { return os.Mkdir(filepath.Join(dir, ".git"), 0o700) },
		"many files": func(dir string) error {
			var errs []error
			for i := range 200 {
				errs = append(errs, os.WriteFile(filepath.Join(dir, "kinds", fmt.Sprintf("k%d.yaml", i)), []byte("{}"), 0o600))
			}
			return errors.Join(errs...)
		},
		"a large file": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "sla.yaml"), bytes.Repeat([]byte("#\n"), 300<<10), 0o600)
		},
		"an alias bomb": func(dir string) error {
			text := "a: &a [x,x,x,x,x,x,x,x,x]\n"
			for c := 'b'; c < 'k'; c++ {
				text += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 8), c-1)
			}
			return os.WriteFile(filepath.Join(dir, "sla.yaml"), []byte(text), 0o600)
		},
		"an unknown key": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "addon.yaml"), []byte("name: a\nversion: 1.0.0\nhooks: []\n"), 0o600)
		},
	} {
		dir := t.TempDir()
		check(t, os.Mkdir(filepath.Join(dir, "kinds"), 0o700))
		check(t, os.WriteFile(filepath.Join(dir, "addon.yaml"), []byte("name: a\nversion: 1.0.0\n"), 0o600))
		check(t, change(dir))
		if _, err := artifact.ReadDirectory(dir); !errors.Is(err, api.ErrInvalid) && !errors.Is(err, api.ErrTooLarge) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
}

func TestARegistryKeepsArtifacts(t *testing.T) {
	programtest.Need(t, "docker-registry")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dir := t.TempDir()
	addr, err := freeport.Addr()
	check(t, err)
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, addr)
	check(t, os.WriteFile(filepath.Join(dir, "config.yml"), []byte(config), 0o600))
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "config.yml"))
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	a, ref, r := mqtt(t), addr+"/addons/mqtt:1.0.0", artifact.Registry{PlainHTTP: true}
	if _, err := (artifact.Registry{}).Push(t.Context(), ref, a); err == nil || !strings.Contains(err.Error(), "--plain-http") {
		t.Errorf("push without TLS: %v, want it refused with the flag that allows it", err)
	}
	at, err := r.Push(t.Context(), ref, a)
	check(t, err)
	if want := ref + "@" + a.Digest().String(); at != want {
		t.Errorf("pushed to %s, want %s", at, want)
	}
	for range 2 {
		_, err = r.Push(t.Context(), ref, a) // again
		check(t, err)
	}
	for _, from := range []string{ref, at, addr + "/addons/mqtt@" + a.Digest().String()} {
		b, _, err := r.Pull(t.Context(), from)
		check(t, err)
		if b.Digest() != a.Digest() || b.Package.Name != "mqtt" {
			t.Errorf("%s is %s of %q, want %s", from, b.Digest(), b.Package.Name, a.Digest())
		}
	}
	if _, _, err := r.Pull(t.Context(), addr+"/addons/none:1"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("pull what does not exist: %v, want ErrNotFound", err)
	}
}

func TestHostileRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a := mqtt(t)
	var manifest, layer []byte
	hang := make(chan struct{})
	var stuck bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if stuck {
			<-hang
			return
		}
		text := layer
		if strings.Contains(q.URL.Path, "/manifests/") {
			text = manifest
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", a.Digest().String())
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		if q.Method != http.MethodHead {
			_, _ = w.Write(text)
		}
	}))
	defer s.Close()
	defer close(hang)
	ref, r := strings.TrimPrefix(s.URL, "http://")+"/mqtt:1", artifact.Registry{PlainHTTP: true, Timeout: time.Minute}
	pull := func() error {
		_, _, err := r.Pull(t.Context(), ref)
		return err
	}
	manifest, layer = a.Manifest, a.Layer
	check(t, pull())
	manifest = bytes.Replace(a.Manifest, []byte("mqtt"), []byte("evil"), 1)
	if err := pull(); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a manifest with another digest: %v", err)
	}
	manifest, layer = a.Manifest, bytes.Replace(a.Layer, []byte("mqtt"), []byte("evil"), 1)
	if err := pull(); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a layer with another digest: %v", err)
	}
	manifest = bytes.Repeat([]byte(" "), 8<<20)
	if err := pull(); err == nil {
		t.Error("a large manifest is read")
	}
	var m map[string]any
	check(t, json.Unmarshal(a.Manifest, &m))
	m["layers"].([]any)[0].(map[string]any)["size"] = 1 << 40
	huge, err := json.Marshal(m)
	check(t, err)
	manifest = huge
	ref = strings.TrimPrefix(s.URL, "http://") + "/mqtt@" + digest.FromBytes(huge).String()
	if err := pull(); err == nil {
		t.Error("a layer of a terabyte is read")
	}
	stuck, r.Timeout = true, 200*time.Millisecond
	if err := pull(); !errors.Is(err, api.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a registry that does not answer: %v", err)
	}
}
