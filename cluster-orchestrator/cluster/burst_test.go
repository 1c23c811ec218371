package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// BenchmarkBurst places 10,000 instances on 10,000 nodes, a hundred per message of the root. It
// includes reservations, journal and messages.
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
			c.Step(now, NodeReport{wire.NodeReport{Node: info.ID, Boot: 1, Seq: 1, Whole: true}})
			c.Step(now, NodeAlive{Node: info.ID, Alive: wire.Alive{Boot: 1, Seq: 1}})
		}
		var all []Desired
		var digest api.Digest
		for i := 0; i < instances; i += batch {
			d := wire.Desired{Gen: api.Generation(i/batch + 1), From: api.Generation(i / batch)}
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
			c.Step(now, Ack{wire.ReportAck{Boot: c.fx.Boot, Seq: lastReport(c)}})
			for _, e := range eff.Send {
				if _, ok := e.Msg.(wire.Desired); ok {
					placed++
				}
			}
		}
		took := time.Since(began)
		for _, in := range c.Instances() {
			if in.Node == "" {
				b.Fatalf("%s is on no node: %s", in.ID, in.Detail)
			}
		}
		b.ReportMetric(instances/took.Seconds(), "placements/s")
	}
}
