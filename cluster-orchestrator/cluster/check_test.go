package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// relabelled makes a node report new labels and no other change.
func (w *world) relabelled(id api.NodeID, labels map[string]string) {
	w.t.Helper()
	r := w.nodes[id].whole()
	info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	info.Labels = labels
	r.Info = &info
	w.step(r)
}

// zones returns a world with one node in each zone; n0 is in the first.
func zones(t *testing.T, names ...string) *world {
	w := newWorld(t, len(names))
	for i, name := range names {
		w.relabelled(api.NodeID(fmt.Sprintf("n%d", i)), map[string]string{"zone": name})
	}
	return w
}

func inZone(name string) map[string]string { return map[string]string{"zone": name} }

var (
	byZone   = api.Constraint{Type: api.ConstrainSpread, By: "zone", Rigidness: 30}
	offStore = api.Constraint{Type: api.ConstrainAntiAffinity, By: "zone", Services: []string{"pre.prod"}, Rigidness: 30}
)

func TestAnInstanceWhoseZoneBecomesSharedMoves(t *testing.T) {
	for name, tt := range map[string]struct {
		has  []wire.Assignment // on n0, n1
		says string
	}{
		"spread": {[]wire.Assignment{of(web, 0, 1, byZone), of(web, 1, 1, byZone)}, "spread: 2 there, need at most 1 per zone"},
		"apart":  {[]wire.Assignment{of(pre, 0, 1), of(web, 0, 1, offStore)}, "apart: 1 there, need no pre.prod on the same zone"},
	} {
		t.Run(name, func(t *testing.T) {
			w := zones(t, "a", "b", "c", "a")
			w.step(Cordon{"n1", true})
			w.step(Cordon{"n2", true})
			w.step(Cordon{"n3", true})
			w.wants(tt.has[0])
			w.step(Cordon{"n1", false})
			w.wants(tt.has[1])
			one, other := tt.has[0].Instance, tt.has[1].Instance
			if w.nodeOf(one) != "n0" || w.nodeOf(other) != "n1" {
				t.Fatalf("they are on %q and %q", w.nodeOf(one), w.nodeOf(other))
			}
			epochs := func() int { return int(w.record(one).Epoch) + int(w.record(other).Epoch) }
			moved := func(from int) int { return epochs() - from }
			follow := func(d time.Duration) {
				for range int(d / (2 * time.Second)) {
					w.pass(2 * time.Second)
					w.checkBooks()
				}
			}
			start := epochs()

			// Two short violations move nothing.
			for range 4 {
				w.relabelled("n1", inZone("a"))
				follow(20 * time.Second)
				if v := w.record(other).Violated; v != tt.says {
					t.Errorf("it says %q", v)
				}
				w.relabelled("n1", inZone("b"))
				follow(12 * time.Second)
			}
			if moved(start) != 0 || w.record(one).Violated+w.record(other).Violated != "" {
				t.Fatalf("%d moves for moments, %q", moved(start), w.record(other).Violated)
			}

			// Without a better place the instances stay, and the root may look elsewhere.
			w.relabelled("n1", inZone("a"))
			follow(time.Minute)
			if in := w.record(other); moved(start) != 0 || !in.HandedBack || in.State != api.Running {
				t.Fatalf("%d moves to nowhere; it is %s, offered %v", moved(start), in.State, in.HandedBack)
			}
			w.step(Cordon{"n3", false}) // not a better place
			follow(time.Minute)
			if moved(start) != 0 {
				t.Fatalf("%d moves to the same zone", moved(start))
			}

			// With a better place, one instance moves, once.
			w.step(Cordon{"n2", false})
			follow(5 * time.Minute)
			a, b := w.nodeOf(one), w.nodeOf(other)
			if moved(start) != 1 || (a == "n2") == (b == "n2") || name == "apart" && b != "n2" {
				t.Errorf("%d moves, to %q and %q", moved(start), a, b)
			}
			for id, in := range w.records() {
				if in.Violated != "" || in.HandedBack || in.NoBetterNode || in.State != api.Running {
					t.Errorf("%s is %s, violated %q, offered %v", id, in.State, in.Violated, in.HandedBack)
				}
			}
		})
	}
}

