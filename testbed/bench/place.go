package main

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const placesEach = 20 // decisions behind one sample

// place measures the choice of the best among nodes, per candidate, beside a
// scan of an array of numbers that looks for the largest that fits.
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
					return fmt.Errorf("nothing fits among %d", size)
				}
			}
			scan := time.Since(began)
			began = time.Now()
			for j := range placesEach {
				if _, ok := sched.PlaceBest(&req, cands, rom.Plugin{}, uint64(i*placesEach+j)); !ok {
					return fmt.Errorf("nothing fits among %d", size)
				}
			}
			best := time.Since(began)
			began = time.Now()
			if res := sched.Place(&req, cands, rom.Plugin{}, uint64(i)); len(res.Ranked) == 0 {
				return fmt.Errorf("nothing fits among %d", size)
			}
			ranked := time.Since(began)
			bad := w.disturbed()
			floor.add(float64(scan)/float64(placesEach*size), bad)
			ours.add(float64(best)/float64(placesEach*size), bad)
			whole.add(float64(ranked)/float64(size), bad)
		}
		base := quantile(floor.values, 0.5)
		r.emit(ours.record(fmt.Sprintf("place.best-of-%d", size), "ns/cand").over("scan of an array", base))
		r.emit(whole.record(fmt.Sprintf("place.rank-%d", size), "ns/cand").over("scan of an array", base).noting("with the reasons of all that were left out"))
	}
	return nil
}

func candidates(n int) []sched.Candidate {
	out := make([]sched.Candidate, n)
	for i := range out {
		free := api.Resources{MilliCPU: int64(100 * (i%40 + 1)), MemoryMB: 4096}
		out[i] = sched.Candidate{
			ID: fmt.Sprintf("node-%d", i), Level: sched.Nodes, Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 8192}, Free: free,
			Rooms: []sched.Room{{Runtimes: []string{"container", "docker"}, Arch: "amd64", Free: free, Largest: free}},
		}
	}
	return out
}
