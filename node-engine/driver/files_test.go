package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// fakeFiles records calls.
type fakeFiles struct {
	mu    sync.Mutex
	calls []string
	fail  error
}

func (f *fakeFiles) note(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return f.fail
}

func (f *fakeFiles) Prepare(_ context.Context, _ wire.Key, _ *api.Microservice, refs []wire.ValueRef) (*runtime.Files, *runtime.Login, error) {
	return nil, nil, f.note("prepare %d", refs[0].Version)
}

func (f *fakeFiles) Update(_ wire.Key, _ *api.Microservice, refs []wire.ValueRef) {
	_ = f.note("update %d", refs[0].Version)
}

func (f *fakeFiles) Remove(wire.Key) error { return f.note("remove") }

func (f *fakeFiles) Sweep(has []wire.Key) error { return f.note("sweep %d", len(has)) }

func TestFilesFollowTheirWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, files := newFake(), &fakeFiles{}
		var mu sync.Mutex
		var events []wire.WorkloadEvent
		d := New(Options{Runtime: rt, Files: files, Deliver: func(_ context.Context, in node.Input) error {
			if w, ok := in.(node.Workload); ok {
				mu.Lock()
				events = append(events, w.WorkloadEvent)
				mu.Unlock()
			}
			return nil
		}})
		if _, _, err := d.Find(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = d.Run(ctx)
		}()
		k := wire.Key{Instance: "acme/shop.prod.web.v1#0", Epoch: 1}
		refs := func(v uint64) []wire.ValueRef { return []wire.ValueRef{{Version: v}} }
		spec := api.Microservice{Files: []api.File{{Path: "/etc/x", Secret: "db"}}}
		order := func(o wire.WorkloadOrder) {
			d.Order(o)
			synctest.Wait()
		}
		files.mu.Lock()
		files.calls = nil
		files.mu.Unlock()
		order(wire.CreateWorkload{Key: k, Spec: spec, Values: refs(1)})
		order(wire.StartWorkload{Key: k})
		order(wire.UpdateFiles{Key: k, Spec: spec, Values: refs(2)})
		order(wire.UpdateFiles{Key: k})
		order(wire.StopWorkload{Key: k})
		files.mu.Lock()
		got := slices.DeleteFunc(slices.Clone(files.calls), func(c string) bool { return c == "sweep 0" || c == "sweep 1" })
		files.fail = runtime.Errorf(api.ReasonNoFiles, "secret db does not exist")
		files.mu.Unlock()
		if want := []string{"prepare 1", "update 2", "remove", "remove"}; !slices.Equal(got, want) {
			t.Errorf("calls are %v, want %v", got, want)
		}
		order(wire.CreateWorkload{Key: k, Attempt: 1, Spec: spec, Values: refs(1)})
		mu.Lock()
		last := events[len(events)-1]
		mu.Unlock()
		if last.Phase != wire.WorkloadFailed || last.Reason != api.ReasonNoFiles || last.Detail != "secret db does not exist" {
			t.Errorf("the last event is %+v, want a failure with %s", last, api.ReasonNoFiles)
		}
		cancel()
		<-ended
	})
}

func TestFilesNeedANodeThatProvidesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := make(chan wire.WorkloadEvent, 10)
		d := New(Options{Runtime: newFake(), Deliver: func(_ context.Context, in node.Input) error {
			if w, ok := in.(node.Workload); ok {
				events <- w.WorkloadEvent
			}
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = d.Run(ctx)
		}()
		d.Order(wire.CreateWorkload{Key: wire.Key{Instance: "acme/shop.prod.web.v1#0", Epoch: 1}, Spec: api.Microservice{Files: []api.File{{Path: "/etc/x"}}}})
		if e := <-events; e.Phase != wire.WorkloadFailed || e.Reason != api.ReasonNoFiles {
			t.Errorf("the event is %+v, want a failure with %s", e, api.ReasonNoFiles)
		}
		cancel()
		<-ended
	})
}
