package node

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// ToDialer is what keeps the node's connection to its cluster's broker. It gets a
// Dial whenever that changes, and at the start.
const ToDialer api.Addr = "dialer"

// Dial says how the node reaches its cluster's broker.
type Dial struct {
	Brokers []string // as api.Desired has them; none: where the node joined
	Hurry   bool     // a lease is at stake: pauses between attempts do not grow
}

// dialling notes how the broker is dialled and tells the dialer what changed.
func (c *Core) dialling(d Dial) {
	if c.dial != nil && c.dial.Hurry == d.Hurry && slices.Equal(c.dial.Brokers, d.Brokers) {
		return
	}
	c.dial = &d
	c.emitVolatile(ToDialer, d)
}

// leases reports whether the node has anything that must not outlive its lease.
func (c *Core) leases() bool {
	for _, w := range c.works {
		if w.haveSpec.StopsWhenCutOff() || w.assignment.Spec.StopsWhenCutOff() {
			return true
		}
	}
	return false
}

// learnBrokers takes where the cluster's broker is and may be next. The node's next
// report says what it took, which is what its cluster waits for before a switch.
// It reports whether that is news.
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
