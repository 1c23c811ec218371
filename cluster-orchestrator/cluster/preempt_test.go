package cluster

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func classed(n int, rev api.Revision, class string, cpu float64) wire.Assignment {
	m := spec(cpu, 100)
	m.Priority = class
	a := assignment(n, rev, m)
	a.SpecRev = rev
	return a
}

func TestTheUrgentEvictTheFewestAndLeastUrgent(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 2), classed(1, 1, "low", 2), classed(2, 1, "normal", 4))
	w.beat()
	w.wants(classed(3, 2, "high", 3))
	in := w.record(web.Instance(3))
	if in.Node != "" || in.Reserved == "" || w.at(2).State != api.ClusterScheduled && w.at(2).Node == "" && w.at(0).Node == "" {
		t.Fatalf("it is on %q with capacity reserved on %q", in.Node, in.Reserved)
	}
	kept := in.Reserved
	w.checkBooks()
	w.wants(classed(4, 3, "low", 1)) // a less urgent instance does not get the freed capacity
	w.restart()
	if got := w.record(web.Instance(3)); got.Reserved != kept {
		t.Fatalf("after a restart capacity is reserved on %q", got.Reserved)
	}
	w.checkBooks()
	w.pass(15 * time.Second)
	w.checkBooks()
	if got := w.at(3); got.State != api.Running || got.Node != kept {
		t.Errorf("it is %s on %q", got.State, got.Node)
	}
}

// TestAReservationIsNotBookedBesideLeavingInstances: an instance of a drained node has a
// reservation on another node and runs meanwhile (seed 909).
func TestAReservationIsNotBookedBesideLeavingInstances(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 3), classed(1, 1, "high", 4))
	w.beat()
	from, to := w.at(1).Node, w.at(0).Node
	w.step(Drain{Node: from})
	if in := w.record(web.Instance(1)); in.Node != from || in.Reserved != to {
		t.Fatalf("it is on %q with capacity reserved on %q", in.Node, in.Reserved)
	}
	room := func() (allocated, reserved int64) {
		n, _ := w.c.Node(to)
		return n.Allocated.MilliCPU, n.Reserved.MilliCPU
	}
	if a, r := room(); a != 3000 || r != 4000 {
		t.Errorf("%d is allocated and %d reserved, want 3000 of what leaves and 4000 of what comes", a, r)
	}
	w.pass(10 * time.Second)
	w.expect(1, api.Running, to)
	if a, r := room(); a != 4000 || r != 0 {
		t.Errorf("%d is allocated and %d reserved, want 4000 and nothing", a, r)
	}
}

func TestPreemptibleResourcesAreReported(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 3), classed(1, 1, "normal", 4))
	w.beat()
	for range 2 {
		got := w.c.Aggregate().Preemptible
		if len(got) != 3 || got[0].Urgency != 1 || got[0].Free.MilliCPU != 4000 || got[0].Largest.MilliCPU != 4000 ||
			got[1].Free.MilliCPU != 8000 || got[2].Free.MilliCPU != 8000 || got[2].Largest.MilliCPU != 4000 {
			t.Fatalf("%+v", got)
		}
		w.restart()
		w.pass(10 * time.Second)
	}
	w.drops(web.Instance(0), web.Instance(1))
	w.pass(5 * time.Second)
	if got := w.c.Aggregate().Preemptible; got != nil {
		t.Errorf("of an empty cluster: %+v", got)
	}
}

// TestAReservationIsUsedOnce: the capacity reserved for an exclusive instance is free when the
// cluster hears its last node after a restart. Taking it must not preempt others elsewhere too
// (seed 1575).
func TestAReservationIsUsedOnce(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 4), classed(1, 1, "low", 4))
	w.beat()
	a := classed(2, 2, "high", 3)
	a.Spec.Exclusive = true
	w.wants(a)
	kept := w.record(web.Instance(2)).Reserved
	if kept == "" {
		t.Fatal("no capacity is reserved")
	}
	for _, n := range w.nodes {
		n.settle()
	}
	w.restart()
	for id := range w.nodes {
		if id != kept {
			w.speak(id)
		}
	}
	w.step(w.nodes[kept].alive()) // heard before it reports, otherwise the capacity is not free yet
	w.step(w.nodes[kept].whole())
	w.checkBooks()
	if in := w.record(web.Instance(2)); in.Node != kept || in.Reserved != "" {
		t.Fatalf("it is on %q with capacity reserved on %q", in.Node, in.Reserved)
	}
	for range 3 {
		w.pass(3 * time.Second)
		w.checkBooks()
		w.expect(2, api.Running, kept)
	}
}

