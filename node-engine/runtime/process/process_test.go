package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	ShimMain()
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) {
	programtest.NeedRoot(t)
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		cfg := testConfig(t)
		program := runtimetest.Program(t)
		broken := filepath.Join(filepath.Dir(program), "broken")
		if err := os.WriteFile(broken, []byte("no program\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return runtimetest.Harness{
			Open:    func() (runtime.Runtime, error) { return New(cfg) },
			Spec:    spec(program),
			Program: program,
			// The kernel cannot execute its format.
			Broken:        api.Microservice{Virtualization: "process", Code: broken},
			Missing:       api.Microservice{Virtualization: "process", Code: broken + "-and-gone"},
			MissingReason: api.ReasonImageNotFound,
			Devices:       []string{"a.example/widget=0", "a.example/widget=1"},
			Left:          func(k wire.Key) []string { return left(t, cfg, k) },
		}
	}, "Attach")
}

func TestOnlyAllowedDirectories(t *testing.T) {
	programtest.NeedRoot(t)
	cfg := testConfig(t)
	dir := t.TempDir()
	cfg.Allow = []string{dir}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for code, want := range map[string]api.Reason{
		"/bin/sh":            api.ReasonPrivilege,
		dir + "/../x":        api.ReasonPrivilege,
		"app":                api.ReasonPrivilege,
		dir:                  api.ReasonPrivilege,
		dir + "/link":        api.ReasonImageNotFound,
		dir + "/missing\x00": api.ReasonImageNotFound,
	} {
		w := runtime.Workload{Key: wire.Key{Instance: "t/a.d.s.d#1", Epoch: 1}, Spec: spec(code)()}
		if err := r.Create(t.Context(), w); err == nil || runtime.Reason(err) != want {
			t.Errorf("create with code %q: got %v, want %s", code, err, want)
		}
	}
}

// TestLimits reads the limits from the kernel.
func TestLimits(t *testing.T) {
	programtest.NeedRoot(t)
	cfg := testConfig(t)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := runtime.Workload{Key: wire.Key{Instance: "t/a.d.s.d#2", Epoch: 1}, Attempt: 1, Spec: spec(runtimetest.Program(t))("sleep")}
	w.Spec.Memory, w.Spec.VCPUs = 48, 0.5
	defer r.Stop(t.Context(), w.Key, 0)
	if err := r.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), w.Key); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.CgroupParent, runtime.ID(w.Key))
	want := map[string]string{
		"memory" + path + "/memory.limit_in_bytes": "50331648",
		"cpu" + path + "/cpu.cfs_quota_us":         "50000",
		"pids" + path + "/pids.max":                "512",
	}
	if r.V2() {
		want = map[string]string{path + "/memory.max": "50331648", path + "/cpu.max": "50000 100000", path + "/pids.max": "512"}
	}
	for file, value := range want {
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		if got := strings.TrimSpace(string(b)); got != value {
			t.Errorf("%s: got %q (%v), want %q", file, got, err, value)
		}
	}
	list, _ := r.List(t.Context())
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", list[0].PID))
	if err != nil || !strings.Contains(string(b), "NoNewPrivs:\t1") || !strings.Contains(string(b), "Uid:\t65534") {
		t.Errorf("status of the workload: got %v\n%s\nwant NoNewPrivs 1 and user 65534", err, b)
	}
}

var parents atomic.Int64

func testConfig(t *testing.T) Config {
	t.Helper()
	cfg := Config{StateDir: t.TempDir(), Options: Options{
		Allow:        []string{filepath.Dir(runtimetest.Program(t))},
		CgroupParent: fmt.Sprintf("/treeline-test/process-%d-%d", os.Getpid(), parents.Add(1)),
	}}
	t.Cleanup(func() {
		cg, err := cgroup.Mounted()
		if err != nil {
			return
		}
		if err := cg.Group(cfg.CgroupParent).Remove(); err != nil {
			t.Error(err)
		}
	})
	return cfg.withDefaults()
}

func spec(program string) func(args ...string) api.Microservice {
	return func(args ...string) api.Microservice {
		return api.Microservice{Virtualization: "process", Code: program, Cmd: args}
	}
}

func left(t *testing.T, cfg Config, k wire.Key) []string {
	t.Helper()
	var out []string
	id := runtime.ID(k)
	for _, p := range []string{"w/" + id, "logs/" + id + ".log", "logs/" + id + ".log.old"} {
		if _, err := os.Stat(filepath.Join(cfg.StateDir, p)); err == nil {
			out = append(out, p)
		}
	}
	cg, err := cgroup.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	if g := cg.Group(filepath.Join(cfg.CgroupParent, id)); g.Exists() {
		out = append(out, "cgroup "+g.Path())
	}
	return out
}
