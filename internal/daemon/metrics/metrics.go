// Package metrics is a daemon's own Prometheus registry. It is apart from
// package daemon because the client library weighs; who wants it imports it.
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

// New is a registry with what Go and the process say of themselves.
func New() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// Handler serves the registry; two scrapes at once at most.
func Handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r, MaxRequestsInFlight: 2})
}