func TestAnInstanceOfALostNodePreemptsOthers(t *testing.T) {
	for _, alone := range []bool{false, true} {
		w := line(t, 2, func(c *Config) { c.Preempt = true })
		a := classed(0, 1, "urgent", 4)
		a.Spec.Exclusive = alone
		w.wants(a, classed(1, 1, "low", 2), classed(2, 1, "low", 2))
		w.beat()
		lost := w.at(0).Node
		w.nodes[lost].off = true
		for range 5 {
			w.pass(3 * time.Second)
			w.checkBooks()
		}
		if in := w.at(0); in.State != api.Running || in.Node == lost {
			t.Fatalf("exclusive %v: it is %s on %q: %s", alone, in.State, in.Node, in.Detail)
		}
		w.nodes[lost].off = false
		w.pass(10 * time.Second)
		w.checkBooks()
		if a, b := w.at(1), w.at(2); a.Node != lost || b.Node != lost {
			t.Errorf("exclusive %v: who made way is on %q and %q", alone, a.Node, b.Node)
		}
	}
}

func TestInstancesOfEqualPriorityAreNotPreempted(t *testing.T) {
	w := line(t, 1, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "normal", 4))
	w.beat()
	w.wants(classed(1, 2, "normal", 2), classed(2, 2, "urgent", 8))
	w.pass(10 * time.Second)
	w.expect(0, api.Running, "n0")
	w = newWorld(t, 1) // without the operator's permission, nothing is preempted
	w.wants(classed(0, 1, "low", 4))
	w.beat()
	w.wants(classed(1, 2, "urgent", 2))
	w.expect(0, api.Running, "n0")
}

// crowd has two nodes: an urgent instance fills one, others fill the other.
func crowd(t *testing.T, change func(*wire.Assignment)) (w *world, own, other api.NodeID) {
	w = line(t, 2, func(c *Config) { c.Preempt = true })
	a := classed(0, 1, "urgent", 4)
	if change != nil {
		change(&a)
	}
	w.wants(a, classed(1, 1, "low", 2), classed(2, 1, "low", 2))
	w.beat()
	own, other = w.at(0).Node, w.at(1).Node
	if own == other || w.at(2).Node != other {
		t.Fatalf("they are on %s, %s and %s", own, other, w.at(2).Node)
	}
	return w, own, other
}

func TestAnInstanceOfADrainedNodePreemptsOthers(t *testing.T) {
	w, own, other := crowd(t, nil)
	w.step(Drain{Node: own})
	in := w.record(web.Instance(0))
	if in.Node != own || in.Reserved != other || in.HandedBack || w.at(1).Node+w.at(2).Node != "" {
		t.Fatalf("it is on %q with capacity reserved on %q, the others on %q and %q", in.Node, in.Reserved, w.at(1).Node, w.at(2).Node)
	}
	w.checkBooks()
	w.step(Drain{Node: own}) // twice
	w.restart()
	w.checkBooks()
	for range 15 {
		w.pass(2 * time.Second)
		w.checkBooks()
		runs := 0
		for _, n := range w.nodes {
			if n.has[web.Instance(0)].State == api.Running {
				runs++
			}
		}
		if runs == 0 {
			t.Fatal("it was broken before it was made")
		}
	}
	w.expect(0, api.Running, other)
	w.step(Cordon{own, false})
	w.pass(10 * time.Second)
	w.expect(1, api.Running, own)
	w.expect(2, api.Running, own)
	w.checkBooks()
}

