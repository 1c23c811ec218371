package placement

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Latencies returns the known round trips of the links of an application's running instances, in the
// order of their ids, at most api.MaxLatencies.
func (m *Machine) Latencies(app api.AppID) []api.LinkStatus {
	of := map[api.InstanceID]*instance{}
	for id, in := range m.instances {
		if id.Service().App() == app && len(in.demand.sla.Links) > 0 && m.nodes[in.Node] != nil && in.view().State == api.Running {
			of[id] = in
		}
	}
	out := []api.LinkStatus{}
	for _, id := range step.Keys(of) {
		for _, l := range of[id].demand.sla.Links {
			if l.Service == "" || l.RTT == 0 {
				continue
			}
			if rtt, by, ok := m.roundTrip(of[id], l); ok && len(out) < api.MaxLatencies {
				out = append(out, api.LinkStatus{Instance: id, To: l.Service, Limit: l.RTT, RTT: rtt, By: by})
			}
		}
	}
	return out
}

// roundTrip returns the round trip of a link from its node to the nearest instance; ok is false if it is
// unknown.
func (m *Machine) roundTrip(in *instance, l sched.Link) (rtt time.Duration, by api.LatencyBy, ok bool) {
	n, self := m.nodes[in.Node], in.id().Service()
	b, _ := m.bound(self, l, in.Desired.Targets, in.Node)
	points := b.All()
	for _, p := range points {
		if p.Node == in.Node {
			return 0, api.ByNode, true
		}
	}
	if rtt, ok = b.Measured[string(in.Node)]; ok {
		if _, estimated := m.latency.HowMeasured(self, in.Node, l, &b, in.Desired.Targets); estimated {
			return rtt, api.ByCoordinates, true
		}
		return rtt, api.ByConnections, true
	}
	for _, p := range points {
		if n.coord == nil || p.Coord == nil {
			continue
		}
		if d := vivaldi.Distance(*n.coord, *p.Coord); !ok || d < rtt {
			rtt, ok = d, true
		}
	}
	return rtt, api.ByCoordinates, ok
}
