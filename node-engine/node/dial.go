package node

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToDialer is the address of the component that connects to the cluster's broker. It gets
// a Dial at the start and after each change.
const ToDialer api.Addr = "dialer"

// Dial is how the node connects to its cluster's broker.
type Dial struct {
	Brokers []string // as in wire.Desired; empty: the address from the join
	Hurry   bool     // an instance needs its lease: the pauses between attempts do not grow
}

// setDial sends d to the dialer if it has changed.
func (c *Core) setDial(d Dial) {
	if c.dial != nil && c.dial.Hurry == d.Hurry && slices.Equal(c.dial.Brokers, d.Brokers) {
		return
	}
	c.dial = &d
	c.emit(wire.Envelope{To: ToDialer, Msg: d, Volatile: true})
}

// needsLease reports whether the node has an instance that must not outlive its lease.
func (c *Core) needsLease() bool {
	for _, w := range c.works {
		if w.haveSpec.StopsWhenCutOff() || w.assignment.Spec.StopsWhenCutOff() {
			return true
		}
	}
	return false
}

// learnBrokers stores the addresses of the cluster's current and next broker, at most
// wire.MaxBrokers, and reports whether they changed. The node's next report contains them;
// the cluster waits for it before a switch. An empty list changes nothing.
func (c *Core) learnBrokers(brokers []string) bool {
	brokers = brokers[:min(len(brokers), wire.MaxBrokers)]
	if len(brokers) == 0 || slices.Equal(brokers, c.brokers) {
		return false
	}
	c.brokers = slices.Clone(brokers)
	c.describe(c.info)
	c.link.sendWhole = true
	c.setDial(Dial{Brokers: c.brokers, Hurry: c.needsLease()})
	return true
}