func TestAnInstanceStaysIfTheDrainEnds(t *testing.T) {
	for name, ends := range map[string]func(w *world, own, other api.NodeID){
		"it is taken back":              func(w *world, own, _ api.NodeID) { w.step(Cordon{own, false}) },
		"the other is drained too":      func(w *world, _, other api.NodeID) { w.step(Drain{Node: other}) },
		"the other falls silent":        func(w *world, _, other api.NodeID) { w.nodes[other].off = true },
		"nobody wants it any more":      func(w *world, _, _ api.NodeID) { w.drops(web.Instance(0)) },
		"what it should be has changed": func(w *world, _, _ api.NodeID) { w.wants(classed(0, 2, "low", 1)) },
	} {
		w, own, other := crowd(t, nil)
		w.step(Drain{Node: own})
		ends(w, own, other)
		w.checkBooks()
		for range 5 {
			w.pass(5 * time.Second)
			w.checkBooks()
		}
		for _, n := range w.c.Nodes() {
			if n.Reserved != (api.Resources{}) {
				t.Errorf("%s: %s keeps %s reserved", name, n.ID, n.Reserved)
			}
		}
		if in, ok := w.c.place.Record(web.Instance(0)); ok && in.State != api.Running && in.Desired.SpecRev == 1 {
			t.Errorf("%s: it is %s on %q", name, in.State, in.Node)
		}
	}
}

// An exclusive instance must stop before it moves, so it waits for free capacity and does not
// preempt others.
func TestARunningExclusiveInstancePreemptsNone(t *testing.T) {
	w, own, other := crowd(t, func(a *wire.Assignment) { a.Spec.Exclusive = true })
	w.step(Drain{Node: own})
	w.pass(10 * time.Second)
	w.expect(0, api.Running, own)
	w.expect(1, api.Running, other)
	w.checkBooks()
}

func TestAViolatedInstancePreemptsOthers(t *testing.T) {
	for _, may := range []bool{true, false} {
		w := line(t, 2, func(c *Config) { c.Preempt = may })
		target := []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(5)}}}}
		a := classed(0, 1, "urgent", 2)
		a.Spec.Constraints, a.Targets = []api.Constraint{near("pre.prod", 12)}, target
		w.wants(a)
		w.beat()
		own := w.at(0).Node
		other := map[api.NodeID]api.NodeID{"n0": "n1", "n1": "n0"}[own]
		w.step(Cordon{own, true})
		w.wants(classed(1, 2, "low", 2), classed(2, 2, "low", 2))
		w.step(Cordon{own, false})
		w.beat()
		w.stands(own, 90)
		w.pass(15 * time.Second)
		w.expect(0, api.Running, own) // within its rigidness
		w.expect(1, api.Running, other)
		for range 15 {
			w.pass(2 * time.Second)
			w.checkBooks()
		}
		in := w.record(web.Instance(0))
		if !may {
			if in.Node != own || !in.HandedBack {
				t.Errorf("without permission it is on %q, offered %v", in.Node, in.HandedBack)
			}
			continue
		}
		w.expect(0, api.Running, other)
		if len(in.Moves) != 1 || in.Violated != "" {
			t.Errorf("it moved %d times, violated %q", len(in.Moves), in.Violated)
		}
		if a, b := w.at(1).Node, w.at(2).Node; a == b || a == "" || b == "" {
			t.Errorf("the others are on %q and %q: one was enough", a, b)
		}
		// It moves 4 times in an hour and not more often.
		for i := range 20 {
			w.stands([]api.NodeID{own, other}[i%2], 5)
			w.stands(w.at(0).Node, 90)
			w.pass(40 * time.Second)
			w.checkBooks()
		}
		in = w.record(web.Instance(0))
		if n := len(in.Moves); n != 4 || int(in.Epoch-api.EpochOf(1, 0)) > 6 {
			t.Errorf("within the hour it moved %d times, epoch %v", n, in.Epoch)
		}
	}
}

