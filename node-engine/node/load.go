package node

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToMeter is the address of the component that measures the load of workloads. It gets Measure.
const ToMeter api.Addr = "meter"

type (
	// Measure begins or ends the measurement of a workload's load, which the meter answers with Load.
	Measure struct {
		wire.Key
		On       bool
		Requests *api.RequestGoal // nil: its requests are not counted
		Address  netip.Addr       // on the overlay network; zero: it is reached on localhost
	}
	// Load is the load of workloads that are measured.
	Load struct{ All []wire.InstanceUsage }
)

// measure orders the measurement of a workload that runs and whose service scales.
func (c *Core) measure(w *work) {
	is := Measure{}
	if s := w.haveSpec.Scale; w.phase == running && s != nil {
		is = Measure{w.key(), true, s.Requests, w.address}
	}
	if is == w.measured {
		return
	}
	if w.measured.On && w.measured.Key != is.Key {
		c.emit(wire.Envelope{To: ToMeter, Msg: Measure{Key: w.measured.Key}, Volatile: true})
	}
	if is.On {
		c.emit(wire.Envelope{To: ToMeter, Msg: is, Volatile: true})
	}
	w.measured = is
}

// apply reports the load of workloads that still run. It is lost while the cluster is not connected.
func (in Load) apply(c *Core) {
	l := &c.link
	if !l.up {
		return
	}
	var all []wire.InstanceUsage
	for _, u := range in.All {
		if w := c.works[u.Instance]; w != nil && w.measured.Key == u.Key {
			all = append(all, u)
		}
	}
	if len(all) == 0 {
		return
	}
	c.report() // so that the cluster knows the placements
	l.seq++
	c.emit(wire.Envelope{To: wire.ToCluster, Volatile: true, Msg: wire.NodeToCluster(wire.NodeReport{
		Node: c.cfg.ID, Boot: c.boot, Seq: l.seq, Gen: c.gen, AnswersLease: true, Usage: all,
	})})
}
