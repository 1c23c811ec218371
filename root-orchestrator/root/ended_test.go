package root

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
)

// While a cluster removes the remains of a withdrawn instance, its view shows that its processes
// have ended.
func TestWithdrawnInstanceThatHasEndedIsShownSo(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	var id api.InstanceID
	for _, in := range w.c.Instances("") {
		if in.Cluster == "a" {
			id = in.ID
		}
	}
	a, b := w.twins["a"], w.twins["b"]
	say := func(tw *twin, s api.State, ended bool) api.Instance {
		t.Helper()
		o := api.Observed{Instance: id, Epoch: a.has[id].Epoch, State: s, Ended: ended}
		r := tw.report()
		r.Observed, r.Known, r.Whole = append(r.Observed, o), r.Known.Toggle(o.Digest()), false
		w.must(r)
		in, ok := w.c.Instance(id)
		if !ok {
			t.Fatalf("%s is forgotten, and its cluster did not say that it is gone", id)
		}
		return in
	}
	if in := say(a, api.Running, true); in.State != api.Running {
		t.Errorf("it is %s, and nobody withdrew it, want State api.Running", in.State)
	}
	w.must(DeleteApp{App: shop})
	if in := say(a, api.Terminated, false); in.State != api.Running || !in.Leaving {
		t.Errorf("it is %s (leaving %v), want running and leaving", in.State, in.Leaving)
	}
	if in := say(b, api.Terminated, true); in.State != api.Running {
		t.Errorf("it is %s by the word of a cluster that does not have it, want State api.Running", in.State)
	}
	before := len(w.c.Events(eventlog.Filter{}))
	if in := say(a, api.Terminated, true); in.State != api.Terminated || !in.Leaving {
		t.Errorf("it is %s (leaving %v), want terminated and leaving", in.State, in.Leaving)
	}
	if n := len(w.c.Events(eventlog.Filter{})); n != before {
		t.Errorf("%d events were told of it, want none before it is gone", n-before)
	}
	w.restart()
	if in, ok := w.c.Instance(id); !ok || in.State != api.Terminated || !in.Leaving {
		t.Errorf("after a restart it is %+v (%v)", in, ok)
	}
	w.settle()
	if _, ok := w.c.Instance(id); ok {
		t.Error("its cluster has nothing of it any more, and it is not forgotten")
	}
}
