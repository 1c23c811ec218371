package wiring

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon/metrics"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/root-orchestrator/clusterlink"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func registerMetrics(reg *prometheus.Registry, core *root.Core, l *loop.Loop[root.Input], link *clusterlink.Link) {
	dropped := prometheus.CounterOpts{Name: "treeline_core_inputs_dropped_total", Help: "Inputs that found the queue full."}
	streams := prometheus.GaugeOpts{Name: "treeline_cluster_streams", Help: "Clusters whose stream of desired state is open."}
	reg.MustRegister(
		prometheus.NewCounterFunc(dropped, func() float64 { return float64(l.Dropped()) }),
		prometheus.NewGaugeFunc(streams, func() float64 { return float64(link.Connected()) }),
		metrics.Collector(func(ctx context.Context, s *metrics.Scrape) error {
			return l.Read(ctx, func() { scrape(core, s) })
		}))
}

// scrape counts the core's objects. It runs on the core's owner.
func scrape(core *root.Core, s *metrics.Scrape) {
	s.Gauge("treeline_applications", "Applications.", float64(len(core.Apps(""))))
	states, waiting := map[api.State]int{}, map[api.Reason]int{}
	for _, i := range core.Instances("") {
		states[i.State]++
		if i.State == api.Requested && i.Reason != "" {
			waiting[i.Reason]++
		}
	}
	for reason, n := range waiting {
		s.Gauge("treeline_unplaceable", "Instances that no cluster has, by reason.", float64(n), "reason", string(reason))
	}
	for state, n := range states {
		s.Gauge("treeline_instances", "Instances by state.", float64(n), "state", string(state))
	}
	statuses := map[api.ClusterStatus]int{api.ClusterReady: 0, api.ClusterJoining: 0, api.ClusterSilent: 0}
	for _, c := range core.Clusters() {
		statuses[c.Status]++
		if !c.Heard.IsZero() {
			s.Gauge("treeline_cluster_report_age_seconds", "Age of a cluster's last report.", time.Since(c.Heard).Seconds(), "cluster", string(c.ID))
		}
	}
	for status, n := range statuses {
		s.Gauge("treeline_clusters", "Clusters by status.", float64(n), "status", string(status))
	}
	for id, n := range core.RefusedValues() {
		s.Counter("treeline_cluster_values_refused_total", "Values in a cluster's messages that were out of bounds.", float64(n), "cluster", string(id))
	}
	metrics.RestoreHeld(s, core.Restored().Held)
	const netHelp = "Subscriptions of clusters to network resources, by whether they are answered."
	all, open := core.Interest()
	for _, name := range []string{"treeline_net_subscriptions", "treeline_net_wants"} { // the latter is the former name
		s.Gauge(name, netHelp, float64(all-open), "answered", "true")
		s.Gauge(name, netHelp, float64(open), "answered", "false")
	}
}
