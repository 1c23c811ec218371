package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestLostDesiredIsResent(t *testing.T) {
	w := newWorld(t, 1)
	w.pass(2 * time.Second)
	w.deaf = true
	w.wants(assignment(0, 1, spec(1, 100)))
	w.deaf = false
	w.pass(6 * time.Second)
	w.expect(0, api.Running, "n0")
}

func TestReservationsCountAtOnce(t *testing.T) {
	w := newWorld(t, 3)
	for i := range 20 {
		w.want[web.Instance(i)] = assignment(i, 1, spec(1, 100))
	}
	w.desire() // in one step, before any node has answered
	on := map[api.NodeID]int{}
	for i := range 20 {
		on[w.at(i).Node]++
	}
	if on["n0"] != 4 || on["n1"] != 4 || on["n2"] != 4 || on[""] != 8 {
		t.Errorf("12 vCPUs took %v", on)
	}
}

func TestAnInstanceThatFitsNowhereIsHandedBackAndPlacedLater(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, spec(8, 100)), assignment(1, 1, exclusive(8, 100)))
	for i := range 2 {
		v := w.observed(web.Instance(i))
		if !v.HandedBack || v.Why == nil || v.Why.Nearest == nil || v.Why.Nearest.Short != "4 vCPU" {
			t.Errorf("the root is told %+v", v)
		}
	}
	w.join("n1", api.Resources{MilliCPU: 64_000, MemoryMB: 4096})
	w.expect(0, api.NodeScheduled, "n1")
	w.expect(1, api.Requested, "") // handed back for good, because the root may have placed it elsewhere
	again := assignment(1, 2, exclusive(8, 100))
	w.wants(again)
	if in := w.expect(1, api.NodeScheduled, "n1"); in.Epoch <= again.Epoch {
		t.Errorf("epoch %s", in.Epoch)
	}
}

func TestANewRuntimeTakesWaitingInstances(t *testing.T) {
	w := newWorld(t, 1)
	m := spec(1, 100)
	m.Virtualization = "runsc"
	w.wants(assignment(0, 1, m))
	w.expect(0, api.Requested, "")
	r := w.nodes["n0"].whole()
	info := nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	info.Runtimes = []string{"container", "runsc"}
	r.Info = &info
	w.step(r)
	w.expect(0, api.NodeScheduled, "n0")
}

func TestExclusiveIsStoppedBeforeItRunsElsewhere(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, exclusive(1, 100)), assignment(1, 1, spec(1, 100)))
	w.beat()
	for n, waits := range []bool{true, false} {
		old := w.at(n).Node
		w.step(Drain{Node: old})
		if got := w.at(n).Node; (got == "") != waits {
			t.Errorf("instance %d is on %q at once", n, got)
		}
		w.beat()
		if got := w.at(n); got.Node == old || got.State != api.Running {
			t.Errorf("instance %d is %s on %s", n, got.State, got.Node)
		}
		w.step(Cordon{old, false})
	}
}

func TestAnExclusiveInstanceStaysBookedUntilItsNodeReportsItsEnd(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, exclusive(3, 100)))
	w.beat()
	w.drops(web.Instance(0))
	if in := w.at(0); !in.Leaving {
		t.Fatalf("%+v", in)
	}
	w.wants(assignment(1, 1, spec(3, 100)))
	w.expect(1, api.Requested, "")
	w.restart()
	w.expect(1, api.Requested, "")
	w.beat()
	w.expect(1, api.Running, "n0")
	if _, ok := w.c.Instance(web.Instance(0)); ok {
		t.Error("it is not forgotten")
	}
}

func TestUpdateStaysOnItsNode(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(3, 100)))
	w.beat()
	was := w.at(0)
	next := assignment(0, 2, spec(4, 100)) // fits there only after the old one has stopped
	next.SpecRev = 2
	w.wants(next)
	w.beat()
	if in := w.expect(0, api.Running, was.Node); in.Epoch <= was.Epoch {
		t.Errorf("epoch %s, was %s", in.Epoch, was.Epoch)
	}
}

