package wiring

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/nodelink"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/loop"
)

// scrapeWait bounds how long a scrape waits for the core.
const scrapeWait = 2 * time.Second

// meter has the cluster's metrics. No label has unbounded values, such as ids.
type meter struct {
	steps, docs, failed prometheus.Counter
	saving              prometheus.Histogram
	waiting             prometheus.Gauge
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func newMeter() *meter {
	return &meter{
		steps:  counter("treeline_core_steps_total", "Steps of the core."),
		docs:   counter("treeline_store_documents_saved_total", "Documents saved."),
		failed: counter("treeline_store_saves_failed_total", "Saves that failed and were repeated."),
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

func (m *meter) register(reg *prometheus.Registry, core *cluster.Core, l *loop.Loop[cluster.Input], link *nodelink.Link, b *broker.Broker) {
	count := func(name, help string, fn func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, fn)
	}
	reg.MustRegister(m.steps, m.docs, m.failed, m.saving, m.waiting,
		count("treeline_core_inputs_dropped_total", "Inputs that found the queue full.", func() float64 { return float64(l.Dropped()) }),
		count("treeline_node_messages_limited_total", "Messages of nodes that were dropped because their node sent too many.", func() float64 { return float64(link.Limited()) }),
		count("treeline_node_messages_unreadable_total", "Messages of nodes that could not be read.", func() float64 { return float64(link.Unreadable()) }),
		count("treeline_node_messages_lost_total", "Messages to nodes that found no room.", func() float64 { return float64(link.Lost()) }),
		&objects{core: core, loop: l},
	)
	if b == nil {
		return
	}
	s := b.Stats()
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "treeline_broker_clients", Help: "Nodes that are connected."}, func() float64 { return float64(s.Clients.Load()) }),
		count("treeline_broker_connects_total", "Sessions that were let in.", func() float64 { return float64(s.Connects.Load()) }),
		count("treeline_broker_refusals_total", "Connections, topics and filters that were refused.", func() float64 { return float64(s.Refusals.Load()) }),
		count("treeline_broker_messages_in_total", "Messages of nodes.", func() float64 { return float64(s.MessagesIn.Load()) }),
		count("treeline_broker_messages_out_total", "Messages to nodes.", func() float64 { return float64(s.MessagesOut.Load()) }),
		count("treeline_broker_dropped_total", "Messages lost because a node reads too slowly.", func() float64 { return float64(s.Dropped.Load()) }),
		count("treeline_broker_bytes_in_total", "Bytes of nodes, without TLS.", func() float64 { return float64(s.BytesIn.Load()) }),
		count("treeline_broker_bytes_out_total", "Bytes to nodes, without TLS.", func() float64 { return float64(s.BytesOut.Load()) }),
	)
}

// objects collects the counts of the core's objects at each scrape.
type objects struct {
	core *cluster.Core
	loop *loop.Loop[cluster.Input]
}

var (
	nodesDesc     = prometheus.NewDesc("treeline_nodes", "Nodes by status.", []string{"status"}, nil)
	instancesDesc = prometheus.NewDesc("treeline_instances", "Instances by state.", []string{"state"}, nil)
	rootDesc      = prometheus.NewDesc("treeline_root_up", "Whether the stream from the root is open.", nil, nil)
	freeCPUDesc   = prometheus.NewDesc("treeline_free_millicpu", "Thousandths of vCPUs that are not reserved.", nil, nil)
	freeMemDesc   = prometheus.NewDesc("treeline_free_memory_mebibytes", "Memory that is not reserved.", nil, nil)
	refusedDesc   = prometheus.NewDesc("treeline_node_values_refused_total", "Values in nodes' messages that were out of bounds.", nil, nil)
	wantsDesc     = prometheus.NewDesc("treeline_net_wants", "What nodes want to know of the network, by whether it is answered.", []string{"answered"}, nil)
)

// Describe implements prometheus.Collector.
func (o *objects) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodesDesc, instancesDesc, rootDesc, freeCPUDesc, freeMemDesc, wantsDesc, refusedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (o *objects) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeWait)
	defer cancel()
	statuses := map[api.NodeStatus]int{api.NodeReady: 0, api.NodeSilent: 0}
	states := map[api.State]int{}
	var free api.Resources
	up := 0.0
	var wants, open int
	var refused uint64
	err := o.loop.Read(ctx, func() {
		for _, n := range o.core.Nodes() {
			statuses[n.Status]++
		}
		for _, i := range o.core.Instances() {
			states[i.State]++
		}
		free = o.core.Aggregate().Free
		wants, open = o.core.Interest()
		refused = o.core.RefusedValues()
		if o.core.RootUp() {
			up = 1
		}
	})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(rootDesc, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(rootDesc, up)
	ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(refused))
	gauge(freeCPUDesc, float64(free.MilliCPU))
	gauge(freeMemDesc, float64(free.MemoryMB))
	for s, n := range statuses {
		gauge(nodesDesc, float64(n), string(s))
	}
	gauge(wantsDesc, float64(wants-open), "true")
	gauge(wantsDesc, float64(open), "false")
	for s, n := range states {
		gauge(instancesDesc, float64(n), string(s))
	}
}
