package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// light returns an assignment that takes no capacity.
func light(a wire.Assignment) wire.Assignment {
	a.Spec.VCPUs, a.Spec.Memory = 0, 0
	return a
}

// racked joins a node with the given memory in a rack.
func (w *world) racked(id api.NodeID, rack string, memory int64) {
	info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: memory})
	info.Labels = map[string]string{"rack": rack}
	w.joins(info)
}

// joins joins a node with the given Info.
func (w *world) joins(info api.NodeInfo) *twin {
	n := &twin{id: info.ID, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{}}
	w.nodes[info.ID] = n
	w.step(JoinNode{Info: info})
	w.speak(info.ID)
	return n
}

// apartFrom adds anti-affinity to other services.
func apartFrom(by string, services ...string) api.Constraint {
	return api.Constraint{Type: api.ConstrainAntiAffinity, By: by, Services: services}
}

// TestAnInstanceKeptOutIsPlacedWhenTheOthersLeave: the nodes do not get more free capacity.
func TestAnInstanceKeptOutIsPlacedWhenTheOthersLeave(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(light(of(pre, 0, 1)))
	w.beat()
	w.wants(light(of(web, 0, 2, apartFrom("", "pre.prod"))), light(of(web, 1, 2, apartFrom("", "pre.prod"))))
	w.beat()
	w.expect(0, api.Requested, "")
	w.drops(pre.Instance(0))
	w.beat()
	w.expect(0, api.Running, "n0")
	w.expect(1, api.Running, "n0")
	// In the other direction: the instance with the anti-affinity leaves.
	w.wants(light(of(pre, 0, 3)))
	w.beat()
	if n := w.nodeOf(pre.Instance(0)); n != "" {
		t.Fatalf("it is beside who is to be apart from it, on %s", n)
	}
	w.drops(web.Instance(0), web.Instance(1))
	w.beat()
	if n := w.nodeOf(pre.Instance(0)); n != "n0" {
		t.Errorf("it is on %q", n)
	}
	w.checkBooks()
}

func TestAnInstanceKeptOutOfARackIsPlacedOnAnyOfItsNodes(t *testing.T) {
	for name, leave := range map[string]func(w *world){
		"it is deleted": func(w *world) { w.drops(pre.Instance(0)) },
		"its node goes to another rack": func(w *world) {
			info := nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 256})
			info.Labels = map[string]string{"rack": "r2"}
			n := w.nodes["n0"]
			n.seq++
			w.step(NodeReport{wire.NodeReport{Node: "n0", Boot: 1, Seq: n.seq, Gen: n.gen, Info: &info}})
		},
		"its node is removed": func(w *world) {
			w.nodes["n0"].off = true
			w.pass(20 * time.Second)
			w.step(RemoveNode{"n0"})
		},
	} {
		w := newWorld(t, 0)
		w.racked("n0", "r1", 256)
		w.racked("n1", "r1", 4096)
		w.wants(of(pre, 0, 1, onNode("n0")))
		w.beat()
		a := of(web, 0, 3, apartFrom("rack", "pre.prod"))
		a.Spec.Memory = 1024
		w.wants(a)
		w.beat()
		w.expect(0, api.Requested, "")
		leave(w)
		w.pass(20 * time.Second)
		if in := w.at(0); in.Node != "n1" {
			t.Errorf("%s: it is on %q: %s", name, in.Node, in.Detail)
		}
		w.checkBooks()
	}
}

// TestASpreadServiceTakesThePlaceOfOneThatLeft: the rack's other node has capacity.
func TestASpreadServiceTakesThePlaceOfOneThatLeft(t *testing.T) {
	w := newWorld(t, 0)
	w.racked("n0", "r1", 256)
	w.racked("n1", "r1", 4096)
	racks := api.Constraint{Type: api.ConstrainSpread, By: "rack"}
	w.wants(of(web, 0, 1, racks, onNode("n0")))
	w.beat()
	big := of(web, 1, 2, racks)
	big.Spec.Memory = 1024
	w.wants(big)
	w.beat()
	w.expect(1, api.Requested, "")
	w.drops(web.Instance(0))
	w.beat()
	w.expect(1, api.Running, "n1")
	w.checkBooks()
}

// TestNoSubscriptionWaitsForAPublishedRecord adds and removes instances of all priorities with spread and
// anti-affinity, while nodes are cordoned, change racks and fall silent. In the end no
// reservation is left, and waiting instances fit nowhere, even with preemption.
func TestNoSubscriptionWaitsForAPublishedRecord(t *testing.T) {
	services := []api.ServiceID{web, pre, far}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 22))
		w := newWorld(t, 0)
		w.cfg.Preempt, w.cfg.Offer.Share = rng.IntN(4) > 0, []float64{0, 0.7}[rng.IntN(2)]
		w.c = New(w.cfg)
		w.step(Start{})
		for i := range 5 {
			w.racked(api.NodeID(fmt.Sprintf("n%d", i)), fmt.Sprintf("r%d", i/2), 1024)
		}
		laws := [][]api.Constraint{
			{{Type: api.ConstrainSpread, By: []string{"", "rack"}[rng.IntN(2)]}},
			{apartFrom([]string{"", "rack"}[rng.IntN(2)], "web.prod")},
			nil,
		}
		for i := range 60 {
			id := services[rng.IntN(3)].Instance(rng.IntN(5))
			node := api.NodeID(fmt.Sprintf("n%d", rng.IntN(5)))
			switch rng.IntN(8) {
			case 0, 1:
				if _, ok := w.want[id]; ok {
					w.drops(id)
				}
			case 2:
				w.step(Cordon{node, w.node(node).Status == api.NodeReady})
			case 3:
				info := w.claims[node]
				info.Labels = map[string]string{"rack": fmt.Sprintf("r%d", rng.IntN(3))}
				n := w.nodes[node]
				n.seq++
				w.step(NodeReport{wire.NodeReport{Node: node, Boot: 1, Seq: n.seq, Gen: n.gen, Info: &info}})
			case 4:
				w.nodes[node].off = !w.nodes[node].off
				w.pass(time.Duration(rng.IntN(12)) * time.Second)
			default:
				s := id.Service()
				a := of(s, id.Number(), api.Revision(i+1), laws[slices.Index(services, s)]...)
				a.Spec.Priority, a.Spec.VCPUs, a.Spec.Memory = api.Priorities[rng.IntN(4)], float64(rng.IntN(4)), int64(rng.IntN(3))*256
				w.wants(a)
			}
			w.checkBooks()
			if rng.IntN(3) == 0 {
				w.beat()
				w.checkBooks()
			}
		}
		for _, id := range step.Keys(w.nodes) {
			w.nodes[id].off = false
			w.step(Cordon{id, false})
		}
		w.pass(2 * time.Minute)
		w.checkBooks()
		for _, n := range w.c.Nodes() {
			if n.Reserved != (api.Resources{}) {
				t.Errorf("seed %d: %s keeps %s reserved", seed, n.ID, n.Reserved)
			}
		}
		for _, id := range w.c.place.Inspect().Waiting {
			in := w.record(id)
			if in.Node != "" {
				continue
			}
			why, _ := w.c.Why(id)
			if preempts := w.c.place.Inspect().Preempts(id); preempts || why.Causes[len(why.Causes)-1].Constraint == sched.Fits {
				t.Errorf("seed %d: %s waits, %s has capacity for it: %s, others are preempted: %v", seed, id, why.Causes[0].Constraint, fmt.Sprint(why.Causes), preempts)
			}
		}
	}
}
