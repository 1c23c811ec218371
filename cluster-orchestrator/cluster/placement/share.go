package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Offered returns the part of the capacity that the root may use, and how much of it is free.
func (m *Machine) Offered() (capacity, free api.Resources) {
	capacity = Scaled(m.capacity, m.cfg.Share)
	return capacity, capacity.Minus(m.used).Max(api.Resources{})
}

// Scaled returns r multiplied by by, rounded down.
func Scaled(r api.Resources, by float64) api.Resources {
	if by == 1 {
		return r
	}
	part := func(n int64) int64 { return int64(float64(n) * by) }
	return api.Resources{
		MilliCPU: part(r.MilliCPU), MemoryMB: part(r.MemoryMB), StorageMB: part(r.StorageMB),
		InMbit: part(r.InMbit), OutMbit: part(r.OutMbit),
	}
}

// shares reports whether an instance counts against the root's share.
func (m *Machine) shares(in *instance) bool { return m.cfg.Share < 1 && !in.Local }

// explainOverShare explains that an instance of the root exceeds the root's share. It returns nil if
// it does not.
func (m *Machine) explainOverShare(in *instance) *api.Explanation {
	if r := m.rejectOverShare(in); r != nil {
		return m.explainRejection(r, "the root's share has "+r.Have+" left")
	}
	return nil
}

func (m *Machine) rejectOverShare(in *instance) *api.Rejection {
	if !m.shares(in) || in.Reserved != "" {
		return nil
	}
	_, free := m.Offered()
	cand := sched.Candidate{Level: sched.Nodes, Free: free, Slots: []sched.Slot{{Runtimes: []string{""}, Free: free, Largest: free}}}
	res := sched.Place(&sched.Request{Needs: m.needs(in.requestInput())}, []sched.Candidate{cand}, m.cfg.Plugin, 0)
	if len(res.Rejected) == 0 {
		return nil
	}
	r := res.Rejected[0]
	r.Constraint = ConstraintShare
	return &r
}

// Preemptible returns, by urgency, the resources that an instance could get by preempting less
// urgent ones.
func (m *Machine) Preemptible() (out []api.Preemptible) {
	if !m.cfg.Preempt {
		return nil
	}
	all := make([]api.Preemptible, account.Urgencies)
	some := false
	var ways [account.Urgencies]api.Resources
	for u := range all {
		all[u].Urgency = u
	}
	for _, n := range m.nodes {
		if n.out() != "" {
			continue
		}
		free, yields := n.account.Left().Free, n.account.BookedByUrgency()
		for u := range all {
			would := free.Max(api.Resources{})
			all[u].Free, all[u].Largest = all[u].Free.Plus(would), all[u].Largest.Max(would)
			free = free.Plus(yields[u])
			ways[u] = ways[u].Plus(yields[u])
		}
	}
	left := Scaled(m.capacity, m.cfg.Share).Minus(m.used)
	for u := 1; u < account.Urgencies; u++ {
		y := all[u]
		left = left.Plus(ways[u-1]) // preempted instances also free their part of the share
		if some = some || y.Free != all[0].Free; !some {
			continue
		}
		if m.cfg.Share < 1 {
			y.Free, y.Largest = y.Free.Min(left.Max(api.Resources{})), y.Largest.Min(left.Max(api.Resources{}))
		}
		out = append(out, y)
	}
	return out
}

// Candidates returns one candidate for each node. They are read-only and valid until the next
// call of the Machine.
func (m *Machine) Candidates() []sched.Candidate { return m.table.All() }

// Version returns a number that grows with each change of a candidate.
func (m *Machine) Version() uint64 { return m.version }

// Sums returns the sums over all nodes that are not silent.
func (m *Machine) Sums() Sums { return Sums{Capacity: m.capacity, Used: m.used} }
