// Package lost paces the placement of instances whose clusters are lost. It is a sub-machine of the
// root's core: the core adds the instances of a cluster that has fallen silent, and places those that
// Due returns. Tenants take turns.
//
//	m.Add(now, id)
//	for _, id := range m.Due(now) { … }
package lost

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Batch instances are due at once, and the next Batch after Every. 1,000 instances are due within 5 s.
const (
	Batch = 50
	Every = 250 * time.Millisecond
)

// Machine is the queue. The zero Machine is empty. Its size is bounded by the number of instances,
// because it has each at most once. It is not saved: after a restart of the root, a cluster that does
// not report falls silent again. It is not safe for concurrent use.
type Machine struct {
	tenants map[api.Tenant][]api.InstanceID
	turns   []api.Tenant // that have instances in the queue, the next first
	queued  map[api.InstanceID]bool
	next    time.Time // when the next batch may be due, also if the queue is empty
}

// Add adds an instance behind those of its tenant, unless it is in the queue.
func (m *Machine) Add(now time.Time, id api.InstanceID) {
	if m.queued[id] {
		return
	}
	if m.queued == nil {
		m.queued, m.tenants = map[api.InstanceID]bool{}, map[api.Tenant][]api.InstanceID{}
	}
	t := id.Tenant()
	if len(m.tenants[t]) == 0 {
		m.turns = append(m.turns, t)
	}
	m.queued[id] = true
	m.tenants[t] = append(m.tenants[t], id)
	if m.next.Before(now) {
		m.next = now
	}
}

// Next returns when the next batch is due, or the zero time.
func (m *Machine) Next() time.Time {
	if len(m.queued) == 0 {
		return time.Time{}
	}
	return m.next
}

// Due removes the batch that is due from the queue and returns it.
func (m *Machine) Due(now time.Time) (out []api.InstanceID) {
	if len(m.queued) == 0 || m.next.After(now) {
		return nil
	}
	m.next = now.Add(Every)
	for len(out) < Batch && len(m.turns) > 0 {
		t := m.turns[0]
		m.turns = m.turns[1:]
		id := m.tenants[t][0]
		out = append(out, id)
		delete(m.queued, id)
		if m.tenants[t] = m.tenants[t][1:]; len(m.tenants[t]) > 0 {
			m.turns = append(m.turns, t)
		} else {
			delete(m.tenants, t)
		}
	}
	return out
}