func TestPublishedPortIsTakenUntilItsNodeHasLetGo(t *testing.T) {
	w := newWorld(t, 2)
	m := spec(1, 100)
	m.Port = "8080:80"
	w.wants(assignment(0, 1, m), assignment(1, 1, m), assignment(2, 1, m))
	w.beat()
	if a, b := w.at(0), w.at(1); a.Node == b.Node || a.State != api.Running || b.State != api.Running {
		t.Fatalf("they are on %q and %q", a.Node, b.Node)
	}
	why := w.observed(web.Instance(2)).Why
	if w.expect(2, api.Requested, ""); why == nil || why.Nearest == nil || why.Nearest.Constraint != "port" || why.Nearest.Have != "port 8080/tcp taken" {
		t.Fatalf("it is nowhere because of %+v", why)
	}
	next := assignment(0, 2, m) // the only conflicting port is the instance's own
	next.SpecRev = 2
	w.wants(next)
	w.beat()
	w.expect(0, api.Running, w.at(0).Node)
	freed := w.at(0).Node
	w.drops(web.Instance(0))
	w.expect(2, api.Requested, "")
	w.beat()
	w.expect(2, api.Running, freed)
}

func TestLargeSetsTravelAsChanges(t *testing.T) {
	w := newWorld(t, 0)
	w.join("n0", api.Resources{MilliCPU: 1_000_000, MemoryMB: 1_000_000})
	for i := range 64 {
		w.want[web.Instance(i)] = assignment(i, 1, spec(1, 10))
	}
	w.desire()
	w.beat()
	n := w.nodes["n0"]
	n.got = nil
	w.wants(assignment(1000, 1, spec(1, 10)))
	w.drops(web.Instance(0))
	ds := w.told(n.got)
	if len(ds) != 2 || ds[0].From == 0 || len(ds[0].Put) != 1 || ds[1].From == 0 || len(ds[1].Drop) != 1 {
		t.Fatalf("told %+v", ds)
	}
	if d, _ := n.digests(); d != ds[1].Digest {
		t.Error("the changes do not add up to the digest")
	}
}

func TestAFailingInstanceMovesOnceAndIsThenHandedBack(t *testing.T) {
	for _, reason := range []api.Reason{api.ReasonTooManyFails, api.ReasonNoDevice, api.ReasonNetworkFull} {
		w := newWorld(t, 2)
		w.wants(assignment(0, 1, spec(1, 100)))
		w.beat()
		fail := func() {
			in := w.at(0)
			w.nodes[in.Node].has[in.ID] = api.Observed{Instance: in.ID, Epoch: in.Epoch, State: api.Failed, Reason: reason}
			w.speak(in.Node)
		}
		first := w.at(0).Node
		fail()
		second := w.at(0).Node
		if second == first {
			t.Fatalf("%s: it stays where it fails", reason)
		}
		w.beat()
		fail()
		if v := w.observed(web.Instance(0)); !v.HandedBack || w.at(0).Node != second {
			t.Errorf("%s: tried everywhere, it is on %s and the root is told %+v", reason, w.at(0).Node, v)
		}
	}
}

