package driver

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// mounting is a fakeRuntime that supports volumes.
type mounting struct{ *fakeRuntime }

func (m mounting) Info(ctx context.Context) (runtime.Info, error) {
	info, err := m.fakeRuntime.Info(ctx)
	info.Mounts, info.Layers = true, true
	return info, err
}

// fakeVolumes records its calls with those of the runtime.
type fakeVolumes struct {
	rt   *fakeRuntime
	list []api.NodeVolume
	fail error
}

func (v *fakeVolumes) note(format string, args ...any) error {
	v.rt.mu.Lock()
	defer v.rt.mu.Unlock()
	v.rt.calls = append(v.rt.calls, fmt.Sprintf(format, args...))
	return v.fail
}

func (v *fakeVolumes) Types() []string        { return api.BuiltInVolumes }
func (v *fakeVolumes) List() []api.NodeVolume { return v.list }
func (v *fakeVolumes) Release(k wire.Key) error {
	return v.note("release %s", k)
}
func (v *fakeVolumes) Sweep(keep []wire.Key) { _ = v.note("sweep %v", keep) }

func (v *fakeVolumes) Prepare(_ context.Context, k wire.Key, all []api.Volume) ([]runtime.Mount, error) {
	return []runtime.Mount{{Target: all[0].MountPath}}, v.note("prepare %s", k)
}

func (v *fakeVolumes) Layer(_ context.Context, k wire.Key, attempt int, sizeMB int64) (string, error) {
	return "/layer", v.note("layer %s %d %d", k, attempt, sizeMB)
}

func (v *fakeVolumes) Started(k wire.Key) (bool, error) {
	changed := len(v.list) == 0
	v.list = []api.NodeVolume{{ID: k.Instance.Volume("data"), SizeMB: 16, Epoch: k.Epoch}}
	return changed, v.note("started %s", k)
}

func startWithVolumes(t *testing.T) (*fixture, *fakeVolumes) {
	f := &fixture{rt: newFake(), inputs: make(chan node.Input, 100)}
	v := &fakeVolumes{rt: f.rt}
	f.Driver = New(Options{
		Runtime: mounting{f.rt}, Volumes: v, Info: api.NodeInfo{ID: "n1", Features: []string{"a", "z"}}, Log: slog.New(slog.DiscardHandler),
		Deliver: func(_ context.Context, in node.Input) error { f.inputs <- in; return nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, v
}

var withVolume = api.Microservice{Volumes: []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16}}}

func TestVolumesAreReportedBeforeTheWorkloadStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startWithVolumes(t)
		info := (<-f.inputs).(node.Info).Info
		if want := []string{"a", api.FeatureStorage, api.FeatureVolumeCopy, "volume_ephemeral", "volume_local", "volume_tmpfs", "z"}; !slices.Equal(info.Features, want) {
			t.Errorf("features: got %v, want %v", info.Features, want)
		}
		f.Order(wire.CreateWorkload{Key: k1, Spec: withVolume})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		if in, ok := (<-f.inputs).(node.Volumes); !ok || len(in.Volumes) != 1 {
			t.Errorf("input before the start's result: got %+v, want the volumes", in)
		}
		f.event(t)
		f.Order(wire.StopWorkload{Key: k1})
		f.event(t)
		const want = "[sweep [] prepare t/a.n.s.n#0@1 create 0 started t/a.n.s.n#0@1 start stop 0s release t/a.n.s.n#0@1]"
		if got := fmt.Sprint(f.rt.made()); got != want {
			t.Errorf("calls: got %s, want %s", got, want)
		}
	})
}

func TestFailureOfAVolumeFailsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := startWithVolumes(t)
		<-f.inputs
		v.fail = runtime.Errorf(api.ReasonVolume, "busy: %w", api.ErrUnavailable)
		f.Order(wire.CreateWorkload{Key: k1, Spec: withVolume})
		if e := f.event(t); e.Phase != wire.WorkloadFailed || e.Reason != api.ReasonVolume {
			t.Errorf("event: got %+v, want reason %s", e, api.ReasonVolume)
		}
		f.Order(wire.StopWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadFailed || e.Reason != api.ReasonVolume {
			t.Errorf("event of a stop whose volumes stay mounted: got %+v, want reason %s", e, api.ReasonVolume)
		}
		if got := f.rt.made(); slices.Contains(got, "create 0") {
			t.Errorf("calls: got %v, want no creation without volumes", got)
		}
	})
}

func TestServiceWithVolumesFailsWithoutThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.Order(wire.CreateWorkload{Key: k1, Spec: withVolume})
		if e := f.event(t); e.Phase != wire.WorkloadFailed || e.Reason != api.ReasonNoRuntime {
			t.Errorf("event: got %+v, want reason %s", e, api.ReasonNoRuntime)
		}
	})
}

func TestStorageIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startWithVolumes(t)
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1, Attempt: 3, Spec: api.Microservice{Storage: 100}})
		f.event(t)
		if got := f.rt.made(); !slices.Contains(got, "layer t/a.n.s.n#0@1 3 100") {
			t.Errorf("calls: got %v, want a layer of 100 MiB", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil) // a node without it goes on as before
		f.Order(wire.CreateWorkload{Key: k1, Spec: api.Microservice{Storage: 100}})
		if e := f.event(t); e.Phase != wire.WorkloadCreated {
			t.Errorf("event: got %+v, want phase created", e)
		}
	})
}
