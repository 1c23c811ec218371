package driver

import (
	"context"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// fetching is a fakeRuntime whose workloads have images.
type fetching struct {
	*fakeRuntime
	fetched chan runtime.Workload
}

func (f fetching) Fetch(_ context.Context, w runtime.Workload) error {
	f.fetched <- w
	return nil
}

// accounts are files of which only the account of an image's registry is used.
type accounts struct {
	*fakeFiles
	t *testing.T
}

func (a accounts) Prepare(_ context.Context, _ wire.Key, spec *api.Microservice, refs []wire.ValueRef) (*runtime.Files, *runtime.Login, error) {
	if len(spec.Files) > 0 {
		a.t.Error("files are written before their workload is created")
	}
	return nil, &runtime.Login{Registry: refs[0].Registry}, nil
}

func TestImagesAreFetchedAheadWithTheTenantsAccount(t *testing.T) {
	rt := fetching{newFake(), make(chan runtime.Workload, 1)}
	d := New(Options{Runtime: rt, Files: accounts{&fakeFiles{}, t}, Deliver: func(context.Context, node.Input) error { return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = d.Run(ctx) }()
	d.Order(wire.FetchWorkload{
		Key: k1, Spec: api.Microservice{Code: "registry.example/web:2", Files: []api.File{{Path: "/etc/x", Secret: "db"}}},
		Values: []wire.ValueRef{{Registry: "registry.example"}},
	})
	if w := <-rt.fetched; w.Login == nil || w.Login.Registry != "registry.example" {
		t.Errorf("account: got %v, want that of registry.example", w.Login)
	}
	cancel()
	<-ended
}
