package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// behind sets a node's coordinate with a large height, as with DSL.
func (w *world) behind(id api.NodeID, place, height float64) {
	w.t.Helper()
	n := w.nodes[id]
	n.said++
	self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}, Coord: at(place)}
	self.Coord.Height = height / 1000
	copy(self.Key[:], id)
	w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: n.said, Self: &self}})
}

// A node is 0 ms from itself, even with a height of 23.5 ms, which would count twice.
func TestANodeIsNotFarFromItself(t *testing.T) {
	for _, tt := range []struct {
		name  string
		link  func(m *api.Microservice)
		ready func(w *world)
	}{
		{"latency", func(m *api.Microservice) { m.Constraints = []api.Constraint{near("pre.prod", 20)} }, func(w *world) { w.behind("n0", 0, 23.5) }},
		{"connectivity", func(m *api.Microservice) {
			m.Connectivity = []api.Connectivity{{Target: "pre.prod", Constraints: []api.LinkConstraint{{Type: api.LinkLatency, Threshold: 20}}}}
		}, func(w *world) { w.behind("n0", 0, 23.5) }},
		{"without a coordinate", func(m *api.Microservice) { m.Constraints = []api.Constraint{near("pre.prod", 20)} }, func(*world) {}},
		{"without a location", func(m *api.Microservice) {
			m.Connectivity = []api.Connectivity{{Target: "pre.prod", Constraints: []api.LinkConstraint{{Type: api.LinkGeo, Threshold: 1}}}}
		}, func(*world) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 0)
			w.join("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
			tt.ready(w)
			w.wants(of(pre, 0, 1))
			a := of(web, 0, 2)
			tt.link(&a.Spec)
			w.wants(a)
			if n := w.nodeOf(web.Instance(0)); n != "n0" {
				t.Fatalf("beside the other end it is on %q: %+v", n, w.observed(web.Instance(0)).Why)
			}
			// In the other order: the linked service comes second.
			w.wants(of(far, 0, 3, onNode("n0")))
			b := of("acme/shop.prod.back.prod", 0, 4)
			tt.link(&b.Spec)
			w.wants(b)
			w.beat()
			first := w.at(0).Epoch
			for range 40 {
				w.pass(time.Second)
				w.beat()
			}
			if v := w.violated(web.Instance(0)); v != "" {
				t.Errorf("beside the other end it violates its SLA: %s", v)
			}
			if w.at(0).Epoch != first {
				t.Errorf("it was placed again: %+v", w.at(0))
			}
		})
	}
}

func TestALinkedServiceComesToTheNodeOfTheOtherEnd(t *testing.T) {
	w := line(t, 2, nil)
	w.behind("n0", 0, 23.5)
	w.behind("n1", 5, 23.5)
	a := of(web, 0, 1, near("pre.prod", 20), onNode("n1"))
	w.wants(a)
	w.wants(of(pre, 0, 2))
	if n := w.nodeOf(pre.Instance(0)); n != "n1" {
		t.Fatalf("pre, 20 ms from web on n1, is on %q", n)
	}
	if v := w.violated(web.Instance(0)); v != "" {
		t.Errorf("web violates its SLA: %s", v)
	}
}

// A TCP measurement over the loopback of one node is ignored.
func TestMeasurementsOnOneNodeCauseNoMove(t *testing.T) {
	w := line(t, 1, nil)
	w.wants(of(pre, 0, 1))
	w.wants(of(web, 0, 2, near("pre.prod", 5)))
	w.beat()
	w.measures("n0", ms(web, pre, "n0", 60))
	w.pass(15 * time.Second)
	if v := w.violated(web.Instance(0)); v != "" {
		t.Errorf("beside the other end it violates its SLA: %s", v)
	}
}

// The plan shows the margin that the placement then has.
func TestThePlanHasNoDistanceOnOneNode(t *testing.T) {
	w := newWorld(t, 0)
	w.join("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	w.behind("n0", 0, 23.5)
	w.wants(of(pre, 0, 1))
	a := of(web, 0, 2, near("pre.prod", 20))
	margins := strings.Join(w.c.Plan(api.ClusterPlanRequest{Instances: []api.WhyRequest{{Instance: a.Instance, Spec: a.Spec}}}).Instances[0].Headroom, ", ")
	if !strings.Contains(margins, "latency 20.0 ms of 20 to pre.prod") {
		t.Errorf("the plan has %q, want all of the 20 ms left", margins)
	}
}
