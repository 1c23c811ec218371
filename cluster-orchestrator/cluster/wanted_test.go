package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestPlacesOfServicesAreIndexed places and moves instances with links to each other.
func TestPlacesOfServicesAreIndexed(t *testing.T) {
	links := map[api.ServiceID][]api.Constraint{
		web: {near("pre.prod", 15)}, pre: {near("far.prod", 25), near("pre.prod", 100)}, far: {near("web.prod", 35), near("pre", 5)},
	}
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := line(t, 6, nil)
		node := func() api.NodeID { return api.NodeID(fmt.Sprintf("n%d", rng.IntN(6))) }
		rev := api.Revision(1)
		for range 60 {
			s := []api.ServiceID{web, pre, far}[rng.IntN(3)]
			switch n := rng.IntN(8); rng.IntN(9) {
			case 0, 1, 2, 3:
				rev++
				cs := slices.Clone(links[s])
				if rng.IntN(3) == 0 {
					cs = cs[:rng.IntN(len(cs)+1)]
				}
				if rng.IntN(3) == 0 {
					cs = append(cs, onNode(node()))
				}
				a := of(s, n, rev, cs...)
				if rng.IntN(4) == 0 {
					a.Targets = []api.Target{{Service: []api.ServiceID{web, pre, far}[rng.IntN(3)], Positions: []api.Position{{Coord: at(float64(rng.IntN(60)))}}}}
				}
				w.wants(a)
			case 4:
				w.drops(s.Instance(n))
			case 5:
				w.stands(node(), float64(rng.IntN(60)))
			case 6:
				w.step(Drain{Node: node()})
			case 7:
				w.step(Cordon{node(), false})
			case 8:
				w.pass(time.Duration(rng.IntN(12)) * time.Second)
			}
			if rng.IntN(30) == 0 {
				w.restart()
			}
			if rng.IntN(2) == 0 {
				w.beat()
			}
			w.c.Plan(api.ClusterPlanRequest{Instances: []api.WhyRequest{{Instance: pre.Instance(50), Spec: of(pre, 50, 1, links[pre]...).Spec}}})
			w.checkBooks()
			if rng.IntN(3) == 0 { // several changes in one step
				w.checkBooks()
			}
		}
		w.checkBooks()
	}
}

// TestAnInstanceNearAnyOfManyInstancesMeetsItsLink: an instance near any of a hundred instances meets its link.
func TestAnInstanceNearAnyOfManyInstancesMeetsItsLink(t *testing.T) {
	const nodes = 100
	w := line(t, nodes, nil) // 10 ms apart
	var as, bs, cs []wire.Assignment
	for i := range nodes {
		as = append(as, of(pre, i, 1, onNode(nodeAt(i))))
		bs = append(bs, of(web, i, 2, near("pre.prod", 5), api.Constraint{Type: api.ConstrainSpread}))
		cs = append(cs, of(far, i, 3, near("pre.prod", 5), onNode(nodeAt(i))))
	}
	w.wants(cs...)
	w.wants(as...)
	w.wants(bs...)
	w.pass(time.Minute)
	for i := range nodes {
		if in := w.record(web.Instance(i)); in.Node == "" || in.Violated != "" {
			t.Fatalf("%d is on %q, violated %q: %s", i, in.Node, in.Violated, in.Detail)
		}
		if in := w.record(far.Instance(i)); in.Violated != "" || in.HandedBack {
			t.Fatalf("%d is on %q beside one, violated %q", i, in.Node, in.Violated)
		}
		if n := w.nodeOf(pre.Instance(i)); n != nodeAt(i) {
			t.Fatalf("%d of those that are linked to is on %q", i, n)
		}
	}
	w.checkBooks()
}

