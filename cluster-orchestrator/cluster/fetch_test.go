package cluster

import (
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
)

// keeps lets the node report that it still runs the placement with the epoch.
func (w *world) keeps(id api.NodeID, was api.Observed, r api.Reason) {
	w.t.Helper()
	n := w.nodes[id]
	was.Reason = r
	n.has[was.Instance] = was
	w.step(n.whole())
}

func TestANodeKeepsThePlacementBeforeWhileItFetchesTheImage(t *testing.T) {
	w := netWorld(t, 1)
	a := addressedAt(0, rr)
	w.wants(a)
	w.run("n0")
	was := w.nodes["n0"].has[web.Instance(0)]
	if o := w.observed(web.Instance(0)); !o.Ready {
		t.Fatalf("the root is told %+v, want that it takes requests", o)
	}
	next := a
	next.SpecRev, next.Epoch = 2, a.Epoch+1<<20
	w.wants(next)
	state := func() api.BackendState {
		_, be := w.c.place.Backend(routes.Place{Node: "n0", Instance: web.Instance(0)})
		return be.State
	}
	w.keeps("n0", was, api.ReasonNone)
	if state() != api.BackendUp {
		t.Errorf("while its next image is fetched, the backend is %s, want %s", state(), api.BackendUp)
	}
	w.keeps("n0", was, api.ReasonImageNotFound)
	if o := w.observed(web.Instance(0)); o.State != api.NodeScheduled || o.Reason != api.ReasonImageNotFound || o.Ready || state() != api.BackendUp {
		t.Errorf("the root is told %s %q, ready %v; the backend is %s; want node_scheduled, why, not ready and up", o.State, o.Reason, o.Ready, state())
	}
	w.keeps("n0", was, api.ReasonNone)
	if o := w.observed(web.Instance(0)); o.Reason != api.ReasonNone {
		t.Errorf("the root is told %q after the reason is gone, want none", o.Reason)
	}
	w.keeps("n0", was, api.ReasonUpdated)
	if state() != api.BackendDraining {
		t.Errorf("when the node stops it, the backend is %s, want %s", state(), api.BackendDraining)
	}
	w.run("n0")
	if o := w.observed(web.Instance(0)); o.State != api.Running || !o.Ready || state() != api.BackendUp {
		t.Errorf("the root is told %s, ready %v; the backend is %s; want running, ready and up", o.State, o.Ready, state())
	}
}

func TestTheRootLearnsWhenAnInstanceTakesRequests(t *testing.T) {
	w := netWorld(t, 1)
	w.nodes["n0"].slow = true
	w.wants(addressedAt(0, rr))
	w.run("n0")
	if o := w.observed(web.Instance(0)); o.State != api.Running || o.Ready {
		t.Fatalf("the root is told %s, ready %v; want running and not ready", o.State, o.Ready)
	}
	w.step(RootLink{Up: true})
	w.ack()
	w.nodes["n0"].slow = false
	clear(w.nodes["n0"].has)
	w.run("n0")
	w.pass(2e9)
	ready := func(o api.Observed) bool { return o.Instance == web.Instance(0) && o.Ready }
	if !w.report.Readiness || !slices.ContainsFunc(w.report.Observed, ready) {
		t.Errorf("the report is %+v, want that the instance takes requests", w.report)
	}
	w.restart()
	if o := w.observed(web.Instance(0)); !o.Ready {
		t.Error("a restarted cluster reports that the instance takes no requests")
	}
}
