package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestSilentNodesInstancesMoveOn(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	first := w.at(0)
	w.nodes[first.Node].off = true
	w.pass(9 * time.Second)
	if got := w.at(0); got.Node == first.Node || got.State != api.Running || got.Epoch <= first.Epoch {
		t.Fatalf("it is %s on %s with epoch %s", got.State, got.Node, got.Epoch)
	}
}

func TestReturningNodeKeepsItsInstance(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	was := w.expect(0, api.Running, "n0")
	w.nodes["n0"].off = true
	w.pass(9 * time.Second)
	w.expect(0, api.ClusterScheduled, "n0")
	w.nodes["n0"].off = false
	w.step(w.nodes["n0"].alive()) // its connection stayed up, so it has no reason to report
	if got := w.expect(0, api.Running, "n0"); got.Epoch != was.Epoch {
		t.Errorf("its epoch is %s, was %s", got.Epoch, was.Epoch)
	}
}

func TestLateReportOfASilentNodeDoesNotEndTheSearch(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	late := w.nodes["n0"].whole()
	w.nodes["n0"].off = true
	w.pass(9 * time.Second)
	w.step(late)
	w.expect(0, api.ClusterScheduled, "n0")
	w.join("n1", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	w.expect(0, api.NodeScheduled, "n1")
}

func TestNodeThatIsHeardAfterARestartIsReclaimed(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, exclusive(1, 100)), assignment(1, 1, spec(1, 100)))
	w.beat()
	w.nodes["n0"].off = true
	w.pass(9 * time.Second)
	w.restart()
	w.nodes["n0"].off = false
	w.step(w.nodes["n0"].alive())
	w.expect(1, api.NodeScheduled, "n0")
}

// TestDrainAfterARestartMovesInstancesThatWaitedForTheNode: the node fell silent with half of the
// cluster, so its exclusive instance was held back.
func TestDrainAfterARestartMovesInstancesThatWaitedForTheNode(t *testing.T) {
	w := newWorld(t, 4)
	w.wants(assignment(0, 1, exclusive(1, 100)))
	w.beat()
	for _, n := range w.nodes {
		n.off = true
	}
	w.pass(8 * time.Second)
	node := w.at(0).Node
	w.expect(0, api.ClusterScheduled, node)
	w.restart()
	for _, n := range w.nodes {
		n.off = false
	}
	w.beat()
	w.step(Drain{Node: node})
	w.pass(10 * time.Second)
	if got := w.at(0); got.State != api.Running || got.Node == node {
		t.Fatalf("it is %s on %s", got.State, got.Node)
	}
}

func TestInstancesOfAClusterSilentAtOnceArePlacedAtALimitedRate(t *testing.T) {
	w := newWorld(t, 6)
	for i := range 60 {
		w.want[web.Instance(i)] = assignment(i, 1, spec(0.1, 10))
	}
	w.desire()
	w.beat()
	moved := func() (n int) {
		for i := range 60 {
			if w.at(i).Epoch.Local() > 1 {
				n++
			}
		}
		return n
	}
	w.c.Step(w.now, Tick{})
	for _, id := range []api.NodeID{"n0", "n1", "n2", "n3"} {
		w.nodes[id].off = true
	}
	w.pass(8 * time.Second)
	atOnce := moved()
	w.pass(30 * time.Second)
	if after := moved(); atOnce >= after || after < 30 {
		t.Errorf("%d were moved at once, %d in all", atOnce, after)
	}
	for i := range 60 {
		if in := w.at(i); in.State != api.Running {
			t.Errorf("instance %d is %s on %s: %s", i, in.State, in.Node, in.Detail)
		}
	}
}

// TestReturnedNodesDoNotCountAsSilent: three of nine nodes fall silent and return. Within the
// same dead time three others fall silent. Never more than three are silent, so the cluster does
// not doubt itself.
func TestReturnedNodesDoNotCountAsSilent(t *testing.T) {
	w := newWorld(t, 9)
	for i := range 9 {
		w.want[web.Instance(i)] = assignment(i, 1, spec(0.1, 10))
	}
	w.desire()
	w.beat()
	cut := func(off bool, ids ...api.NodeID) {
		for _, id := range ids {
			w.nodes[id].off = off
		}
	}
	cut(true, "n0", "n1", "n2")
	w.pass(7500 * time.Millisecond)
	cut(true, "n3", "n4", "n5") // heard for the last time before the first three fell silent
	cut(false, "n0", "n1", "n2")
	w.beat()
	victims := map[api.InstanceID]api.Epoch{}
	for i := range 9 {
		if in := w.at(i); in.Node == "n3" || in.Node == "n4" || in.Node == "n5" {
			victims[in.ID] = in.Epoch
		}
	}
	if len(victims) < 3 {
		t.Fatalf("%d instances on the nodes that are cut off, want at least 3", len(victims))
	}
	w.pass(8 * time.Second)
	for i := range 9 {
		in := w.at(i)
		if old, ok := victims[in.ID]; ok && (in.State != api.Running || in.Epoch <= old) {
			t.Errorf("%s is %s on %s with epoch %s 8 s after its node was cut off; want it to run elsewhere", in.ID, in.State, in.Node, in.Epoch)
		}
	}
}

func TestAPauseOfTheProcessMakesNoNodeSilent(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	was := w.at(0)
	w.now = w.now.Add(time.Hour)
	w.step(Tick{})
	w.step(Tick{})
	for _, n := range w.c.Nodes() {
		if n.Status != api.NodeReady {
			t.Errorf("node %s is %s", n.ID, n.Status)
		}
	}
	if got := w.at(0); got.Epoch != was.Epoch {
		t.Error("its instance was moved")
	}
	w.nodes[was.Node].off = true
	w.pass(10 * time.Second)
	if got := w.at(0); got.Node == was.Node {
		t.Error("real silence was not noticed afterwards")
	}
}

