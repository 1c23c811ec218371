package wiring

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/treeline-edge/treeline/api"
)

// stages measures how long instances take from one state to the next, from the changes that watchers get. It is
// used on the core's owner only.
type stages struct {
	last map[api.InstanceID]standing

	starting   *prometheus.HistogramVec // by stage
	scheduling *prometheus.HistogramVec // by tier and result
	violations *prometheus.CounterVec   // by kind
}

// standing is what is known of an instance since it was requested.
type standing struct {
	epoch     api.Epoch
	state     api.State
	since     time.Time // of the state
	requested time.Time // zero: it was not observed
	ready     bool
	violated  string
}

func newStages(r prometheus.Registerer) *stages {
	buckets := prometheus.ExponentialBuckets(0.01, 2.5, 10) // 10 ms to 38 s
	s := &stages{
		last: map[api.InstanceID]standing{},
		starting: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "treeline_instance_start_duration_seconds", Buckets: buckets,
			Help: "How long instances took: to node_scheduled, created, running and ready each from the state before, and in total from requested to running.",
		}, []string{"stage"}),
		scheduling: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "treeline_schedule_duration_seconds", Buckets: buckets,
			Help: "How long the root took to choose a cluster, and clusters to choose a node or hand an instance back.",
		}, []string{"tier", "result"}),
		violations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "treeline_sla_violations_total", Help: "How often instances began to violate a part of their SLA, by its kind.",
		}, []string{"kind"}),
	}
	r.MustRegister(s.starting, s.scheduling, s.violations)
	return s
}

// violationKinds are the kinds of violations; an instance's text begins with one of them.
var violationKinds = []string{"latency", "geo", "bandwidth", "area", "clusters", "addons", "direct"}

func (s *stages) observe(changes []api.Change) {
	for _, c := range changes {
		if c.Kind != "instance" {
			continue
		}
		i, ok := c.Object.(api.Instance)
		if !ok {
			delete(s.last, api.InstanceID(c.ID)) // it is gone
			continue
		}
		was, known := s.last[i.ID]
		now := standing{epoch: i.Epoch, state: i.State, since: i.Since, requested: was.requested, ready: i.Ready, violated: i.Violated}
		if i.State == api.Requested && was.state != api.Requested {
			now.requested = i.Since
		}
		if known {
			s.moved(was, &now)
		}
		if i.Violated != "" && was.violated == "" {
			s.violations.WithLabelValues(kindOf(i.Violated)).Inc()
		}
		if api.Ended(i.State, i.Reason) {
			delete(s.last, i.ID)
			continue
		}
		s.last[i.ID] = now
	}
}

func (s *stages) moved(was standing, now *standing) {
	took := max(0, now.since.Sub(was.since).Seconds())
	if now.state == was.state {
		if now.ready && !was.ready && now.state == api.Running {
			s.starting.WithLabelValues("ready").Observe(time.Since(now.since).Seconds())
		}
		return
	}
	switch {
	case was.state == api.Requested && now.state == api.ClusterScheduled:
		s.scheduling.WithLabelValues("root", "placed").Observe(took)
	case was.state == api.ClusterScheduled && now.state == api.Requested:
		s.scheduling.WithLabelValues("cluster", "handed_back").Observe(took)
	case was.state == api.ClusterScheduled && now.state != api.Failed:
		s.scheduling.WithLabelValues("cluster", "placed").Observe(took)
	}
	switch now.state {
	case api.NodeScheduled, api.Created, api.Running:
		s.starting.WithLabelValues(string(now.state)).Observe(took)
	}
	if now.state == api.Running && !now.requested.IsZero() {
		s.starting.WithLabelValues("total").Observe(max(0, now.since.Sub(now.requested).Seconds()))
		now.requested = time.Time{}
	}
}

// kindOf returns the kind of a violation, whose text comes from a cluster.
func kindOf(text string) string {
	for _, k := range violationKinds {
		if strings.Contains(text, k) {
			return k
		}
	}
	return "other"
}