func TestAReservationEndsWhenTheViolationEnds(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	a := classed(0, 1, "urgent", 4)
	a.Spec.Constraints = []api.Constraint{near("pre.prod", 12)}
	a.Targets = []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(5)}}}}
	w.wants(a, classed(1, 1, "low", 4))
	w.beat()
	own := w.at(0).Node
	w.stands(own, 90)
	for range 40 { // nodes do not settle, so the preemption remains in progress
		w.now = w.now.Add(time.Second)
		w.step(Tick{})
		for id := range w.nodes {
			w.speak(id)
		}
	}
	in := w.record(web.Instance(0))
	if in.Node != own || in.Reserved == "" {
		t.Fatalf("it is on %q with capacity reserved on %q", in.Node, in.Reserved)
	}
	w.stands(own, 10)
	w.pass(20 * time.Second)
	w.checkBooks()
	if in = w.record(web.Instance(0)); in.Node != own || in.Reserved != "" || w.at(1).State != api.Running {
		t.Errorf("it is on %q with capacity reserved on %q, the other is %s", in.Node, in.Reserved, w.at(1).State)
	}
}

// TestPreemptionNeverHitsEquals places instances of random priorities.
func TestPreemptionNeverHitsEquals(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 21))
		w := line(t, 3, func(c *Config) { c.Preempt = true })
		urgency := map[api.InstanceID]int{}
		for i := range 30 {
			a := classed(i, api.Revision(i+1), api.Priorities[rng.IntN(4)], float64(1+rng.IntN(3)))
			urgency[a.Instance] = a.Spec.Urgency()
			before := map[api.InstanceID]api.NodeID{}
			for id := range urgency {
				before[id] = w.nodeOf(id)
			}
			w.wants(a)
			w.checkBooks()
			for id, n := range before {
				if n != "" && w.nodeOf(id) != n && urgency[id] >= urgency[a.Instance] {
					t.Fatalf("seed %d: %s of %d made way for %s of %d", seed, id, urgency[id], a.Instance, urgency[a.Instance])
				}
			}
			if rng.IntN(2) == 0 {
				w.beat()
			}
			if n := api.NodeID([]string{"n0", "n1", "n2"}[rng.IntN(3)]); rng.IntN(3) == 0 {
				w.step(Cordon{n, w.node(n).Status == api.NodeReady})
				w.checkBooks()
			}
		}
		for _, id := range []api.NodeID{"n0", "n1", "n2"} {
			w.step(Cordon{id, false})
		}
		w.pass(30 * time.Second)
		w.checkBooks()
		for _, n := range w.c.Nodes() {
			if n.Allocated.MilliCPU > 4000 || n.Reserved != (api.Resources{}) {
				t.Fatalf("seed %d: %s has %v, and keeps %v reserved", seed, n.ID, n.Allocated, n.Reserved)
			}
		}
		// No instance waits while a less urgent one that is at least as large runs.
		for _, id := range w.c.place.Inspect().Waiting {
			for other := range urgency {
				if w.nodeOf(other) != "" && urgency[other] < urgency[id] && w.record(other).Desired.Spec.VCPUs >= w.record(id).Desired.Spec.VCPUs {
					t.Fatalf("seed %d: %s waits although %s runs", seed, id, other)
				}
			}
		}
	}
}

// roomy has one node with the given number of vCPUs, and allows preemption.
func roomy(t *testing.T, cpu int64) *world {
	w := line(t, 0, func(c *Config) { c.Preempt = true })
	w.join("n0", api.Resources{MilliCPU: 1000 * cpu, MemoryMB: 4096})
	return w
}

// TestPreemptionStopsAsFewInstancesAsPossible: the capacity that victims leave is reserved once, and the next
// urgent instance preempts only as many more as it needs.
func TestPreemptionStopsAsFewInstancesAsPossible(t *testing.T) {
	for k := 1; k <= 4; k++ {
		w := roomy(t, 20)
		var lows, urgent []wire.Assignment
		for i := range 10 {
			lows = append(lows, classed(i, 1, "low", 2))
		}
		for i := range k {
			urgent = append(urgent, classed(100+i, 2, "urgent", 2))
		}
		w.wants(lows...)
		w.beat()
		w.wants(urgent...)
		w.checkBooks()
		evicted := 0
		for i := range lows {
			if w.at(i).Node == "" {
				evicted++
			}
		}
		if evicted != k {
			t.Errorf("for %d urgent ones of their size %d made way", k, evicted)
		}
		w.pass(10 * time.Second)
		w.checkBooks()
		for i := range k {
			w.expect(100+i, api.Running, "n0")
		}
	}
}

