package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

const hello = "treeline.local/hello:1"

func TestSuite(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	images := imageDir(t)
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		cfg := testConfig(t, daemon, images)
		cfg.CallTimeout = 2 * time.Minute // twenty at once on a busy disk, without retries
		return runtimetest.Harness{
			Open:          func() (runtime.Runtime, error) { return New(cfg, quiet) },
			Spec:          spec,
			Program:       "/app",
			Broken:        api.Microservice{Virtualization: "container", Code: hello, Cmd: []string{"/no/such/program"}},
			Missing:       api.Microservice{Virtualization: "container", Code: "oci-archive:missing.tar"},
			MissingReason: api.ReasonImageNotFound,
			Devices:       []string{"test.treeline.dev/widget=0", "test.treeline.dev/widget=1"},
			Left:          func(k wire.Key) []string { return left(t, cfg, k) },
		}
	})
}

// TestWorkloadsOutliveContainerd kills containerd while workloads run.
func TestWorkloadsOutliveContainerd(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	stays, goes := run(t, r, 1, "ignore-term"), run(t, r, 2, "ignore-term")
	exits := make(chan runtime.Exit, 16)
	go func() {
		for t.Context().Err() == nil {
			_ = r.Watch(t.Context(), exits)
			time.Sleep(20 * time.Millisecond)
		}
	}()

	before := pids(t, r)
	daemon.Kill()
	_, err := r.List(t.Context())
	if runtime.Reason(err) != api.ReasonRuntimeDown {
		t.Errorf("List while containerd is down: got %v, want %s", err, api.ReasonRuntimeDown)
	}
	if err := syscall.Kill(before[stays.Key], 0); err != nil {
		t.Fatalf("the workload died with containerd: %v", err)
	}
	if path, err := r.CgroupOf(t.Context(), stays.Key); err != nil || path != filepath.Join(r.cfg.CgroupParent, runtime.ID(stays.Key)) {
		t.Errorf("CgroupOf while containerd is down: got %q, %v, want the container's", path, err)
	}
	// A stop without grace kills the workload nevertheless.
	if err := r.Stop(t.Context(), goes.Key, 0); runtime.Reason(err) != api.ReasonRuntimeDown {
		t.Errorf("Stop while containerd is down: got %v, want %s", err, api.ReasonRuntimeDown)
	}
	if r.hasProcesses(runtime.ID(goes.Key)) {
		t.Error("processes after a stop without grace: got some, want none")
	}
	began := time.Now()
	daemon.Start()
	for e := range exits {
		if e.Key == goes.Key {
			if e.ExitCode != killedExitCode {
				t.Errorf("exit: got %+v, want code %d", e, killedExitCode)
			}
			break
		}
	}
	t.Logf("exit reported %s after containerd began to listen", time.Since(began))
	if after := pids(t, r); after[stays.Key] != before[stays.Key] {
		t.Errorf("PID after the restart of containerd: got %d, want %d", after[stays.Key], before[stays.Key])
	}
}

// TestOneShimPerApplication counts the shims of two applications.
func TestOneShimPerApplication(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	var first runtime.Workload
	for n := range 6 {
		w := run(t, r, n, "sleep")
		if n == 0 {
			first = w
		}
	}
	parents := make(map[int]bool)
	for _, pid := range pids(t, r) {
		parents[parent(t, pid)] = true
	}
	if len(parents) != 2 { // newWorkload alternates between two applications
		t.Errorf("shims of 6 containers of 2 applications: got %d, want 2", len(parents))
	}
	for p := range parents {
		t.Logf("shim %d: %s", p, rss(p))
	}
	// Stop the container for which the shim was started.
	if err := r.Stop(t.Context(), first.Key, 0); err != nil {
		t.Fatal(err)
	}
	if got := len(pids(t, r)); got != 5 {
		t.Errorf("containers that run after one was stopped: got %d, want 5", got)
	}
}

