package several

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// fake is a runtime that records its calls.
type fake struct {
	name  string
	has   []wire.Key
	calls []string
	down  bool
}

func (f *fake) Info(context.Context) (runtime.Info, error) {
	if f.down {
		return runtime.Info{}, api.ErrUnavailable
	}
	return runtime.Info{Version: f.name, Runtimes: []string{f.name}}, nil
}

func (f *fake) Create(_ context.Context, w runtime.Workload) error {
	f.has = append(f.has, w.Key)
	return nil
}

func (f *fake) Start(context.Context, wire.Key) error {
	f.calls = append(f.calls, "start")
	return nil
}

func (f *fake) Stop(context.Context, wire.Key, time.Duration) error {
	f.calls = append(f.calls, "stop")
	return nil
}

func (f *fake) Kill(context.Context, wire.Key, time.Duration) error { return nil }

func (f *fake) List(context.Context) (all []runtime.Status, err error) {
	if f.down {
		return nil, api.ErrUnavailable
	}
	for _, k := range f.has {
		all = append(all, runtime.Status{Key: k})
	}
	return all, nil
}

func (f *fake) Watch(ctx context.Context, _ chan<- runtime.Exit) error {
	if f.down {
		return api.ErrUnavailable
	}
	<-ctx.Done()
	return nil
}

func (f *fake) Logs(context.Context, wire.Key, int, bool) (io.ReadCloser, error) { return nil, nil }
func (f *fake) Close() error                                                     { return nil }

func (f *fake) holds(k wire.Key) bool { return slices.Contains(f.has, k) }

func two() (runtime.Runtime, *fake, *fake) {
	rest, vm := &fake{name: "container"}, &fake{name: "microvm"}
	return New(Member{Runtime: rest}, Member{Runtime: vm, Virtualizations: []string{"microvm"}, Has: vm.holds}), rest, vm
}

func TestWorkloadsGoToTheirRuntime(t *testing.T) {
	rt, rest, vm := two()
	a, b := wire.Key{Instance: "t/a.d.s.d#0"}, wire.Key{Instance: "t/a.d.s.d#1"}
	for k, virt := range map[wire.Key]string{a: "microvm", b: "runsc"} {
		if err := rt.Create(t.Context(), runtime.Workload{Key: k, Spec: api.Microservice{Virtualization: virt}}); err != nil {
			t.Fatal(err)
		}
	}
	if !vm.holds(a) || vm.holds(b) || !rest.holds(b) {
		t.Errorf("created: got %v and %v, want the microvm in one and runsc in the other", vm.has, rest.has)
	}
	_, _ = rt.Start(t.Context(), a), rt.Stop(t.Context(), b, 0)
	if !slices.Equal(vm.calls, []string{"start"}) || !slices.Equal(rest.calls, []string{"stop"}) {
		t.Errorf("calls: got %v and %v, want start and stop", vm.calls, rest.calls)
	}
	info, err := rt.Info(t.Context())
	if err != nil || !slices.Equal(info.Runtimes, []string{"container", "microvm"}) {
		t.Errorf("Info: got %+v, %v", info, err)
	}
	if all, err := rt.List(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("List: got %v, %v, want both", all, err)
	}
}

// TestOneThatDoesNotAnswerIsNotEmpty: a node must not report workloads as gone whose runtime is down.
func TestOneThatDoesNotAnswerIsNotEmpty(t *testing.T) {
	rt, rest, _ := two()
	rest.down = true
	_, info := rt.Info(t.Context())
	_, list := rt.List(t.Context())
	watch := rt.Watch(t.Context(), nil)
	for name, err := range map[string]error{"Info": info, "List": list, "Watch": watch} {
		if !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", name, err)
		}
	}
}

func TestWhatARuntimeCannotDoIsNamed(t *testing.T) {
	rt, _, _ := two()
	k := wire.Key{Instance: "t/a.d.s.d#0"}
	if _, err := rt.(runtime.Executor).Exec(t.Context(), k, runtime.Process{}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("Exec: got %v, want ErrUnavailable", err)
	}
	if _, ok := rt.(runtime.Filer); ok {
		t.Error("two runtimes without files are a runtime with files")
	}
}
