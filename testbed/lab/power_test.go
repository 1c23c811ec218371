package lab_test

import (
	"maps"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestPowerCut ends everything at once, workloads and containerd included, and
// starts it again from the bottom up.
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
	// A node that comes up alone runs what it had, but for what needs a lease.
	for len(l.WorkloadsOf(l.ID("shop", "web", 0)))+len(l.WorkloadsOf(l.ID("shop", "db", 1))) < 2 {
		if took() > time.Minute {
			t.Fatalf("the nodes alone did not start what they had\n%s", l.Story())
		}
		time.Sleep(10 * time.Millisecond) // there is nobody yet who would tell
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
				return false // this is news from before the cut
			}
		}
		return true
	})
	l.Measured("power_cut_all_running", took())
	// On a machine that is short of time the exclusive one may lose its lease and get
	// it again, so that for a moment it does not run; none may ever run twice.
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
			t.Fatalf("what runs: %v, want five instances once each\n%s", seen, l.Story())
		}
		l.Wait("all run", all)
	}
	took = lab.Stopwatch()
	l.Delete("shop")
	l.Measured("power_cut_then_deleted", took())
	if left := l.Workloads(); len(left) > 0 {
		t.Errorf("deleted, and there run %+v", left)
	}
}
