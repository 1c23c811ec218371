package cluster

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// checkBooks recomputes the incrementally updated state of the core.
func (w *world) checkBooks() {
	w.t.Helper()
	c := w.c
	var rootWanted, rootKnown api.Digest
	for id, in := range w.records() {
		if !in.Local && !in.Leaving {
			rootWanted = rootWanted.Toggle(in.Desired.Digest())
		}
		if v := w.observed(id); !v.Stopped {
			rootKnown = rootKnown.Toggle(v.Digest())
		}
	}
	if wanted, known := c.Digests(); wanted != rootWanted || known != rootKnown {
		w.t.Fatalf("of the root: wanted %x/%x known %x/%x", wanted, rootWanted, known, rootKnown)
	}
	w.checkPlacement()
	state := c.place.Inspect()
	for id, want := range state.Watched {
		if c.violations.Watched(id) != want {
			w.t.Fatalf("%s is checked: %v, want %v", id, c.violations.Watched(id), want)
		}
	}
	for _, n := range c.members.All() {
		if got := state.Nodes[n.Info.ID].Facts; !reflect.DeepEqual(n, got) {
			w.t.Fatalf("placement has node %s as %+v, membership as %+v", n.Info.ID, got, n)
		}
	}
}

// checkExclusive checks that no exclusive instance runs twice.
func (w *world) checkExclusive() {
	w.t.Helper()
	runs := map[api.InstanceID]api.NodeID{}
	for _, id := range step.Keys(w.nodes) {
		for _, o := range w.nodes[id].has {
			if a, ok := w.want[o.Instance]; ok && a.Spec.Exclusive && !w.nodes[id].off {
				if other, twice := runs[o.Instance]; twice {
					w.t.Fatalf("%s runs on %s and on %s", o.Instance, other, id)
				}
				runs[o.Instance] = id
			}
		}
	}
}

