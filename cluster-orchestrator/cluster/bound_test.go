package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// at returns a position on a line through the latency space, ms from its middle.
func at(ms float64) *api.Coordinate {
	c := vivaldi.New()
	c.Vec[0], c.Error = ms/1000, 0.1
	return &c
}

// stands sets a node's coordinate.
func (w *world) stands(id api.NodeID, ms float64) {
	w.t.Helper()
	n := w.nodes[id]
	n.said++
	self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}, Coord: at(ms)}
	copy(self.Key[:], id)
	w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: n.said, Self: &self}})
}

// line returns a world whose nodes are 10 ms apart, with n0 at 0.
func line(t testing.TB, nodes int, change func(*Config)) *world {
	w := newWorld(t, 0)
	if change != nil {
		change(&w.cfg)
		w.c = New(w.cfg)
		w.step(Start{})
	}
	for i := range nodes {
		id := api.NodeID(fmt.Sprintf("n%d", i))
		w.join(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
		w.stands(id, 10*float64(i))
	}
	return w
}

const (
	pre = api.ServiceID("acme/shop.prod.pre.prod")
	far = api.ServiceID("acme/shop.prod.far.prod")
)

// of returns an assignment of a service's instance with constraints.
func of(s api.ServiceID, n int, rev api.Revision, cs ...api.Constraint) wire.Assignment {
	m := spec(0.5, 64)
	m.Name = strings.Split(s.Name(), ".")[2]
	m.Constraints = cs
	return wire.Assignment{Instance: s.Instance(n), Epoch: api.EpochOf(rev, 0), SpecRev: rev, Spec: m}
}

func onNode(n api.NodeID) api.Constraint {
	return api.Constraint{Type: api.ConstrainDirect, Node: string(n)}
}

func near(service string, ms float64) api.Constraint {
	return api.Constraint{Type: api.ConstrainLatency, Service: service, Threshold: ms, Rigidness: 20}
}

func (w *world) nodeOf(id api.InstanceID) api.NodeID {
	in, _ := w.c.Instance(id)
	return in.Node
}

func TestAnInstanceIsPlacedNearItsLinkedServices(t *testing.T) {
	w := line(t, 6, nil)
	w.wants(of(pre, 0, 1, onNode("n3")))
	w.wants(of(web, 0, 2, near("pre.prod", 5)))
	if n := w.nodeOf(web.Instance(0)); n != "n3" {
		t.Errorf("5 ms from n3 it is on %q", n)
	}
	// A link to a service without instances does not bind. It binds that service when it is
	// placed.
	w.wants(of(far, 0, 3, near("pre2.prod", 15), onNode("n5")))
	w.wants(of(api.ServiceID("acme/shop.prod.pre2.prod"), 0, 4))
	if n := w.nodeOf("acme/shop.prod.pre2.prod#0"); n != "n4" && n != "n5" {
		t.Errorf("15 ms from n5 it is on %q", n)
	}
	// An instance that fits nowhere is handed back with the nearest miss.
	w.wants(of(far, 1, 5, near("pre.prod", 15), onNode("n0")))
	v := w.observed(far.Instance(1))
	if !v.HandedBack || v.Why == nil || v.Why.Nearest.Constraint != "latency" {
		t.Errorf("the root is told %+v %+v", v, v.Why)
	}
}

func TestALinkMayLeadToAnotherCluster(t *testing.T) {
	w := line(t, 6, nil)
	a := of(web, 0, 1, near("pre.prod", 5))
	a.Targets = []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(20)}}}}
	w.wants(a)
	if n := w.nodeOf(web.Instance(0)); n != "n2" {
		t.Fatalf("5 ms from 20 it is on %q", n)
	}
	w.beat()
	// The other end moves. That alone changes nothing on the node.
	gen := w.nodes["n2"].gen
	a.Targets = []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(50)}}}}
	w.wants(a)
	if w.nodes["n2"].gen != gen {
		t.Error("the node was told of where another cluster's instance is")
	}
	w.restart()
	w.pass(15 * time.Second)
	if got := w.at(0); got.Node != "n2" || w.record(web.Instance(0)).Violated == "" {
		t.Fatalf("within its rigidness it is on %s, violated %q", got.Node, w.record(web.Instance(0)).Violated)
	}
	w.pass(30 * time.Second)
	w.expect(0, api.Running, "n5")
	w.checkBooks()
}

func TestAViolatedInstanceMovesOnceAndDoesNotFlap(t *testing.T) {
	w := line(t, 6, nil)
	w.wants(of(pre, 0, 1, onNode("n3")))
	w.step(Cordon{"n3", true})
	w.wants(of(web, 0, 2, near("pre.prod", 12)))
	w.beat()
	first := w.at(0).Node
	epochs := map[api.Epoch]bool{w.at(0).Epoch: true}
	moves := func() int { return len(epochs) - 1 }
	follow := func(d time.Duration) {
		for range int(d / time.Second) {
			w.pass(time.Second)
			w.beat()
			epochs[w.at(0).Epoch] = true
			w.checkBooks()
		}
	}
	w.stands(first, 90) // far away, for a moment
	follow(10 * time.Second)
	if v := w.observed(web.Instance(0)); v.Violated == "" {
		t.Error("nobody says that its SLA is violated")
	}
	w.stands(first, 30)
	follow(25 * time.Second)
	if v := w.observed(web.Instance(0)); moves() != 0 || v.Violated != "" {
		t.Fatalf("it moved %d times for a moment's violation, %q", moves(), v.Violated)
	}
	w.stands(first, 90)
	follow(40 * time.Second)
	if in := w.expect(0, api.Running, w.at(0).Node); moves() != 1 || in.Node == first {
		t.Fatalf("it moved %d times and is on %s", moves(), in.Node)
	}
	follow(2 * time.Minute)
	if moves() != 1 {
		t.Fatalf("it moved %d times", moves())
	}
	// It never moves more often than the limit per hour.
	for range 20 {
		w.stands(w.at(0).Node, 200)
		follow(35 * time.Second)
		for i := range 6 {
			w.stands(api.NodeID(fmt.Sprintf("n%d", i)), 10*float64(i))
		}
	}
	if moves() != 4 {
		t.Errorf("within the hour it moved %d times", moves())
	}
	w.restart()
	if n := len(w.record(web.Instance(0)).Moves); n != 4 {
		t.Errorf("after a restart %d moves are remembered", n)
	}
}

