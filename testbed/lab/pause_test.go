package lab_test

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// nowhere is an address that refuses connections.
const nowhere = "127.0.0.1:1"

// TestPause pauses one daemon after the other for longer than the dead time of the others, and
// cuts the cluster off from its root. A daemon that was paused does not declare the others
// dead: nothing moves and nothing restarts.
func TestPause(t *testing.T) {
	t.Parallel()
	const (
		nodeDead    = 7 * time.Second // the default
		clusterDead = 12 * time.Second
	)
	l := open(t, lab.Options{RootArgs: []string{"--dead", clusterDead.String()}})
	c := l.Cluster("munich", lab.ClusterOptions{})
	n := c.Node("n1", lab.NodeOptions{})
	c.Node("n2", lab.NodeOptions{})
	other := l.Cluster("berlin", lab.ClusterOptions{})
	other.Node("m1", lab.NodeOptions{})
	l.Wait("all nodes take work", func(v lab.View) bool { return lab.Nodes("munich", 2)(v) && lab.Nodes("berlin", 1)(v) })
	l.Apply(lab.App("shop", lab.On(l.Process("web", 1), "munich", "n1"), l.Process("free", 4)))
	l.Wait("all run", func(v lab.View) bool { return l.Running("shop", "web", 1)(v) && l.Running("shop", "free", 4)(v) })
	web := one{t, l, l.ID("shop", "web", 0)}
	before := l.Workloads()
	unmoved := func(t *testing.T) {
		t.Helper()
		after := l.Workloads()
		for i, w := range before {
			if len(after) != len(before) || after[i].PID != w.PID {
				t.Fatalf("the workloads are %+v, want %+v as before the pause", after, before)
			}
		}
	}

	for _, held := range []struct {
		name string
		proc *lab.Proc
		time time.Duration
	}{
		{"node engine", n.Proc, 3 * time.Second},
		{"cluster", c.Proc, nodeDead + 2*time.Second},
		{"root", l.Root, clusterDead + 2*time.Second},
	} {
		sub(t, l, held.name, func(t *testing.T) {
			held.proc.Pause()
			time.Sleep(held.time) // duration of the fault
			held.proc.Resume()
			one{t, l, web.id}.works("shop", "web", lab.Stopwatch())
			unmoved(t)
		})
	}

	sub(t, l, "cluster without its root", func(t *testing.T) {
		c.Up.To(nowhere)
		c.Up.Break()
		l.Wait("the root misses the cluster", func(v lab.View) bool { return v.Clusters["munich"].Status == api.ClusterSilent })
		_, err := c.API.Do(l.Context(), client.Request{
			Method: "POST", Path: "/v1/services/" + api.PathOf(l.ServiceID("shop", "web")) + "/scale", Body: api.Replicas{Replicas: 2},
		}, nil)
		if err != nil {
			t.Fatalf("scale at the cluster while the root is down: %v", err)
		}
		took := lab.Stopwatch()
		c.Up.To(l.RootLink.Addr())
		l.Wait("the root takes over what the cluster added", l.Running("shop", "web", 2))
		l.Wait("nothing is left twice", func(v lab.View) bool { return l.Running("shop", "free", 4)(v) })
		l.Measured("root_link_healed_takes_over", took())
	})
}
