package main

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const placesEach = 20 // decisions per sample

// place measures the choice of the best node, per candidate. The baseline is a scan of an array
// of numbers for the largest that fits.
func place(r *run) error {
	for _, size := range []int{100, 1000, 10_000} {
		cands := candidates(size)
		type slot struct{ cpu, mem int64 }
		slots := make([]slot, size)
		for i, c := range cands {
			slots[i] = slot{c.Free.MilliCPU, c.Free.MemoryMB}
		}
		req := sched.Request{Needs: api.Resources{MilliCPU: 500, MemoryMB: 64}, Virtualization: "container"}
		var ours, whole, floor series
		for i := range r.n {
			w := watch("")
			began := time.Now()
			for range placesEach {
				best, at := int64(-1), -1
				for j, s := range slots {
					if s.cpu >= req.Needs.MilliCPU && s.mem >= req.Needs.MemoryMB && s.cpu > best {
						best, at = s.cpu, j
					}
				}
				if at < 0 {
					return fmt.Errorf("none of %d candidates fits", size)
				}
			}
			scan := time.Since(began)
			began = time.Now()
			for j := range placesEach {
				if _, ok := sched.PlaceBest(&req, cands, rom.Plugin{}, uint64(i*placesEach+j)); !ok {
					return fmt.Errorf("none of %d candidates fits", size)
				}
			}
			best := time.Since(began)
			began = time.Now()
			if res := sched.Place(&req, cands, rom.Plugin{}, uint64(i)); len(res.Ranked) == 0 {
				return fmt.Errorf("none of %d candidates fits", size)
			}
			ranked := time.Since(began)
			bad := w.disturbed()
			floor.add(float64(scan)/float64(placesEach*size), bad)
			ours.add(float64(best)/float64(placesEach*size), bad)
			whole.add(float64(ranked)/float64(size), bad)
		}
		base := quantile(floor.values, 0.5)
		r.emit(ours.record(fmt.Sprintf("place.best-of-%d", size), "ns/cand").over("scan of an array", base))
		r.emit(whole.record(fmt.Sprintf("place.rank-%d", size), "ns/cand").over("scan of an array", base).noting("with the reasons of all excluded candidates"))
	}
	return burst(r)
}

// The size of a burst: instances, nodes, and how a root sends them.
const (
	burstNodes     = 10_000
	burstInstances = 10_000
	burstBatch     = 100
	burstSamples   = 5 // each takes seconds
)

// burst measures how many instances a second a cluster's core places: with decisions,
// reservations, the journal's documents and the messages to nodes and root, but without store
// and network.
func burst(r *run) error {
	var rate series
	for range min(r.n, burstSamples) {
		c, now := fleet(burstNodes)
		want := orders(burstInstances, burstBatch)
		w := watch("")
		began := time.Now()
		for _, d := range want {
			for _, e := range c.Step(now, cluster.Desired{Desired: d}).Send {
				if rep, ok := e.Msg.(wire.Report); ok {
					c.Step(now, cluster.Ack{ReportAck: wire.ReportAck{Boot: rep.Boot, Seq: rep.Seq, Gen: rep.Gen}})
				}
			}
		}
		took := time.Since(began)
		bad := w.disturbed()
		for _, in := range c.Instances() {
			if in.Node == "" {
				return fmt.Errorf("instance %s was not placed: %s", in.ID, in.Detail)
			}
		}
		rate.add(burstInstances/took.Seconds(), bad)
	}
	r.emit(rate.record("place.burst-10000-over-10000", "placements/s").atLeast(5000).noting("through the cluster's core, a hundred a message"))
	return nil
}

// fleet returns a core with nodes that are ready and empty.
func fleet(n int) (*cluster.Core, time.Time) {
	c := cluster.New(cluster.Config{ID: "munich", LocalNumbers: 100_000})
	now := time.Unix(1_767_225_600, 0)
	c.Step(now, cluster.Start{})
	for i := range n {
		id := api.NodeID(fmt.Sprintf("node-%d", i))
		c.Step(now, cluster.JoinNode{Info: api.NodeInfo{
			ID: id, Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Network: api.NetworkOverlay,
			Capacity: api.Resources{MilliCPU: int64(1000 * (i%8 + 1)), MemoryMB: 4096},
		}})
		c.Step(now, cluster.NodeReport{NodeReport: wire.NodeReport{Node: id, Boot: 1, Seq: 1, Whole: true}})
		c.Step(now, cluster.NodeAlive{Node: id, Alive: wire.Alive{Boot: 1, Seq: 1}})
	}
	return c, now
}

// orders returns the root's messages for a service of n instances.
func orders(n, each int) (out []wire.Desired) {
	const service = api.ServiceID("acme/shop.prod.web.prod")
	spec := api.Microservice{Name: "web", Namespace: "prod", Virtualization: "container", VCPUs: 0.1, Memory: 64}
	var digest api.Digest
	for i := 0; i < n; i += each {
		d := wire.Desired{Gen: api.Generation(i/each + 1), From: api.Generation(i / each)}
		for k := range each {
			a := wire.Assignment{Instance: service.Instance(i + k), Epoch: api.EpochOf(1, 0), SpecRev: 1, Spec: spec}
			d.Put = append(d.Put, a)
			digest = digest.Toggle(a.Digest())
		}
		d.Digest = digest
		out = append(out, d)
	}
	return out
}

func candidates(n int) []sched.Candidate {
	out := make([]sched.Candidate, n)
	for i := range out {
		free := api.Resources{MilliCPU: int64(100 * (i%40 + 1)), MemoryMB: 4096}
		out[i] = sched.Candidate{
			ID: fmt.Sprintf("node-%d", i), Level: sched.Nodes, Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 8192}, Free: free,
			Slots: []sched.Slot{{Runtimes: []string{"container", "docker"}, Arch: "amd64", Free: free, Largest: free}},
		}
	}
	return out
}