// TestLinkedInstancesAreNotPreempted: without the linked instance, no node would meet the link.
func TestLinkedInstancesAreNotPreempted(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	filling := func(s api.ServiceID, n int, class string, cs ...api.Constraint) wire.Assignment {
		a := of(s, n, 1, cs...)
		a.Spec.Priority, a.Spec.VCPUs = class, 4 // fills a node
		return a
	}
	w.wants(filling(pre, 0, "low", onNode("n0")), filling(pre, 1, "low", onNode("n1")))
	w.beat()
	w.wants(filling(web, 0, "urgent", near("pre.prod", 5)))
	in := w.record(web.Instance(0))
	if a, b := w.nodeOf(pre.Instance(0)), w.nodeOf(pre.Instance(1)); a != "n0" || b != "n1" || in.Reserved != "" {
		t.Errorf("they are on %q and %q, with capacity reserved on %q", a, b, in.Reserved)
	}
	w.checkBooks()
}

// TestLeftoverCapacityServesTheNextInstance: one preempted instance makes room for two.
func TestLeftoverCapacityServesTheNextInstance(t *testing.T) {
	w := roomy(t, 8)
	w.wants(classed(0, 1, "low", 4), classed(1, 1, "low", 4))
	w.beat()
	w.wants(classed(2, 2, "urgent", 2), classed(3, 2, "urgent", 2))
	if a, b := w.at(0).Node, w.at(1).Node; (a == "") == (b == "") {
		t.Errorf("those that were there are on %q and %q", a, b)
	}
	w.pass(10 * time.Second)
	w.checkBooks()
	w.expect(2, api.Running, "n0")
	w.expect(3, api.Running, "n0")
}

// TestAReservationCountsForSpread: spread allows one instance per node.
func TestAReservationCountsForSpread(t *testing.T) {
	w := roomy(t, 6)
	w.wants(classed(0, 1, "low", 2), classed(1, 1, "low", 2), classed(2, 1, "low", 2))
	w.beat()
	for i := range 2 {
		a := of(pre, i, 2, api.Constraint{Type: api.ConstrainSpread})
		a.Spec.Priority, a.Spec.VCPUs = "urgent", 2
		w.wants(a)
		w.checkBooks()
	}
	if in := w.record(pre.Instance(1)); in.Reserved != "" || !in.HandedBack {
		t.Errorf("for the second capacity is reserved on %q, offered %v: %s", in.Reserved, in.HandedBack, in.Detail)
	}
	w.pass(10 * time.Second)
	w.checkBooks()
	low := 0
	for i := range 3 {
		if w.at(i).State == api.Running {
			low++
		}
	}
	if n := w.nodeOf(pre.Instance(0)); n != "n0" || low != 2 || w.node("n0").Allocated.MilliCPU != 6000 {
		t.Errorf("the first is on %q beside %d, with %v taken", n, low, w.node("n0").Allocated)
	}
}

// TestAReservationEndsWhenTheNodeNoLongerFits: the position of the area of the instance's link
// becomes unknown.
func TestAReservationEndsWhenTheNodeNoLongerFits(t *testing.T) {
	w := line(t, 1, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 4))
	w.beat()
	a := of(pre, 0, 2, api.Constraint{Type: api.ConstrainLatency, Area: "oslo", Threshold: 106})
	a.Spec.Priority, a.Spec.VCPUs = "urgent", 2
	a.Targets = []api.Target{{Area: "oslo", Positions: []api.Position{{Coord: at(5)}}}}
	w.wants(a)
	if in := w.record(pre.Instance(0)); in.Reserved != "n0" {
		t.Fatalf("capacity is reserved on %q: %s", in.Reserved, in.Detail)
	}
	a.Targets = nil
	w.wants(a)
	w.checkBooks()
	if in, v := w.record(pre.Instance(0)), w.observed(pre.Instance(0)); in.Reserved != "" || !v.HandedBack {
		t.Errorf("capacity is reserved on %q, and the root is told %+v", in.Reserved, v)
	}
	w.pass(10 * time.Second)
	w.checkBooks()
	w.expect(0, api.Running, "n0")
}

