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

// Within minutes the cluster's estimates of the round trips between idle nodes are right,
// also between nodes that never measured each other.
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
					t.Errorf("median relative error of the estimates is %.1f %%", 100*wrong)
				}
				if w.crashAll(c); w.astray(c) > 0.2 {
					t.Errorf("after all processes restarted, the median relative error of the estimates is %.1f %%", 100*w.astray(c))
				}
			})
		}
	}
}

// TestAChangedConnectionIsFollowedWithinAMinute: the connection of one idle node gets
// 50 ms longer, and shorter again. A minute later its cluster estimates its round trips
// to all others right, and its nodes measured no more often than once per peer and 30 s.
func TestAChangedConnectionIsFollowedWithinAMinute(t *testing.T) {
	for _, nodes := range []int{2, 3, 12} {
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
				w.Run(time.Hour - w.now)
				moved, began := c.nodes[0].net, w.now
				before := measures(c)
				for _, detour := range []time.Duration{50 * time.Millisecond, 0} {
					moved.detour = detour
					w.Run(time.Minute)
					if wrong := w.astrayOf(c, moved); wrong > 0.3 {
						t.Errorf("a minute after the connection added %s, the median error of the estimated round trips is %.0f %%", detour, 100*wrong)
					} else {
						t.Logf("a minute after the connection added %s: median error %.0f %%", detour, 100*wrong)
					}
					w.Run(29 * time.Minute)
				}
				if w.violation != nil {
					t.Fatal(w.violation)
				}
				// Up to 4 peers a node.
				most := nodes * min(4, nodes-1) * int((w.now-began)/(30*time.Second))
				n := measures(c) - before
				t.Logf("%d measurements in %s, %.2f per node and minute; once per peer in 30 s are %d", n, w.now-began, float64(n)/float64(nodes)/(w.now-began).Minutes(), most)
				if n > most {
					t.Errorf("%d measurements in %s, want at most %d (one per peer in 30 s)", n, w.now-began, most)
				}
			})
		}
	}
}

// measures returns the number of round trips that the cluster's nodes were asked to measure.
func measures(c *ClusterMachine) (n int) {
	for _, m := range c.nodes {
		n += m.net.measures
	}
	return n
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

// astray returns the median relative error of the cluster's estimates of its nodes' round
// trips.
func (w *World) astray(c *ClusterMachine) float64 { return w.astrayOf(c, nil) }

// astrayOf is astray for the round trips of one node; nil means all nodes.
func (w *World) astrayOf(c *ClusterMachine, of *NetMachine) float64 {
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
			if of != nil && a.net != of && b.net != of {
				continue
			}
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
