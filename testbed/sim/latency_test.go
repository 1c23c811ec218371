package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// Nodes that nobody talks to know in minutes how far each is from each: also from
// those that they never measured. What is judged is what their cluster believes.
func TestAClusterLearnsItsDistances(t *testing.T) {
	for _, nodes := range []int{3, 12, 48} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%d nodes, seed %d", nodes, seed), func(t *testing.T) {
				t.Parallel()
				w := NewWorld(seed, Settings{Network: true}, Options{})
				w.addRoot()
				w.root.start()
				c := w.addCluster("c1")
				for i := range nodes {
					c.addNode(api.NodeID(fmt.Sprintf("s%d-n%d", seed, i)), api.NodeInfo{
						Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 4000},
					})
				}
				c.join()
				var wrong float64
				for _, m := range []int{1, 2, 5, 15, 30} {
					w.Run(time.Duration(m)*time.Minute - w.now)
					wrong = w.astray(c)
					t.Logf("after %d min: median relative error %.1f %%", m, 100*wrong)
				}
				if w.violation != nil {
					t.Fatal(w.violation)
				}
				if wrong > 0.15 {
					t.Errorf("median relative error %.1f %%", 100*wrong)
				}
				if w.crashAll(c); w.astray(c) > 0.2 {
					t.Errorf("after restarts of all: median relative error %.1f %%", 100*w.astray(c))
				}
			})
		}
	}
}

// crashAll restarts cluster and netmanagers, and lets an hour pass.
func (w *World) crashAll(c *ClusterMachine) {
	c.crash()
	for _, n := range c.nodes {
		n.net.crash()
	}
	w.Run(time.Second)
	c.start()
	for _, n := range c.nodes {
		n.net.start()
	}
	w.Run(time.Hour)
}

// astray is the median relative error of what the cluster believes of its nodes'
// round trips.
func (w *World) astray(c *ClusterMachine) float64 {
	at := map[*NetMachine]api.Coordinate{}
	for _, v := range c.core.Nodes() {
		for _, n := range c.nodes {
			if n.id == v.ID && v.Coord != nil {
				at[n.net] = *v.Coord
			}
		}
	}
	var wrong []float64
	for i, a := range c.nodes {
		for _, b := range c.nodes[:i] {
			e := 1.0
			if p, ok := at[a.net]; ok {
				if q, ok := at[b.net]; ok {
					truth := w.roundTrip(a.net, b.net)
					e = math.Abs(float64(vivaldi.Distance(p, q)-truth)) / float64(truth)
				}
			}
			wrong = append(wrong, e)
		}
	}
	slices.Sort(wrong)
	return wrong[len(wrong)/2]
}
