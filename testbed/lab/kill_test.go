package lab_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// one checks one instance of a service.
type one struct {
	t  *testing.T
	l  *lab.Lab
	id api.InstanceID
}

// unharmed fails the test if the instance was restarted, placed again or duplicated.
func (o one) unharmed(before lab.Workload, was api.Instance) {
	o.t.Helper()
	if !before.Alive() {
		o.t.Errorf("%s: its process %d has ended, want it to keep running", o.id, before.PID)
	}
	if all := o.l.WorkloadsOf(o.id); len(all) != 1 {
		o.t.Errorf("%s has %d processes, want 1: %+v", o.id, len(all), all)
	}
	if now := o.l.Instance(o.id); now.Epoch != was.Epoch || now.Restarts != was.Restarts {
		o.t.Errorf("%s: epoch %s and %d restarts, want %s and %d as before", o.id, now.Epoch, now.Restarts, was.Epoch, was.Restarts)
	}
}

// works checks that orders reach the node and that its reports arrive: it adds an instance and
// removes it again.
func (o one) works(app, service string, after func() time.Duration) time.Duration {
	o.t.Helper()
	o.l.Scale(app, service, 2)
	o.l.Wait("a second instance runs", o.l.Running(app, service, 2))
	took := after()
	o.l.Scale(app, service, 1)
	second := o.l.ID(app, service, 1)
	o.l.Wait("the second instance is gone", func(v lab.View) bool { _, there := v.Instances[second]; return !there })
	return took
}

// TestKill9 kills one part after the other while an application runs. Nothing is lost and
// nothing runs twice.
func TestKill9(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", steady())
	n1, n2 := c.Node("n1", containers(t)), c.Node("n2", containers(t))
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	l.Apply(lab.App("shop", lab.On(l.Container("web", 1), "munich", "n1")))
	l.Wait("web runs", l.Running("shop", "web", 1))
	web := one{t, l, l.ID("shop", "web", 0)}

	sub(t, l, "workload", func(t *testing.T) {
		first := l.Workload(web.id)
		second, once := killed(t, l, first)
		if second.Epoch != first.Epoch || second.Attempt != first.Attempt+1 || second.Node != first.Node {
			t.Errorf("the restarted instance is %+v, was %+v", second, first)
		}
		_, twice := killed(t, l, second)
		l.Measured("workload_killed_running_again", once)
		l.Measured("workload_killed_again_running_again", twice)
		// The back-off is one second and then two, each shortened by up to a quarter.
		if once < 700*time.Millisecond || twice < 1400*time.Millisecond {
			t.Errorf("restarted after %s and %s, want a growing back-off", once, twice)
		}
		failed := false
		for _, i := range l.History(web.id) {
			failed = failed || i.State == api.Failed && i.Reason == api.ReasonExited && i.ExitCode != nil && *i.ExitCode == 137
		}
		if !failed {
			t.Error("the exit code 137 was not reported")
		}
	})

	sub(t, l, "node engine", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		n1.Kill9()
		took := lab.Stopwatch()
		n1.Start()
		l.Measured("node_engine_killed_ready_again", took())
		l.Measured("node_engine_killed_takes_orders", one{t, l, web.id}.works("shop", "web", took))
		one{t, l, web.id}.unharmed(w, was)
	})

	sub(t, l, "workload while the node engine is down", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		gone := w.Gone(l)
		n1.Kill9()
		w.Kill9()
		l.WaitGone("web", gone)
		took := lab.Stopwatch()
		n1.Start()
		l.Wait("web runs again", lab.Is(web.id, func(i api.Instance) bool { return i.Restarts > was.Restarts && i.State == api.Running }))
		l.Measured("workload_and_engine_killed_running_again", took())
		if now := l.Workload(web.id); now.Epoch != w.Epoch {
			t.Errorf("the epoch is %s, was %s: the instance was placed again", now.Epoch, w.Epoch)
		}
	})

	sub(t, l, "cluster orchestrator", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		c.Kill9()
		took := lab.Stopwatch()
		c.Start()
		l.Measured("cluster_killed_ready_again", took())
		l.Measured("cluster_killed_takes_orders", one{t, l, web.id}.works("shop", "web", took))
		one{t, l, web.id}.unharmed(w, was)
	})

	sub(t, l, "broker connection", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		took := lab.Stopwatch()
		n1.Link.Break()
		l.Measured("broker_connection_reset_takes_orders", one{t, l, web.id}.works("shop", "web", took))
		one{t, l, web.id}.unharmed(w, was)
	})

	sub(t, l, "root", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		l.Root.Kill9()
		took := lab.Stopwatch()
		l.StartRoot()
		l.Measured("root_killed_ready_again", took())
		l.Measured("root_killed_takes_orders", one{t, l, web.id}.works("shop", "web", took))
		one{t, l, web.id}.unharmed(w, was)
	})

	sub(t, l, "root during the installation of an addon", func(t *testing.T) { addonAndCrash(t, l) })

	sub(t, l, "workload while the root and the cluster are down", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		gone := w.Gone(l)
		l.Root.Kill9()
		c.Kill9()
		w.Kill9()
		l.WaitGone("web", gone)
		c.Start()
		lab.Within(t, time.Minute, "the cluster hears without the root that web was restarted", func() error {
			all, _, err := client.List[api.Instance](l.Context(), c.API, "/v1/instances", client.ListOptions{})
			if err == nil && !slices.ContainsFunc(all, func(i api.Instance) bool {
				return i.ID == web.id && i.Restarts > was.Restarts && i.State == api.Running
			}) {
				err = fmt.Errorf("its instances are %+v", all)
			}
			return err
		})
		l.StartRoot()
		l.Wait("the root hears that web was restarted", lab.Is(web.id, func(i api.Instance) bool { return i.Restarts > was.Restarts && i.State == api.Running }))
		if now := l.Workload(web.id); now.Epoch != w.Epoch {
			t.Errorf("the epoch is %s, was %s: the instance was placed again", now.Epoch, w.Epoch)
		}
	})

	sub(t, l, "containerd", func(t *testing.T) {
		w, was := l.Workload(web.id), l.Instance(web.id)
		l.Containerd().Kill9()
		if !w.Alive() {
			t.Error("the container ended with containerd")
		}
		took := lab.Stopwatch()
		l.Containerd().Start()
		l.Measured("containerd_killed_takes_orders", one{t, l, web.id}.works("shop", "web", took))
		one{t, l, web.id}.unharmed(w, was)
	})
	_ = n2
}

