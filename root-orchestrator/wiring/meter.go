package wiring

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/root-orchestrator/clusterlink"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// scrapeWait bounds how long a scrape waits for the core.
const scrapeWait = 2 * time.Second

// meter has the root's metrics. No label has many values, such as ids of instances.
type meter struct {
	steps, docs, failed prometheus.Counter
	saving              prometheus.Histogram
	waiting             prometheus.Gauge
}

func newMeter() *meter {
	return &meter{
		steps:  prometheus.NewCounter(prometheus.CounterOpts{Name: "treeline_core_steps_total", Help: "Steps of the core."}),
		docs:   prometheus.NewCounter(prometheus.CounterOpts{Name: "treeline_store_documents_saved_total", Help: "Documents saved."}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "treeline_store_saves_failed_total", Help: "Saves that failed and were repeated."}),
		saving: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "treeline_store_save_duration_seconds", Help: "Duration of one save of a batch of steps.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "treeline_core_inputs_waiting", Help: "Inputs that wait for the core."}),
	}
}

func (m *meter) observe(s loop.Sample) {
	m.steps.Add(float64(s.Steps))
	m.docs.Add(float64(s.Docs))
	m.failed.Add(float64(s.Failed))
	m.waiting.Set(float64(s.Waiting))
	if s.Docs > 0 {
		m.saving.Observe(s.Saving.Seconds())
	}
}

func (m *meter) register(reg *prometheus.Registry, core *root.Core, l *loop.Loop[root.Input], link *clusterlink.Link) {
	reg.MustRegister(m.steps, m.docs, m.failed, m.saving, m.waiting,
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "treeline_core_inputs_dropped_total", Help: "Inputs that found the queue full."},
			func() float64 { return float64(l.Dropped()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "treeline_cluster_streams", Help: "Clusters whose stream of desired state is open."},
			func() float64 { return float64(link.Connected()) }),
		&objects{core: core, loop: l},
	)
}

// objects counts the core's objects at each scrape.
type objects struct {
	core *root.Core
	loop *loop.Loop[root.Input]
}

var (
	clustersDesc  = prometheus.NewDesc("treeline_clusters", "Clusters by status.", []string{"status"}, nil)
	instancesDesc = prometheus.NewDesc("treeline_instances", "Instances by state.", []string{"state"}, nil)
	appsDesc      = prometheus.NewDesc("treeline_applications", "Applications.", nil, nil)
	ageDesc       = prometheus.NewDesc("treeline_cluster_report_age_seconds", "Age of a cluster's last report.", []string{"cluster"}, nil)
	refusedDesc   = prometheus.NewDesc("treeline_cluster_values_refused_total", "Values in a cluster's messages that were out of bounds.", []string{"cluster"}, nil)
	wantsDesc     = prometheus.NewDesc("treeline_net_wants", "What clusters want to know of the network, by whether it is answered.", []string{"answered"}, nil)
)

// Describe is prometheus.Collector's.
func (o *objects) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clustersDesc, instancesDesc, appsDesc, ageDesc, wantsDesc, refusedDesc} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (o *objects) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeWait)
	defer cancel()
	var clusters []api.Cluster
	var refused map[api.ClusterID]uint64
	states := map[api.State]int{}
	apps := 0
	var wants, open int
	err := o.loop.Read(ctx, func() {
		clusters = o.core.Clusters()
		refused = o.core.RefusedValues()
		apps = len(o.core.Apps(""))
		wants, open = o.core.Interest()
		for _, i := range o.core.Instances("") {
			states[i.State]++
		}
	})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(appsDesc, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(appsDesc, float64(apps))
	for id, n := range refused {
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), string(id))
	}
	gauge(wantsDesc, float64(wants-open), "true")
	gauge(wantsDesc, float64(open), "false")
	for s, n := range states {
		gauge(instancesDesc, float64(n), string(s))
	}
	statuses := map[api.ClusterStatus]int{api.ClusterReady: 0, api.ClusterJoining: 0, api.ClusterSilent: 0}
	for _, c := range clusters {
		statuses[c.Status]++
		if !c.Heard.IsZero() {
			gauge(ageDesc, time.Since(c.Heard).Seconds(), string(c.ID))
		}
	}
	for s, n := range statuses {
		gauge(clustersDesc, float64(n), string(s))
	}
}
