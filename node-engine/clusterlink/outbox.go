package clusterlink

import (
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// outbox holds what waits to be published: one report and one sign of life,
// however long the link is slow. A later observation of an instance replaces an
// earlier one, so what waits is bounded by what the node has.
type outbox struct {
	mu     sync.Mutex // guards the fields below
	report *wire.NodeReport
	alive  *wire.Alive
	filled chan struct{}
}

func newOutbox() *outbox { return &outbox{filled: make(chan struct{}, 1)} }

// NodeReport queues a report, merged with the one that waits.
func (o *outbox) NodeReport(m wire.NodeReport) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.report != nil {
		m = merge(*o.report, m)
	}
	o.report = &m
	o.fill()
}

// Alive queues a heartbeat in place of the one that waits.
func (o *outbox) Alive(m wire.Alive) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.alive = &m
	o.fill()
}

func (o *outbox) fill() {
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

// take empties the outbox. The report goes first: the sign of life has the
// digest of what it says.
func (o *outbox) take() (*wire.NodeReport, *wire.Alive) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, a := o.report, o.alive
	o.report, o.alive = nil, nil
	return r, a
}

// merge is one report that says what both do.
func merge(earlier, later wire.NodeReport) wire.NodeReport {
	if later.Whole || earlier.Boot != later.Boot {
		return later
	}
	m := later
	m.Whole = earlier.Whole
	if m.Info == nil {
		m.Info = earlier.Info
	}
	m.Observed = slices.Clone(earlier.Observed)
	at := make(map[api.InstanceID]int, len(m.Observed))
	for i, o := range m.Observed {
		at[o.Instance] = i
	}
	for _, o := range later.Observed {
		if i, ok := at[o.Instance]; ok && m.Observed[i].Epoch <= o.Epoch {
			m.Observed[i] = o
		} else {
			m.Observed = append(m.Observed, o)
		}
	}
	return m
}
