// Package metrics is a daemon's Prometheus registry. It is separate from package daemon
// because the client library is large.
//
//	reg := metrics.New()
//	reg.MustRegister(placements)
//	h.Handler(metrics.Handler(reg))
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// New makes a registry with the metrics of Go and of the process.
func New() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// Handler serves the registry, at most two requests at a time.
func Handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r, MaxRequestsInFlight: 2})
}
