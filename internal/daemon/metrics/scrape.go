package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// scrapeTime bounds how long a scrape waits for a collector.
const scrapeTime = 2 * time.Second

// Collector is a prometheus.Collector that computes its metrics at each scrape. A scrape whose
// collector returns an error fails.
type Collector func(context.Context, *Scrape) error

// Scrape receives the metrics of a Collector. Labels are pairs of a name and a value; a metric
// has the same names each time, and no label has unbounded values, such as ids of instances.
type Scrape struct{ all []prometheus.Metric }

// Gauge adds a value that can go up and down.
func (s *Scrape) Gauge(name, help string, value float64, labels ...string) {
	s.add(prometheus.GaugeValue, name, help, value, labels)
}

// Counter adds a value that only grows.
func (s *Scrape) Counter(name, help string, value float64, labels ...string) {
	s.add(prometheus.CounterValue, name, help, value, labels)
}

func (s *Scrape) add(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	s.all = append(s.all, prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...))
}

// Describe implements prometheus.Collector. It describes nothing, since only Collect knows the
// metrics.
func (Collector) Describe(chan<- *prometheus.Desc) {}

func (c Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	var s Scrape
	if err := c(ctx, &s); err != nil {
		ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, m := range s.all {
		ch <- m
	}
}
