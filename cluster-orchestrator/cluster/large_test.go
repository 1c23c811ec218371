package cluster

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/violations"
	"github.com/treeline-edge/treeline/internal/wire"
)

// large is a core with many nodes, without the simulated nodes of a world.
type large struct {
	t   testing.TB
	c   *Core
	now time.Time
	gen api.Generation
	seq map[api.NodeID]uint64
}

func newLarge(t testing.TB, nodes int, cfg Config, info func(i int, x *api.NodeInfo)) *large {
	cfg.ID, cfg.LocalNumbers, cfg.Dead = "munich", 100_000, time.Minute
	l := &large{t: t, c: New(cfg), now: epoch, seq: map[api.NodeID]uint64{}}
	l.c.Step(l.now, Start{})
	for i := range nodes {
		x := nodeInfo(nodeAt(i), api.Resources{MilliCPU: 8000, MemoryMB: 8192})
		if info != nil {
			info(i, &x)
		}
		l.c.Step(l.now, JoinNode{Info: x})
		l.seq[x.ID] = 1
		l.c.Step(l.now, NodeReport{wire.NodeReport{Node: x.ID, Boot: 1, Seq: 1, Whole: true}})
		l.c.Step(l.now, NodeAlive{Node: x.ID, Alive: wire.Alive{Boot: 1, Seq: 1}})
	}
	return l
}

func nodeAt(i int) api.NodeID { return api.NodeID(fmt.Sprintf("n%d", i)) }

// stands sets a node's coordinate.
func (l *large) stands(i int, ms float64) {
	id := nodeAt(i)
	self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}, Coord: at(ms)}
	copy(self.Key[:], id)
	l.seq[id]++
	l.c.Step(l.now, NetUp{id, wire.NetUp{Boot: 1, Seq: l.seq[id], Self: &self}})
}

// says makes a node report a new Info.
func (l *large) says(x api.NodeInfo) {
	l.seq[x.ID]++
	l.c.Step(l.now, NodeReport{wire.NodeReport{Node: x.ID, Boot: 1, Seq: l.seq[x.ID], Info: &x, Gen: l.c.place.Inspect().Nodes[x.ID].Gen}})
}

// wants adds instances to the root's desired set.
func (l *large) wants(as ...wire.Assignment) {
	l.gen++
	d := wire.Desired{Gen: l.gen, From: l.gen - 1, Put: as, Digest: wanted(l.c)}
	for _, a := range as {
		d.Digest = d.Digest.Toggle(a.Digest())
	}
	l.c.Step(l.now, Desired{d})
}

// pass advances the time by less than Config.Dead, so that no node needs a heartbeat.
func (l *large) pass(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(250 * time.Millisecond)
		l.c.Step(l.now, Tick{})
	}
}

// allocations returns the number of allocations of f: a measure of work that does not depend on
// the machine's load.
func allocations(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.Mallocs - before.Mallocs)
}

func (l *large) placed(id api.ServiceID) (n int) {
	for _, in := range l.c.Instances() {
		if in.Service == id && in.Node != "" {
			n++
		}
	}
	return n
}

// TestWaitingInstancesThatFitNowhereAreCheap: the search is made once for all instances with the same
// request, and repeated after a change that may help.
func TestWaitingInstancesThatFitNowhereAreCheap(t *testing.T) {
	const nodes, instances = 2000, 500
	for name, wish := range map[string]api.Constraint{
		"a label": {Type: api.ConstrainLabels, Labels: []string{"gpu"}},
		"a node":  onNode("n9999"),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLarge(t, nodes, Config{}, nil)
			var as []wire.Assignment
			for i := range instances {
				as = append(as, of(web, i, 1, wish))
			}
			if n := allocations(func() { l.wants(as...) }); n > 20*nodes+200*instances {
				t.Errorf("when they come there are %d allocations", n)
			}
			l.pass(5 * time.Second)
			if n := allocations(func() { l.pass(10 * time.Second) }); n > 10*instances {
				t.Errorf("while nothing happens there are %d allocations", n)
			}
			l.stands(5, 10)
			if n := allocations(func() { l.stands(5, 50) }); n > 2*instances {
				t.Errorf("when a node's coordinate moves there are %d allocations", n)
			}
			x := nodeInfo("n7", api.Resources{MilliCPU: 4000, MemoryMB: 8192})
			x.Labels = map[string]string{"gpu": "a"}
			if l.says(x); name == "a label" && l.placed(web) != 8 { // of half a vCPU each
				t.Errorf("%d are placed where they fit now", l.placed(web))
			}
		})
	}
}