func TestOperatorScalesWhileTheRootIsAway(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(0.1, 10)), assignment(1, 1, spec(0.1, 10)))
	w.beat()
	w.step(RootLink{true})
	for _, r := range []struct {
		in   LocalScale
		up   bool
		kind error
	}{
		{LocalScale{web, 3}, true, api.ErrConflict},
		{LocalScale{web, -1}, false, api.ErrInvalid},
		{LocalScale{web, placement.MaxLocal + 1}, false, api.ErrInvalid},
		{LocalScale{"acme/no.such.web.prod", 1}, false, api.ErrNotFound},
	} {
		w.step(RootLink{r.up})
		if eff := w.step(r.in); !errors.Is(eff.Err, r.kind) {
			t.Errorf("%+v: %v", r.in, eff.Err)
		}
	}
	w.step(LocalScale{web, 4})
	w.beat()
	var local []api.InstanceID
	for _, in := range w.c.Instances() {
		if in.Number >= w.cfg.LocalNumbers {
			local = append(local, in.ID)
		}
	}
	if len(local) != 2 || len(w.c.Instances()) != 4 {
		t.Fatalf("%+v", w.c.Instances())
	}
	// An acknowledged report does not end it: the root must adopt the instances.
	w.ack()
	said := 0
	for range 10 {
		w.now = w.now.Add(time.Second)
		w.step(Tick{})
		for _, r := range w.reports() {
			for _, o := range r.Observed {
				if o.Local {
					said++
				}
			}
		}
		w.ack()
	}
	if said < 2 {
		t.Errorf("the root was told %d times of what it did not take over", said)
	}
	w.step(LocalScale{web, 1})
	w.beat()
	if v := w.observed(web.Instance(1)); v.State != api.Terminated || !v.Stopped {
		t.Errorf("what was withdrawn is %+v", v)
	}
}

// TestLocalNumbersAreGivenOnce crashes between any two saves of one step.
func TestLocalNumbersAreGivenOnce(t *testing.T) {
	for saves := range 12 {
		w := newWorld(t, 1)
		w.wants(assignment(0, 1, spec(0.1, 10)))
		w.crashAfter(LocalScale{web, 4}, saves)
		w.beat()
		w.step(LocalScale{web, 6})
		w.beat()
		w.checkBooks()
		if n := len(w.c.Instances()); n != 6 {
			t.Errorf("after %d saves there are %d", saves, n)
		}
	}
}

func TestRemoveNodeIsRefusedWhileInstancesMayRun(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, exclusive(1, 100)))
	w.beat()
	node := w.at(0).Node
	if eff := w.step(RemoveNode{node}); !errors.Is(eff.Err, api.ErrConflict) {
		t.Errorf("a living node with instances: %v", eff.Err)
	}
	if eff := w.step(RemoveNode{"nobody"}); !errors.Is(eff.Err, api.ErrNotFound) {
		t.Errorf("no such node: %v", eff.Err)
	}
	w.restart()
	if eff := w.step(RemoveNode{node}); !errors.Is(eff.Err, api.ErrConflict) {
		t.Errorf("within its lease: %v", eff.Err)
	}
	w.nodes[node].off = true
	w.pass(15 * time.Second) // time for the nodes to reconnect
	if eff := w.step(RemoveNode{node}); eff.Err != nil {
		t.Error(eff.Err)
	}
	w.checkBooks()
	if got := w.at(0); got.State != api.Running || got.Node == node {
		t.Errorf("it is %s on %s", got.State, got.Node)
	}
}

// steady returns a cluster of n nodes in which nothing changes, and a heartbeat of one of them.
func steady(t testing.TB, nodes int) (*world, *twin) {
	w := newWorld(t, 0)
	w.deaf = true
	for i := range nodes {
		id := api.NodeID(fmt.Sprintf("n%d", i))
		tw := &twin{id: id, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{}}
		w.c.Step(w.now, JoinNode{Info: nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})})
		w.c.Step(w.now, tw.whole())
		w.c.Step(w.now, tw.alive())
		w.nodes[id] = tw
	}
	for range 3 { // until the effects of the joins have ended
		w.now = w.now.Add(time.Second)
		w.c.Step(w.now, Tick{})
		w.c.Step(w.now, Ack{wire.ReportAck{Boot: w.c.fx.Boot, Seq: lastReport(w.c)}})
	}
	tw := w.nodes["n0"]
	tw.gen = w.c.place.Inspect().Nodes["n0"].Gen
	w.c.Step(w.now, tw.alive())
	return w, tw
}

