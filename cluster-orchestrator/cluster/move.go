package cluster

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// A move off a living node is make before break: the node goes on with the old
// placement until the new one runs and, on the overlay network, listens. An exclusive instance cannot, and neither
// can one whose node is to take the new placement itself.

// moveOff gives the instance to another node and lets its own go on meanwhile.
func (c *Core) moveOff(in *instance, to api.NodeID, reason api.Reason, detail string) {
	c.timers.Clear(timerKey{what: timerListen, instance: in.id()})
	from, old := c.nodes[in.Node], in.assignment()
	stays := in.State == api.Running && !from.silent && to != in.Node
	c.moveTo(in, to, reason, detail)
	if !stays {
		return
	}
	for i := range in.Vacancies {
		if v := &in.Vacancies[i]; v.Node == from.info.ID {
			v.Stays = &old
			from.stay(old)
			delete(from.drop, in.id())
		}
	}
	from.placeChanged(in.id())
	c.save(in)
}

// listenTime is how long a new placement may run without listening before the old
// one is ended all the same: a netmanager says so within a few seconds, if it is there.
const listenTime = 10 * time.Second

// made breaks the old placements off as soon as the new one can take their place.
func (c *Core) made(in *instance) {
	n, key := c.nodes[in.Node], timerKey{what: timerListen, instance: in.id()}
	switch {
	case !in.stays():
		return
	case in.State == api.Running && n != nil && n.info.Network == api.NetworkOverlay && !in.Ready:
		c.timers.SetEarlier(key, c.now.Add(listenTime))
	case in.State == api.Running || in.ended():
		c.timers.Clear(key)
		c.breakOff(in)
	}
}

// overdue breaks off although the new placement was not said to listen.
func (c *Core) overdue(id api.InstanceID) {
	if in := c.instances[id]; in != nil && in.State == api.Running {
		c.breakOff(in)
	}
}

// stays reports whether an earlier placement goes on meanwhile.
func (in *instance) stays() bool {
	return slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Stays != nil })
}

// returns gives an instance that lost its new node, and has no other, back to the
// one where its earlier placement goes on, if that takes work again: the room that
// it has there counts.
func (c *Core) returns(in *instance) bool {
	for _, v := range in.Vacancies {
		n := c.nodes[v.Node]
		if v.Stays != nil && n != nil && n.out() == "" && c.fits(in, n, c.without(n, in.id())) {
			c.moveTo(in, v.Node, in.cause, "goes on where it was")
			return true
		}
	}
	return false
}

// stay keeps an assignment in the node's desired set that is no longer its own.
func (n *node) stay(a api.Assignment) {
	if n.stays == nil {
		n.stays = map[api.InstanceID]api.Assignment{}
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
func (c *Core) breakOff(in *instance) {
	broke := false
	for i := range in.Vacancies {
		v := &in.Vacancies[i]
		n := c.nodes[v.Node]
		if v.Stays == nil {
			continue
		}
		v.Stays, broke = nil, true
		if n == nil || !n.leave(in.id()) {
			continue
		}
		c.touch(n)
		n.drop[in.id()] = true
		n.placeChanged(in.id())
		v.Gen = n.gen
	}
	if broke {
		c.save(in)
	}
}
