package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// A node has stopped a withdrawn instance and cannot remove it yet. The root gets Ended as soon
// as the node reports the stop, and not before.
func TestEndOfAWithdrawnInstanceIsPassedOn(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 5, spec(1, 64)))
	w.beat()
	w.expect(0, api.Running, "n0")
	id, n := web.Instance(0), w.nodes["n0"]
	w.drops(id)
	said := func() (o api.Observed, ok bool) {
		for _, r := range w.reports() {
			for _, of := range r.Observed {
				if of.Instance == id {
					o, ok = of, true
				}
			}
		}
		return o, ok
	}
	settled := func() {
		for range 3 {
			w.ack()
			w.now = w.now.Add(50 * time.Millisecond) // the node has not reported since the last heartbeat
			w.step(Tick{})
		}
	}
	code := 143
	settled()
	for _, o := range []api.Observed{
		{State: api.Running},
		{State: api.Failed, Reason: api.ReasonExited, ExitCode: &code},             // it may be started again before the withdrawal arrives
		{State: api.Failed, Reason: api.ReasonDeleted, Detail: "wanted by nobody"}, // it is not stopped yet
	} {
		o.Instance, o.Epoch, o.Node = id, n.has[id].Epoch, "n0"
		n.has[id] = o
		w.step(n.whole())
		if o, ok := said(); ok && o.Ended {
			t.Errorf("the root is told that it has ended of %+v", n.has[id])
		}
		settled()
	}
	old := n.has[id]
	old.Reason, old.ExitCode, old.Epoch = api.ReasonDeleted, &code, old.Epoch-1
	n.has[id] = old
	w.step(n.whole())
	if o, ok := said(); ok && o.Ended {
		t.Error("the root is told that it has ended of what the node says of an earlier placement")
	}
	settled()
	old.Epoch++
	n.has[id] = old
	w.step(n.whole())
	if o, ok := said(); !ok || !o.Ended || o.Stopped {
		t.Errorf("the root is told %+v (%v), want that it has ended and is not gone", o, ok)
	}
	w.restart()
	w.step(n.whole())
	if !w.observed(id).Ended {
		t.Error("a restarted cluster does not say that it has ended")
	}
	w.wants(assignment(0, 6, spec(1, 64)))
	if w.observed(id).Ended {
		t.Error("it is wanted again, and said to have ended")
	}
}