// TestBadArchives checks the reasons for archives that cannot be used.
func TestBadArchives(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	dir := t.TempDir()
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good, err := os.ReadFile(filepath.Join(imageDir(t), "hello.tar"))
	if err != nil {
		t.Fatal(err)
	}
	write("text.tar", []byte("this is no archive"))
	write("short.tar", good[:len(good)/2])
	flipped := slices.Clone(good)
	flipped[len(flipped)/2] ^= 1
	write("flipped.tar", flipped)
	// The content differs: containerd does not read a blob again that is in its store, and would accept
	// the flipped archive.
	program, err := os.ReadFile(runtimetest.Program(t))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, append(program, "of another machine"...), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	foreign := image.Image{Ref: "treeline.local/foreign:1", Binary: other, Arch: "s390x"}
	if err := image.WriteFile(filepath.Join(dir, "foreign.tar"), foreign); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link.tar")); err != nil {
		t.Fatal(err)
	}
	r := openRuntime(t, testConfig(t, daemon, dir))
	for code, want := range map[string]api.Reason{
		"oci-archive:text.tar":         api.ReasonImageBad,
		"oci-archive:short.tar":        api.ReasonImageBad,
		"oci-archive:flipped.tar":      api.ReasonImageBad,
		"oci-archive:foreign.tar":      api.ReasonImageBad,
		"treeline.local/foreign:1":     api.ReasonImageBad,
		"oci-archive:link.tar":         api.ReasonImageNotFound,
		"oci-archive:../../etc/passwd": api.ReasonImageNotFound,
		"oci-archive:/etc/passwd":      api.ReasonImageNotFound,
		"Not A Reference":              api.ReasonImageNotFound,
	} {
		w := newWorkload(0, "sleep")
		w.Spec.Code = code
		err := r.Create(t.Context(), w)
		if err == nil || runtime.Reason(err) != want {
			t.Errorf("create with code %q: got %v, want %s", code, err, want)
			continue
		}
		t.Log(err)
	}
}

// TestLimits reads the limits and privileges from the kernel.
func TestLimits(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	r := openRuntime(t, cfg)
	w := newWorkload(0, "sleep")
	w.Spec.Memory, w.Spec.VCPUs = 48, 0.5
	start(t, r, w)
	path := filepath.Join(cfg.CgroupParent, runtime.ID(w.Key))
	want := map[string]string{
		"memory" + path + "/memory.limit_in_bytes": "50331648",
		"cpu" + path + "/cpu.cfs_quota_us":         "50000",
		"pids" + path + "/pids.max":                "512",
	}
	if r.cg.V2() {
		want = map[string]string{path + "/memory.max": "50331648", path + "/cpu.max": "50000 100000", path + "/pids.max": "512"}
	}
	for file, value := range want {
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		if got := strings.TrimSpace(string(b)); got != value {
			t.Errorf("%s: got %q (%v), want %q", file, got, err, value)
		}
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids(t, r)[w.Key]))
	for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Uid:\t65532"} {
		if err != nil || !strings.Contains(string(b), line) {
			t.Errorf("status of the process: got\n%s (%v), want %q in it", b, err, line)
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)

// imageDir returns a directory with the archive of the workload's image.
func imageDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	err := image.WriteFile(filepath.Join(dir, "hello.tar"), image.Image{Ref: hello, Binary: runtimetest.Program(t)})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var configs atomic.Int64

func testConfig(t testing.TB, daemon *runtimetest.Containerd, images string) Config {
	t.Helper()
	n := configs.Add(1)
	cfg := Config{
		Options: Options{
			Address: daemon.Address, Namespace: fmt.Sprintf("test-%d-%d", os.Getpid(), n), ImageDirs: []string{images}, CgroupMount: true,
		},
		StateDir:     t.TempDir(),
		CgroupParent: fmt.Sprintf("/treeline-test/containerd-%d-%d", os.Getpid(), n),
	}
	var err error
	cfg.Devices, err = devices.Open(devices.Options{Own: t.TempDir(), Test: []devices.Test{{Class: "widget", Count: 2}}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cg, err := cgroup.Mounted()
		if err == nil {
			err = cg.Group(cfg.CgroupParent).Remove()
		}
		if err != nil {
			t.Error(err)
		}
	})
	if cfg, err = cfg.withDefaults(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func openRuntime(t testing.TB, cfg Config) *Runtime {
	t.Helper()
	r, err := New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func spec(args ...string) api.Microservice {
	return api.Microservice{Virtualization: "container", Code: hello, Cmd: append([]string{"/app"}, args...)}
}

// newWorkload returns a workload of instance n. Even and odd instances are of two applications.
func newWorkload(n int, args ...string) runtime.Workload {
	app := api.Tenant("acme").App([]string{"even", "odd"}[n%2], "d")
	return runtime.Workload{
		Key:     wire.Key{Instance: app.Service("s", "d").Instance(n), Epoch: 1},
		Attempt: 1, Spec: spec(args...),
	}
}

func run(t testing.TB, r *Runtime, n int, args ...string) runtime.Workload {
	t.Helper()
	w := newWorkload(n, args...)
	start(t, r, w)
	return w
}

func start(t testing.TB, r *Runtime, w runtime.Workload) {
	t.Helper()
	t.Cleanup(func() {
		if err := r.Stop(context.Background(), w.Key, 0); err != nil {
			t.Error(err)
		}
	})
	if err := r.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), w.Key); err != nil {
		t.Fatal(err)
	}
}

func pids(t testing.TB, r *Runtime) map[wire.Key]int {
	t.Helper()
	all, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[wire.Key]int)
	for _, s := range all {
		if s.Phase == wire.WorkloadRunning {
			out[s.Key] = s.PID
		}
	}
	return out
}

