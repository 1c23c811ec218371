package placement

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A move off a living node is make before break: the node keeps the old placement until the
// new one runs and, on the overlay network, listens. An exclusive instance is stopped first,
// and so is one whose new placement is on the same node.

// moveOff gives the instance to another node and lets its own go on meanwhile.
func (m *Machine) moveOff(in *instance, to api.NodeID, reason api.Reason, detail string) {
	m.fx.Timers.Clear(effects.Key{Kind: effects.Listen, Instance: in.id()})
	from, old := m.nodes[in.Node], in.assignment()
	stays := in.State == api.Running && !from.Silent && to != in.Node
	m.moveTo(in, to, reason, detail)
	if !stays {
		return
	}
	for i := range in.Vacancies {
		if v := &in.Vacancies[i]; v.Node == from.Info.ID {
			v.Stays = &old
			from.stay(old)
			delete(from.drop, in.id())
		}
	}
	from.placeChanged(in.id())
	m.save(in)
}

// listenTime is how long a new placement may run without listening before the old
// one is ended all the same: a netmanager says so within a few seconds, if it is there.
const listenTime = 10 * time.Second

// made breaks the old placements off as soon as the new one can take their place.
func (m *Machine) made(in *instance) {
	n, key := m.nodes[in.Node], effects.Key{Kind: effects.Listen, Instance: in.id()}
	switch {
	case !in.stays():
		return
	case in.State == api.Running && n != nil && n.Info.Network == api.NetworkOverlay && !in.Ready:
		m.fx.Timers.SetEarlier(key, m.fx.Now.Add(listenTime))
	case in.State == api.Running || in.ended():
		m.fx.Timers.Clear(key)
		m.breakOff(in)
	}
}

// ListenDue breaks off although the new placement was not said to listen.
func (m *Machine) ListenDue(id api.InstanceID) {
	if in := m.instances[id]; in != nil && in.State == api.Running {
		m.breakOff(in)
	}
}

// stays reports whether an earlier placement goes on meanwhile.
func (in *instance) stays() bool {
	return slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Stays != nil })
}

// returns gives an instance that lost its new node, and has no other, back to the
// one where its earlier placement goes on, if that takes work again: the room that
// it has there counts.
func (m *Machine) returns(in *instance) bool {
	for _, v := range in.Vacancies {
		n := m.nodes[v.Node]
		if v.Stays != nil && n != nil && n.out() == "" && m.fits(in, n, n.without(in.id())) {
			m.moveTo(in, v.Node, in.cause, "goes on where it was")
			return true
		}
	}
	return false
}

// stay keeps an assignment in the node's desired set that is no longer its own.
func (n *node) stay(a wire.Assignment) {
	if n.stays == nil {
		n.stays = map[api.InstanceID]wire.Assignment{}
	}
	n.stays[a.Instance] = a
	n.wanted = n.wanted.Toggle(a.Digest())
}

// leave ends what stays on the node of an instance.
func (n *node) leave(id api.InstanceID) bool {
	a, ok := n.stays[id]
	if ok {
		delete(n.stays, id)
		n.wanted = n.wanted.Toggle(a.Digest())
	}
	return ok
}

// breakOff has every node end what it still has of the instance's earlier
// placements: the new one runs, or nobody wants any.
func (m *Machine) breakOff(in *instance) {
	broke := false
	for i := range in.Vacancies {
		v := &in.Vacancies[i]
		n := m.nodes[v.Node]
		if v.Stays == nil {
			continue
		}
		v.Stays, broke = nil, true
		if n == nil || !n.leave(in.id()) {
			continue
		}
		m.touch(n)
		n.drop[in.id()] = true
		n.placeChanged(in.id())
		v.Gen = n.gen
	}
	if broke {
		m.save(in)
	}
}