func TestHeartbeatAllocatesTheSameInAnyCluster(t *testing.T) {
	cost := func(nodes int) float64 {
		w, tw := steady(t, nodes)
		return testing.AllocsPerRun(100, func() { w.c.Step(w.now, tw.alive()) })
	}
	small, large := cost(10), cost(3000)
	if large > small || large > 5 { // includes the input itself, which a daemon's queue has anyway
		t.Errorf("a heartbeat allocates %g times with 10 nodes and %g times with 3000, want at most 5 and no more than with 10", small, large)
	}
}

func BenchmarkHeartbeat(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			w, tw := steady(b, nodes)
			b.ReportAllocs()
			for b.Loop() {
				w.c.Step(w.now, tw.alive())
			}
		})
	}
}

func TestMoveIsMakeBeforeBreak(t *testing.T) {
	w := newWorld(t, 3)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	first := w.at(0)
	w.step(Drain{Node: first.Node})
	second := w.at(0)
	if second.Node == first.Node || second.Node == "" || second.Epoch <= first.Epoch {
		t.Fatalf("it moved from %+v to %+v", first, second)
	}
	runs := func(n api.NodeID, e api.Epoch) bool {
		return w.nodes[n].want[web.Instance(0)].Epoch == e // its desired set has it
	}
	if !runs(first.Node, first.Epoch) || !runs(second.Node, second.Epoch) {
		t.Fatal("the old node is told to end it before the new one runs it")
	}
	w.restart() // the old placement stays after a restart of the cluster
	for _, id := range step.Keys(w.nodes) {
		w.speak(id)
	}
	w.checkBooks()
	if !runs(first.Node, first.Epoch) {
		t.Fatal("a restart ends it before the new one runs")
	}
	w.step(Drain{Node: second.Node}) // the new node has not run it yet
	third := w.at(0)
	if !runs(first.Node, first.Epoch) || runs(second.Node, second.Epoch) || third.Node == second.Node {
		t.Fatalf("after a second move it is on %+v", third)
	}
	w.beat()
	w.expect(0, api.Running, third.Node)
	if w.beat(); runs(first.Node, first.Epoch) || len(w.record(web.Instance(0)).OldPlacements) != 0 {
		t.Fatalf("it still stays: %+v", w.record(web.Instance(0)).OldPlacements)
	}
}

// TestAMoveWhoseNewNodeIsLostContinuesOnTheOldNode: an instance that moves off a drained node still runs
// there when its new node falls silent. When the old node is uncordoned, no other node has
// capacity for the instance (seed 1431).
func TestAMoveWhoseNewNodeIsLostContinuesOnTheOldNode(t *testing.T) {
	for _, undrain := range []string{"before", "after"} {
		w := newWorld(t, 2)
		w.wants(assignment(0, 1, spec(3, 100)))
		w.beat()
		first := w.at(0)
		w.step(Drain{Node: first.Node})
		second := w.at(0)
		if second.Node == first.Node {
			t.Fatal("it did not move")
		}
		if undrain == "before" {
			w.step(Cordon{Node: first.Node})
		}
		w.nodes[second.Node].off = true
		w.pass(10 * time.Second)
		if undrain == "after" {
			if v := w.observed(web.Instance(0)); !v.HandedBack || w.nodes[first.Node].want[web.Instance(0)].Epoch != first.Epoch {
				t.Fatalf("while its old node drains: %+v", v)
			}
			w.checkBooks()
			w.step(Cordon{Node: first.Node})
		}
		w.checkBooks()
		w.pass(4 * time.Second)
		w.expect(0, api.Running, first.Node)
		w.nodes[second.Node].off = false
		w.pass(4 * time.Second)
		if w.expect(0, api.Running, first.Node); len(w.nodes[second.Node].has) != 0 || len(w.record(web.Instance(0)).OldPlacements) != 0 {
			t.Errorf("%s: it runs twice", undrain)
		}
		w.checkBooks()
	}
}