func parent(t testing.TB, pid int) (ppid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	if _, err := fmt.Sscan(string(b[strings.LastIndexByte(string(b), ')')+1:]), &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

func rss(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "VmRSS") {
			return strings.Join(strings.Fields(l), " ")
		}
	}
	return "gone"
}

func left(t *testing.T, cfg Config, k wire.Key) []string {
	t.Helper()
	id := runtime.ID(k)
	var out []string
	for _, suffix := range []string{".log", ".log.old", ".started"} {
		if _, err := os.Stat(filepath.Join(cfg.StateDir, "logs", id+suffix)); err == nil {
			out = append(out, id+suffix)
		}
	}
	if _, err := os.Stat(filepath.Join(cfg.StateDir, "inputs", id)); err == nil {
		out = append(out, "input")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) {
			out = append(out, "mount "+line)
		}
	}
	cg, err := cgroup.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	if g := cg.Group(filepath.Join(cfg.CgroupParent, id)); g.Exists() {
		out = append(out, "cgroup "+g.Path())
	}
	c, err := client.New(cfg.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := namespaces.WithNamespace(context.Background(), cfg.Namespace)
	if _, err := c.ContainerService().Get(ctx, id); err == nil {
		out = append(out, "container")
	}
	_ = c.SnapshotService(cfg.Snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Name == id {
			out = append(out, "snapshot")
		}
		return nil
	})
	return out
}

// TestNamespaceOfAContainer checks Namespace before, during and after a container's lifetime.
func TestNamespaceOfAContainer(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	cfg.Network = api.NetworkOverlay
	r := openRuntime(t, cfg)
	w := newWorkload(1, "serve")
	w.Addresses.RoundRobin = netip.MustParseAddr("10.30.0.7")
	if _, _, err := r.Namespace(t.Context(), w.Key); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("Namespace before Create: got %v, want ErrNotFound", err)
	}
	var early os.FileInfo // the namespace during the creation
	w.Connect = func(_ context.Context, netNS string, _ runtime.Workload) {
		var err error
		if early, err = os.Stat(netNS); err != nil {
			t.Error(err)
		}
	}
	if err := r.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	path, got, err := r.Namespace(t.Context(), w.Key)
	if err != nil || got.Addresses.RoundRobin != w.Addresses.RoundRobin || got.Attempt != w.Attempt {
		t.Errorf("Namespace after Create: got %+v, %v, want the workload", got, err)
	}
	if is, err := os.Stat(path); err != nil || !os.SameFile(is, early) {
		t.Errorf("namespace %s: got another one than during the creation, %v", path, err)
	}
	if _, err := os.Lstat(r.cfg.netNSLink(runtime.ID(w.Key))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("link to the namespace after Create: got %v, want ErrNotExist", err)
	}
	// The machine stopped after the creation: the task is gone.
	ctx, cancel := r.call(t.Context())
	defer cancel()
	if err := r.kill(ctx, runtime.ID(w.Key)); err != nil {
		t.Fatal(err)
	}
	if path, _, err = r.Namespace(t.Context(), w.Key); err != nil || path == "" {
		t.Fatalf("Namespace after the task was lost: got %q, %v, want that of a new task", path, err)
	}
	if own, err := sameFile(path, "/proc/self/ns/net"); err != nil || own {
		t.Errorf("namespace %s is the machine's: got %t, %v, want false", path, own, err)
	}
	if err := r.Start(t.Context(), w.Key); err != nil {
		t.Fatal(err)
	}
	if again, _, err := r.Namespace(t.Context(), w.Key); err != nil || again != path {
		t.Errorf("Namespace after Start: got %s, %v, want %s", again, err, path)
	}
	if err := r.Stop(t.Context(), w.Key, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.cfg.namesDir(runtime.ID(w.Key))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory of names after Stop: got %v, want ErrNotExist", err)
	}
	if _, _, err := r.Namespace(t.Context(), w.Key); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("Namespace after Stop: got %v, want ErrNotFound", err)
	}
}
