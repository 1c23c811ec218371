// Package restored is what a cluster that was restored from a snapshot does until it continues: it collects what
// its nodes run and what its root wants, and renews the leases of nodes, but sends them no desired sets.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use.
//
//	m := restored.New(record)
//	m.Start(now, report, lease)
//	m.Report(report); m.Desire(desired, now)
//	if m.Ready(now, members, has) { … m.Claims(id) … }
package restored

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// observedBound is above what a node runs: a machine has at most some hundred instances.
var observedBound = fairshare.Declare(fairshare.Bound{
	Resource: "instances that a restored cluster takes note of until it continues", Total: 10_000, Per: "node",
	Beyond: "further ones are not listed, and may stop", Attack: "TestANodeThatReportsTooMuchIsBounded",
})

// Machine is the state of a restored cluster. Its zero value is not usable.
type Machine struct {
	of    store.Restored
	until time.Time     // nodes have had the time to report
	lease time.Duration // the longest time after which a lease and what ran under it have ended
	ended time.Time     // leases from before the start have ended; nodes that are not members may have some
	nodes map[api.NodeID]*node
	at    map[api.InstanceID]map[api.NodeID]bool // which nodes observe an instance

	// The root's desired set since the start of this process; gen 0: it has not come.
	gen     api.Generation
	digest  api.Digest
	desired map[api.InstanceID]assignment
}

type assignment struct {
	wire.Assignment
	since time.Time // the root's epoch is this one
}

type node struct {
	boot, seq, beat uint64
	whole           bool // it has sent a whole report in its present boot
	leased          bool // it was granted a lease in this process
	observed        map[api.InstanceID]Claim
}

// Claim is a node's report of an instance.
type Claim struct {
	Node api.NodeID
	api.Observed
}

// runs reports whether the instance has not ended.
func (c *Claim) runs() bool { return !api.Ended(c.State, c.Reason) }

// New returns the state of a cluster whose store was restored.
func New(of store.Restored) *Machine {
	return &Machine{of: of, nodes: map[api.NodeID]*node{}, at: map[api.InstanceID]map[api.NodeID]bool{}}
}

// Of returns which snapshot was restored, and when.
func (m *Machine) Of() store.Restored { return m.of }

// Start begins the time that nodes have to report, and the time after which leases from before have ended.
func (m *Machine) Start(now time.Time, report, lease time.Duration) {
	m.until, m.lease, m.ended = now.Add(report), lease, now.Add(lease)
}

// Until returns the end of the time that nodes have to report.
func (m *Machine) Until() time.Time { return m.until }

// LeasesEnd returns when leases from before the start have ended. A cluster that continued earlier could place an exclusive
// instance that still runs on a node which it does not know.
func (m *Machine) LeasesEnd() time.Time { return m.ended }

// Root reports whether the root's desired set has come.
func (m *Machine) Root() bool { return m.gen != 0 }

// Gen returns the generation and the digest of the root's desired set; 0: it has not come.
func (m *Machine) Gen() (api.Generation, api.Digest) { return m.gen, m.digest }

// Desire takes a desired set of the root, whole or as a change of the one before. It returns false for a change of
// another one, so that the whole set has to be requested.
func (m *Machine) Desire(d wire.Desired, now time.Time) bool {
	before := m.desired
	switch {
	case d.Gen < m.gen:
		return true // a late message
	case d.From != 0 && d.From != m.gen:
		return m.gen != 0 && d.Gen == m.gen
	case d.From == 0:
		m.desired = make(map[api.InstanceID]assignment, len(d.Put))
	}
	for _, a := range d.Put {
		since := now
		if old, ok := before[a.Instance]; ok && old.Epoch.Root() == a.Epoch.Root() {
			since = old.since
		}
		m.desired[a.Instance] = assignment{a, since}
	}
	for _, id := range d.Drop {
		delete(m.desired, id)
	}
	m.gen, m.digest = d.Gen, d.Digest
	return true
}

// Desired returns the root's whole desired set.
func (m *Machine) Desired() wire.Desired {
	d := wire.Desired{Gen: m.gen, Digest: m.digest}
	for _, id := range step.Keys(m.desired) {
		d.Put = append(d.Put, m.desired[id].Assignment)
	}
	return d
}

// boot returns the node in its present boot; nil: the message is of an earlier one.
func (m *Machine) boot(id api.NodeID, boot uint64) *node {
	n := m.nodes[id]
	if n == nil {
		n = &node{observed: map[api.InstanceID]Claim{}}
		m.nodes[id] = n
	}
	if boot < n.boot {
		return nil
	}
	if boot > n.boot {
		n.boot, n.seq, n.beat, n.whole = boot, 0, 0, false
	}
	return n
}

// Forget makes a node that has joined again report again: its boot numbers may begin anew.
func (m *Machine) Forget(id api.NodeID) {
	if n := m.nodes[id]; n != nil {
		m.drop(id, n)
		delete(m.nodes, id)
	}
}

// drop forgets what a node observes.
func (m *Machine) drop(id api.NodeID, n *node) {
	for in := range n.observed {
		m.gone(id, n, in)
	}
	n.observed = map[api.InstanceID]Claim{}
}

func (m *Machine) gone(id api.NodeID, n *node, in api.InstanceID) {
	delete(n.observed, in)
	if delete(m.at[in], id); len(m.at[in]) == 0 {
		delete(m.at, in)
	}
}

