package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/internal/loop"
)

type Loop struct {
	steps, docs, failed prometheus.Counter
	saving              prometheus.Histogram
	waiting             prometheus.Gauge
}

// NewLoop registers the metrics of a loop whose Observe is the result's.
func NewLoop(r prometheus.Registerer) *Loop {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Loop{
		steps:  counter("treeline_core_steps_total", "Steps of the core."),
		docs:   counter("treeline_store_documents_saved_total", "Documents saved."),
		failed: counter("treeline_store_saves_failed_total", "Saves that failed and were repeated."),
		saving: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "treeline_store_save_duration_seconds", Help: "Duration of one save of a batch of steps.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "treeline_core_inputs_waiting", Help: "Inputs that wait for the core."}),
	}
	r.MustRegister(m.steps, m.docs, m.failed, m.saving, m.waiting)
	return m
}

// Observe is for loop.Options.
func (m *Loop) Observe(s loop.Sample) {
	m.steps.Add(float64(s.Steps))
	m.docs.Add(float64(s.Docs))
	m.failed.Add(float64(s.Failed))
	m.waiting.Set(float64(s.Waiting))
	if s.Docs > 0 {
		m.saving.Observe(s.Saving.Seconds())
	}
}
