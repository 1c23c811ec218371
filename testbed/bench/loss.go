package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	lossInstances = 1000
	lossNodes     = 20   // of each cluster
	lossDead      = "6s" // shorter than the default, because it is not part of the figure
	lossWithin    = 30.0 // s
)

// clusterLoss kills the orchestrator of the cluster that has all instances, and measures the time from
// its dead time until they run in another cluster. The floor is the time in which the same cluster starts
// as many new instances. The lost cluster then returns, and the time until its older instances have
// stopped is measured, too. The next sample loses the other cluster.
func clusterLoss(r *run) error {
	return inRig(r, func(g *rig) error {
		l := lab.New(g, lab.Options{RootArgs: append([]string{"--dead", lossDead}, quiet...)})
		var floor, moved, whole, stopped series
		first, end, err := lossCluster(l, "munich")
		if err != nil {
			return err
		}
		defer end()
		m := l.Container("web", lossInstances)
		m.VCPUs, m.Memory = 0.01, 4
		for i := range r.n {
			if i > 0 {
				l.Delete("herd")
				l.WaitWithin(swarmPatience, "all are gone", l.Gone("herd"))
			}
			w := watch(l.Dir)
			began := time.Now()
			l.Apply(lab.App("herd", m))
			l.WaitWithin(swarmPatience, "all run", l.Running("herd", "web", lossInstances))
			floor.add(time.Since(began).Seconds(), w.disturbed())
		}
		second, end2, err := lossCluster(l, "oslo")
		if err != nil {
			return err
		}
		defer end2()
		for range r.n {
			w := watch(l.Dir)
			cut := time.Now()
			first.Kill9()
			l.Wait("the cluster is lost", func(v lab.View) bool { return v.Clusters[first.ID].Status == api.ClusterSilent })
			began := time.Now()
			l.WaitWithin(swarmPatience, "all run elsewhere", func(v lab.View) bool {
				n := 0
				for _, in := range v.Instances {
					if in.Cluster == second.ID && in.State == api.Running && !in.Stale {
						n++
					}
				}
				return n == lossInstances
			})
			moved.add(time.Since(began).Seconds(), w.disturbed())
			whole.add(time.Since(cut).Seconds(), w.disturbed())
			began = time.Now()
			first.Start()
			for { // the root publishes free resources with other changes only
				left, _, err := client.List[api.Instance](l.Context(), first.API, "/v1/instances", client.ListOptions{})
				if err == nil && len(left) == 0 {
					break
				}
				if time.Since(began) > swarmPatience {
					return fmt.Errorf("%d older instances are left %s after the return of %s (%v)", len(left), swarmPatience, first.ID, err)
				}
				if err := sleep(r.ctx, 50*time.Millisecond); err != nil {
					return err
				}
			}
			stopped.add(time.Since(began).Seconds(), w.disturbed())
			r.logf("elsewhere after %.1f s, older ones stopped %.1f s after the return", moved.values[len(moved.values)-1], stopped.values[len(stopped.values)-1])
			first, second = second, first
		}
		r.emit(floor.record("loss.floor", "s").noting("%d new instances on %d nodes, from submission to all observed running", lossInstances, lossNodes))
		r.emit(moved.record("loss.elsewhere", "s").atMost(lossWithin).over("loss.floor", quantile(floor.values, 0.5)).noting(
			"%d instances of a cluster whose orchestrator was killed, from its dead time until all run in another cluster, at the root", lossInstances))
		r.emit(whole.record("loss.outage", "s").noting("the same, from the kill; dead time %s", lossDead))
		r.emit(stopped.record("loss.return", "s").noting("from the start of the lost orchestrator until its nodes have stopped the %d older instances", lossInstances))
		return nil
	})
}

// lossCluster starts a cluster with a swarm of nodes.
func lossCluster(l *lab.Lab, id api.ClusterID) (*lab.Cluster, func(), error) {
	addr, err := freeport.Addr()
	if err != nil {
		return nil, nil, err
	}
	c := l.Cluster(id, lab.ClusterOptions{Args: append([]string{"--listen", addr}, quiet...)})
	tok, err := l.API.CreateJoinToken(l.Context(), api.TokenRequest{Kind: "node", Cluster: id, Uses: lossNodes})
	if err != nil {
		return nil, nil, err
	}
	t, err := jointoken.Parse(tok.Token)
	if err != nil {
		return nil, nil, err
	}
	t.URL = "https://" + addr // not through the lab's proxy
	order, err := json.Marshal(swarmOrder{
		Dir: filepath.Join(l.Dir, "swarm-"+string(id)), Token: t.Line(), Nodes: lossNodes, AtOnce: 8, CPUs: 64, Memory: 1 << 16,
	})
	if err != nil {
		return nil, nil, err
	}
	_, end, err := startSwarm(string(order))
	if err != nil {
		return nil, nil, fmt.Errorf("start the nodes of %s: %w", id, err)
	}
	l.WaitWithin(swarmPatience, "the nodes of "+string(id)+" have joined", lab.Nodes(id, lossNodes))
	return c, end, nil
}
