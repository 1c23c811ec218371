package cluster

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// restore replaces the store by an older copy, as a restore from a snapshot does.
func (w *world) restore(old map[string]store.Doc) {
	w.t.Helper()
	data, err := json.Marshal(store.Restored{Taken: epoch, Restored: w.now})
	if err != nil {
		w.t.Fatal(err)
	}
	w.disk = maps.Clone(old)
	w.disk[store.KindRestored+"\x00"+store.KeyRestored] = store.Doc{Kind: store.KindRestored, Key: store.KeyRestored, Version: 1, Data: data}
	w.restart()
}

// running returns where each instance runs and under which epoch.
func (w *world) running() map[api.InstanceID]string {
	all := map[api.InstanceID]string{}
	for _, n := range w.nodes {
		for id, o := range n.has {
			all[id] += string(n.id) + "@" + o.Epoch.String() + " "
		}
	}
	return all
}

func (w *world) expectRuns(want map[api.InstanceID]string, when string) {
	w.t.Helper()
	if got := w.running(); !maps.Equal(got, want) {
		w.t.Errorf("%s: %v run, want %v", when, got, want)
	}
}

// leased reports whether the last step renewed the node's lease.
func (w *world) leased(id api.NodeID) bool {
	for _, e := range w.last.Send {
		if l, ok := e.Msg.(wire.Lease); ok && e.To == id.Addr() && l.Seq != 0 {
			return true
		}
	}
	return false
}

// TestARestoredClusterStopsNothing: what was made and moved since the snapshot goes on as it is.
func TestARestoredClusterStopsNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	old := maps.Clone(w.disk)
	first := w.at(0).Node
	w.nodes[first].off = true
	w.pass(10 * time.Second) // the instance is placed on the other node
	w.nodes[first].off = false
	w.beat()
	w.wants(assignment(1, 2, exclusive(1, 100)), assignment(2, 3, spec(1, 100)))
	w.pass(5 * time.Second)
	before := w.running()
	if len(before) != 3 || before[web.Instance(0)] == string(first)+"@1.1 " {
		t.Fatalf("%v run before the restore", before)
	}

	w.restore(old)
	w.pass(10 * time.Minute)
	w.restart()
	w.pass(10 * time.Second)
	w.expectRuns(before, "before the root answers")
	if s := w.c.Restored(); !s.Held || !s.AwaitsRoot || len(s.SilentNodes) != 0 {
		t.Errorf("the state is %+v, want held, and awaiting the root", s)
	}
	for _, id := range step.Keys(w.nodes) {
		if w.step(w.nodes[id].alive()); !w.leased(id) {
			t.Errorf("the lease of %s is not renewed", id)
		}
	}
	for _, in := range []Input{Drain{Node: first}, MoveInstance{Instance: web.Instance(0)}, RemoveNode{Node: first}, LocalScale{Service: web, Replicas: 5}} {
		if err := w.step(in).Err; !errors.Is(err, api.ErrConflict) {
			t.Errorf("%T: got %v, want ErrConflict", in, err)
		}
	}

	w.desire()
	if w.c.Restored().Held {
		t.Fatalf("the cluster is held after the root has answered: %+v", w.c.Restored())
	}
	if _, held := w.disk[store.KindRestored+"\x00"+store.KeyRestored]; held {
		t.Error("the store has still the document of the restore")
	}
	if n := w.c.uplink.Notices(); len(n) < 2 || n[len(n)-1].Text != "the restored cluster continues: all that nodes run has a record; 0 instances without a record stop" {
		t.Errorf("the notices are %+v, want that the cluster continues", n)
	}
	w.pass(time.Minute)
	w.expectRuns(before, "after the root has answered")
	w.restart()
	w.pass(time.Minute)
	w.expectRuns(before, "after a restart")
	if err := w.step(AcceptRestored{}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("accept what is not held: got %v, want ErrConflict", err)
	}
}

