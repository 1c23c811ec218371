package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
)

// subnetRest is how long a removed node's subnet is given to nobody else: longer
// than anybody remembers a route that leads there.
const subnetRest = 30 * time.Minute

// subnets are the cluster's shares of the instance network, and which nodes have
// what of them.
type subnets struct {
	blocks  *ipam.Blocks // nil until the root has said what the ranges are
	waiting map[api.NodeID]bool
	given   int
	resting []rest
	// returned are shares that are given up. Nothing is cut of them, over restarts
	// too: the root may have taken them back already.
	returned []netip.Prefix
}

// rest is a subnet that was given back. It is saved, so that a restart begins its
// rest anew and does not end it.
type rest struct {
	Subnet netip.Prefix `json:"subnet"`
	Until  time.Time    `json:"until"`
}

type networkRecord struct {
	Ranges   api.NetRanges  `json:"ranges"`
	Shares   []netip.Prefix `json:"shares"`
	Resting  []rest         `json:"resting,omitempty"`
	Returned []netip.Prefix `json:"returned,omitempty"`
}

const metaNetwork = "network"

func (s *subnets) used() bool { return s.blocks != nil || len(s.waiting) > 0 }

// needed is how many subnets the cluster has use for.
func (s *subnets) needed(now time.Time) int {
	s.sweep(now)
	return s.given + len(s.waiting) + len(s.resting)
}

// giveBack gives up shares that nothing is of, where the others are enough and
// nearly one more is too much: the root gives shares ahead of need, and would give
// it again.
func (c *Core) giveBack() {
	s, r := &c.net.subnets, c.net.book.Ranges()
	if s.blocks == nil {
		return
	}
	per, need := 1<<(r.Subnet-r.Share), s.needed(c.wall)
	enough := need + max(need/4, 8) + per/2
	unused, left := s.blocks.Unused(c.now), len(s.blocks.Whole())
	before := len(s.returned)
	for i := len(unused) - 1; i >= 0 && left > 1 && (left-1)*per >= enough; i-- {
		s.blocks.Remove(unused[i])
		s.returned = append(s.returned, unused[i])
		left--
	}
	if len(s.returned) > before {
		c.saveNetwork()
	}
}

func (s *subnets) sweep(now time.Time) {
	s.resting = slices.DeleteFunc(s.resting, func(r rest) bool { return !r.Until.After(now) })
}

func (c *Core) saveNetwork() {
	s := &c.net.subnets
	s.sweep(c.wall)
	c.journal.Put(kindMeta, metaNetwork, networkRecord{c.net.book.Ranges(), c.net.book.Shares(), s.resting, s.returned})
}

func (c *Core) restoreNetwork(data []byte) error {
	var r networkRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	c.net.book.SetRanges(r.Ranges, r.Shares)
	s := &c.net.subnets
	s.blocks, s.resting = ipam.NewBlocks(r.Ranges.Subnet, subnetRest), r.Resting
	for _, p := range r.Shares {
		if err := s.blocks.Add(p); err != nil {
			return err
		}
	}
	s.returned = r.Returned
	for _, p := range s.returned {
		s.blocks.Remove(p)
	}
	return nil
}

// restoreSubnet takes a node's lease as it was. One that is not of the cluster's
// shares any more is void.
func (c *Core) restoreSubnet(n *node, p netip.Prefix) {
	s := &c.net.subnets
	if s.blocks != nil && p.IsValid() && s.blocks.Mark(p) == nil {
		n.net.subnet = p
		s.given++
	}
}

// startNetwork begins the rests anew that a restart interrupted.
func (c *Core) startNetwork() {
	// Revisions grow over restarts: the number of starts is in their upper half.
	c.net.book.Begin(c.boot << 32)
	s := &c.net.subnets
	s.sweep(c.wall)
	for _, r := range s.resting {
		if s.blocks != nil && s.blocks.Mark(r.Subnet) == nil {
			s.blocks.Give(c.now, r.Subnet)
		}
	}
	if s.blocks != nil { // or there is nothing that an older copy could have forgotten
		c.timers.Set(timerKey{what: timerLease}, c.now.Add(c.cfg.Return))
	}
	for _, id := range step.Keys(c.nodes) {
		n := c.nodes[id]
		if n.net.subnet.IsValid() {
			c.setSlot(n)
		} else if n.net.self != nil {
			c.leaseTo(n)
		}
		c.member(n)
		c.nodeNetChanged(n)
	}
	for _, in := range c.instances {
		c.netChanged(in)
	}
}

// sharesChanged takes the cluster's shares as the root gives them, in order. Nodes that
// waited get their leases, and so do those whose subnet is of no share any more.
func (c *Core) sharesChanged(r api.NetRanges, shares []netip.Prefix) {
	s := &c.net.subnets
	if s.blocks != nil && slices.Equal(slices.SortedFunc(slices.Values(append(s.blocks.Whole(), s.returned...)), netip.Prefix.Compare), shares) {
		return
	}
	s.returned = slices.DeleteFunc(s.returned, func(p netip.Prefix) bool { return !slices.Contains(shares, p) })
	if s.blocks == nil {
		s.blocks = ipam.NewBlocks(r.Subnet, subnetRest)
	}
	for _, p := range s.blocks.Whole() {
		if !slices.Contains(shares, p) {
			s.blocks.Remove(p)
		}
	}
	for _, p := range shares {
		if slices.Contains(s.returned, p) {
			continue
		}
		// One that cannot be cut as the ranges say is of no use; the root never gives such.
		_ = s.blocks.Add(p)
	}
	c.saveNetwork()
	for _, id := range step.Keys(c.nodes) {
		n := c.nodes[id]
		p := n.net.subnet
		if p.IsValid() && !slices.ContainsFunc(shares, func(of netip.Prefix) bool { return of.Contains(p.Addr()) }) {
			c.endLease(n)
			s.wait(id)
		}
	}
	c.leaseWaiting()
}

