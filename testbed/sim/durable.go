package sim

import (
	"fmt"
	"slices"
)

// A crash between two steps loses no decision: a decision is saved before it is sent, and
// the next start restores it. Observations may be lost and made again.

// recall compares the state after a start with the state before the last crash.
func (p *process[In]) recall() {
	before := p.before
	p.before = nil
	if before == nil || p.w.violation != nil {
		return
	}
	now := p.holds()
	for i := range max(len(before), len(now)) {
		if i >= len(before) || i >= len(now) || before[i] != now[i] {
			p.w.violate("durable", p.name, "had %q when it crashed and starts with %q", before[min(i, len(before)):min(i+1, len(before))], now[min(i, len(now)):min(i+1, len(now))])
			return
		}
	}
}

// holds lists the root's services and instances, with their clusters.
func (m *RootMachine) holds() []string {
	out := []string{}
	for _, s := range m.core.Services("") {
		out = append(out, fmt.Sprintf("%s×%d spec %d at %v", s.ID, s.Replicas, s.SpecRev, s.Addresses.RoundRobin))
	}
	for _, in := range m.core.Instances("") {
		out = append(out, fmt.Sprintf("%s@%s on %q leaving %v", string(in.ID), in.Epoch, in.Cluster, in.Leaving))
	}
	return out
}

// holds lists the cluster's desired instances and their nodes.
func (m *ClusterMachine) holds() []string {
	wanted, _ := m.core.Digests()
	out := []string{fmt.Sprintf("generation %d %v", m.core.Gen(), wanted)}
	for _, n := range m.core.Nodes() {
		out = append(out, fmt.Sprintf("%s %v %v", n.ID, n.Labels, n.Subnet))
	}
	for _, in := range m.core.Instances() {
		out = append(out, fmt.Sprintf("%s@%s on %q leaving %v", string(in.ID), in.Epoch, in.Node, in.Leaving))
	}
	return out
}

// holds lists the node's desired instances and their devices.
func (m *NodeMachine) holds() []string {
	wanted, _ := m.core.Digests()
	out := []string{fmt.Sprintf("generation %d %v", m.core.Gen(), wanted)}
	for _, in := range m.core.Instances() {
		out = append(out, fmt.Sprintf("%s@%s leaving %v with %v", string(in.ID), in.Epoch, in.Leaving, in.Devices))
	}
	return out
}

// holds lists the attachments and their addresses.
func (n *NetMachine) holds() []string {
	out := []string{}
	for _, a := range n.core.View().List() {
		out = append(out, fmt.Sprintf("%s at %s", key(a.Key), a.Address))
	}
	slices.Sort(out)
	return out
}
