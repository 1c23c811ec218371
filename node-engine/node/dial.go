package node

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// ToDialer is the address of the component that connects to the cluster's broker. It gets
// a Dial at the start and after each change.
const ToDialer api.Addr = "dialer"

// Dial is how the node reaches its cluster's broker.
type Dial struct {
	Brokers []string // as api.Desired has them; none: where the node joined
	Hurry   bool     // a lease is at stake: pauses between attempts do not grow
}

// dialling sends d to the dialer if it differs from what was sent last.
func (c *Core) dialling(d Dial) {
	if c.dial != nil && c.dial.Hurry == d.Hurry && slices.Equal(c.dial.Brokers, d.Brokers) {
		return
	}
	c.dial = &d
	c.emitVolatile(ToDialer, d)
}

// leases reports whether the node has an instance that must not outlive its lease.
func (c *Core) leases() bool {
	for _, w := range c.works {
		if w.haveSpec.StopsWhenCutOff() || w.assignment.Spec.StopsWhenCutOff() {
			return true
		}
	}
	return false
}

// learnBrokers takes the addresses of the cluster's present and next broker, at most
// api.MaxBrokers. The node's next report has them, which the cluster waits for before a
// switch. It reports whether they are new; none are never new.
func (c *Core) learnBrokers(brokers []string) bool {
	brokers = brokers[:min(len(brokers), api.MaxBrokers)]
	if len(brokers) == 0 || slices.Equal(brokers, c.brokers) {
		return false
	}
	c.brokers = slices.Clone(brokers)
	c.describe(c.info)
	c.link.wantWhole = true
	c.dialling(Dial{Brokers: c.brokers, Hurry: c.leases()})
	return true
}