// TestRandomInputsWithCrashesConverge gives random valid inputs and crashes between any two saves.
// The state stays consistent, and in the end all instances are placed.
func TestRandomInputsWithCrashesConverge(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 9))
		w := line(t, 4, func(c *Config) {
			c.Preempt = seed%2 == 1
			if seed%4 == 3 {
				c.Asks = "http://brain"
			}
			c.Offer.Share = []float64{1, 0.7}[seed/4%2]
		})
		var open []sched.Ask
		var probes []uint64 // probe orders, some answered or outdated
		node := func() api.NodeID { return []api.NodeID{"n0", "n1", "n2", "n3"}[rng.IntN(4)] }
		rev := api.Revision(1)
		for range 100 {
			var in Input
			switch rng.IntN(20) {
			case 0, 1, 2:
				rev++
				n := rng.IntN(12)
				m := spec(float64(rng.IntN(4)), int64(rng.IntN(800)))
				m.Exclusive = n%3 == 0
				m.Priority = api.Priorities[rng.IntN(4)]
				m.Storage, m.VGPUs = int64(rng.IntN(50)), rng.IntN(8)/6
				m.Constraints = chance(rng)
				m.Port = []string{"", "", "80", "80;81/udp"}[rng.IntN(4)]
				a := assignment(n, rev, m)
				a.SpecRev = rev
				w.wants(a)
			case 3:
				w.drops(web.Instance(rng.IntN(12)))
			case 4:
				in = Cordon{node(), rng.IntN(2) == 0}
			case 5:
				in = Drain{Node: node()}
			case 6:
				in = NodeWill{node()}
			case 7:
				if rng.IntN(3) == 0 {
					in = RemoveNode{node()}
				}
			case 8:
				n := w.nodes[node()]
				n.off = !n.off
				if n.off { // instances that must not outlive their lease have stopped
					for id, o := range n.has {
						if w.want[id].Spec.Exclusive || o.Instance == "" {
							delete(n.has, id)
						}
					}
				}
			case 9:
				in = LocalScale{web, rng.IntN(6)}
			case 10:
				in = RootLink{rng.IntN(2) == 0}
			case 11:
				n := w.nodes[node()]
				for id, o := range n.has {
					o.State, o.Reason = api.Failed, []api.Reason{api.ReasonExited, api.ReasonTooManyFails}[rng.IntN(2)]
					n.has[id] = o
				}
				w.speak(n.id)
			case 12:
				n := w.nodes[node()]
				n.boot++
				n.seq, n.beat = 0, 0
			case 14:
				n := w.nodes[node()]
				if !n.off {
					r := n.whole()
					info := nodeInfo(n.id, api.Resources{MilliCPU: 4000, MemoryMB: 4096, StorageMB: int64(rng.IntN(200)), InMbit: 100})
					info.Devices, info.Labels = gpus("a", "b", "c")[:rng.IntN(4)], map[string]string{"zone": []string{"a", "b"}[rng.IntN(2)]}
					info.Areas = [][]string{nil, {"munich"}}[rng.IntN(2)]
					r.Info = &info
					in = r
				}
			case 15:
				w.stands(node(), float64(rng.IntN(60)))
			case 16:
				for _, q := range open {
					a := sched.Answer{Key: q.Key, Error: []string{"", "it crashed"}[rng.IntN(2)]}
					for range rng.IntN(3) {
						a.Ranked = append(a.Ranked, sched.Choice{ID: []string{"n0", "n1", "n2", "n3", "n9"}[rng.IntN(5)]})
					}
					w.step(Ranked{a})
				}
				open = nil
			case 17:
				if len(probes) > 0 {
					o := probes[rng.IntN(len(probes))]
					w.step(NodeProbed{node(), wire.Probed{ID: o, RTT: time.Duration(rng.IntN(40)) * time.Millisecond, Refused: rng.IntN(20) == 0}})
				}
			case 13:
				w.pass(time.Duration(rng.IntN(12)) * time.Second)
			default:
				w.beat()
			}
			if in != nil && rng.IntN(4) == 0 {
				eff := w.c.Step(w.now, in)
				w.save(eff.Save[:rng.IntN(len(eff.Save)+1)])
				w.restart()
			} else if in != nil {
				w.step(in)
			}
			open = append(open, w.asked()...)
			for _, e := range w.last.Send {
				if o, ok := e.Msg.(wire.ProbeOrder); ok {
					probes = append(probes[max(0, len(probes)-7):], o.ID)
				}
			}
			w.checkBooks()
			w.checkExclusive()
			for _, n := range w.c.Nodes() { // the reports of other nodes may be incomplete
				if n.Allocated.MilliCPU > n.Capacity.MilliCPU || n.Allocated.MemoryMB > n.Capacity.MemoryMB {
					t.Fatalf("seed %d: %s has %s, of which %s is allocated", seed, n.ID, n.Capacity, n.Allocated)
				}
			}
		}
		clear(w.want)
		w.desire()
		w.step(RootLink{true})
		for id, n := range w.nodes {
			n.off = false
			w.step(JoinNode{Info: nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})})
			w.step(Cordon{id, false})
		}
		w.pass(30 * time.Second)
		for id, in := range w.records() {
			if in.Local { // the root does not have local instances
				w.step(Desired{wire.Desired{Gen: w.gen, From: w.gen, Drop: []api.InstanceID{id}, Digest: wanted(w.c)}})
			}
		}
		w.pass(30 * time.Second)
		w.checkBooks()
		if left := w.c.Instances(); len(left) > 0 {
			t.Fatalf("seed %d: left: %+v", seed, left)
		}
		measured := w.c.latency.Size()
		watched, known := w.c.violations.Size()
		if left := measured.Users + measured.Probes + measured.Rounds + measured.Services + w.c.place.Inspect().Size + watched + known; left != 0 || w.c.place.Sums().Used != (api.Resources{}) {
			t.Fatalf("seed %d: %d things are left, %v is taken", seed, left, w.c.place.Sums().Used)
		}
	}
}

// chance returns random constraints, or none.
func chance(rng *rand.Rand) []api.Constraint {
	all := []api.Constraint{
		{Type: api.ConstrainSpread},
		{Type: api.ConstrainSpread, By: "zone", Limit: 3, Rigidness: 1},
		toUser(there, 25), toUser("example.org", 5),
		{Type: api.ConstrainLatency, Area: "munich", Threshold: 20, Rigidness: 1},
		{Type: api.ConstrainLabels, Labels: []string{"zone=a"}, Rigidness: 5},
	}
	if rng.IntN(2) == 0 {
		return nil
	}
	return all[rng.IntN(len(all)):][:1]
}
