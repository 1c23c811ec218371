package cluster

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// large is a core with many nodes, without the twins that a world drives.
type large struct {
	t   testing.TB
	c   *Core
	now time.Time
	gen api.Generation
	seq map[api.NodeID]uint64
}

func newLarge(t testing.TB, nodes int, cfg Config, info func(i int, x *api.NodeInfo)) *large {
	cfg.ID, cfg.LocalNumbers = "munich", 100_000
	l := &large{t: t, c: New(cfg), now: epoch, seq: map[api.NodeID]uint64{}}
	l.c.Step(l.now, Start{})
	for i := range nodes {
		x := nodeInfo(nodeAt(i), api.Resources{MilliCPU: 8000, MemoryMB: 8192})
		if info != nil {
			info(i, &x)
		}
		l.c.Step(l.now, JoinNode{Info: x})
		l.seq[x.ID] = 1
		l.c.Step(l.now, NodeReport{api.NodeReport{Node: x.ID, Boot: 1, Seq: 1, Whole: true}})
		l.c.Step(l.now, NodeAlive{Node: x.ID, Alive: api.Alive{Boot: 1, Seq: 1}})
	}
	return l
}

func nodeAt(i int) api.NodeID { return api.NodeID(fmt.Sprintf("n%d", i)) }

// stands has a node be at a place in the latency space.
func (l *large) stands(i int, ms float64) {
	id := nodeAt(i)
	self := api.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}, Coord: at(ms)}
	copy(self.Key[:], id)
	l.seq[id]++
	l.c.Step(l.now, NetUp{id, api.NetUp{Boot: 1, Seq: l.seq[id], Self: &self}})
}

// says has a node tell something new of itself.
func (l *large) says(x api.NodeInfo) {
	l.seq[x.ID]++
	l.c.Step(l.now, NodeReport{api.NodeReport{Node: x.ID, Boot: 1, Seq: l.seq[x.ID], Info: &x, Gen: l.c.nodes[x.ID].gen}})
}

// wants has the root want more.
func (l *large) wants(as ...api.Assignment) {
	l.gen++
	d := api.Desired{Gen: l.gen, From: l.gen - 1, Put: as, Digest: l.c.root.wanted}
	for _, a := range as {
		d.Digest = d.Digest.Toggle(a.Digest())
	}
	l.c.Step(l.now, Desired{d})
}

// pass lets time go by while all nodes are heard.
func (l *large) pass(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(250 * time.Millisecond)
		for _, n := range l.c.nodes {
			n.lastAlive = l.now
		}
		l.c.Step(l.now, Tick{})
	}
}

// allocations are how many f makes: the measure of its work that a busy machine does
// not change.
func allocations(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.Mallocs - before.Mallocs)
}

func (l *large) placed(id api.ServiceID) (n int) {
	for _, in := range l.c.services[id].instances {
		if in.Node != "" {
			n++
		}
	}
	return n
}

// TestWhatFitsNowhereCostsLittle: it is found out once for all that ask for the same,
// and again when something has changed that may help.
func TestWhatFitsNowhereCostsLittle(t *testing.T) {
	const nodes, instances = 2000, 500
	for name, wish := range map[string]api.Constraint{
		"a label": {Type: api.ConstrainLabels, Labels: []string{"gpu"}},
		"a node":  onNode("n9999"),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLarge(t, nodes, Config{}, nil)
			var as []api.Assignment
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
			if l.says(x); name == "a label" && l.placed(web) != 8 { // of half a vCPU
				t.Errorf("%d are placed where they fit now", l.placed(web))
			}
		})
	}
}

// TestAFullShortlistIsFilledAgain: that all of it is taken says nothing while there
// are others.
func TestAFullShortlistIsFilledAgain(t *testing.T) {
	const nodes = shortFrom + 500
	l := newLarge(t, nodes, Config{}, func(i int, x *api.NodeInfo) { x.Capacity.MilliCPU = 600 })
	var as []api.Assignment
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

// TestAMassOfViolationsIsRelievedAtAPace, whether there is a better place or none.
func TestAMassOfViolationsIsRelievedAtAPace(t *testing.T) {
	const nodes, instances = 1000, 300
	for name, spare := range map[string]bool{"to other nodes": true, "to nowhere": false} {
		t.Run(name, func(t *testing.T) {
			l := newLarge(t, nodes, Config{}, func(i int, x *api.NodeInfo) {
				if i < instances {
					x.Labels = map[string]string{"disk": "nvme"}
				}
			})
			var as []api.Assignment
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
				for _, in := range l.c.instances {
					if in.Strained || len(in.Moves) > 0 {
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
				if work = max(work, n); now-last > relieveCount {
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

// TestANodeThatDiesWithWhatFitsNowhereElseCostsLittle: why is told once for all.
func TestANodeThatDiesWithWhatFitsNowhereElseCostsLittle(t *testing.T) {
	const nodes, instances = 2000, 200
	l := newLarge(t, nodes, Config{}, func(i int, x *api.NodeInfo) { x.Capacity.MilliCPU, x.Capacity.MemoryMB = 200_000, 100_000 })
	var as []api.Assignment
	for i := range instances {
		as = append(as, of(web, i, 1, onNode("n0")))
	}
	l.wants(as...)
	n0 := l.c.nodes["n0"]
	if n := allocations(func() {
		l.c.Step(l.now, Drain{Node: "n0"})
	}); n > 20*nodes+200*instances {
		t.Errorf("when it is drained there are %d allocations", n)
	}
	l.c.Step(l.now, Cordon{"n0", false})
	l.c.timers.Set(timerKey{what: timerDead, node: "n0"}, l.now)
	n0.lastAlive = l.now.Add(-time.Hour)
	if n := allocations(func() { l.c.Step(l.now.Add(time.Second), Tick{}) }); n > 20*nodes+200*instances || !n0.silent {
		t.Errorf("when it dies (%v) there are %d allocations", n0.silent, n)
	}
}
