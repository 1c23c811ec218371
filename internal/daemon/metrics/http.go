package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NewHTTP registers the metric of an API's requests and returns what observes them (rest.Observe).
func NewHTTP(r prometheus.Registerer) func(method, route string, status int, took time.Duration) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "http_server_request_duration_seconds", Help: "Duration of requests to the API, without streams.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	}, []string{"method", "route", "status"})
	r.MustRegister(seconds)
	return func(method, route string, status int, took time.Duration) {
		if route == "" { // a path or method of a stranger's choice
			method, route = "other", "other"
		}
		seconds.WithLabelValues(method, route, strconv.Itoa(status)).Observe(took.Seconds())
	}
}
