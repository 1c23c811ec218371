package wiring

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/driver"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// engineLife is a core, a driver and containerd, without a cluster and a store.
type engineLife struct {
	t    *testing.T
	rt   runtime.Runtime
	d    *driver.Driver
	end  func()
	mu   sync.Mutex // guards core
	core *node.Core
}

// begin starts the parts. end stops them as a crash does: nothing is saved.
func begin(t *testing.T, cfg Config, log *slog.Logger) *engineLife {
	t.Helper()
	found, err := openDevices(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	e := &engineLife{t: t, core: node.New(node.Config{ID: "n1"})}
	if e.rt, err = openRuntime(cfg, found, log); err != nil {
		t.Fatal(err)
	}
	deliver := func(_ context.Context, in node.Input) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, env := range e.core.Step(time.Now(), in).Send {
			if env.To == wire.ToRuntime {
				e.d.Order(env.Msg.(wire.WorkloadOrder))
			}
		}
		return nil
	}
	e.d = driver.New(driver.Options{Runtime: e.rt, Deliver: deliver, Devices: found.List, Log: log})
	info, has, err := e.d.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_ = deliver(ctx, node.Start{Info: info, Found: has})
	var lives sync.WaitGroup
	lives.Go(func() { _ = e.d.Run(ctx) })
	lives.Go(func() {
		for ctx.Err() == nil {
			_ = deliver(ctx, node.Tick{})
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	e.end = sync.OnceFunc(func() {
		cancel()
		lives.Wait()
		_ = e.rt.Close()
	})
	t.Cleanup(e.end)
	return e
}

func (e *engineLife) wants(gen api.Generation, as ...wire.Assignment) {
	d := wire.Desired{Gen: gen, Put: as}
	for _, a := range as {
		d.Digest = d.Digest.Toggle(a.Digest())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, env := range e.core.Step(time.Now(), node.Desired{Desired: d}).Send {
		if env.To == wire.ToRuntime {
			e.d.Order(env.Msg.(wire.WorkloadOrder))
		}
	}
}

// await waits until the core has n instances and ok is true for all of them.
func (e *engineLife) await(n int, ok func(api.Instance) bool) []api.Instance {
	e.t.Helper()
	for limit := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // there is no event to wait for
		e.mu.Lock()
		all := e.core.Instances()
		e.mu.Unlock()
		if len(all) == n && !slices.ContainsFunc(all, func(in api.Instance) bool { return !ok(in) }) {
			return all
		}
		if time.Now().After(limit) {
			e.t.Fatalf("after 5 minutes they are %+v", all)
		}
	}
}

// TestTwoInstancesAndOneDevice runs two instances that need the same device in containerd. The engine is
// restarted without its store.
func TestTwoInstancesAndOneDevice(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	images, log := t.TempDir(), slog.New(slog.DiscardHandler)
	const ref = "treeline.local/hello:1"
	if err := image.WriteFile(filepath.Join(images, "hello.tar"), image.Image{Ref: ref, Binary: runtimetest.Program(t)}); err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.Data, cfg.Runtime, cfg.DeviceDirs = t.TempDir(), "containerd", nil
	cfg.TestDevices = []string{"test.treeline.dev/gpu=1"}
	cfg.Containerd.Address, cfg.Containerd.Root, cfg.Containerd.ImageDirs = daemon.Address, daemon.Dir, []string{images}
	cfg.Containerd.Namespace = fmt.Sprintf("devices-%d", os.Getpid())
	t.Cleanup(func() {
		cg, err := cgroup.Mounted()
		if err == nil {
			err = cg.Group("/treeline/" + cfg.Containerd.Namespace).Remove()
		}
		if err != nil {
			t.Error(err)
		}
	})
	app := api.Tenant("acme").App("devices", "d").Service("s", "d")
	want := func(n int) wire.Assignment {
		return wire.Assignment{Instance: app.Instance(n), Epoch: 1, SpecRev: 1, Spec: api.Microservice{
			Virtualization: "container", Code: ref, Cmd: []string{"/app", "sleep"}, VGPUs: 1, StopGrace: 1,
		}}
	}
	one := func(in api.Instance) bool {
		if in.Number == 0 {
			return in.State == api.Running && slices.Equal(in.Devices, []string{"test.treeline.dev/gpu=0"})
		}
		return in.State == api.Failed && in.Reason == api.ReasonNoDevice && len(in.Devices) == 0
	}
	e := begin(t, cfg, log)
	e.wants(1, want(0), want(1))
	all := e.await(2, one)
	if !strings.Contains(all[1].Detail, "needs 1 of device gpu; the node has 1, 0 of them free") {
		t.Errorf("the second says %q", all[1].Detail)
	}
	e.end()

	e = begin(t, cfg, log) // with an empty store; containerd has the workload
	e.wants(1, want(0), want(1))
	e.await(2, one)
	e.wants(2, want(1))
	e.await(1, func(in api.Instance) bool { return in.Number == 1 && in.State == api.Running && len(in.Devices) == 1 })
	e.wants(3)
	e.await(0, func(api.Instance) bool { return false })
}
