package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	recoveryNodes = 9
	lostAtOnce    = 3                       // well below half of the cluster, which would delay re-placement
	cutSpread     = 1500 * time.Millisecond // maximum time between two of them
)

// recovery kills one process at a time while an application runs, and measures the time until
// recovery, as reported by the root or by the daemon itself.
func recovery(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		c := l.Cluster("munich", lab.ClusterOptions{Args: quiet})
		w := &ward{run: r, lab: l, cluster: c, nodes: map[api.NodeID]*lab.Node{}}
		for i := range recoveryNodes {
			n := c.Node(fmt.Sprintf("n%d", i), lab.NodeOptions{Containers: true, CPUs: 16, Memory: 4096, Args: quiet})
			w.nodes[n.ID] = n
		}
		l.Wait("the nodes take work", lab.Nodes("munich", recoveryNodes))
		for _, part := range []func() error{w.workloads, w.engines, w.clusterRestart, w.rootRestart, w.silentNodes} {
			if err := part(); err != nil {
				return err
			}
			if err := r.ctx.Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

type ward struct {
	run     *run
	lab     *lab.Lab
	cluster *lab.Cluster
	nodes   map[api.NodeID]*lab.Node
}

// workloads kills each instance of a service once, because the back-off grows with each restart.
func (w *ward) workloads() error {
	l := w.lab
	l.Apply(lab.App("mortal", idler(l, w.run.n)))
	l.Wait("all run", l.Running("mortal", "web", w.run.n))
	var s series
	for i := range w.run.n {
		id := l.ID("mortal", "web", i)
		watch := watch(l.Dir)
		before := l.Instance(id).Restarts
		victim, err := w.process(id)
		if err != nil {
			return err
		}
		began := time.Now()
		victim.Kill9()
		l.Wait("it runs again", lab.Is(id, func(i api.Instance) bool { return i.State == api.Running && i.Restarts > before }))
		s.add(time.Since(began).Seconds(), watch.disturbed())
	}
	l.Delete("mortal")
	w.run.emit(s.record("recovery.workload", "s").noting("kill -9 → running again at the root; of it 0.75 to 1 s is the pause before the first restart"))
	return nil
}

// engines kills the node engine, whose next start adopts the workloads.
func (w *ward) engines() error {
	l := w.lab
	l.Apply(lab.App("adopted", idler(l, 1)))
	id := l.ID("adopted", "web", 0)
	l.Wait("it runs", l.Running("adopted", "web", 1))
	p, err := w.process(id)
	if err != nil {
		return err
	}
	n := w.nodes[api.NodeID(p.Node)]
	if n == nil {
		return fmt.Errorf("unknown node %q of %s", p.Node, id)
	}
	var s series
	for range w.run.n {
		watch := watch(l.Dir)
		began := time.Now()
		n.Restart()
		s.add(time.Since(began).Seconds(), watch.disturbed())
		if now := l.Workload(id).PID; now != p.PID {
			return fmt.Errorf("%s was process %d and is now %d, want the same (adopted)", id, p.PID, now)
		}
	}
	l.Delete("adopted")
	w.run.emit(s.record("recovery.engine", "s").noting("kill -9 and start → ready with its workloads adopted, none restarted"))
	return nil
}

// where returns the node whose control group contains the instance's process.
func (w *ward) where(id api.InstanceID) (api.NodeID, error) {
	p, err := w.process(id)
	return api.NodeID(p.Node), err
}

// process returns the instance's process. A container counts as started a moment before its
// program replaces runc, and is then found by its environment.
func (w *ward) process(id api.InstanceID) (p lab.Workload, err error) {
	err = w.until(func() bool {
		all := w.lab.WorkloadsOf(id)
		if len(all) == 1 {
			p = all[0]
		}
		return len(all) == 1
	})
	if err != nil {
		err = fmt.Errorf("find the process of %s: %w", id, err)
	}
	return p, err
}

// clusterRestart kills the cluster orchestrator and waits for its nodes, each of which is a
// sample. Their engines are restarted each time, because the reconnect pauses of an engine that
// loses its broker repeatedly grow.
func (w *ward) clusterRestart() error {
	var s series
	for len(s.values) < w.run.n {
		for _, n := range w.nodes {
			n.Restart()
		}
		if err := w.heardAgain(time.Now(), func(time.Duration) {}); err != nil {
			return err
		}
		watch := watch(w.lab.Dir)
		var took []time.Duration
		began := time.Now()
		w.cluster.Restart()
		if err := w.heardAgain(began, func(d time.Duration) { took = append(took, d) }); err != nil {
			return fmt.Errorf("wait for the nodes after the kill of their cluster: %w", err)
		}
		bad := watch.disturbed()
		for _, d := range took {
			s.add(d.Seconds(), bad)
		}
	}
	w.run.emit(s.record("recovery.cluster", "s").noting("kill -9 and start → a node heard again, by the cluster's API; %d nodes at once", len(w.nodes)))
	return nil
}

// heardAgain waits until every node has sent a heartbeat after the given time, and returns how
// long each took.
func (w *ward) heardAgain(since time.Time, tell func(time.Duration)) error {
	heard := map[api.NodeID]bool{}
	return w.until(func() bool {
		all, _, _ := client.List[api.Node](w.lab.Context(), w.cluster.API, "/v1/nodes", client.ListOptions{})
		for _, n := range all {
			if n.Status == api.NodeReady && n.Heard.After(since) && !heard[n.ID] {
				heard[n.ID] = true
				tell(time.Since(since))
			}
		}
		return len(heard) == len(w.nodes)
	})
}

// rootRestart kills the root and waits for its cluster, which is restarted each time for the
// same reason.
func (w *ward) rootRestart() error {
	var s series
	heard := func(since time.Time) error {
		return w.until(func() bool {
			c, err := w.lab.API.Cluster(w.lab.Context(), w.cluster.ID)
			return err == nil && c.Status == api.ClusterReady && c.Heard.After(since)
		})
	}
	for range w.run.n {
		began := time.Now()
		w.cluster.Restart()
		if err := heard(began); err != nil {
			return fmt.Errorf("restart the cluster: %w", err)
		}
		watch := watch(w.lab.Dir)
		began = time.Now()
		w.lab.Root.Kill9()
		w.lab.StartRoot()
		if err := heard(began); err != nil {
			return fmt.Errorf("wait for the cluster after the kill of the root: %w", err)
		}
		s.add(time.Since(began).Seconds(), watch.disturbed())
	}
	w.run.emit(s.record("recovery.root", "s").noting("kill -9 and start → the cluster heard again, by the root's API"))
	for _, n := range w.nodes { // they lost their cluster so often that they reconnect slowly
		n.Restart()
	}
	return w.heardAgain(time.Now(), func(time.Duration) {})
}

// until polls, because an API that has just started has no watch yet.
func (w *ward) until(ok func() bool) error {
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("the state was not reached within a minute: %w", api.ErrTimeout)
		}
		if err := sleep(w.run.ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// silentNodes cuts off nodes and kills them with their workloads, three at a time, and waits
// until their instances run elsewhere.
func (w *ward) silentNodes() error {
	l := w.lab
	l.Apply(lab.App("movable", idler(l, recoveryNodes)))
	l.Wait("all run", l.Running("movable", "web", recoveryNodes))
	var s series
	for round := 0; len(s.values) < w.run.n; {
		watch := watch(l.Dir)
		victims := map[api.NodeID][]api.InstanceID{}
		for i := range recoveryNodes {
			id := l.ID("movable", "web", i)
			on, err := w.where(id)
			if err != nil {
				return err
			}
			if len(victims) < lostAtOnce || victims[on] != nil {
				victims[on] = append(victims[on], id)
			}
		}
		before := map[api.InstanceID]api.Epoch{}
		l.Look(func(v lab.View) {
			for _, ids := range victims {
				for _, id := range ids {
					before[id] = v.Instances[id].Epoch
				}
			}
		})
		// In every second sample they are cut off one after the other, within about one heartbeat
		// period: nodes that are connected when the first is cut off are gone when it is declared
		// dead.
		cutAt, spread := map[api.NodeID]time.Time{}, time.Duration(0)
		if round++; round%2 == 0 {
			spread = cutSpread
		}
		for on := range victims {
			w.nodes[on].Link.Cut() // so that not even the end of the connection is noticed
			cutAt[on] = time.Now()
			if err := sleep(w.run.ctx, time.Duration(rand.Int64N(int64(spread)+1))); err != nil {
				return err
			}
		}
		for on := range victims {
			w.nodes[on].KillAll()
		}
		since := map[api.InstanceID]time.Time{}
		for on, ids := range victims {
			for _, id := range ids {
				since[id] = cutAt[on]
			}
		}
		done := map[api.InstanceID]time.Duration{}
		l.Wait("what they had runs elsewhere", func(v lab.View) bool {
			for id, old := range before {
				if in := v.Instances[id]; done[id] == 0 && in.State == api.Running && in.Epoch > old && !in.Stale {
					done[id] = time.Since(since[id])
				}
			}
			return len(done) == len(before)
		})
		bad := watch.disturbed()
		for _, d := range done {
			s.add(d.Seconds(), bad)
		}
		for on := range victims {
			w.nodes[on].Link.Heal()
			w.nodes[on].Start()
		}
		l.Wait("the nodes are back", lab.Nodes("munich", recoveryNodes))
	}
	l.Delete("movable")
	w.run.emit(s.record("recovery.node", "s").atMost(8).noting("a node cut off and killed with its workloads → running elsewhere, at the root; %d of %d nodes at once or within some seconds, each from its own cut, default timing", lostAtOnce, recoveryNodes))
	return nil
}