func TestChangedLabelsMoveInstancesThatRequireThem(t *testing.T) {
	w := zones(t, "a", "b")
	w.wants(of(web, 0, 1, api.Constraint{Type: api.ConstrainLabels, Labels: []string{"zone=a"}, Rigidness: 10}))
	w.beat()
	w.expect(0, api.Running, "n0")
	w.relabelled("n1", inZone("a"))
	w.relabelled("n0", inZone("b"))
	w.pass(6 * time.Second)
	if in := w.record(web.Instance(0)); in.Node != "n0" || !strings.HasPrefix(in.Violated, "labels:") {
		t.Fatalf("within its rigidness it is on %q, violated %q", in.Node, in.Violated)
	}
	w.pass(20 * time.Second)
	w.expect(0, api.Running, "n1")
	w.checkBooks()
}

// A limit above one allows that many instances. Only those beyond it move.
func TestOnlyInstancesAboveTheSpreadLimitMove(t *testing.T) {
	w := zones(t, "a", "b", "c", "d", "e")
	two := byZone
	two.Limit = 2
	for i := range 5 { // one each
		w.wants(of(web, i, 1, two, api.Constraint{Type: api.ConstrainSpread}))
	}
	w.beat()
	sum := func() (n int) {
		for i := range 5 {
			n += int(w.at(i).Epoch)
		}
		return n
	}
	before := sum()
	for _, id := range []api.NodeID{"n0", "n1"} {
		w.relabelled(id, inZone("a"))
	}
	w.pass(2 * time.Minute)
	if got := sum() - before; got != 0 {
		t.Fatalf("%d moved where all are borne", got)
	}
	for i := range 2 { // capacity for the instances beyond the limit
		w.join(api.NodeID(fmt.Sprintf("n%d", 5+i)), api.Resources{MilliCPU: 4000, MemoryMB: 4096})
		w.relabelled(api.NodeID(fmt.Sprintf("n%d", 5+i)), inZone("f"))
	}
	for _, id := range []api.NodeID{"n2", "n3"} { // four instances in a zone with a limit of two
		w.relabelled(id, inZone("a"))
	}
	for range 60 {
		w.pass(2 * time.Second)
		w.checkBooks()
	}
	if got := sum() - before; got != 2 {
		t.Errorf("%d moved of two that were too many", got)
	}
}

// speed makes a node report the speed of its link.
func (w *world) speed(id api.NodeID, mbit int64) {
	w.t.Helper()
	r := w.nodes[id].whole()
	info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096, InMbit: mbit, OutMbit: mbit})
	r.Info = &info
	w.step(r)
}

// TestAnInstanceWhoseLinkBecameTooSlowMoves: as few instances as possible move, and only if the violation
// lasts.
func TestAnInstanceWhoseLinkBecameTooSlowMoves(t *testing.T) {
	w := newWorld(t, 2)
	w.speed("n0", 1000)
	w.step(Cordon{"n1", true})
	linked := func(n int) wire.Assignment {
		a := of(web, n, 1)
		a.Spec.Connectivity = []api.Connectivity{{Target: "pre.prod", Constraints: []api.LinkConstraint{{Type: api.LinkBandwidth, Threshold: 400, Rigidness: 10}}}}
		return a
	}
	w.wants(linked(0), linked(1), of(pre, 0, 1))
	w.beat()
	w.speed("n1", 1000)
	w.step(Cordon{"n1", false})
	w.pass(time.Minute)
	on := func() (n0, n1 int) {
		for i := range 2 {
			switch w.at(i).Node {
			case "n0":
				n0++
			case "n1":
				n1++
			}
		}
		return n0, n1
	}
	if n0, _ := on(); n0 != 2 || w.record(web.Instance(0)).Violated != "" {
		t.Fatalf("%d are on n0, %+v", n0, w.at(0))
	}
	w.speed("n0", 500) // enough for one of the two
	w.pass(5 * time.Second)
	if v := w.record(web.Instance(0)).Violated; v != "bandwidth_in: 100 Mbit/s, need 400 Mbit/s" {
		t.Errorf("it says %q", v)
	}
	w.speed("n0", 1000)
	w.pass(time.Minute)
	if n0, _ := on(); n0 != 2 || w.record(web.Instance(0)).Violated != "" {
		t.Fatalf("after a moment %d are on n0", n0)
	}
	w.speed("n0", 500)
	w.pass(time.Minute)
	if n0, n1 := on(); n0 != 1 || n1 != 1 {
		t.Errorf("%d are on n0, %d on n1", n0, n1)
	}
	for i := range 2 {
		if v := w.record(web.Instance(i)).Violated; v != "" {
			t.Errorf("%d is violated still: %s", i, v)
		}
	}
	w.checkBooks()
}