func TestTheOldPlacementEndsWhenTheNewOneListens(t *testing.T) {
	for _, c := range []struct {
		name    string
		network string
		then    func(w *world, to *twin)
		stays   bool
	}{
		{"it does not listen yet", api.NetworkOverlay, func(w *world, _ *twin) { w.pass(10*time.Second - 3*time.Second) }, true},
		{"it listens", api.NetworkOverlay, func(w *world, to *twin) {
			to.slow = false
			clear(to.has)
			w.beat()
		}, false},
		{"it runs for long without", api.NetworkOverlay, func(w *world, _ *twin) { w.pass(10*time.Second + 3*time.Second) }, false},
		{"it runs for long without, over a restart", api.NetworkOverlay, func(w *world, _ *twin) {
			w.pass(10 * time.Second / 2)
			w.restart()
			w.pass(10*time.Second + 3*time.Second)
		}, false},
		{"it is on a node without an overlay", api.NetworkHost, func(*world, *twin) {}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 0)
			for _, id := range []api.NodeID{"n0", "n1"} {
				info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
				info.Network = c.network
				w.nodes[id] = &twin{id: id, boot: 1, slow: true, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{}}
				w.step(JoinNode{Info: info})
				w.speak(id)
			}
			w.wants(assignment(0, 1, spec(1, 100)))
			w.beat()
			first := w.at(0)
			w.step(Drain{Node: first.Node})
			w.beat()
			second := w.expect(0, api.Running, w.at(0).Node)
			if second.Node == first.Node {
				t.Fatal("it did not move")
			}
			c.then(w, w.nodes[second.Node])
			if got := w.nodes[first.Node].want[web.Instance(0)].Epoch == first.Epoch; got != c.stays {
				t.Errorf("the old placement stays: %v, want %v", got, c.stays)
			}
			w.checkBooks()
		})
	}
}

// The old placement of an instance with health checks stays until the new one has passed them, or for long
// enough. What the netmanager finds out does not count.
func TestWhatMovedOnlyEndsWhenTheNewPlacementIsHealthy(t *testing.T) {
	for _, network := range []string{api.NetworkOverlay, api.NetworkHost} {
		for name, c := range map[string]struct {
			waits  time.Duration
			passes bool
			stays  bool
		}{
			"its checks do not pass yet":      {9 * time.Minute, false, true},
			"its checks pass":                 {time.Minute, true, false},
			"its checks do not pass for long": {11 * time.Minute, false, false},
		} {
			t.Run(network+", "+name, func(t *testing.T) {
				w := newWorld(t, 0)
				for _, id := range []api.NodeID{"n0", "n1"} {
					info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
					info.Network = network
					w.nodes[id] = &twin{id: id, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{}}
					w.step(JoinNode{Info: info})
					w.speak(id)
				}
				w.wants(assignment(0, 1, spec(1, 100)))
				w.beat()
				first := w.at(0)
				for _, n := range w.nodes {
					n.slow, n.reason = true, api.ReasonNotReady
				}
				w.step(Drain{Node: first.Node})
				w.beat()
				second := w.expect(0, api.Running, w.at(0).Node)
				if second.Node == first.Node || second.Reason != api.ReasonNotReady {
					t.Fatalf("the new placement is %+v, want one on another node that is not ready", second)
				}
				w.pass(c.waits)
				if to := w.nodes[second.Node]; c.passes {
					to.slow, to.reason = false, api.ReasonNone
					clear(to.has)
					w.beat()
				}
				if got := w.nodes[first.Node].want[web.Instance(0)].Epoch == first.Epoch; got != c.stays {
					t.Errorf("the old placement stays: %v, want %v", got, c.stays)
				}
				w.checkBooks()
			})
		}
	}
}
