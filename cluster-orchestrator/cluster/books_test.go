package cluster

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// checkBooks recomputes from scratch what the core keeps step by step.
func (w *world) checkBooks() {
	w.t.Helper()
	c := w.c
	var rootWanted, rootKnown api.Digest
	for _, id := range step.Keys(c.instances) {
		in := c.instances[id]
		if !in.Local && !in.Leaving {
			rootWanted = rootWanted.Toggle(in.Want.Digest())
		}
		if v := in.view(); !v.Stopped {
			rootKnown = rootKnown.Toggle(v.Digest())
		}
	}
	if c.root.wanted != rootWanted || c.root.known != rootKnown {
		w.t.Fatalf("of the root: wanted %x/%x known %x/%x", c.root.wanted, rootWanted, c.root.known, rootKnown)
	}
	if len(c.nodes) != len(c.table.All()) {
		w.t.Fatalf("%d nodes, %d candidates", len(c.nodes), len(c.table.All()))
	}
	for id := range c.beyond {
		if in := c.instances[id]; in == nil || in.Node != "" {
			w.t.Fatalf("%s is beyond the share, and is not here or placed", id)
		}
	}
	var placed [8]int
	for _, id := range step.Keys(c.instances) {
		in := c.instances[id]
		if in.Node != "" {
			placed[in.Want.Spec.Urgency()]++
		}
		if n := c.nodes[in.Reserved]; in.Reserved != "" && (n == nil || n.reserved[id] != in || in.Node == in.Reserved || in.Node != "" && in.exclusive()) {
			w.t.Fatalf("%s on %q has room reserved on %q, which does not know", id, in.Node, in.Reserved)
		}
		if c.tied[slotOf(id)][id] != in.demand.tied {
			w.t.Fatalf("%s is looked at: %v", id, !in.demand.tied)
		}
		if _, inTurn := c.asks.next.why[id]; inTurn != (in.asked == inLine) {
			w.t.Fatalf("%s is in line: %v, asked %q", id, inTurn, in.asked)
		}
		if a := c.asks.open[in.asked]; in.asked != "" && in.asked != inLine && (a == nil || a.in != in) {
			w.t.Fatalf("%s waits for no answer", id)
		}
	}
	for sid, s := range c.services {
		expected := map[string]int{}
		for _, in := range s.instances {
			if in.Reserved != "" {
				expected[string(in.Reserved)]++
			}
		}
		if !maps.Equal(s.expected, expected) {
			w.t.Fatalf("%s has room at %v, counted %v", sid, expected, s.expected)
		}
	}
	if placed != c.placed {
		w.t.Fatalf("placed %v, counted %v", placed, c.placed)
	}
	silent := 0
	var capacity, sum api.Resources
	for _, id := range step.Keys(c.nodes) {
		n := c.nodes[id]
		var wanted, known api.Digest
		var used api.Resources
		var yields [urgencies]api.Resources
		assigned, leased := 0, 0
		published := map[sched.Port]int{}
		for i, ports := range n.ports {
			if n.assigned[i] == nil && !n.leaving[i] && n.reserved[i] == nil {
				w.t.Fatalf("node %s keeps ports %v for %s, which it neither has nor had", id, ports, i)
			}
			for _, p := range ports {
				published[p]++
			}
		}
		if !maps.Equal(n.published, published) {
			w.t.Fatalf("node %s publishes %v, counted %v", id, published, n.published)
		}
		for _, in := range c.instances {
			if in.Node == id {
				assigned++
				wanted = wanted.Toggle(in.assignment().Digest())
				if in.Want.Spec.StopsWhenCutOff() {
					leased++
				}
			}
			for _, v := range in.Vacancies {
				if v.Stays != nil && v.Node == id {
					wanted = wanted.Toggle(v.Stays.Digest())
				}
				if v.Stays != nil && (in.Leaving || in.exclusive() || v.Node == in.Node) {
					w.t.Fatalf("%s stays on %s", in.id(), v.Node)
				}
			}
		}
		for _, o := range n.observed {
			known = known.Toggle(o.Digest())
		}
		addressed := 0
		for i, r := range n.booked {
			used = used.Plus(r.Room)
			if r.Address {
				addressed++
			}
			if in := n.assigned[i]; in != nil {
				yields[in.Want.Spec.Urgency()] = yields[in.Want.Spec.Urgency()].Plus(r.Room)
			}
			if r.Room.Min(api.Resources{}) != (api.Resources{}) || n.assigned[i] == nil && !n.leaving[i] && n.reserved[i] == nil {
				w.t.Fatalf("node %s books %v for %s, which it neither has nor had", id, r, i)
			}
		}
		most := 0
		if n.net.subnet.IsValid() && n.info.Network == api.NetworkOverlay {
			most = 1<<(32-n.net.subnet.Bits()) - 3
		}
		if n.addressed != addressed || c.table.Get(string(id)).Rooms[0].Full != (most > 0 && addressed >= most) {
			w.t.Fatalf("node %s: %d of %d addresses are taken, counted %d", id, addressed, most, n.addressed)
		}
		if n.yields != yields {
			w.t.Fatalf("node %s: would make way %v, counted %v", id, yields, n.yields)
		}
		if n.wanted != wanted || n.known != known || n.used != used || len(n.assigned) != assigned || n.leased != leased {
			w.t.Fatalf("node %s: wanted %x/%x known %x/%x used %v/%v assigned %d/%d leased %d/%d", id,
				n.wanted, wanted, n.known, known, n.used, used, len(n.assigned), assigned, n.leased, leased)
		}
		if v, _ := c.Node(id); v.Allocated.Plus(v.Reserved) != used {
			w.t.Fatalf("of node %s %s is allocated and %s reserved, used %s", id, v.Allocated, v.Reserved, used)
		}
		given := func(i api.InstanceID) []string { return n.observed[i].Devices }
		cand := c.table.Get(string(id))
		if cand.ID != string(id) || cand.Free != n.info.Capacity.Minus(used) || cand.Out != n.out() ||
			cand.Load != len(n.assigned) || cand.Rooms[0].Free != cand.Free || !maps.Equal(cand.Ports, n.published) ||
			!maps.Equal(cand.Rooms[0].Devices, devicesOf(n.info.Devices).free(n.booked, given)) || cand.Coord != n.coord {
			w.t.Fatalf("node %s is candidate %+v, used %v", id, cand, used)
		}
		if n.silent {
			silent++
			continue
		}
		capacity, sum = capacity.Plus(n.info.Capacity), sum.Plus(used)
	}
	if c.capacity != capacity || c.used != sum {
		w.t.Fatalf("the cluster has %v and of that %v is taken, counted %v and %v", capacity, sum, c.capacity, c.used)
	}
	if silent != c.silent {
		w.t.Fatalf("%d nodes are silent, %d counted", silent, c.silent)
	}
	for _, s := range c.services {
		peers := map[string]int{}
		for _, in := range s.instances {
			if in.Node != "" {
				peers[string(in.Node)]++
			}
		}
		for k, n := range s.peers {
			if peers[k] != n {
				w.t.Fatalf("%d on %s, want %d", n, k, peers[k])
			}
		}
		for by, known := range s.crowds {
			have := map[string]int{}
			for _, in := range s.instances {
				if in.Node != "" {
					have[c.nodes[in.Node].info.Labels[by]]++
				}
			}
			if known.version == c.version && !maps.Equal(known.have, have) {
				w.t.Fatalf("per %s there are %v, want %v", by, known.have, have)
			}
		}
	}
}

