package lab_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestCapacity requests more than the available capacity, in several ways.
func TestCapacity(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	// Much capacity in total, but no node has enough of both resources.
	frag := l.Cluster("frag", lab.ClusterOptions{})
	frag.Node("cpu", lab.NodeOptions{CPUs: 64, Memory: 128})
	frag.Node("mem", lab.NodeOptions{CPUs: 0.5, Memory: 65536})
	even := l.Cluster("even", lab.ClusterOptions{})
	even.Node("even1", lab.NodeOptions{CPUs: 2, Memory: 2048})
	l.Wait("all nodes take work", func(v lab.View) bool { return lab.Nodes("frag", 2)(v) && lab.Nodes("even", 1)(v) })

	sub(t, l, "fits nowhere, until a node joins", func(t *testing.T) {
		l.Apply(lab.App("big", lab.Needing(l.Process("db", 1), 4, 100_000)))
		id := l.ID("big", "db", 0)
		l.Wait("it waits with a reason", lab.Is(id, func(i api.Instance) bool {
			return i.State == api.Requested && i.Reason == api.ReasonNoCluster
		}))
		why, err := l.API.Why(l.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, cluster := range []string{"frag", "even"} {
			i := slices.IndexFunc(why.Root.Candidates, func(r api.Rejection) bool { return r.Candidate == cluster })
			if i < 0 || why.Root.Candidates[i].Short == "" {
				t.Errorf("why does not name the resource that cluster %s lacks: %+v", cluster, why.Root)
			}
		}
		for _, node := range []string{"cpu", "mem", "even1"} {
			named := slices.ContainsFunc(why.Clusters, func(c api.ClusterWhy) bool {
				return slices.ContainsFunc(c.Answer.Candidates, func(r api.Rejection) bool { return r.Candidate == node && r.Short != "" })
			})
			if !named {
				t.Errorf("why does not name to the operator the resource that node %s lacks: %+v", node, why.Clusters)
			}
		}
		if len(why.WouldHelp) == 0 {
			t.Error("why has no advice")
		}
		t.Logf("why: %s; %v", why.Summary, why.WouldHelp)
		took := lab.Stopwatch()
		huge := even.Node("even2", lab.NodeOptions{CPUs: 8, Memory: 200_000})
		l.Wait("it runs on the node that joined", l.Running("big", "db", 1))
		l.Measured("node_joined_waiting_instance_runs", took())
		if w := l.Workload(id); w.Node != huge.Name {
			t.Errorf("it runs on %s", w.Node)
		}
		l.Delete("big")
		huge.Stop()
		l.Wait("that node is gone again", lab.Nodes("even", 1))
	})

	sub(t, l, "handed back by fragmented nodes, taken by the next cluster", func(t *testing.T) {
		l.Apply(lab.App("next", lab.Needing(l.Process("web", 1), 1, 1024)))
		l.Wait("it runs", l.Running("next", "web", 1))
		id := l.ID("next", "web", 0)
		i := l.Instance(id)
		if i.Cluster != "even" || i.Tries != 2 {
			t.Errorf("on cluster %s after %d placements, want even after 2", i.Cluster, i.Tries)
		}
		why, err := l.API.Why(l.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if p := why.Placements; len(p) != 2 || p[0].Cluster != "frag" || p[0].Reason != api.ReasonNoCapacity || p[1].Cluster != "even" {
			t.Errorf("placements are %+v, want frag, which has no capacity, and then even", p)
		}
	})

	sub(t, l, "fits on no node, said node by node to the operator alone", func(t *testing.T) {
		l.Apply(lab.App("odd", lab.On(lab.Needing(l.Process("web", 1), 1, 1024), "frag", "")))
		id := l.ID("odd", "web", 0)
		l.Wait("frag hands it back", lab.Is(id, func(i api.Instance) bool { return i.State == api.Requested && i.Reason == api.ReasonNoCapacity }))
		all, _, err := client.List[api.Instance](l.Context(), frag.API, "/v1/instances", client.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(all, func(i api.Instance) bool { return i.ID == id }) {
			var why api.Explanation
			_, err = frag.API.Do(l.Context(), client.Request{Method: "GET", Path: "/v1/instances/" + api.PathOf(id) + "/why"}, &why)
			if err != nil {
				t.Fatal(err)
			}
			shortOf(t, why, "cpu", "memory")
			shortOf(t, why, "mem", "vcpus")
		}
		why, err := l.API.Why(l.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(why.Clusters) != 1 || why.Clusters[0].Cluster != "frag" {
			t.Fatalf("the SLA allows only the cluster frag, but these clusters answered: %+v", why.Clusters)
		}
		shortOf(t, why.Clusters[0].Answer, "cpu", "memory")
		dev := l.User("dev", "Application_Provider")
		if why, err = dev.Why(l.Context(), id); err != nil {
			t.Fatal(err)
		}
		for _, c := range why.Clusters {
			if len(c.Answer.Candidates) > 0 || c.Answer.Nearest != nil && !strings.HasPrefix(c.Answer.Nearest.Candidate, "a ") {
				t.Errorf("the explanation for a developer contains nodes: %+v", c.Answer)
			}
		}
		l.Delete("odd")
	})

	sub(t, l, "placed when another application leaves", func(t *testing.T) {
		l.Apply(lab.App("hog", lab.On(lab.Needing(l.Process("web", 1), 1, 1024), "even", "")))
		l.Wait("the hog runs", l.Running("hog", "web", 1))
		l.Apply(lab.App("late", lab.On(lab.Needing(l.Process("web", 1), 1, 1024), "even", "")))
		id := l.ID("late", "web", 0)
		l.Wait("there is no room", lab.Is(id, func(i api.Instance) bool { return i.State == api.Requested && i.Reason != api.ReasonNone }))
		took := lab.Stopwatch()
		l.Delete("hog")
		l.Wait("there is room", l.Running("late", "web", 1))
		l.Measured("application_deleted_waiting_instance_runs", took())
		if w := l.Workload(id); w.Node != "even1" {
			t.Errorf("it runs on %s", w.Node)
		}
	})
}

func shortOf(t *testing.T, why api.Explanation, node, what string) {
	t.Helper()
	for _, c := range why.Candidates {
		if c.Candidate == node {
			if c.Constraint != what || c.Short == "" || c.Need == "" || c.Have == "" {
				t.Errorf("node %s is reported to lack %+v, want %s", node, c, what)
			}
			return
		}
	}
	t.Errorf("why does not mention node %s: %+v", node, why)
}

// TestBurst requests 200 instances at once from nodes with capacity for 240.
func TestBurst(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	const instances, perNode = 200, 40
	var clusters []*lab.Cluster
	for _, name := range []api.ClusterID{"east", "west"} {
		c := l.Cluster(name, steady())
		for _, n := range []string{"1", "2", "3"} {
			c.Node(string(name)+n, lab.NodeOptions{CPUs: perNode * 0.1, Memory: perNode * 32})
		}
		clusters = append(clusters, c)
	}
	l.Wait("all nodes take work", func(v lab.View) bool { return lab.Nodes("east", 3)(v) && lab.Nodes("west", 3)(v) })
	took := lab.Stopwatch()
	l.Apply(lab.App("burst", lab.Needing(l.Process("w", instances), 0.1, 32)))
	l.WaitWithin(3*time.Minute, "all run", l.Running("burst", "w", instances))
	l.Measured("burst_200_all_running", took())

	on, seen := map[string]int{}, map[api.InstanceID]int{}
	for _, w := range l.Workloads() {
		on[w.Node]++
		seen[w.Instance]++
	}
	t.Logf("by node: %v", on)
	if len(seen) != instances {
		t.Errorf("%d instances run, want %d", len(seen), instances)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s has %d processes, want 1", id, n)
		}
	}
	for node, n := range on {
		if fair := instances / 6; n > perNode || n < fair/2 {
			t.Errorf("node %s runs %d instances, want at most %d, and about a sixth of all, which is %d", node, n, perNode, fair)
		}
	}
	for _, c := range clusters {
		nodes, _, err := client.List[api.Node](l.Context(), c.API, "/v1/nodes", client.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if !n.Allocated.Fits(n.Capacity) || n.Instances != on[string(n.ID)] {
				t.Errorf("node %s: %s of %s allocated to %d instances, %d processes", n.ID, n.Allocated, n.Capacity, n.Instances, on[string(n.ID)])
			}
		}
	}
	moved := 0
	l.Look(func(v lab.View) {
		for _, i := range v.Instances {
			if i.Tries > 1 {
				moved++
			}
		}
	})
	if moved > instances/10 {
		t.Errorf("%d of %d instances were placed more than once, want 0", moved, instances)
	}
	took = lab.Stopwatch()
	l.Delete("burst")
	l.Measured("burst_200_deleted", took())
	if left := l.Workloads(); len(left) > 0 {
		t.Errorf("%d processes are left after the deletion, want 0", len(left))
	}
}