// TestInstancesWithoutARecordWaitForAnAdministrator also when everything else is known.
func TestInstancesWithoutARecordWaitForAnAdministrator(t *testing.T) {
	w := newWorld(t, 1)
	old := maps.Clone(w.disk)
	w.wants(assignment(0, 1, spec(1, 100)), assignment(1, 2, spec(1, 100)))
	w.beat()
	before := w.running()
	w.restore(old)
	w.drops(web.Instance(1))
	if err := w.step(AcceptRestored{By: "admin"}).Err; !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("accept before the nodes could report: got %v, want ErrUnavailable", err)
	}
	w.pass(time.Minute)
	w.expectRuns(before, "before the restore is accepted")
	s := w.c.Restored()
	if !s.Held || s.AwaitsRoot || len(s.Unknown) != 1 || s.Unknown[0] != (api.UnknownInstance{Cluster: "munich", Node: "n0", Instance: web.Instance(1)}) {
		t.Errorf("the state is %+v, want one unknown instance", s)
	}
	if r := w.report; r.Whole || r.Gen != w.gen || r.Aggregate.Nodes != 0 {
		t.Errorf("the root is told %+v, want no capacity, and nothing that it was told before", r)
	}
	w.step(Ack{wire.ReportAck{Boot: w.report.Boot, Seq: w.report.Seq, RequestWhole: true}})
	known := api.Digest(0)
	for end := w.now.Add(10 * time.Second); w.now.Before(end) && known == 0; {
		w.pass(time.Second)
		if r := w.report; r.Whole {
			for i := range r.Observed {
				known = known.Toggle(r.Observed[i].Digest())
			}
			if len(r.Observed) != 2 || r.Known != known || r.Observed[0].Node != "" || r.Observed[0].State != api.Running {
				t.Errorf("the root is told %+v, want what the node runs", r)
			}
		}
	}
	if known == 0 {
		t.Error("the root gets no whole report, and has requested one")
	}
	if eff := w.step(AcceptRestored{By: "admin"}); eff.Err != nil {
		t.Fatal(eff.Err)
	}
	w.pass(time.Minute)
	delete(before, web.Instance(1))
	w.expectRuns(before, "after the restore is accepted")
}

// TestARestoredClusterWaitsForAllNodes because one that is silent may run what has no record.
func TestARestoredClusterWaitsForAllNodes(t *testing.T) {
	w := newWorld(t, 2)
	old := maps.Clone(w.disk)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	on := w.at(0).Node
	w.nodes[on].off = true
	w.restore(old)
	w.desire()
	w.pass(time.Minute)
	if s := w.c.Restored(); !slices.Equal(s.SilentNodes, []api.NodeID{on}) {
		t.Fatalf("the state is %+v, want %s silent", s, on)
	}
	if n := len(w.running()); n != 1 {
		t.Errorf("%d instances run, want the one of the silent node", n)
	}
	w.nodes[on].off = false
	w.pass(time.Minute)
	w.expect(0, api.Running, on)
}

// TestNoLeaseLetsAnInstanceRunTwice: a node that was cut off before the snapshot was restored, and whose instance was
// placed on another node since, gets no lease.
func TestNoLeaseLetsAnInstanceRunTwice(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, exclusive(1, 100)))
	w.beat()
	first := w.at(0).Node
	old := maps.Clone(w.disk)
	cut := w.nodes[first]
	cut.off = true
	w.pass(20 * time.Second)
	second := w.at(0).Node
	if second == first {
		t.Fatalf("the instance is still on %s", first)
	}
	w.restore(old)
	cut.off = false
	cut.has[web.Instance(0)] = api.Observed{Instance: web.Instance(0), Epoch: cut.has[web.Instance(0)].Epoch, State: api.Failed, Reason: api.ReasonLeaseExpired, Node: first}
	w.step(w.nodes[second].whole())
	w.step(w.nodes[second].alive())
	if w.leased(second) {
		t.Errorf("%s gets a lease before the other node has reported", second)
	}
	w.step(cut.whole())
	if w.step(cut.alive()); w.leased(first) {
		t.Errorf("%s gets a lease for an instance that %s runs", first, second)
	}
	if w.step(w.nodes[second].alive()); !w.leased(second) {
		t.Errorf("%s gets no lease, and runs the latest placement", second)
	}
	w.desire()
	w.pass(20 * time.Second)
	w.expect(0, api.Running, second)
	if n := len(cut.has); n != 0 {
		t.Errorf("%s has %d instances, want none", first, n)
	}
}