// TestPreemptionStaysWithinTheRootsShare: the node has free capacity, but not in the root's share.
func TestPreemptionStaysWithinTheRootsShare(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt, c.Offer.Share = true, 0.5 }) // the share is 4 of 8 vCPUs
	w.wants(classed(0, 1, "low", 1), classed(1, 1, "low", 1), classed(2, 1, "low", 1), classed(3, 1, "normal", 1))
	w.beat()
	y := w.c.Aggregate().Preemptible
	if len(y) != 3 || y[0].Free.MilliCPU != 3000 || y[0].Largest.MilliCPU != 3000 || y[1].Free.MilliCPU != 4000 {
		t.Errorf("the root is told %+v", y)
	}
	ask := classed(4, 2, "urgent", 1)
	plan := w.c.Plan(api.ClusterPlanRequest{Instances: []api.WhyRequest{{Instance: ask.Instance, Spec: ask.Spec}}}).Instances[0]
	w.checkBooks()
	w.wants(ask, classed(5, 2, "urgent", 1))
	w.checkBooks()
	low := 0
	for i := range 3 {
		if w.at(i).Node != "" {
			low++
		}
	}
	if in := w.record(ask.Instance); low != 1 || in.Reserved+in.Node == "" || !plan.Preempts || len(plan.Preempted) != 1 {
		t.Errorf("%d low ones go on, it is on %q with capacity reserved on %q; planned %+v", low, in.Node, in.Reserved, plan)
	}
	w.pass(10 * time.Second)
	w.checkBooks()
	for _, i := range []int{3, 4, 5} {
		if in := w.at(i); in.State != api.Running {
			t.Errorf("%d is %s: %s", i, in.State, in.Detail)
		}
	}
	if w.c.place.Sums().Used.MilliCPU != 4000 {
		t.Errorf("of the root's 4 vCPUs %v are taken", w.c.place.Sums().Used)
	}
}

// TestInstancesOfAReturnedNodeArePreempted: the node was silent when the urgent instance came.
func TestInstancesOfAReturnedNodeArePreempted(t *testing.T) {
	for name, of := range map[string]struct{ away, back func(w *world) }{
		"cordoned": {
			func(w *world) { w.step(Cordon{"n0", true}) },
			func(w *world) { w.step(Cordon{"n0", false}) },
		},
		"silent": {
			func(w *world) { w.nodes["n0"].off = true; w.pass(20 * time.Second) },
			func(w *world) { w.nodes["n0"].off = false },
		},
		"overdue": {
			func(w *world) { w.step(NodeWill{"n0"}) },
			func(*world) {},
		},
	} {
		w := roomy(t, 4)
		w.wants(classed(0, 1, "low", 4))
		w.beat()
		of.away(w)
		w.wants(classed(1, 2, "urgent", 2), classed(2, 2, "urgent", 2), classed(3, 2, "low", 1))
		w.checkBooks()
		if in := w.record(web.Instance(1)); in.Node+in.Reserved != "" {
			t.Fatalf("%s: it is on %q with capacity reserved on %q", name, in.Node, in.Reserved)
		}
		of.back(w)
		w.pass(20 * time.Second)
		w.checkBooks()
		w.expect(1, api.Running, "n0")
		w.expect(2, api.Running, "n0")
	}
}

// TestInstancesWhosePriorityFallsArePreempted: a new SLA lowers their priority.
func TestInstancesWhosePriorityFallsArePreempted(t *testing.T) {
	w := roomy(t, 4)
	w.wants(classed(0, 1, "urgent", 4))
	w.beat()
	w.wants(classed(1, 2, "high", 2))
	w.beat()
	if v := w.observed(web.Instance(1)); !v.HandedBack {
		t.Fatalf("the root is told %+v", v)
	}
	w.wants(classed(0, 3, "low", 4))
	if in := w.record(web.Instance(1)); in.Reserved != "n0" || w.observed(in.Desired.Instance).HandedBack {
		t.Errorf("capacity is reserved on %q, and the root is told %+v", in.Reserved, w.observed(in.Desired.Instance))
	}
	w.pass(10 * time.Second)
	w.checkBooks()
	w.expect(1, api.Running, "n0")
}