// TestContainerdIsAway stops a node's containerd, and starts its engine without it. The engine
// cannot observe its workloads: they are neither reported as failed nor started elsewhere, and
// an exclusive instance keeps its lease.
func TestContainerdIsAway(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	calm := steady()
	calm.Args = append(calm.Args, "--lease", "20s") // longer than an engine takes to start on a busy machine
	c := l.Cluster("munich", calm)
	o := containers(t)
	o.Args = []string{"--runtime", "auto"}
	n1 := c.Node("n1", o)
	l.Wait("the node takes work", lab.Nodes("munich", 1))
	l.Apply(lab.App("bank", lab.Exclusive(l.Container("ledger", 1)), l.Container("web", 1)))
	l.Wait("ledger runs", l.Running("bank", "ledger", 1))
	l.Wait("web runs", l.Running("bank", "web", 1))
	ids := []api.InstanceID{l.ID("bank", "ledger", 0), l.ID("bank", "web", 0)}
	away := func(v lab.View) bool {
		for _, id := range ids {
			if !lab.Is(id, func(i api.Instance) bool { return i.State == api.Running && i.Reason == api.ReasonRuntimeDown })(v) {
				return false
			}
		}
		return true
	}
	back := func(v lab.View) bool {
		for _, id := range ids {
			if !lab.Is(id, func(i api.Instance) bool { return i.State == api.Running && i.Reason == api.ReasonNone })(v) {
				return false
			}
		}
		return true
	}
	for _, way := range []struct {
		name string
		lose func()
	}{
		{"containerd_ends", func() { l.Containerd().Kill9() }},
		{"engine_starts_without", func() { n1.Kill9(); l.Containerd().Kill9(); _ = os.Remove(l.Containerd().Address); n1.Start() }},
	} {
		sub(t, l, way.name, func(t *testing.T) {
			var were []lab.Workload
			var was []api.Instance
			for _, id := range ids {
				were, was = append(were, l.Workload(id)), append(was, l.Instance(id))
			}
			way.lose()
			took := lab.Stopwatch()
			l.Wait("their state is unknown", away)
			l.Measured(way.name+"_said_unknown", took())
			if n, err := c.NodeOf("n1"); err != nil || n.RuntimeError == "" {
				t.Errorf("the node's runtime does not answer, but the cluster shows %+v, %v", n, err)
			}
			l.Containerd().Start()
			took = lab.Stopwatch()
			l.Wait("they are known to run", back)
			l.Measured(way.name+"_said_running", took())
			for i, id := range ids {
				one{t, l, id}.unharmed(were[i], was[i])
				for _, h := range l.History(id) {
					if h.State == api.Failed {
						t.Errorf("%s was reported as failed: %s %s", id, h.Reason, h.Detail)
					}
				}
			}
			one{t, l, ids[1]}.works("bank", "web", took)
		})
	}
}

// killed ends a workload, waits for its successor, and returns it with the time between the
// kill and its start.
func killed(t *testing.T, l *lab.Lab, w lab.Workload) (next lab.Workload, pause time.Duration) {
	t.Helper()
	gone, was := w.Gone(l), l.Instance(w.Instance)
	from := lab.SinceBoot()
	w.Kill9()
	l.WaitGone("the workload", gone)
	l.Wait("it is restarted", lab.Is(w.Instance, func(i api.Instance) bool { return i.Restarts == was.Restarts+1 && i.State == api.Running }))
	next = l.Workload(w.Instance)
	return next, next.Started - from
}

