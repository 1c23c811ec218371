package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/files"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestFilesInContainers looks at the files of real containers through their processes.
func TestFilesInContainers(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	text := "first"
	value := func() wire.Value {
		return wire.Value{Salt: []byte(text), Data: map[string][]byte{"password": []byte(text)}}
	}
	f, err := files.Open(files.Options{
		Dir: filepath.Join(t.TempDir(), "files"), OnDisk: true, Log: quiet, Signal: r.Signal,
		Fetch: func(context.Context, wire.WantValue) (wire.Value, error) { return value(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	refs := func(version uint64) []wire.ValueRef {
		return []wire.ValueRef{{Kind: api.KindSecret, Name: "db", Version: version, Digest: value().Digest()}}
	}
	w := newWorkload(0, "ignore-term")
	w.Spec.Files = []api.File{
		{Path: "/etc/app/password", Secret: "db", OnChange: "signal:SIGUSR1"},
		{Path: "/run/secrets/db", Secret: "db"},
		{Path: "/app.conf", Content: "number {{instance.number}}", Template: true, Mode: "0440"},
	}
	prepare := func(version uint64) {
		t.Helper()
		if w.Files, _, err = f.Prepare(t.Context(), w.Key, &w.Spec, refs(version)); err != nil {
			t.Fatal(err)
		}
	}
	prepare(1)
	start(t, r, w)
	inside := func(path string) string { return fmt.Sprintf("/proc/%d/root%s", pids(t, r)[w.Key], path) }
	// The links are absolute, so that the kernel resolves them in the test's own files.
	read := func(path string) string {
		t.Helper()
		target, err := os.Readlink(inside(path))
		if err != nil {
			t.Fatal(err)
		}
		version, err := os.Readlink(inside(filepath.Dir(target)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(inside(filepath.Join(filepath.Dir(filepath.Dir(target)), version, filepath.Base(target))))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for path, want := range map[string]string{"/etc/app/password": "first", "/run/secrets/db": "first", "/app.conf": "number 0"} {
		if got := read(path); got != want {
			t.Errorf("%s contains %q, want %q", path, got, want)
		}
	}
	if err := os.WriteFile(inside("/run/treeline/v1/0"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to a file in the container: %v, want a read-only file system", err)
	}

	// An update is visible without a restart.
	text = "second"
	prepare(2)
	if got := read("/run/secrets/db"); got != "second" {
		t.Errorf("after an update /run/secrets/db contains %q, want the new version", got)
	}
	if err := r.Signal(t.Context(), newWorkload(2).Key, syscall.SIGUSR1); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("signal a workload that does not exist: %v, want ErrNotFound", err)
	}
	exits := make(chan runtime.Exit, 4)
	go func() { _ = r.Watch(t.Context(), exits) }()
	if err := r.Signal(t.Context(), w.Key, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if e := <-exits; e.Key != w.Key || e.ExitCode == 0 || e.ExitCode == killedExitCode {
		t.Errorf("exit is %+v, want that of %s by SIGHUP", e, w.Key)
	}
	if err := r.Signal(t.Context(), w.Key, syscall.SIGUSR1); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("signal a workload that has ended: %v, want ErrNotFound", err)
	}

	// The container's record in containerd has no values.
	rec, err := r.find(r.ctx, runtime.ID(w.Key))
	if err != nil || rec.Files != nil || rec.Login != nil {
		t.Errorf("the record is %+v (%v), want one without files and account", rec, err)
	}
}

func TestFilesThatCannotBe(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc/dir", "run", "var"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	for link, to := range map[string]string{"var/run": "/run", "escape": outside, "up": "../../../../.." + outside, "absolute": "/etc"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"etc/file", "etc/other"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("of the image"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/etc/dir":       "directory in the image",
		"/etc/other/x":   "cannot be made",
		"/var/run/x/y":   "links its directory to /run",
		"/etc/file":      "",
		"/escape/x":      "",
		"/up/x":          "",
		"/absolute/y":    "",
		"/new/dir/there": "",
	} {
		err := linkFile(root, runtime.FileLink{Path: path, Target: "/run/treeline/data/0"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if all, err := os.ReadDir(outside); err != nil || len(all) > 0 {
		t.Errorf("a link of the image led to %v outside of it (%v)", all, err)
	}
	if to, err := os.Readlink(filepath.Join(root, "etc/y")); err != nil || to != "/run/treeline/data/0" {
		t.Errorf("a file below a link of the image: %q, %v", to, err)
	}
}

// TestAccountsOfTenants pulls with accounts of tenants: an image that one tenant may pull is not
// there for another.
func TestAccountsOfTenants(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	images := imageDir(t)
	reg := newRegistry(t, filepath.Join(images, "hello.tar"))
	cfg := testConfig(t, daemon, t.TempDir())
	cfg.Registries = []Registry{{Host: reg.host, PlainHTTP: true}}
	r := openRuntime(t, cfg)
	of := func(tenant api.Tenant, n int, password string) runtime.Workload {
		w := newWorkload(n, "sleep")
		w.Key.Instance = tenant.App("a", "b").Service("c", "d").Instance(n)
		w.Spec.Code = reg.host + "/hello:1"
		if password != "" {
			w.Login = &runtime.Login{Registry: reg.host, Username: "ann", Password: password}
		}
		return w
	}
	create := func(w runtime.Workload) error {
		t.Cleanup(func() { _ = r.Stop(context.Background(), w.Key, 0) })
		return r.Create(t.Context(), w)
	}
	if err := create(of("acme", 0, "wrong")); runtime.Reason(err) != api.ReasonImageDenied {
		t.Errorf("pull with a wrong password: %v, want %s", err, api.ReasonImageDenied)
	}
	if err := create(of("acme", 1, "secret")); err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]runtime.Workload{
		"without an account":   of("evil", 2, ""),
		"with a wrong account": of("evil", 3, "guess"),
	} {
		if err := create(w); runtime.Reason(err) != api.ReasonImageDenied {
			t.Errorf("another tenant %s: %v, want %s", name, err, api.ReasonImageDenied)
		}
	}
	named := of("evil", 4, "")
	named.Spec.Code = privatePrefix("acme") + reg.host + "/hello:1"
	if err := create(named); err == nil {
		t.Error("another tenant uses the image by its name in containerd")
	}
	reg.stop()
	if err := create(of("acme", 5, "secret")); err != nil {
		t.Errorf("the same tenant without the registry: %v, want the image that is there", err)
	}
}
