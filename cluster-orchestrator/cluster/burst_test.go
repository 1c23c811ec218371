package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// BenchmarkBurst places 10,000 instances over 10,000 nodes, as the root sends
// them, a hundred at a time: reservations, journal and messages included.
func BenchmarkBurst(b *testing.B) {
	const nodes, instances, batch = 10_000, 10_000, 100
	for b.Loop() {
		b.StopTimer()
		c := New(Config{ID: "munich", LocalNumbers: 100_000})
		now := epoch
		c.Step(now, Start{})
		for i := range nodes {
			info := nodeInfo(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{MilliCPU: int64(1000 * (i%8 + 1)), MemoryMB: 4096})
			c.Step(now, JoinNode{Info: info})
			c.Step(now, NodeReport{api.NodeReport{Node: info.ID, Boot: 1, Seq: 1, Whole: true}})
			c.Step(now, NodeAlive{Node: info.ID, Alive: api.Alive{Boot: 1, Seq: 1}})
		}
		var all []Desired
		var digest api.Digest
		for i := 0; i < instances; i += batch {
			d := api.Desired{Gen: api.Generation(i/batch + 1), From: api.Generation(i / batch)}
			for k := range batch {
				a := assignment(i+k, 1, spec(0.1, 64))
				d.Put = append(d.Put, a)
				digest = digest.Toggle(a.Digest())
			}
			d.Digest = digest
			all = append(all, Desired{d})
		}
		all[0].From = 0
		b.StartTimer()
		began := time.Now()
		placed := 0
		for _, d := range all {
			eff := c.Step(now, d)
			c.Step(now, Ack{api.ReportAck{Boot: c.boot, Seq: c.root.seq}})
			for _, e := range eff.Send {
				if _, ok := e.Msg.(api.Desired); ok {
					placed++
				}
			}
		}
		took := time.Since(began)
		for _, in := range c.instances {
			if in.Node == "" {
				b.Fatalf("%s is on no node: %s", in.id(), in.Detail)
			}
		}
		b.ReportMetric(instances/took.Seconds(), "placements/s")
	}
}

// TestTheShortlistChoosesNoWorse compares each choice of a burst with the whole
// table's, while nodes come, go and fill up.
func TestTheShortlistChoosesNoWorse(t *testing.T) {
	w := newWorld(t, 0)
	w.deaf = true
	for i := range shortFrom + 50 {
		info := nodeInfo(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{MilliCPU: int64(500 * (i%6 + 1)), MemoryMB: 1024})
		w.c.Step(w.now, JoinNode{Info: info})
		w.c.Step(w.now, NodeReport{api.NodeReport{Node: info.ID, Boot: 1, Seq: 1, Whole: true}})
		w.c.Step(w.now, NodeAlive{Node: info.ID, Alive: api.Alive{Boot: 1, Seq: 1}})
	}
	short := 0
	for i := range 1200 {
		if i%97 == 0 {
			w.c.Step(w.now, Cordon{api.NodeID(fmt.Sprintf("n%d", i%shortFrom)), i%2 == 0})
		}
		a := assignment(i, 1, spec(0.4, 64))
		in := &instance{Epoch: a.Epoch, demand: demandOf(a.Instance, &a.Spec), Want: a}
		req := w.c.request(in)
		best, ok := w.c.best(&req, in.seed())
		w.gen++
		w.c.Step(w.now, Desired{api.Desired{Gen: w.gen, From: w.gen - 1, Put: []api.Assignment{a}, Digest: w.c.root.wanted.Toggle(a.Digest())}})
		node := w.at(i).Node
		if (node != "") != ok {
			t.Fatalf("instance %d is on %q, and the table has %v", i, node, best)
		}
		if w.c.short.cands != nil {
			short++
		}
		if !ok {
			continue
		}
		k := w.c.instances[a.Instance]
		cand := w.c.without(w.c.nodes[node], k.id())
		cand.Load--
		if got := w.c.cfg.Plugin.Score(&req, &cand); got < best.Score-1e-9 {
			t.Fatalf("instance %d is on %s with %g, %s has %g", i, node, got, best.ID, best.Score)
		}
	}
	if short < 1000 {
		t.Errorf("only %d choices came of the list", short)
	}
}