// TestNodeLost ends a node with its workloads, and then cuts off another. Both times the
// instances run elsewhere under a higher epoch, and the node that returns drops those that it
// no longer has.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	nodes := map[string]*lab.Node{"n1": c.Node("n1", containers(t)), "n2": c.Node("n2", containers(t))}
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	l.Apply(lab.App("shop", l.Container("web", 1)))
	l.Wait("web runs", l.Running("shop", "web", 1))
	id := l.ID("shop", "web", 0)
	elsewhere := func(was lab.Workload) func(lab.View) bool {
		return lab.Is(id, func(i api.Instance) bool { return i.State == api.Running && i.Epoch > was.Epoch })
	}

	sub(t, l, "killed", func(t *testing.T) {
		was := l.Workload(id)
		lost := nodes[was.Node]
		took := lab.Stopwatch()
		lost.KillAll()
		l.Wait("web runs elsewhere", elsewhere(was))
		l.Measured("node_killed_running_elsewhere", took())
		now := l.Workload(id)
		if now.Node == was.Node {
			t.Errorf("the instance runs on the lost node %s", now.Node)
		}
		lost.Start()
		l.Wait("the node is back", lab.Nodes("munich", 2))
		l.Apply(lab.App("probe", lab.On(l.Container("p", 1), "munich", was.Node)))
		l.Wait("the node that returned takes orders", l.Running("probe", "p", 1))
		l.Delete("probe")
		if all := l.WorkloadsOf(id); len(all) != 1 || all[0].PID != now.PID {
			t.Errorf("web runs as %+v, want only process %d", all, now.PID)
		}
		if left := l.Tasks(lost); len(left) != 0 {
			t.Errorf("the node that returned keeps the containers %v, want none", left)
		}
	})

	sub(t, l, "cut off", func(t *testing.T) {
		was := l.Workload(id)
		lost := nodes[was.Node]
		gone := was.Gone(l)
		took := lab.Stopwatch()
		lost.Link.Cut()
		l.Wait("web runs elsewhere", elsewhere(was))
		l.Measured("node_cut_off_running_elsewhere", took())
		if !was.Alive() {
			t.Error("the node that was cut off stopped an instance, want it to keep running")
		}
		took = lab.Stopwatch()
		lost.Link.Heal()
		l.WaitGone("the old web", gone)
		l.Measured("node_healed_dropped_old", took())
		if now := l.Workload(id); now.Node == was.Node || now.Epoch <= was.Epoch {
			t.Errorf("web runs as %+v, before as %+v", now, was)
		}
	})
}

// TestExclusive disconnects the node of an exclusive instance in three ways. The kernel's times
// show that the old process ended before the new one began.
func TestExclusive(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	nodes := map[string]*lab.Node{"n1": c.Node("n1", lab.NodeOptions{}), "n2": c.Node("n2", lab.NodeOptions{})}
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	l.Apply(lab.App("bank", lab.Exclusive(l.Process("ledger", 1))))
	l.Wait("it runs", l.Running("bank", "ledger", 1))
	id := l.ID("bank", "ledger", 0)
	for _, way := range []struct {
		name   string
		lose   func(*lab.Node)
		regain func(*lab.Node)
	}{
		{"engine_killed", func(n *lab.Node) { n.Kill9() }, func(n *lab.Node) { n.Start() }},
		{"engine_paused", func(n *lab.Node) { n.Pause() }, func(n *lab.Node) { n.Resume() }},
		{"link_cut", func(n *lab.Node) { n.Link.Cut() }, func(n *lab.Node) { n.Link.Heal() }},
	} {
		sub(t, l, way.name, func(t *testing.T) {
			was := l.Workload(id)
			gone := was.Gone(l)
			took := lab.Stopwatch()
			way.lose(nodes[was.Node])
			ended := l.WaitGone("the old one", gone)
			l.Measured("exclusive_"+way.name+"_stopped", took())
			l.Wait("it runs elsewhere", lab.Is(id, func(i api.Instance) bool { return i.State == api.Running && i.Epoch > was.Epoch }))
			l.Measured("exclusive_"+way.name+"_running_elsewhere", took())
			now := l.Workload(id)
			// The kernel counts starts in hundredths of a second.
			if now.Started+10*time.Millisecond < ended {
				t.Errorf("the new process began at %s, before the old one ended at %s", now.Started, ended)
			}
			way.regain(nodes[was.Node])
			l.Wait("the node is back", lab.Nodes("munich", 2))
			if again := l.Workload(id); again.Epoch < now.Epoch {
				t.Errorf("the node that returned runs %+v, want only %+v", again, now)
			}
		})
	}
}