// Report takes what a node of this cluster observes.
func (m *Machine) Report(r wire.NodeReport) {
	n := m.boot(r.Node, r.Boot)
	if n == nil || r.Seq <= n.seq {
		return
	}
	if r.Whole {
		m.drop(r.Node, n)
		n.whole = true
	} else if r.Seq != n.seq+1 {
		n.whole = false // a report is missing
	}
	n.seq = r.Seq
	for i := range r.Observed {
		o := &r.Observed[i]
		// An instance without a place in the node's desired set leaves, whatever the cluster does.
		if o.Stopped || o.State == api.Failed && o.Reason == api.ReasonDeleted {
			m.gone(r.Node, n, o.Instance)
			continue
		}
		if _, known := n.observed[o.Instance]; known || len(n.observed) < observedBound.Total {
			n.observed[o.Instance] = Claim{r.Node, *o}
			if m.at[o.Instance] == nil {
				m.at[o.Instance] = map[api.NodeID]bool{}
			}
			m.at[o.Instance][r.Node] = true
		}
	}
}

// Alive answers a node's heartbeat. The answer requests a whole report until there is one.
func (m *Machine) Alive(id api.NodeID, a wire.Alive, now time.Time, members func() []api.NodeID) (wire.Lease, bool) {
	n := m.boot(id, a.Boot)
	if n == nil {
		return wire.Lease{Boot: m.nodes[id].boot}, true // the node takes a higher number if it is not a late heartbeat
	}
	if a.Seq <= n.beat {
		return wire.Lease{}, false
	}
	n.beat = a.Seq
	l := wire.Lease{Boot: a.Boot, RequestWhole: !n.whole}
	if m.mayRun(id, n, now, members) {
		n.leased, l.Seq = true, a.Seq
	}
	return l, l.RequestWhole || l.Seq != 0
}

// mayRun reports whether the node may get a lease: no other node may still run one of its instances. The core does not know
// yet which instances are exclusive, so all of them count. Of two nodes with an instance, the one with the later placement gets
// the lease, unless the other one has had it in this process. Once the root's desired set has arrived, instances that are not
// exclusive do not count, and a node with the root's placement precedes one with another.
func (m *Machine) mayRun(id api.NodeID, n *node, now time.Time, members func() []api.NodeID) bool {
	if !n.whole || now.Before(m.until) && len(m.Silent(members())) > 0 {
		return false
	}
	for in, c := range n.observed {
		a, assigned := m.desired[in]
		if !c.runs() || assigned && !a.Spec.Exclusive {
			continue
		}
		if c.State != api.Running && now.Before(m.ended) {
			return false // a node that is not a member may run it
		}
		for other := range m.at[in] {
			o := m.nodes[other]
			d := o.observed[in]
			if other == id || !d.runs() {
				continue
			}
			if ours, theirs := c.Epoch.Root() == a.Epoch.Root(), d.Epoch.Root() == a.Epoch.Root(); assigned && ours != theirs {
				// A lease that the other node got before the root's placement was known may have to end first.
				if ours && !now.Before(a.since.Add(m.lease)) {
					continue
				}
				if theirs {
					return false
				}
			}
			if o.leased || d.Epoch >= c.Epoch {
				return false
			}
		}
	}
	return true
}

// Silent returns the members that have not sent a whole report in their present boot.
func (m *Machine) Silent(members []api.NodeID) []api.NodeID {
	return slices.DeleteFunc(slices.Clone(members), func(id api.NodeID) bool { return m.nodes[id] != nil && m.nodes[id].whole })
}

// Claims returns what nodes say of an instance, in the order of the nodes' ids.
func (m *Machine) Claims(id api.InstanceID) (all []Claim) {
	for _, at := range step.Keys(m.at[id]) {
		all = append(all, m.nodes[at].observed[id])
	}
	return all
}

// Observed returns the latest placement of each instance that nodes observe, for the root, in the order of their ids. It names
// no nodes.
func (m *Machine) Observed() (all []api.Observed) {
	for _, id := range step.Keys(m.at) {
		var o api.Observed
		for _, c := range m.Claims(id) {
			if o.Instance == "" || c.Epoch > o.Epoch {
				o = c.Observed
			}
		}
		all = append(all, api.Observed{
			Instance: id, Epoch: o.Epoch, State: o.State, Reason: o.Reason, Detail: step.Clip(o.Detail), Restarts: o.Restarts, Failures: o.Failures,
			ExitCode: o.ExitCode, Address: o.Address, Ready: o.Ready,
		})
	}
	return all
}

// Unknown returns the instances that run on nodes and would stop if the cluster continued, by id: those that the
// root has not assigned to it, or under an earlier placement, and that are not local ones of its own.
func (m *Machine) Unknown(has func(api.InstanceID) (api.Epoch, bool)) (all []api.InstanceID) {
	for id := range m.at {
		if m.unknown(id, has) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

func (m *Machine) unknown(id api.InstanceID, has func(api.InstanceID) (api.Epoch, bool)) bool {
	epoch, known := has(id)
	if a, assigned := m.desired[id]; assigned {
		epoch, known = max(epoch, a.Epoch), true
	}
	for at := range m.at[id] {
		if c := m.nodes[at].observed[id]; c.runs() && (!known || c.Epoch.Root() > epoch.Root()) {
			return true
		}
	}
	return false
}

// Ready reports whether the cluster may continue without AcceptRestored: leases from before the start have ended, it knows
// what its root wants and what all its nodes run, and all of that has a record.
func (m *Machine) Ready(now time.Time, members func() []api.NodeID, has func(api.InstanceID) (api.Epoch, bool)) bool {
	if !m.Root() || now.Before(m.ended) || len(m.Silent(members())) > 0 {
		return false
	}
	for id := range m.at {
		if m.unknown(id, has) {
			return false
		}
	}
	return true
}
