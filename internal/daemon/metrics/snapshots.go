package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NewSnapshots registers the metrics of scheduled snapshots: the age of the last good one, and the longest time
// between two of the schedule.
func NewSnapshots(reg *prometheus.Registry, age, interval func() time.Duration) {
	gauge := func(name, help string, fn func() time.Duration) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return fn().Seconds() }))
	}
	gauge("treeline_snapshot_age_seconds", "Age of the last good scheduled snapshot, or how long there is a schedule without one.", age)
	gauge("treeline_snapshot_interval_seconds", "Longest time between two scheduled snapshots.", interval)
}

// RestoreHeld adds the metric that says whether the daemon waits until a restore from a snapshot is accepted.
func RestoreHeld(s *Scrape, held bool) {
	value := 0.0
	if held {
		value = 1
	}
	s.Gauge("treeline_restore_held", "Whether the daemon was restored from a snapshot and sends no assignments yet.", value)
}
