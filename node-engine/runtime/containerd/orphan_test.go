package containerd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestShimsWithoutContainersAreEnded kills containerd after a shim was started for a container and before
// containerd knows it. The removal of the container, or the purge if it was removed otherwise, ends the shim, and
// no other.
func TestShimsWithoutContainersAreEnded(t *testing.T) {
	programtest.NeedRoot(t)
	programtest.Need(t, "containerd")
	real, err := exec.LookPath("containerd")
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		t.Fatal(err)
	}
	real = filepath.Join(filepath.Dir(real), "containerd-shim-runc-v2") // where containerd finds it
	dir := t.TempDir()
	hang, hangs := filepath.Join(dir, "hang"), filepath.Join(dir, "hangs")
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*start)
	if [ -e %[2]s ]; then
		%[1]s "$@" || exit
		rm %[2]s
		echo $$ >%[3]s.new
		mv %[3]s.new %[3]s
		exec sleep 300
	fi
	;;
esac
exec %[1]s "$@"
`, real, hang, hangs)
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(real)), []byte(script), 0o755); err != nil { //nolint:gosec // containerd executes it
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	shims := func() (ids []string) {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range all {
			if id, ok := r.shim(path); ok {
				ids = append(ids, id)
			}
		}
		return ids
	}
	// gone waits for the end of a process that was killed.
	gone := func(what, id string) {
		t.Helper()
		end := time.Now().Add(time.Minute)
		for slices.Contains(shims(), id) {
			if time.Now().After(end) {
				t.Fatalf("%s: the shim of the interrupted container still exists", what)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	retry := func(what string, do func() error) {
		t.Helper()
		var err error
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if err = do(); err == nil {
				return
			}
		}
		t.Fatalf("%s still fails after a minute: %v", what, err)
	}
	other := run(t, r, 1, "sleep", "1h")
	// interrupt returns a container whose creation is interrupted while it has a shim.
	interrupt := func() runtime.Workload {
		t.Helper()
		w := newWorkload(0, "sleep", "1h")
		if err := os.WriteFile(hang, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- r.Create(t.Context(), w) }()
		var text []byte
		for end := time.Now().Add(time.Minute); len(text) == 0; text, _ = os.ReadFile(hangs) {
			if time.Now().After(end) {
				t.Fatal("no shim was started within a minute")
			}
			time.Sleep(10 * time.Millisecond)
		}
		daemon.Kill()
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.Remove(hangs); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil {
			t.Fatal("the creation succeeded without containerd")
		}
		daemon.Start()
		retry("the first call", func() error { _, err := r.Info(t.Context()); return err })
		if id := runtime.ID(w.Key); !slices.Contains(shims(), id) {
			t.Fatalf("shims: got those of %v, want one of %s", shims(), id)
		}
		return w
	}
	w := interrupt()
	retry("the stop", func() error { return r.Stop(t.Context(), w.Key, 0) })
	gone("after the stop", runtime.ID(w.Key))

	// A container of the same application keeps the shim, which it uses.
	w = interrupt()
	second := run(t, r, 2, "sleep", "1h")
	retry("the stop", func() error { return r.Stop(t.Context(), w.Key, 0) })
	if list, err := r.List(t.Context()); err != nil || len(list) != 2 {
		t.Fatalf("containers: got %s, %v, want the two others", phases(list), err)
	}
	if id := runtime.ID(w.Key); !slices.Contains(shims(), id) {
		t.Errorf("shims: got those of %v, want that of %s, which another container uses", shims(), id)
	}
	for _, k := range []runtime.Workload{second, other} {
		if err := r.Stop(t.Context(), k.Key, 0); err != nil {
			t.Fatal(err)
		}
	}
	gone("after the stop of the last container", runtime.ID(w.Key))

	w = interrupt()
	ctx := namespaces.WithNamespace(t.Context(), r.cfg.Namespace)
	retry("the deletion by another program", func() error { return ignoreNotFound(r.c.ContainerService().Delete(ctx, runtime.ID(w.Key))) })
	retry("the purge", func() error { return r.Purge(t.Context()) })
	gone("after the purge", runtime.ID(w.Key))
	retry("the stop", func() error { return r.Stop(t.Context(), w.Key, 0) })
}

// Only the shims of this namespace of this containerd are ended.
func TestShimsOfOthersAreNotOurs(t *testing.T) {
	r := &Runtime{cfg: Config{Options: Options{Namespace: "ours", Address: "/run/c.sock"}}}
	for args, want := range map[string]bool{
		"/usr/bin/containerd-shim-runc-v2 -namespace ours -id a -address /run/c.sock":         true,
		"/usr/bin/containerd-shim-runsc-v1 -namespace ours -address /run/c.sock -debug -id a": true,
		"/usr/bin/containerd-shim-runc-v2 -namespace theirs -id a -address /run/c.sock":       false,
		"/usr/bin/containerd-shim-runc-v2 -namespace ours -id a -address /run/d.sock":         false,
		"/usr/bin/containerd-shim-runc-v2 -namespace ours -id a -address /run/c.sock start":   false,
		"/usr/bin/containerd-shim-runc-v2 -namespace ours -address /run/c.sock -id":           false,
		"/bin/sh -namespace ours -id a -address /run/c.sock":                                  false,
		"": false,
	} {
		path := filepath.Join(t.TempDir(), "cmdline")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(args, " ", "\x00")+"\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, ok := r.shim(path); ok != want || ok && id != "a" {
			t.Errorf("%q: got %q, %t, want %t", args, id, ok, want)
		}
	}
}
