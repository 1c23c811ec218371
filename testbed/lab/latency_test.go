package lab_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Nodes at the ends of cables of different length, to whom nobody has spoken: the
// cluster learns how far each is from each, and places by it.
func TestPlacementKnowsHowFarNodesAre(t *testing.T) {
	t.Parallel()
	o := &lab.Overlay{Lab: lab.New(t, lab.Options{}), Net: netlab.New(t)}
	hub := o.Net.Host("hub")
	hub.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	h := o.Net.Host("c1")
	o.Net.Join(h, "eth0", "203.0.113.2/30", hub, "c1", "203.0.113.1/30")
	h.Route("default", "203.0.113.1")
	o.First = o.Cluster("c1", lab.ClusterOptions{Host: h, Address: "203.0.113.2"})
	delays := []time.Duration{4 * time.Millisecond, 6 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond}
	for i, d := range delays {
		h := o.Net.Host(fmt.Sprintf("h%d", i))
		o.Net.Slow(h, "eth0", fmt.Sprintf("198.51.100.%d/30", 4*i+2), hub, fmt.Sprintf("n%d", i), fmt.Sprintf("198.51.100.%d/30", 4*i+1), d, 0, uint64(i))
		h.Route("default", fmt.Sprintf("198.51.100.%d", 4*i+1))
		o.Nodes = append(o.Nodes, o.First.Node(fmt.Sprintf("n%d", i), lab.NodeOptions{Containers: true, CPUs: 2, Host: h, Overlay: true}))
	}
	o.Ready(o.First, len(delays))
	// n0 and n1 are 20 ms apart, and n0 and the others 88 and 128.
	learned(t, o, func(apart func(i, j int) time.Duration) bool {
		return apart(0, 1) < 30*time.Millisecond && min(apart(0, 2), apart(0, 3)) > 65*time.Millisecond
	})

	near := lab.Needing(o.Container("near", 1), 1, 100)
	near.Connectivity = []api.Connectivity{{Target: "db." + lab.Namespace, Constraints: []api.LinkConstraint{{Type: api.LinkLatency, Threshold: 45}}}}
	o.Apply(lab.App("shop", lab.On(lab.Needing(o.Container("db", 1), 2, 100), "c1", "n0"))) // n0 is full then
	o.Wait("the database runs", o.Running("shop", "db", 1))
	o.Apply(lab.App("shop", lab.On(lab.Needing(o.Container("db", 1), 2, 100), "c1", "n0"), near))
	o.Wait("what is to be near runs", o.Running("shop", "near", 1))
	if w := o.Workload(o.ID("shop", "near", 0)); w.Node != "n1" {
		t.Errorf("it runs on %s", w.Node)
	}
}

// learned waits until what the cluster has learned of how far nodes are from each
// other is about so. What is asked for is what a decision rests on, with room for a
// machine that is late, and not the truth: to that coordinates come in minutes.
func learned(t *testing.T, o *lab.Overlay, so func(apart func(i, j int) time.Duration) bool) {
	t.Helper()
	took := lab.Stopwatch()
	lab.Within(t, 4*time.Minute, "the cluster knows the distances", func() error {
		at := make([]api.Coordinate, len(o.Nodes))
		for i, n := range o.Nodes {
			shown, err := o.First.NodeOf(n.ID)
			if err != nil {
				return err
			}
			if shown.Coord == nil {
				return fmt.Errorf("%s has no coordinate", n.ID)
			}
			at[i] = *shown.Coord
		}
		apart := func(i, j int) time.Duration { return vivaldi.Distance(at[i], at[j]) }
		if so(apart) {
			return nil
		}
		var b strings.Builder
		for i := range at {
			for j := range i {
				fmt.Fprintf(&b, " n%d-n%d %s", j, i, apart(i, j).Round(time.Millisecond))
			}
		}
		return errors.New("it believes" + b.String())
	})
	t.Logf("the distances are known after %s", took().Round(100*time.Millisecond))
}
