package placement

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToValues is the address of the store of values, which gets the configs and secrets that the
// cluster's instances need (Needed) when these change.
const ToValues api.Addr = "values"

// Needed has all values that the cluster's instances need, sorted.
type Needed []wire.ValueKey

// Values returns the values that the instances need, sorted.
func (m *Machine) Values() Needed {
	out := make(Needed, 0, len(m.values))
	for k := range m.values {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b wire.ValueKey) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// need replaces the values that an instance needs.
func (m *Machine) need(in *instance, refs []wire.ValueRef) {
	if slices.Equal(in.needs, refs) {
		return
	}
	tenant := in.id().Tenant()
	for _, r := range refs {
		k := wire.ValueKey{Tenant: tenant, ValueRef: r}
		m.values[k]++
		m.changes.Values = m.changes.Values || m.values[k] == 1
	}
	for _, r := range in.needs {
		k := wire.ValueKey{Tenant: tenant, ValueRef: r}
		if m.values[k]--; m.values[k] == 0 {
			delete(m.values, k)
			m.changes.Values = true
		}
	}
	in.needs = refs
}

// onlyValuesDiffer reports whether an assignment differs from the instance's by its values only.
func (in *instance) onlyValuesDiffer(a wire.Assignment) bool {
	if slices.Equal(a.Values, in.Desired.Values) {
		return false
	}
	a.Values = in.Desired.Values
	return in.Desired.Digest() == a.Digest()
}

// revalue changes the values of an instance where it is.
func (m *Machine) revalue(in *instance, a wire.Assignment) {
	m.toggleDesired(in)
	in.Desired.Values = a.Values
	m.need(in, a.Values)
	m.toggleDesired(in)
	if n := m.nodes[in.Node]; n != nil {
		m.touch(n)
		n.set.Put(in.assignment())
	}
	m.save(in)
	m.updateTargets(in, a)
}

// fetching returns the values that the target of a move needs to fetch the image in advance: the account of
// its registry.
func (in *instance) fetching() []wire.ValueRef {
	if in.Move == nil || in.Move.Phase != moves.Copying {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(in.Desired.Values), func(r wire.ValueRef) bool { return r.Registry == "" })
}

// ValueFor returns the value that a node requests, if an instance that is assigned to the node needs it, or one
// that moves there needs it to fetch its image.
func (m *Machine) ValueFor(id api.NodeID, w wire.WantValue) (wire.ValueKey, bool) {
	n := m.nodes[id]
	if n == nil {
		return wire.ValueKey{}, false
	}
	find := func(in *instance, refs []wire.ValueRef) (wire.ValueKey, bool) {
		t := in.id().Tenant()
		i := slices.IndexFunc(refs, func(r wire.ValueRef) bool { return w.Names(t, r) })
		if i < 0 {
			return wire.ValueKey{}, false
		}
		return wire.ValueKey{Tenant: t, ValueRef: refs[i]}, true
	}
	for _, in := range n.assigned {
		if k, ok := find(in, in.Desired.Values); ok {
			return k, true
		}
	}
	for moving := range m.moving {
		if in := m.instances[moving]; in.Move != nil && in.Move.To == id {
			if k, ok := find(in, in.fetching()); ok {
				return k, true
			}
		}
	}
	return wire.ValueKey{}, false
}
