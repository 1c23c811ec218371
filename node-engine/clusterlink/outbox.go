package clusterlink

import (
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/api"
)

// outbox holds what waits to be published: one report and one sign of life,
// however long the link is slow. A later observation of an instance replaces an
// earlier one, so what waits is bounded by what the node has.
type outbox struct {
	mu     sync.Mutex // guards the fields below
	report *api.NodeReport
	alive  *api.Alive
	filled chan struct{}
}

func newOutbox() *outbox { return &outbox{filled: make(chan struct{}, 1)} }

func (o *outbox) put(msg any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch m := msg.(type) {
	case api.NodeReport:
		if o.report != nil {
			m = merge(*o.report, m)
		}
		o.report = &m
	case api.Alive:
		o.alive = &m
	default:
		return
	}
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

// take empties the outbox. The report goes first: the sign of life has the
// digest of what it says.
func (o *outbox) take() (*api.NodeReport, *api.Alive) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, a := o.report, o.alive
	o.report, o.alive = nil, nil
	return r, a
}

// merge is one report that says what both do.
func merge(earlier, later api.NodeReport) api.NodeReport {
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