// TestLeasesOfUnknownNodesEndFirst: a node that joined after the snapshot may run an exclusive instance for as long as
// it has a lease.
func TestLeasesOfUnknownNodesEndFirst(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, exclusive(1, 100)))
	w.beat()
	w.expect(0, api.Running, "n0")
	old := maps.Clone(w.disk)
	w.join("n1", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	cut := w.nodes["n0"]
	cut.off = true
	w.pass(20 * time.Second)
	w.expect(0, api.Running, "n1")
	w.restore(old)
	end := w.now.Add(7 * time.Second)
	cut.off = false
	cut.has[web.Instance(0)] = api.Observed{Instance: web.Instance(0), Epoch: cut.has[web.Instance(0)].Epoch, State: api.Failed, Reason: api.ReasonLeaseExpired, Node: "n0"}
	w.desire()
	for _, left := range []time.Duration{7 * time.Second, 10 * time.Millisecond} {
		w.pass(end.Add(-left).Sub(w.now))
		w.step(cut.whole())
		if w.step(cut.alive()); w.leased("n0") || !w.c.Restored().Held {
			t.Errorf("%s before the lease of n1 ends, n0 has one, or the cluster continues", left)
		}
		if err := w.step(AcceptRestored{By: "admin"}).Err; !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("accept %s before the lease of n1 ends: got %v, want ErrUnavailable", left, err)
		}
	}
	delete(w.nodes, "n1")
	delete(cut.has, web.Instance(0)) // starts again when n0 has a lease
	w.now = end
	if w.step(Tick{}); w.c.Restored().Held {
		t.Fatalf("the cluster is held after the lease of n1: %+v", w.c.Restored())
	}
	w.pass(20 * time.Second)
	w.expect(0, api.Running, "n0")
}

// TestAHostileNodeDoesNotTakeOverInstances: it can claim neither an instance that runs where the record says, nor one
// that the SLA keeps off it, can use up no epochs, and take no lease from another node once the root has sent what it wants.
func TestAHostileNodeDoesNotTakeOverInstances(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	w.join("n1", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	guarded := spec(1, 100)
	guarded.Privileged = true
	w.describes("n0", func(i *api.NodeInfo) { i.Privileged = true })
	w.expect(0, api.Running, "n0")
	old := maps.Clone(w.disk)
	single := guarded
	single.Exclusive = true
	w.wants(assignment(1, 2, guarded), assignment(2, 3, spec(1, 100)), assignment(3, 4, single))
	w.beat()
	w.restore(old)
	hostile := w.nodes["n1"]
	hostile.hangs = true
	for n, e := range []api.Epoch{api.EpochOf(1, 900), api.EpochOf(2, 900), api.EpochOf(3, 1<<20-1)} {
		hostile.has[web.Instance(n)] = api.Observed{Instance: web.Instance(n), Epoch: e, State: api.Running, Node: "n1"}
	}
	w.speak("n1")
	w.desire()
	w.speak("n0")
	if w.pass(7 * time.Second); w.c.Restored().Held {
		t.Fatalf("the cluster is held: %+v", w.c.Restored())
	}
	w.pass(time.Second)
	for n := range 3 {
		if in := w.at(n); n < 2 && in.Node == "n1" || in.Epoch.Local() > 5000 {
			t.Errorf("instance %d is on %s under epoch %s", n, in.Node, in.Epoch)
		}
	}
	for range 100 {
		hostile.has[api.InstanceID(web.Instance(len(hostile.has)))] = api.Observed{Instance: web.Instance(len(hostile.has)), Epoch: 1 << 60, State: api.Running, Node: "n1"}
	}
	w.restore(old)
	w.desire()
	w.beat()
	if s := w.c.Restored(); !s.Held || s.Unknown[0].Node != "n1" {
		t.Errorf("the state is %+v, want the instances that n1 claims", s)
	}
	w.pass(8 * time.Second)
	if w.step(w.nodes["n0"].alive()); !w.leased("n0") {
		t.Error("n0 gets no lease for its exclusive instance, which n1 claims")
	}
	if w.step(hostile.alive()); w.leased("n1") {
		t.Error("n1 gets a lease for an exclusive instance that n0 runs")
	}
}
