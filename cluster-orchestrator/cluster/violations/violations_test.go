package violations_test

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/violations"
)

const id = api.InstanceID("acme/shop.prod.web.prod#0")

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type rig struct {
	*violations.Machine
	fx  *effects.Sink
	now time.Time
}

func newRig() *rig {
	fx := &effects.Sink{}
	r := &rig{Machine: violations.New(fx), fx: fx, now: epoch}
	fx.Begin(r.now)
	return r
}

func (r *rig) pass(d time.Duration) { r.now = r.now.Add(d); r.fx.Begin(r.now) }

func (r *rig) relieved() []api.InstanceID { return slices.Collect(r.Relieve()) }

func TestViolationIsToleratedForItsTime(t *testing.T) {
	r := newRig()
	b := violations.Breach{Text: "latency: 30 ms, need 20 ms", Tolerated: 5 * time.Second}
	if !r.Judge(id, 1, b, "") {
		t.Error("a new breach is not shown")
	}
	r.pass(4 * time.Second)
	if r.Judge(id, 1, b, b.Text); len(r.relieved()) > 0 {
		t.Error("the instance is to be moved within the tolerated time")
	}
	r.pass(2 * time.Second)
	r.Judge(id, 1, b, b.Text)
	if got := r.relieved(); len(got) != 1 || got[0] != id {
		t.Errorf("%v are to be moved after the tolerated time, want %s", got, id)
	}
}

func TestAnotherPlacementBeginsANewViolation(t *testing.T) {
	r := newRig()
	b := violations.Breach{Text: "labels", Tolerated: 5 * time.Second}
	r.Judge(id, 1, b, "")
	r.pass(4 * time.Second)
	if r.Violated(id, 2) {
		t.Error("the violation is counted for the next placement")
	}
	r.Judge(id, 2, b, "")
	r.pass(4 * time.Second)
	if r.Judge(id, 2, b, b.Text); len(r.relieved()) > 0 {
		t.Error("the time of the earlier placement counts for the next one")
	}
}

func TestChangingAmountsAreShownOnceAMinute(t *testing.T) {
	r := newRig()
	first := violations.Breach{Text: "30 ms", Estimated: true, Tolerated: time.Hour}
	r.Judge(id, 1, first, "")
	r.pass(time.Second)
	if r.Judge(id, 1, violations.Breach{Text: "31 ms", Estimated: true, Tolerated: time.Hour}, "30 ms") {
		t.Error("another amount is shown after a second")
	}
	if !r.Judge(id, 1, violations.Breach{Text: "29 ms", Tolerated: time.Hour}, "30 ms") {
		t.Error("a measurement does not replace an estimate")
	}
	r.pass(time.Minute)
	if !r.Judge(id, 1, violations.Breach{Text: "31 ms", Tolerated: time.Hour}, "29 ms") {
		t.Error("another amount is not shown after a minute")
	}
}

func TestAWatchedInstanceIsDueEveryTenSeconds(t *testing.T) {
	r := newRig()
	r.Watch(id, true)
	due := 0
	for range 30 {
		r.pass(time.Second)
		for {
			k, ok := r.fx.Timers.Pop(r.now)
			if !ok {
				break
			}
			if k.Kind == effects.Check {
				due += len(slices.Collect(r.Due()))
			}
		}
	}
	if due != 3 {
		t.Errorf("in 30 s the instance was due %d times, want 3", due)
	}
	r.Drop(id)
	if watched, known := r.Size(); watched+known != 0 || r.Watched(id) {
		t.Errorf("after Drop %d are watched, %d have state", watched, known)
	}
}