// TestLinkedServicesCostLittle: placement is cheap whichever of the two services comes first.
func TestLinkedServicesCostLittle(t *testing.T) {
	for name, first := range map[string]api.ServiceID{"who links second": pre, "who links first": web} {
		t.Run(name, func(t *testing.T) {
			work := func(n int) int {
				l := newLarge(t, n, Config{}, nil)
				for i := range n {
					l.stands(i, 10*float64(i))
				}
				as := map[api.ServiceID][]wire.Assignment{}
				for i := range n {
					as[pre] = append(as[pre], of(pre, i, 1))
					as[web] = append(as[web], of(web, i, 1, near("pre.prod", 5)))
				}
				l.wants(as[first]...)
				second := web
				if first == web {
					second = pre
				}
				w := allocations(func() { l.wants(as[second]...) })
				if l.placed(web) != n || l.placed(pre) != n {
					t.Fatalf("of %d are placed %d and %d", n, l.placed(web), l.placed(pre))
				}
				return w
			}
			if some, more := work(100), work(400); more > 6*some {
				t.Errorf("of a hundred there are %d allocations, of four hundred %d", some, more)
			}
		})
	}
}

// BenchmarkLinked places as many instances with a link as the linked service has.
func BenchmarkLinked(b *testing.B) {
	for _, n := range []int{250, 1000} {
		for name, order := range map[string][2]api.ServiceID{"second": {pre, web}, "first": {web, pre}} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					l := newLarge(b, n, Config{}, nil)
					for i := range n {
						l.stands(i, 10*float64(i))
					}
					as := map[api.ServiceID][]wire.Assignment{}
					for i := range n {
						as[pre], as[web] = append(as[pre], of(pre, i, 1)), append(as[web], of(web, i, 1, near("pre.prod", 5)))
					}
					l.wants(as[order[0]]...)
					b.StartTimer()
					l.wants(as[order[1]]...)
				}
			})
		}
	}
}

// cramped is a world of one node. An instance on it has a link to pre, and the node has no
// capacity for another one of that size.
func cramped(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 0)
	w.join("small", api.Resources{MilliCPU: 1000, MemoryMB: 200})
	w.stands("small", 0)
	w.wants(of(web, 0, 1, near("pre.prod", 5)))
	w.beat()
	return w
}

// TestLinkedInstancesOfAnySizeAndOrderArePlaced: the large instance is placed where it fits, and the small one that
// links to it follows.
func TestLinkedInstancesOfAnySizeAndOrderArePlaced(t *testing.T) {
	w := cramped(t)
	w.join("big", api.Resources{MilliCPU: 8000, MemoryMB: 8192})
	w.stands("big", 100)
	p := of(pre, 0, 2)
	p.Spec.Memory = 1024
	w.wants(p)
	w.pass(3 * time.Second)
	if n := w.nodeOf(pre.Instance(0)); n != "" {
		t.Errorf("while it may still find room near it is on %q", n)
	}
	w.pass(5 * time.Second)
	if n := w.nodeOf(pre.Instance(0)); n != "big" {
		t.Fatalf("after its time to search it is on %q: %s", n, w.record(pre.Instance(0)).Detail)
	}
	w.checkBooks()
	w.pass(time.Minute)
	if in := w.expect(0, api.Running, "big"); w.record(web.Instance(0)).Violated != "" {
		t.Errorf("%+v", in)
	}
	w.checkBooks()
}

// TestAnInstanceThatWaitsForNearCapacityTakesIt: its search time is over.
func TestAnInstanceThatWaitsForNearCapacityTakesIt(t *testing.T) {
	w := cramped(t)
	p := of(pre, 0, 2)
	p.Spec.Memory = 1024
	w.wants(p)
	w.pass(10 * time.Second)
	if v := w.observed(pre.Instance(0)); !v.HandedBack {
		t.Errorf("the root is told %+v", v)
	}
	w.join("big", api.Resources{MilliCPU: 8000, MemoryMB: 8192})
	w.stands("big", 100)
	if n := w.nodeOf(pre.Instance(0)); n != "big" {
		t.Errorf("it is on %q", n)
	}
}
