package node

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// newVersion is the assignment of an instance that runs with epoch 1 to another image.
func newVersion(e api.Epoch, code string) wire.Assignment {
	a := assignment(e, func(m *api.Microservice) { m.Code = code })
	a.SpecRev = api.Revision(e)
	return a
}

func TestAnImageIsFetchedBeforeThePlacementBeforeStops(t *testing.T) {
	w := newWorld(t)
	w.holdsFetches = true
	w.wants(newVersion(1, "web:1"))
	w.is(api.Running)
	w.wants(newVersion(2, "web:2"))
	if count[wire.StopWorkload](w) > 0 || last[wire.FetchWorkload](w).Spec.Code != "web:2" {
		t.Fatalf("%d stops, the fetch is %+v; want none before web:2 is fetched", count[wire.StopWorkload](w), last[wire.FetchWorkload](w))
	}
	if in := w.is(api.Running); in.Epoch != 1 {
		t.Errorf("epoch %s runs, want 1", in.Epoch)
	}
	w.step(Workload{wire.WorkloadEvent{Key: last[wire.FetchWorkload](w).Key, Phase: wire.WorkloadFetched}})
	if in := w.is(api.Running); in.Epoch != 2 {
		t.Errorf("epoch %s runs after the image was fetched, want 2", in.Epoch)
	}
}

func TestAnImageThatCannotBeFetchedStopsNothing(t *testing.T) {
	w := newWorld(t)
	w.holdsFetches = true
	w.wants(newVersion(1, "web:1"))
	w.wants(newVersion(2, "mistyped"))
	fails := func() {
		w.step(Workload{wire.WorkloadEvent{
			Key: last[wire.FetchWorkload](w).Key, Phase: wire.WorkloadFetched, Reason: api.ReasonImageNotFound, Detail: "no such image",
		}})
	}
	fails()
	if in := w.is(api.Running); in.Epoch != 1 || in.Reason != api.ReasonImageNotFound {
		t.Errorf("epoch %s is running with the reason %q, want 1 and why the next one does not begin", in.Epoch, in.Reason)
	}
	n := count[wire.FetchWorkload](w)
	w.pass(time.Minute)
	if count[wire.FetchWorkload](w) <= n {
		t.Error("the image is not fetched again")
	}
	w.wants(newVersion(3, "web:3"))
	if got := last[wire.FetchWorkload](w); got.Epoch != 3 {
		t.Errorf("epoch %s is fetched, want 3", got.Epoch)
	}
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 2}, Phase: wire.WorkloadFetched}}) // late
	if in := w.is(api.Running); in.Epoch != 1 {
		t.Errorf("epoch %s runs after a late answer, want 1", in.Epoch)
	}
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 3}, Phase: wire.WorkloadFetched}})
	if in := w.is(api.Running); in.Epoch != 3 || in.Reason != api.ReasonNone {
		t.Errorf("epoch %s runs with the reason %q, want 3 without one", in.Epoch, in.Reason)
	}
}

func TestARestartedEngineFetchesAgainAndStopsNothing(t *testing.T) {
	w := newWorld(t)
	w.holdsFetches = true
	w.wants(newVersion(1, "web:1"))
	w.wants(newVersion(2, "web:2"))
	stops, fetches := count[wire.StopWorkload](w), count[wire.FetchWorkload](w)
	w.restart()
	if count[wire.StopWorkload](w) != stops || count[wire.FetchWorkload](w) != fetches+1 {
		t.Fatalf("after a restart %d stops and %d fetches, want %d and %d", count[wire.StopWorkload](w), count[wire.FetchWorkload](w), stops, fetches+1)
	}
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 2}, Phase: wire.WorkloadFetched}})
	if in := w.is(api.Running); in.Epoch != 2 {
		t.Errorf("epoch %s runs, want 2", in.Epoch)
	}
}

func TestAnInstanceThatExitsMeanwhileGetsItsNextPlacement(t *testing.T) {
	w := newWorld(t)
	w.holdsFetches = true
	w.wants(newVersion(1, "web:1"))
	w.wants(newVersion(2, "web:2"))
	w.exit(web, 1)
	if in := w.is(api.Running); in.Epoch != 2 {
		t.Errorf("epoch %s runs, want 2", in.Epoch)
	}
}

func TestAWithdrawnInstanceEndsItsFetch(t *testing.T) {
	w := newWorld(t)
	w.holdsFetches = true
	w.wants(newVersion(1, "web:1"))
	w.wants(newVersion(2, "web:2"))
	w.wants()
	ended := false
	for _, o := range w.all {
		s, ok := o.(wire.StopWorkload)
		ended = ended || ok && s.Epoch == 2
	}
	if !ended {
		t.Error("the fetch for epoch 2 is not cancelled")
	}
}