func TestAViolatedInstanceWithoutBetterNodeIsHandedBack(t *testing.T) {
	w := line(t, 3, nil)
	a := of(web, 0, 2, near("pre.prod", 5))
	a.Targets = []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(0)}}}}
	w.wants(a)
	w.expect(0, api.NodeScheduled, "n0")
	w.beat()
	w.step(Cordon{"n2", true})
	a.Targets = []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(20)}}}}
	w.wants(a)
	w.pass(40 * time.Second)
	v := w.observed(web.Instance(0))
	if !v.HandedBack || v.State != api.Running || v.Reason != api.ReasonViolated || !strings.Contains(v.Violated, "latency") {
		t.Fatalf("the root is told %+v", v)
	}
	w.restart()
	w.beat()
	if v := w.observed(web.Instance(0)); !v.HandedBack || v.Violated == "" {
		t.Errorf("after a restart it is told %+v", v)
	}
	w.step(Cordon{"n2", false})
	w.pass(40 * time.Second)
	if v := w.observed(web.Instance(0)); w.at(0).Node != "n2" || v.HandedBack || v.Violated != "" {
		t.Errorf("when there is a place it is on %s, %+v", w.at(0).Node, v)
	}
}

func TestPositionsOfWatchedInstancesAreReported(t *testing.T) {
	w := line(t, 2, nil)
	a := of(web, 0, 1)
	a.Watched = true
	w.wants(a)
	n := w.at(0).Node
	told := func() (last *api.Position) {
		for _, r := range w.reports() {
			for _, o := range r.Observed {
				if o.Instance == web.Instance(0) {
					last = o.Position
				}
			}
		}
		w.ack()
		return last
	}
	told()
	w.beat()
	told()
	w.pass(time.Second)
	told()
	w.stands(n, 200)
	if p := told(); p == nil || p.Coord == nil || p.Coord.Vec[0] != 0.2 {
		t.Errorf("after it moved the root is told %+v", p)
	}
	w.stands(n, 213) // not reported
	if p := told(); p != nil {
		t.Errorf("of a small move the root is told %+v", p)
	}
}

func TestDomainsReachTheirLimits(t *testing.T) {
	w := newWorld(t, 0)
	for i, zone := range []string{"a", "a", "b", ""} {
		info := nodeInfo(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{MilliCPU: 4000, MemoryMB: 4096})
		if zone != "" {
			info.Labels = map[string]string{"zone": zone}
		}
		w.nodes[info.ID] = &twin{id: info.ID, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{}}
		w.step(JoinNode{Info: info})
		w.speak(info.ID)
	}
	zones := api.Constraint{Type: api.ConstrainSpread, By: "zone"}
	labelled := api.Constraint{Type: api.ConstrainLabels, Labels: []string{"zone"}}
	for i := range 3 {
		w.wants(of(web, i, api.Revision(i+1), zones, labelled))
	}
	var on []string
	for i := range 3 {
		on = append(on, w.node(w.at(i).Node).Labels["zone"])
	}
	slices.Sort(on)
	if !slices.Equal(on, []string{"", "a", "b"}) {
		t.Errorf("they are in %q", on)
	}
	// Anti-affinity holds in both directions.
	w = newWorld(t, 2)
	w.wants(of(pre, 0, 1, api.Constraint{Type: api.ConstrainAntiAffinity, Services: []string{"web.prod", "far.prod"}}))
	w.wants(of(web, 0, 2))
	w.wants(of(far, 0, 3, api.Constraint{Type: api.ConstrainAntiAffinity, Services: []string{"web.prod"}}))
	if a, b := w.nodeOf(pre.Instance(0)), w.at(0).Node; a == b || b == "" {
		t.Errorf("they are on %q and %q", a, b)
	}
	if n := w.nodeOf(far.Instance(0)); n != "" {
		t.Errorf("apart from both of two nodes it is on %q", n)
	}
}

func TestTheMostUrgentArePlacedFirst(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(of(pre, 0, 1, onNode("n9")))
	low, high := of(web, 0, 2), of(web, 1, 3)
	low.Spec.VCPUs, low.Spec.Priority, high.Spec.VCPUs, high.Spec.Priority = 4, "low", 4, "high"
	w.wants(low, high) // in one desired set
	if w.at(1).Node == "" || w.at(0).Node != "" {
		t.Errorf("the low one is on %q, the high one on %q", w.at(0).Node, w.at(1).Node)
	}
	w = newWorld(t, 0)
	w.wants(low)
	w.wants(high) // while both wait
	w.join("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	if w.at(1).Node == "" || w.at(0).Node != "" {
		t.Errorf("of those that wait the low one is on %q, the high one on %q", w.at(0).Node, w.at(1).Node)
	}
}
