package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/api"
)

// NewReplicas registers the metric of a daemon's replicas, which all returns.
func NewReplicas(reg *prometheus.Registry, all func() []api.Replica) {
	reg.MustRegister(Collector(func(_ context.Context, s *Scrape) error {
		count := map[api.ReplicaState]int{api.ReplicaAlive: 0, api.ReplicaFailed: 0, api.ReplicaLeft: 0, api.ReplicaUnknown: 0}
		for _, r := range all() {
			count[r.State]++
		}
		for state, n := range count {
			s.Gauge("treeline_replicas", "Replicas of the daemon, by state as the active one sees it.", float64(n), "state", string(state))
		}
		return nil
	}))
}
