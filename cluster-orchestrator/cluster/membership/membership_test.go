package membership_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/internal/wire"
)

// rig drives a Machine with n live nodes.
type rig struct {
	m   *membership.Machine
	fx  *effects.Sink
	now time.Time
	seq uint64
}

func newRig(nodes int) *rig {
	r := &rig{fx: &effects.Sink{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	r.m = membership.New(membership.Config{
		Cluster: "munich", Timing: wire.Timing{Heartbeat: 2500 * time.Millisecond, Lease: 5 * time.Second}, Dead: 7 * time.Second,
	}, r.fx)
	r.fx.Begin(r.now)
	for i := range nodes {
		r.m.Join(api.NodeInfo{ID: node(i)}, "")
		r.alive(i)
	}
	return r
}

func node(i int) api.NodeID { return api.NodeID(fmt.Sprintf("n%d", i)) }

func (r *rig) alive(i int) membership.Return {
	r.seq++
	r.m.Boot(node(i), 1)
	back, _ := r.m.Alive(node(i), wire.Alive{Boot: 1, Seq: r.seq})
	return back
}

// pass advances the time while only the first nodes are alive. It returns the nodes that fell
// silent.
func (r *rig) pass(d time.Duration, alive int) (silent []api.NodeID) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(time.Second)
		r.fx.Begin(r.now)
		for i := range alive {
			r.alive(i)
		}
		for {
			k, ok := r.fx.Timers.Pop(r.now)
			if !ok {
				break
			}
			if dead, _ := r.m.CheckSilence(k.Node, false); dead {
				silent = append(silent, k.Node)
			}
		}
	}
	return silent
}

func TestNodeIsSilentAfterItsDeadTimeUntilItsNextHeartbeat(t *testing.T) {
	r := newRig(3)
	if got := r.pass(6*time.Second, 2); len(got) > 0 {
		t.Fatalf("%v are silent before their dead time", got)
	}
	if got := r.pass(2*time.Second, 2); len(got) != 1 || got[0] != "n2" {
		t.Fatalf("%v are silent after their dead time, want n2", got)
	}
	if n, _ := r.m.Node("n2"); n.Status() != api.NodeSilent {
		t.Errorf("n2 is %s, want silent", n.Status())
	}
	if back := r.alive(2); !back.Silent || !back.Changed || back.First {
		t.Errorf("the return of n2 is %+v", back)
	}
	if n, _ := r.m.Node("n2"); n.Status() != api.NodeReady {
		t.Errorf("n2 is %s after its heartbeat, want ready", n.Status())
	}
}

func TestHalfOfTheNodesSilentAtOnceMakesTheClusterDoubtItself(t *testing.T) {
	for silent, want := range map[int]bool{2: false, 3: true} {
		r := newRig(6)
		r.pass(8*time.Second, 6-silent)
		if got := r.m.DoubtsItself(0); got != want {
			t.Errorf("with %d of 6 nodes silent the cluster doubts itself: %v, want %v", silent, got, want)
		}
		r.pass(8*time.Second, 6-silent)
		if r.m.DoubtsItself(0) {
			t.Errorf("%d nodes that are silent for long make the cluster doubt itself", silent)
		}
	}
}

func TestOverdueNodesAreSuspect(t *testing.T) {
	r := newRig(3)
	r.pass(4*time.Second, 2)
	if suspects, overdue := r.m.SuspectLate(); overdue != 1 || len(suspects) != 1 || suspects[0] != "n2" {
		t.Errorf("suspects are %v, %d overdue, want n2", suspects, overdue)
	}
	if suspects, overdue := r.m.SuspectLate(); overdue != 1 || len(suspects) > 0 {
		t.Errorf("suspects are %v, %d overdue, want no new one", suspects, overdue)
	}
	if back := r.alive(2); !back.Changed || back.Silent {
		t.Errorf("the heartbeat of a suspect node is %+v", back)
	}
}

func TestNodeThatMayRunInstancesIsNotRemoved(t *testing.T) {
	r := newRig(1)
	if err := r.m.CheckRemove("n0", 1, 0); !errors.Is(err, api.ErrConflict) {
		t.Errorf("removing a node with an instance gives %v, want ErrConflict", err)
	}
	if err := r.m.CheckRemove("n0", 0, 0); err != nil {
		t.Errorf("removing an empty node gives %v", err)
	}
	r.pass(8*time.Second, 0)
	if err := r.m.CheckRemove("n0", 1, 1); err != nil {
		t.Errorf("removing a silent node gives %v", err)
	}
	r.m.Remove("n0")
	if _, known := r.m.Node("n0"); known || r.m.Len() != 0 || !r.fx.Timers.Next().IsZero() {
		t.Errorf("the removed node is known (%v) or has timers (%v)", known, r.fx.Timers.Next())
	}
}

func TestAllowingInstancesAgainEndsAPurge(t *testing.T) {
	r := newRig(1)
	if !r.m.Purge("n0") || r.m.Purge("n0") {
		t.Error("an order to purge is fresh once")
	}
	r.m.PurgeFailed("n0", "disk")
	if n, _ := r.m.Node("n0"); !n.Purging || n.PurgeError != "disk" {
		t.Errorf("the purged node is %+v", n)
	}
	if !r.m.Cordon("n0", false) {
		t.Error("the order to purge is not ended")
	}
	if n, _ := r.m.Node("n0"); n.Purging || n.PurgeError != "" {
		t.Errorf("after uncordon the node is %+v", n)
	}
}

func TestTimingGrowsAndNeverShrinks(t *testing.T) {
	r := newRig(membership.NodesAtBase - 1)
	if r.m.Rescale() {
		t.Error("the timing grows below NodesAtBase")
	}
	r.m.Join(api.NodeInfo{ID: "more"}, "")
	if !r.m.Rescale() || r.m.Dead() != 14*time.Second {
		t.Errorf("at NodesAtBase the dead time is %s, want 14s", r.m.Dead())
	}
	r.m.Remove("more")
	if r.m.Rescale() || r.m.Dead() != 14*time.Second {
		t.Errorf("below NodesAtBase again the dead time is %s, want 14s", r.m.Dead())
	}
}

func TestDocumentKeepsANode(t *testing.T) {
	r := newRig(0)
	r.m.Join(api.NodeInfo{ID: "n0", Privileged: true}, "token-1")
	r.m.Drain("n0")
	kept := membership.Extra{Must: 7, Placed: map[api.InstanceID]api.Epoch{"acme/shop.prod.db.prod#0": 3}}
	r.m.Save("n0", kept)
	docs := r.fx.End().Save
	if len(docs) != 1 {
		t.Fatalf("%d documents are saved, want 1", len(docs))
	}
	again := newRig(0)
	n, got, err := again.m.Restore(docs[0].Data)
	if err != nil || !reflect.DeepEqual(got, kept) || !n.Draining || !n.Cordoned || n.Info.ID != "n0" {
		t.Errorf("restored %+v with %+v (%v)", n, got, err)
	}
	if again.m.Rejoin("n0", "token-1") || !again.m.Rejoin("n0", "token-2") {
		t.Error("a join is new with another token only")
	}
}
