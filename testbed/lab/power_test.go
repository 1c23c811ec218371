package lab_test

import (
	"maps"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestPowerCut ends all processes at once, including workloads and containerd, and starts them
// again from the nodes upwards.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", steady())
	nodes := []*lab.Node{c.Node("n1", containers(t)), c.Node("n2", lab.NodeOptions{})}
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	l.Apply(lab.App("shop", l.Container("web", 2), l.Process("db", 2), lab.Exclusive(l.Process("ledger", 1))))
	all := func(v lab.View) bool {
		return l.Running("shop", "web", 2)(v) && l.Running("shop", "db", 2)(v) && l.Running("shop", "ledger", 1)(v)
	}
	l.Wait("all run", all)
	before := map[api.InstanceID]api.Instance{}
	l.Look(func(v lab.View) { maps.Copy(before, v.Instances) })

	l.Root.Kill9()
	c.Kill9()
	for _, n := range nodes {
		n.KillAll()
	}
	l.Containerd().Kill9()

	took := lab.Stopwatch()
	l.Containerd().Start()
	for _, n := range nodes {
		n.Start()
	}
	// A node without its cluster starts its instances, except those that need a lease.
	for len(l.WorkloadsOf(l.ID("shop", "web", 0)))+len(l.WorkloadsOf(l.ID("shop", "db", 1))) < 2 {
		if took() > time.Minute {
			t.Fatalf("the nodes without their cluster did not start their instances\n%s", l.Story())
		}
		time.Sleep(10 * time.Millisecond) // no orchestrator is up that could send an event
	}
	l.Measured("power_cut_nodes_alone_running", took())
	if early := l.WorkloadsOf(l.ID("shop", "ledger", 0)); len(early) > 0 {
		t.Errorf("an exclusive instance runs without a lease: %+v", early)
	}
	c.Start()
	l.StartRoot()
	l.Wait("all run again, once each", func(v lab.View) bool {
		if !all(v) {
			return false
		}
		for _, i := range v.Instances {
			if was := before[i.ID]; i.Epoch == was.Epoch && i.Restarts == was.Restarts {
				return false // a report from before the cut
			}
		}
		return true
	})
	l.Measured("power_cut_all_running", took())
	// On a busy machine the exclusive instance may lose its lease and get it again, so that it does
	// not run for a moment. No instance may ever run twice.
	for deadline := time.Now().Add(time.Minute); ; {
		seen, twice := map[api.InstanceID]int{}, false
		for _, w := range l.Workloads() {
			seen[w.Instance]++
			twice = twice || seen[w.Instance] > 1
		}
		if len(seen) == 5 && !twice {
			break
		}
		if twice || time.Now().After(deadline) {
			t.Fatalf("running workloads: %v, want five instances, each once\n%s", seen, l.Story())
		}
		l.Wait("all run", all)
	}
	took = lab.Stopwatch()
	l.Delete("shop")
	l.Measured("power_cut_then_deleted", took())
	if left := l.Workloads(); len(left) > 0 {
		t.Errorf("after the deletion these workloads run: %+v", left)
	}
}
