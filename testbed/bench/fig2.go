package main

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/testbed/placing"
	"github.com/treeline-edge/treeline/testbed/report/chart"
)

// Figure 2 of the Oakestra paper: the cost of delegation when 45 workers form from one to 45
// clusters. It uses the real cores without network and disk, which other benchmarks measure.

const (
	fig2Workers     = 45
	fig2Deployments = 100
)

func fig2(r *run) error {
	atRoot := chart.Panel{Title: "The root's decision", Unit: "µs, median of 100 deployments"}
	atCluster := chart.Panel{Title: "The cluster's decision", Unit: "µs, median of 100 deployments"}
	for _, clusters := range []int{1, 3, 5, 9, 15, 45} {
		label := fmt.Sprintf("%d×%d", clusters, fig2Workers/clusters)
		var top, below series
		for range r.n {
			w := watch("")
			t, b, err := delegate(clusters, fig2Workers/clusters)
			if err != nil {
				return fmt.Errorf("%s: %w", label, err)
			}
			bad := w.disturbed()
			top.add(t, bad)
			below.add(b, bad)
		}
		rt := top.record("fig2.root-"+label, "µs")
		rb := below.record("fig2.cluster-"+label, "µs")
		r.emit(rt)
		r.emit(rb)
		atRoot.Bars = append(atRoot.Bars, barOf(rt, label))
		atCluster.Bars = append(atCluster.Bars, barOf(rb, label))
	}
	return r.draw("Delegated scheduling of 45 workers, as in figure 2 of the Oakestra paper", []chart.Panel{atRoot, atCluster})
}

// delegate builds the world, deploys services with one instance, and returns the median time of
// a decision at both tiers in µs.
func delegate(clusters, workers int) (atRoot, atCluster float64, err error) {
	w := placing.New()
	for i := range clusters {
		id := fmt.Sprintf("c%d", i)
		var nodes []api.NodeInfo
		for j := range workers {
			nodes = append(nodes, placing.Node(fmt.Sprintf("%s-n%d", id, j)))
		}
		w.Cluster(cluster.Config{ID: api.ClusterID(id)}, nodes...)
	}
	took := map[string][]float64{}
	w.Timed = func(tier string, d time.Duration) {
		took[tier] = append(took[tier], float64(d.Nanoseconds())/1000)
	}
	for i := range fig2Deployments {
		one := 1
		err := w.ApplyApp(api.Application{
			Name: fmt.Sprintf("fig%d", i), Namespace: "bench",
			Services: []api.Microservice{{
				Name: "svc", Namespace: "bench", Virtualization: "container", Code: "registry.example/nginx:1",
				VCPUs: 0.1, Memory: 64, Replicas: &one,
			}},
		})
		if err != nil {
			return 0, 0, err
		}
	}
	placed := 0
	for _, c := range w.Clusters {
		for _, in := range c.Instances() {
			if in.Node != "" {
				placed++
			}
		}
	}
	if placed != fig2Deployments {
		return 0, 0, fmt.Errorf("%d of %d instances were placed, want all", placed, fig2Deployments)
	}
	return quantile(took["root"], 0.5), quantile(took["cluster"], 0.5), nil
}