// TestAFullShortlistIsFilledAgain: if all nodes of the shortlist are full, others may still fit.
func TestAFullShortlistIsFilledAgain(t *testing.T) {
	const nodes = 1500
	l := newLarge(t, nodes, Config{}, func(i int, x *api.NodeInfo) { x.Capacity.MilliCPU = 600 })
	var as []wire.Assignment
	for i := range nodes + 10 {
		as = append(as, of(web, i, 1))
	}
	l.wants(as...)
	if n := l.placed(web); n != nodes {
		t.Errorf("%d of %d nodes have one", n, nodes)
	}
	l.wants(of(pre, 0, 2), of(pre, 1, 2), of(pre, 2, 2))
	l.says(nodeInfo("n3", api.Resources{MilliCPU: 1600, MemoryMB: 8192}))
	if n := l.placed(web); n != nodes+2 {
		t.Errorf("where two fit %d are", n-nodes)
	}
}

// TestAMassOfViolationsIsRelievedAtAPace: whether or not there is a better place.
func TestAMassOfViolationsIsRelievedAtAPace(t *testing.T) {
	const nodes, instances = 1000, 300
	for name, spare := range map[string]bool{"to other nodes": true, "to nowhere": false} {
		t.Run(name, func(t *testing.T) {
			l := newLarge(t, nodes, Config{}, func(i int, x *api.NodeInfo) {
				if i < instances {
					x.Labels = map[string]string{"disk": "nvme"}
				}
			})
			var as []wire.Assignment
			for i := range instances {
				as = append(as, of(web, i, 1, api.Constraint{Type: api.ConstrainLabels, Labels: []string{"disk=nvme"}, Rigidness: 1}))
			}
			l.wants(as...)
			for i := range nodes {
				x := nodeInfo(nodeAt(i), api.Resources{MilliCPU: 8000, MemoryMB: 8192})
				x.Labels = map[string]string{"disk": "ssd"}
				if spare && i >= instances {
					x.Labels["disk"] = "nvme"
				}
				l.says(x)
			}
			relieved := func() (n int) {
				for _, id := range l.c.place.IDs() {
					if in, _ := l.c.place.Record(id); in.NoBetterNode || len(in.Moves) > 0 {
						n++
					}
				}
				return n
			}
			if n := relieved(); n != 0 {
				t.Fatalf("%d are relieved before their rigidness is over", n)
			}
			work := 0
			for last := 0; last < instances; {
				now := 0
				n := allocations(func() {
					l.pass(250 * time.Millisecond)
					now = relieved()
				})
				if work = max(work, n); now-last > violations.MovesAtOnce {
					t.Fatalf("%d are relieved at once", now-last)
				}
				if last = now; l.now.Sub(epoch) > 30*time.Second {
					t.Fatalf("after %s %d are relieved", l.now.Sub(epoch), now)
				}
			}
			if work > 20*nodes+instances*200 {
				t.Errorf("one step makes %d allocations", work)
			}
		})
	}
}

// TestLosingANodeWhoseInstancesFitNowhereElseIsCheap: one explanation serves all its instances.
func TestLosingANodeWhoseInstancesFitNowhereElseIsCheap(t *testing.T) {
	const nodes, instances = 2000, 200
	l := newLarge(t, nodes, Config{}, func(i int, x *api.NodeInfo) { x.Capacity.MilliCPU, x.Capacity.MemoryMB = 200_000, 100_000 })
	var as []wire.Assignment
	for i := range instances {
		as = append(as, of(web, i, 1, onNode("n0")))
	}
	l.wants(as...)
	if n := allocations(func() {
		l.c.Step(l.now, Drain{Node: "n0"})
	}); n > 20*nodes+200*instances {
		t.Errorf("when it is drained there are %d allocations", n)
	}
	l.c.Step(l.now, Cordon{"n0", false})
	dead := l.now.Add(l.c.members.Dead())
	l.pass(l.c.members.Dead() - time.Second)
	for i := 1; i < nodes; i++ {
		l.c.Step(l.now, NodeAlive{Node: nodeAt(i), Alive: wire.Alive{Boot: 1, Seq: 2}})
	}
	n := allocations(func() { l.c.Step(dead.Add(time.Second/2), Tick{}) })
	if v, _ := l.c.Node("n0"); n > 20*nodes+200*instances || v.Status != api.NodeSilent {
		t.Errorf("when n0 dies (%s) there are %d allocations", v.Status, n)
	}
}
