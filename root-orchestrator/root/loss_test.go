package root

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/lost"
)

// lose passes time until the cluster, which no longer reports, counts as lost.
func (w *world) lose(id api.ClusterID) {
	w.t.Helper()
	w.twins[id].off = true
	for w.c.clusters.Out(id) != "silent" {
		w.round()
	}
}

func TestInstancesOfALostClusterMoveAtABoundedPaceAndTenantsTakeTurns(t *testing.T) {
	w := newWorld(t)
	w.join("a", 400)
	w.apply(6 * lost.Batch)
	other := application(10)
	w.must(Apply{Tenant: "bolt", Spec: other})
	w.settle()
	w.join("b", 400)
	if n := w.on("a"); n != 6*lost.Batch+10 {
		t.Fatalf("%d are on a, want all", n)
	}
	w.twins["a"].off = true
	for last, rounds := 0, 0; last < 6*lost.Batch+10; rounds++ {
		w.round()
		n := w.on("b")
		if n-last > lost.Batch {
			t.Fatalf("%d were placed in one step, want at most %d", n-last, lost.Batch)
		}
		if last == 0 && n > 0 {
			for _, in := range w.c.Instances("bolt") {
				if in.Cluster != "b" {
					t.Errorf("%s waits behind all of another tenant", in.ID)
				}
			}
		}
		if last = n; rounds > 60 {
			t.Fatalf("after %d rounds %d are on b", rounds, n)
		}
	}
	w.twins["a"].off = false
	w.settle()
	if n := len(w.twins["a"].want); n > 0 || w.on("a") > 0 {
		t.Errorf("after its return a has %d instances, and the root has %d there, want none", n, w.on("a"))
	}
	w.checkBooks()
}

// What has not moved yet when the cluster returns stays.
func TestAClusterThatReturnsKeepsWhatHasNotMoved(t *testing.T) {
	w := newWorld(t)
	w.join("a", 400)
	w.apply(4 * lost.Batch)
	w.settle()
	w.join("b", 400)
	w.lose("a")
	w.twins["a"].off = false
	w.settle()
	w.pass(30 * time.Second)
	if a, b := w.on("a"), w.on("b"); b > 2*lost.Batch || a+b != 4*lost.Batch || w.running() != 4*lost.Batch {
		t.Errorf("%d are on a, %d on b and %d run, want at most two batches moved", a, b, w.running())
	}
	w.checkBooks()
}

func TestAClusterThatFlapsGetsNoNewInstancesUntilItIsSteady(t *testing.T) {
	w := newWorld(t)
	w.join("a", 10)
	w.apply(1)
	w.settle()
	w.join("b", 5)
	offers := func() (n int) {
		for _, e := range w.c.events.List(eventlog.Filter{}) {
			if strings.HasPrefix(e.Detail, "offered to cluster a") {
				n++
			}
		}
		return n
	}
	flaps := 0
	flap := func() {
		w.lose("a")
		w.pass(5 * time.Second)
		w.twins["a"].off = false
		w.round()
		flaps++
	}
	flap()
	if out := w.c.clusters.Out("a"); out != "" {
		t.Errorf("after one loss a takes nothing: %s", out)
	}
	before := offers()
	for range 5 {
		flap()
		w.apply(1 + flaps)
		w.settle()
	}
	if n := offers() - before; n > 0 {
		t.Errorf("a got %d new instances between its losses, want none", n)
	}
	if w.on("b") != 5 || w.c.Instances("")[5].Cluster != "" || w.c.Instances("")[6].Cluster != "" {
		t.Errorf("%d are on b, want its 5, and two that wait for a", w.on("b"))
	}
	why, _ := w.c.Why(w.c.Instances("")[5].ID, w.now)
	if !strings.Contains(why.Summary, "lost repeatedly") {
		t.Errorf("it waits because %q, want the reason why a takes nothing", why.Summary)
	}
	w.pass(10 * time.Minute)
	if w.on("a") != 2 || w.running() != 7 {
		t.Errorf("after ten steady minutes %d are on a and %d run, want 2 and 7", w.on("a"), w.running())
	}
	w.pass(31 * time.Minute)
	flap()
	if out := w.c.clusters.Out("a"); out != "" {
		t.Errorf("a loss after half an hour without one counts as repeated: a is %q", out)
	}
	w.checkBooks()
}

// The cluster runs, and reports, what it had before it was lost: with its epochs, with higher ones, and
// as started by its operator.
func TestAClusterThatReturnsCannotTakeBackWhatMoved(t *testing.T) {
	w := newWorld(t)
	w.join("a", 10)
	w.apply(3)
	w.settle()
	w.join("b", 10)
	had := w.c.Instances("")
	w.lose("a")
	w.settle()
	if w.on("b") != 3 || w.running() != 3 {
		t.Fatalf("%d are on b and %d run", w.on("b"), w.running())
	}
	moved := w.c.Instances("")
	a := w.twins["a"]
	a.off, a.boot, a.seq = false, 0, 0 // a copy of an older state
	a.want = map[api.InstanceID]wire.Assignment{}
	for i, in := range had {
		o := api.Observed{Instance: in.ID, Epoch: in.Epoch, State: api.Running, Ready: true}
		switch i {
		case 1:
			o.Epoch = api.EpochOf(moved[i].Epoch.Root()+1000, 1)
		case 2:
			o.Local = true
		}
		a.local[in.ID] = o
	}
	for boot := range uint64(3) { // an older start, the same, a newer one
		a.boot, a.seq = boot, 100*boot
		w.settle()
		for i, in := range w.c.Instances("") {
			if in.Cluster != "b" || in.Epoch != moved[i].Epoch || in.State != api.Running {
				t.Errorf("start %d: %s is %s on %q as %s, want it as %s on b", boot, in.ID, in.State, in.Cluster, in.Epoch, moved[i].Epoch)
			}
		}
	}
	w.checkBooks()
}

func TestAClusterThatLiesAboutItsCapacityIsNotOfferedTheSameAgain(t *testing.T) {
	const n = 100
	w := newWorld(t)
	w.join("a", n)
	w.apply(n)
	w.settle()
	w.join("b", n)
	liar := w.join("liar", 10*n)
	liar.full, liar.even = true, true
	w.settle()
	w.lose("a")
	offered := 0
	for i := 0; w.on("b") < n && i < 100; i++ {
		before := map[api.InstanceID]api.Epoch{}
		for id, as := range liar.want {
			before[id] = as.Epoch
		}
		w.round()
		for id, as := range liar.want {
			if before[id] != as.Epoch {
				offered++
			}
		}
	}
	if w.on("b") != n || w.running() != n {
		t.Fatalf("%d are on b and %d run, want %d", w.on("b"), w.running(), n)
	}
	if offered > n+10 {
		t.Errorf("the liar was offered %d, want each instance once and a few probes", offered)
	}
	w.checkBooks()
}
