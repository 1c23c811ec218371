package subscriptions

import (
	"net/netip"
	"time"
)

// budget is a token bucket that bounds the requests of one endpoint to the cluster. A request that leads
// to a record is refunded: an instance may contact a thousand neighbours at once, but may not scan for
// them.
type budget struct {
	left float64
	at   time.Time
}

const (
	budgetRate = 20 // per second
	// Burst is how many requests an endpoint may make at once.
	Burst = 256
)

// Spend takes one request from an endpoint's budget. It returns false if the budget is empty. The zero
// address stands for the node itself.
func (m *Machine) Spend(now time.Time, endpoint netip.Addr) bool {
	b := m.budgets[endpoint]
	if b == nil {
		b = &budget{Burst, now}
		m.budgets[endpoint] = b
	}
	if d := now.Sub(b.at); d > 0 {
		b.left = min(Burst, b.left+d.Seconds()*budgetRate)
		b.at = now
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// Refund returns the request for a subscription to its payer.
func (m *Machine) Refund(k Key) {
	s := m.all[k]
	if b := m.budgets[s.payer]; b != nil && s.payer.IsValid() {
		b.left = min(Burst, b.left+1)
	}
	s.payer = netip.Addr{}
}

// RemoveEndpoint drops the budget of an endpoint.
func (m *Machine) RemoveEndpoint(a netip.Addr) { delete(m.budgets, a) }