func TestExclusiveWaitsUntilItsSilentNodesLeaseIsOver(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, exclusive(1, 100)))
	w.beat()
	node := w.at(0).Node
	w.nodes[node].off = true
	w.pass(5 * time.Second)
	if got := w.at(0); got.Node != node {
		t.Fatal("it was moved within the lease")
	}
	w.pass(5 * time.Second)
	if got := w.at(0); got.Node == node || got.State != api.Running {
		t.Fatalf("it is %s on %s", got.State, got.Node)
	}
}

// TestNodeCannotHarmItsCluster: a node reports about others and then falls silent, so that the
// cluster acts on its reports.
func TestNodeCannotHarmItsCluster(t *testing.T) {
	states := []api.State{
		"", "nonsense", api.Registered, api.Requested, api.ClusterScheduled, api.NodeScheduled,
		api.Created, api.Running, api.Completed, api.Failed, api.Terminated,
	}
	for _, s := range states {
		for _, reason := range []api.Reason{api.ReasonNone, api.ReasonNodeLost, api.ReasonTooManyFails} {
			t.Run(fmt.Sprint(s, " ", reason), func(t *testing.T) {
				w := newWorld(t, 4)
				w.wants(assignment(0, 1, spec(1, 100)), assignment(1, 1, exclusive(1, 100)))
				w.beat()
				lie := func(n int, liar api.NodeID) {
					in := w.at(n)
					tw := w.nodes[liar]
					tw.has[in.ID] = api.Observed{Instance: in.ID, Epoch: in.Epoch, State: s, Reason: reason}
					w.speak(liar)
				}
				for _, n := range []int{0, 1} {
					own := w.at(n).Node
					for id := range w.nodes {
						if id != own { // about another node's instance
							before := w.at(n)
							lie(n, id)
							if got := w.at(n); got.State != before.State || got.Node != before.Node {
								t.Fatalf("%s was believed about an instance of %s", id, own)
							}
						}
					}
					lie(n, own)
					w.step(Drain{Node: own})
					w.step(Cordon{own, false})
				}
				for _, n := range w.nodes {
					n.off = true
				}
				w.pass(8 * time.Second)
				for _, n := range w.nodes {
					n.off, n.has = false, map[api.InstanceID]api.Observed{}
				}
				w.pass(30 * time.Second)
				w.drops(web.Instance(0), web.Instance(1))
				w.pass(30 * time.Second)
				if got := w.c.Instances(); len(got) != 0 {
					t.Errorf("left: %+v", got)
				}
			})
		}
	}
}

func TestStrangersAreBounded(t *testing.T) {
	w := newWorld(t, 1)
	r := wire.NodeReport{Node: "n0", Boot: 2, Seq: 1, Whole: true}
	for i := range 5 * placement.MaxStrangers {
		r.Observed = append(r.Observed, api.Observed{Instance: web.Instance(i), State: api.Running})
	}
	w.step(NodeReport{r})
	// Each is observed, leaves the node, and takes an unknown amount of its resources.
	const want = placement.MaxStrangers + 1
	if held, _ := w.c.place.Held("n0"); held != want {
		t.Errorf("unknown instances that are kept of %d: got %d, want %d", len(r.Observed), held, want)
	}
	if got := w.c.place.Inspect().Size; got != 3*want {
		t.Errorf("records of unknown instances: got %d, want %d", got, 3*want)
	}
	w.step(NodeAlive{Node: "n0", Alive: wire.Alive{Boot: ^uint64(0), Seq: ^uint64(0), Gen: ^api.Generation(0)}})
	w.step(NodeAlive{Node: "nobody", Alive: wire.Alive{Boot: 1, Seq: 1}})
	w.step(NodeReport{wire.NodeReport{Node: "nobody", Boot: 1, Seq: 1}})
	w.step(NodeWill{"nobody"})
	w.join("n1", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	w.wants(assignment(0, 1, spec(1, 100)))
	w.expect(0, api.NodeScheduled, "n1")
}

// TestNodesLongGoneDoNotSlowTheLivingDown: nodes may disappear for good without being removed.
func TestNodesLongGoneDoNotSlowTheLivingDown(t *testing.T) {
	w := newWorld(t, 10)
	for _, id := range []api.NodeID{"n5", "n6", "n7", "n8", "n9"} {
		w.nodes[id].off = true
		w.pass(20 * time.Second)
	}
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	was := w.at(0)
	w.nodes[was.Node].off = true
	w.pass(9 * time.Second)
	if got := w.at(0); got.Node == was.Node {
		t.Error("it waits for its silent node as if half of the cluster had fallen silent at once")
	}
}

func TestReportsNameNoNode(t *testing.T) {
	w := newWorld(t, 2)
	m := spec(1, 100)
	m.Constraints = []api.Constraint{{Type: "direct", Node: "n1"}}
	w.wants(assignment(0, 1, m), assignment(1, 1, spec(100, 100)))
	w.nodes["n0"].off, w.nodes["n1"].off = true, true
	var said []api.Observed
	for range 30 {
		w.pass(time.Second)
		for _, in := range w.records() {
			said = append(said, w.observed(in.Desired.Instance))
		}
	}
	if err := w.c.removeNode("n1", false); err != nil {
		t.Fatal(err)
	}
	for _, in := range w.records() {
		said = append(said, w.observed(in.Desired.Instance))
	}
	for _, o := range said {
		o.Node = ""
		b, _ := json.Marshal(o)
		if s := string(b); strings.Contains(s, "n0") || strings.Contains(s, "n1") {
			t.Fatalf("the root is told %s", s)
		}
	}
}