// checkExclusive looks that no instance that must not run twice does.
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

// TestAnythingMayHappenAndBeCutOff gives valid inputs at random, crashes between
// any two saves, keeps the books right, and ends with everything in its place.
func TestAnythingMayHappenAndBeCutOff(t *testing.T) {
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
				if n.off { // what must not outlive its lease does not
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
				for id := range w.c.probes {
					w.step(NodeProbed{node(), api.Probed{ID: id, RTT: time.Duration(rng.IntN(40)) * time.Millisecond, Refused: rng.IntN(20) == 0}})
					break
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
			w.checkBooks()
			w.checkExclusive()
			for _, n := range w.c.Nodes() { // of the others they may have less than they had
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
		for id, in := range w.c.instances {
			if in.Local { // the root would not have it
				w.step(Desired{api.Desired{Gen: w.gen, From: w.gen, Drop: []api.InstanceID{id}, Digest: w.c.root.wanted}})
			}
		}
		w.pass(30 * time.Second)
		w.checkBooks()
		if left := w.c.Instances(); len(left) > 0 {
			t.Fatalf("seed %d: left: %+v", seed, left)
		}
		for id, n := range w.c.nodes {
			if n.used != (api.Resources{}) || len(n.leaving)+len(n.room)+len(n.observed)+len(n.unknown) > 0 {
				t.Fatalf("seed %d: node %s is left with %v, leaving %v, room %v, observed %v", seed, id, n.used, n.leaving, n.room, n.observed)
			}
		}
		tied := 0
		for _, of := range w.c.tied {
			tied += len(of)
		}
		if left := len(w.c.users) + len(w.c.probes) + w.c.rounds.Size() + len(w.c.asks.open) + len(w.c.asks.next.why) + len(w.c.apps) + len(w.c.linkers) + tied; left != 0 || w.c.used != (api.Resources{}) {
			t.Fatalf("seed %d: %d things are left, %v is taken", seed, left, w.c.used)
		}
		if len(w.c.waiting.List())+len(w.c.services) > 0 {
			t.Fatalf("seed %d: %v wait", seed, w.c.waiting.List())
		}
	}
}

// chance is some constraints, or none.
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

// TestAggregateAgreesWithASimpleTwin computes mean and deviation in two passes.
func TestAggregateAgreesWithASimpleTwin(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 11))
		c := New(Config{})
		var free []api.Resources
		for range rng.IntN(20) {
			r := api.Resources{MilliCPU: int64(rng.IntN(64_000)) - 1000, MemoryMB: int64(rng.IntN(100_000))}
			cand := sched.Candidate{ID: fmt.Sprint(len(c.table.All())), Free: r, Capacity: r, Rooms: []sched.Room{{Runtimes: []string{"container"}, Arch: "amd64", Free: r, Largest: r}}}
			if rng.IntN(4) == 0 {
				cand.Out = "cordoned"
			} else {
				free = append(free, r.Max(api.Resources{}))
			}
			c.table.Put(cand)
		}
		part := func(of func(api.Resources) int64) (sum int64, mean, dev float64, most int64) {
			for _, r := range free {
				sum, most = sum+of(r), max(most, of(r))
			}
			if len(free) == 0 {
				return
			}
			mean = float64(sum) / float64(len(free))
			for _, r := range free {
				dev += (float64(of(r)) - mean) * (float64(of(r)) - mean)
			}
			return sum, mean, math.Sqrt(dev / float64(len(free))), most
		}
		a := c.Aggregate()
		if a.Nodes != len(free) || len(free) > 0 && (len(a.Slots) != 1 || a.Slots[0].Nodes != len(free)) {
			t.Fatalf("seed %d: %d nodes, slots %+v, want %d", seed, a.Nodes, a.Slots, len(free))
		}
		for name, p := range map[string]struct {
			of                   func(api.Resources) int64
			sum, mean, dev, most int64
		}{
			"cpu":    {func(r api.Resources) int64 { return r.MilliCPU }, a.Free.MilliCPU, a.Mean.MilliCPU, a.StdDev.MilliCPU, a.Largest.MilliCPU},
			"memory": {func(r api.Resources) int64 { return r.MemoryMB }, a.Free.MemoryMB, a.Mean.MemoryMB, a.StdDev.MemoryMB, a.Largest.MemoryMB},
		} {
			sum, mean, dev, most := part(p.of)
			if p.sum != sum || p.most != most || math.Abs(float64(p.mean)-mean) > 1 || math.Abs(float64(p.dev)-dev) > 1 {
				t.Errorf("seed %d, %s: Σ %d/%d μ %d/%g σ %d/%g most %d/%d", seed, name, p.sum, sum, p.mean, mean, p.dev, dev, p.most, most)
			}
		}
	}
}