// leaseWaiting gives subnets to the nodes that wait, first to those that name one.
func (c *Core) leaseWaiting() {
	for _, named := range []bool{true, false} {
		for _, id := range step.Keys(c.net.subnets.waiting) {
			if n := c.nodes[id]; n != nil && n.net.had.IsValid() == named {
				c.leaseTo(n)
			}
		}
	}
}

func (s *subnets) wait(id api.NodeID) {
	if s.waiting == nil {
		s.waiting = map[api.NodeID]bool{}
	}
	s.waiting[id] = true
}

// leaseTo gives a node its subnet, for good, or lets it wait for a share. One that
// it says it has it gets if that is free: the cluster may be back on an older copy
// of its store, and the node's instances have addresses of it. For a while after a
// start what looks free may be that of a node which has not spoken yet: until then
// a node gets none but its own, which it knows the lease of. That it had from us,
// for the lease's digest is of its secret too.
func (c *Core) leaseTo(n *node) {
	s := &c.net.subnets
	var p netip.Prefix
	early := c.timers.Has(timerKey{what: timerLease})
	if had := n.net.had; s.blocks != nil && had.IsValid() && (!early || n.net.lease == c.leaseOf(n.info.ID, had).Digest()) {
		p, _ = s.blocks.Take(c.now, had)
	}
	if s.blocks != nil && !p.IsValid() && !early {
		p, _ = s.blocks.Take(c.now, netip.Prefix{})
	}
	if !p.IsValid() {
		if !s.waiting[n.info.ID] {
			s.wait(n.info.ID)
			c.root.due = true // it is asked for a share
		}
		return
	}
	delete(s.waiting, n.info.ID)
	s.given++
	if c.root.due = true; n.net.boot != 0 {
		n.net.answer = true
		c.net.talk[n.info.ID] = true
	}
	n.net.subnet = p
	c.refresh(n)
	c.saveNode(n)
	c.setSlot(n)
	c.member(n)
	c.nodeNetChanged(n)
}

// endLease takes a node's subnet back.
func (c *Core) endLease(n *node) {
	s := &c.net.subnets
	delete(s.waiting, n.info.ID)
	if !n.net.subnet.IsValid() {
		return
	}
	s.given--
	if r := c.relayOf(n); r.Slot != 0 {
		c.emit(ToRelay, DropSlot{r.Slot})
	}
	s.blocks.Give(c.now, n.net.subnet)
	s.resting = append(s.resting, rest{n.net.subnet, c.wall.Add(subnetRest)})
	c.saveNetwork()
	n.net.subnet = netip.Prefix{}
	c.refresh(n)
	c.net.book.DropMember(n.info.ID)
	c.nodeNetChanged(n)
}

// Lease is a node's part of the overlay network, if it has one.
func (c *Core) Lease(id api.NodeID) (api.NetLease, bool) {
	n := c.nodes[id]
	if n == nil || !n.net.subnet.IsValid() {
		return api.NetLease{}, false
	}
	return c.leaseOf(id, n.net.subnet), true
}

// leaseOf is the lease of a node that has the subnet.
func (c *Core) leaseOf(id api.NodeID, subnet netip.Prefix) api.NetLease {
	return api.NetLease{
		Node: id, Cluster: c.cfg.ID, Ranges: c.net.book.Ranges(), Subnet: subnet, Relay: c.relayAt(id, subnet),
		Secret: c.derive(id, subnet, "secret"), Clear: c.cfg.Clear, Interest: c.cfg.Interest,
	}
}

// ToRelay is the cluster's own relay, to which go SetSlot and DropSlot. Each may
// be given twice; a relay begins empty, and is given all at the core's start.
const ToRelay api.Addr = "relay"

type (
	// SetSlot gives a node its place at the relay.
	SetSlot struct {
		Node   api.NodeID
		Slot   uint32
		Ticket uint64
		Secret []byte
	}
	// DropSlot ends a slot.
	DropSlot struct{ Slot uint32 }
)

func (c *Core) setSlot(n *node) {
	if r := c.relayOf(n); r.Slot != 0 {
		c.emit(ToRelay, SetSlot{n.info.ID, r.Slot, r.Ticket, c.derive(n.info.ID, n.net.subnet, "secret")})
	}
}

func (c *Core) relayOf(n *node) api.Relay { return c.relayAt(n.info.ID, n.net.subnet) }

// relayAt derives a node's slot from its subnet, which no other has, and its
// ticket from the cluster's seed: nothing of it need be kept.
func (c *Core) relayAt(id api.NodeID, subnet netip.Prefix) api.Relay {
	if !subnet.IsValid() || !subnet.Addr().Is4() {
		return api.Relay{}
	}
	a := subnet.Addr().As4()
	return api.Relay{
		Addr: c.cfg.Relay, Slot: binary.BigEndian.Uint32(a[:]),
		Ticket: binary.BigEndian.Uint64(c.derive(id, subnet, "ticket")),
	}
}

func (c *Core) derive(id api.NodeID, subnet netip.Prefix, what string) []byte {
	h := hmac.New(sha256.New, c.cfg.Seed)
	for _, part := range []string{what, string(id), subnet.String()} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return h.Sum(nil)
}
