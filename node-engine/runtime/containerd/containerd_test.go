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
		cfg.CallTimeout = 2 * time.Minute // twenty at once, on a busy disk; nobody tries again here
		return runtimetest.Harness{
			Open:          func() (runtime.Runtime, error) { return New(cfg, quiet) },
			Spec:          spec,
			Broken:        api.Microservice{Virtualization: "container", Code: hello, Cmd: []string{"/no/such/program"}},
			Missing:       api.Microservice{Virtualization: "container", Code: "oci-archive:missing.tar"},
			MissingReason: api.ReasonImageNotFound,
			Devices:       []string{"test.treeline.dev/widget=0", "test.treeline.dev/widget=1"},
			Left:          func(k wire.Key) []string { return left(t, cfg, k) },
		}
	})
}

// TestContainerdDies kills containerd under a running workload.
func TestContainerdDies(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := open(t, testConfig(t, daemon, imageDir(t)))
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
		t.Errorf("while containerd is down: %v, want %s", err, api.ReasonRuntimeDown)
	}
	if err := syscall.Kill(before[stays.Key], 0); err != nil {
		t.Fatalf("the workload died with containerd: %v", err)
	}
	if target, err := r.CgroupOf(t.Context(), stays.Key); err != nil || target.Cgroup != filepath.Join(r.cfg.CgroupParent, runtime.ID(stays.Key)) {
		t.Errorf("what the guard has to kill is %+v, %v while containerd is down", target, err)
	}
	// containerd cannot report it, but a workload that must end ends.
	if err := r.Stop(t.Context(), goes.Key, 0); runtime.Reason(err) != api.ReasonRuntimeDown {
		t.Errorf("stopping while containerd is down: %v, want %s", err, api.ReasonRuntimeDown)
	}
	if r.alive(runtime.ID(goes.Key)) {
		t.Error("what was stopped at once runs on without containerd")
	}
	began := time.Now()
	daemon.Start()
	for e := range exits {
		if e.Key == goes.Key {
			if e.ExitCode != killedExit {
				t.Errorf("exit %+v, want %d", e, killedExit)
			}
			break
		}
	}
	t.Logf("exit reported %s after containerd began to listen", time.Since(began))
	if after := pids(t, r); after[stays.Key] != before[stays.Key] {
		t.Errorf("pid %d after, %d before", after[stays.Key], before[stays.Key])
	}
}

// TestOneShimPerApplication counts the shims of two applications.
func TestOneShimPerApplication(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := open(t, testConfig(t, daemon, imageDir(t)))
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
	if len(parents) != 2 { // newWorkload spreads over two applications
		t.Errorf("%d shims serve 6 containers of 2 applications, want 2", len(parents))
	}
	for p := range parents {
		t.Logf("shim %d: %s", p, rss(p))
	}
	// The container that the shim was started for goes first.
	if err := r.Stop(t.Context(), first.Key, 0); err != nil {
		t.Fatal(err)
	}
	if got := len(pids(t, r)); got != 5 {
		t.Errorf("%d containers run after one was stopped, want 5", got)
	}
}

// TestBadArchives names what is wrong with an archive.
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
	// Of another content: what is in the store already is not read from an archive again,
	// so that nothing is wrong with the flipped one.
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
	r := open(t, testConfig(t, daemon, dir))
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
			t.Errorf("code %q: %v, want %s", code, err, want)
			continue
		}
		t.Log(err)
	}
}

// TestLimits looks at what the kernel and the container hold.
func TestLimits(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	r := open(t, cfg)
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
			t.Errorf("%s holds %q (%v), want %q", file, got, err, value)
		}
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids(t, r)[w.Key]))
	for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Uid:\t65532"} {
		if err != nil || !strings.Contains(string(b), line) {
			t.Errorf("%q is missing (%v) in\n%s", line, err, b)
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)

// imageDir is a directory with the archive of the workload's image.
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
	cfg := Config{
		Address:      daemon.Address,
		Namespace:    fmt.Sprintf("test-%d-%d", os.Getpid(), configs.Add(1)),
		StateDir:     t.TempDir(),
		ImageDirs:    []string{images},
		CgroupParent: fmt.Sprintf("/treeline-test/containerd-%d-%d", os.Getpid(), configs.Load()),
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
	if err := setDefaults(&cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func open(t testing.TB, cfg Config) *Runtime {
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

// newWorkload is instance n; even and odd ones belong to two applications.
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
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), id) {
		out = append(out, fmt.Sprintf("a mount (%v)", err))
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

// TestNamespaceOfAContainer follows a container's network namespace from its
// creation to its end.
func TestNamespaceOfAContainer(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	cfg.Network = NetworkOverlay
	r := open(t, cfg)
	w := newWorkload(1, "serve")
	w.Addresses.RoundRobin = netip.MustParseAddr("10.30.0.7")
	if _, _, err := r.Namespace(t.Context(), w.Key); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("before there is one: %v", err)
	}
	if err := r.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	path, got, err := r.Namespace(t.Context(), w.Key)
	if err != nil || got.Addresses.RoundRobin != w.Addresses.RoundRobin || got.Attempt != w.Attempt {
		t.Errorf("of a created one: %+v, %v", got, err)
	}
	if own, err := sameFile(path, "/proc/self/ns/net"); err != nil || own {
		t.Errorf("%s is the machine's own: %v, %v", path, own, err)
	}
	if err := r.Start(t.Context(), w.Key); err != nil {
		t.Fatal(err)
	}
	if again, _, err := r.Namespace(t.Context(), w.Key); err != nil || again != path {
		t.Errorf("once it runs: %s, %v, want %s", again, err, path)
	}
	if err := r.Stop(t.Context(), w.Key, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.cfg.namesDir(runtime.ID(w.Key))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its files are still there: %v", err)
	}
	if _, _, err := r.Namespace(t.Context(), w.Key); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
}
