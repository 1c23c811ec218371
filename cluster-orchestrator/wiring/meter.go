package wiring

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/internal/daemon/metrics"
)

// registerMetrics registers all metrics except those of the loop.
func (o *orchestrator) registerMetrics(reg *prometheus.Registry) {
	count := func(name, help string, fn func() uint64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(fn()) }))
	}
	link := o.nodes.link
	count("treeline_core_inputs_dropped_total", "Inputs that found the queue full.", o.loop.Dropped)
	count("treeline_node_messages_limited_total", "Messages of nodes that were dropped because their node sent too many.", link.Limited)
	count("treeline_node_messages_unreadable_total", "Messages of nodes that could not be decoded.", link.Unreadable)
	count("treeline_node_messages_lost_total", "Messages to nodes that were dropped because too many waited.", link.Lost)
	reg.MustRegister(metrics.Collector(o.scrape))
	if o.broker == nil {
		for i, c := range o.outerBuses() {
			reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "treeline_broker_connected", Help: "1 if the cluster is connected to the external broker, else 0.", ConstLabels: prometheus.Labels{"broker": o.cfg.Broker.URL[i]},
			}, func() float64 {
				if c.Connected() {
					return 1
				}
				return 0
			}))
		}
		return
	}
	s := o.broker.Stats()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "treeline_broker_clients", Help: "Nodes that are connected."},
		func() float64 { return float64(s.Clients.Load()) }))
	count("treeline_broker_connects_total", "Sessions that were accepted.", s.Connects.Load)
	count("treeline_broker_refusals_total", "Connections, topics and filters that were refused.", s.Refusals.Load)
	count("treeline_broker_messages_in_total", "Messages of nodes.", s.MessagesIn.Load)
	count("treeline_broker_messages_out_total", "Messages to nodes.", s.MessagesOut.Load)
	count("treeline_broker_dropped_total", "Messages lost because a node reads too slowly.", s.Dropped.Load)
	count("treeline_broker_bytes_in_total", "Bytes of nodes, without TLS.", s.BytesIn.Load)
	count("treeline_broker_bytes_out_total", "Bytes to nodes, without TLS.", s.BytesOut.Load)
}

// resources are the labels of metrics of nodes, in base units.
var resources = []struct {
	name string
	of   func(api.Resources) float64
}{
	{"cpu", func(r api.Resources) float64 { return float64(r.MilliCPU) / 1000 }},
	{"memory", func(r api.Resources) float64 { return float64(r.MemoryMB) * (1 << 20) }},
	{"storage", func(r api.Resources) float64 { return float64(r.StorageMB) * (1 << 20) }},
}

func (o *orchestrator) scrape(ctx context.Context, s *metrics.Scrape) error {
	if o.relay != nil {
		n := o.relay.Stats()
		s.Gauge("treeline_relay_streams", "TLS connections of nodes to the relay.", float64(n[relay.Streams]))
		s.Counter("treeline_relay_datagrams_total", "Datagrams that the relay forwarded.", float64(n[relay.Datagrams]))
		s.Counter("treeline_relay_bytes_total", "Bytes that the relay forwarded, without headers.", float64(n[relay.Bytes]))
		for count, cause := range relay.Causes {
			s.Counter("treeline_relay_dropped_total", "Messages that the relay dropped, by cause.", float64(n[count]), "cause", cause)
		}
	}
	return o.loop.Read(ctx, func() {
		statuses := map[api.NodeStatus]int{api.NodeReady: 0, api.NodeSilent: 0}
		for _, n := range o.core.Nodes() {
			statuses[n.Status]++
			node := string(n.ID)
			for _, r := range resources {
				s.Gauge("treeline_node_resource_capacity", "Capacity of a node by resource: CPUs, or bytes of memory and storage.", r.of(n.Capacity), "node", node, "resource", r.name)
				s.Gauge("treeline_node_resource_allocated", "What instances of a node reserve, by resource.", r.of(n.Allocated), "node", node, "resource", r.name)
			}
			const used = "What is in use on a node's machine, as it reports, by resource."
			s.Gauge("treeline_node_resource_used", used, float64(n.CPUUsed)/100*resources[0].of(n.Capacity), "node", node, "resource", "cpu")
			s.Gauge("treeline_node_resource_used", used, float64(n.MemUsed)/100*resources[1].of(n.Capacity), "node", node, "resource", "memory")
			if !n.Heard.IsZero() {
				s.Gauge("treeline_node_heartbeat_age_seconds", "Age of a node's last heartbeat.", time.Since(n.Heard).Seconds(), "node", node)
			}
		}
		for status, n := range statuses {
			s.Gauge("treeline_nodes", "Nodes by status.", float64(n), "status", string(status))
		}
		states, waiting := map[api.State]int{}, map[api.Reason]int{}
		for _, i := range o.core.Instances() {
			states[i.State]++
			if i.Node == "" && i.Reason != "" && !api.Ended(i.State, i.Reason) {
				waiting[i.Reason]++
			}
		}
		for reason, n := range waiting {
			s.Gauge("treeline_unplaceable", "Instances without a node, by reason.", float64(n), "reason", string(reason))
		}
		for state, n := range states {
			s.Gauge("treeline_instances", "Instances by state.", float64(n), "state", string(state))
		}
		free := o.core.Aggregate().Free
		s.Gauge("treeline_free_millicpu", "Thousandths of vCPUs that are not reserved.", float64(free.MilliCPU))
		s.Gauge("treeline_free_memory_mebibytes", "Memory that is not reserved.", float64(free.MemoryMB))
		const netHelp = "Subscriptions of nodes to network resources, by whether they are answered."
		all, open := o.core.Interest()
		for _, name := range []string{"treeline_net_subscriptions", "treeline_net_wants"} { // the latter is the former name
			s.Gauge(name, netHelp, float64(all-open), "answered", "true")
			s.Gauge(name, netHelp, float64(open), "answered", "false")
		}
		s.Counter("treeline_node_values_refused_total", "Values in nodes' messages that were out of bounds.", float64(o.core.RefusedValues()))
		up := 0.0
		if o.core.RootUp() {
			up = 1
		}
		s.Gauge("treeline_root_up", "Whether the stream from the root is open.", up)
		metrics.RestoreHeld(s, o.core.Restored().Held)
	})
}
