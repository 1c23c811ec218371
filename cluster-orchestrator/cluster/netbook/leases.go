package netbook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// subnetRest is how long a removed node's subnet is not given to another node. It exceeds the
// time for which any route to it is kept.
const subnetRest = 30 * time.Minute

// leases are the cluster's shares of the instance network and the subnets leased to nodes.
type leases struct {
	blocks  *ipam.Blocks        // nil until the root has sent the ranges
	waiting map[api.NodeID]bool // nodes that wait for a subnet
	given   int                 // number of leased subnets
	resting []rest
	// returned are shares that were returned to the root. No subnet is taken from them, not
	// even after a restart, because the root may have given them to another cluster.
	returned []netip.Prefix
}

// rest is a subnet that was given back and must not be leased before Until. A restart of the
// cluster restarts the rest.
type rest struct {
	Subnet netip.Prefix `json:"subnet"`
	Until  time.Time    `json:"until"`
}

type record struct {
	Ranges   wire.NetRanges `json:"ranges"`
	Shares   []netip.Prefix `json:"shares"`
	Resting  []rest         `json:"resting,omitempty"`
	Returned []netip.Prefix `json:"returned,omitempty"`
}

// The document of the network.
const (
	DocKind = "meta"
	DocKey  = "network"
)

// mark records a subnet that was leased before a restart.
func (l *leases) mark(p netip.Prefix) bool {
	if l.blocks == nil || !p.IsValid() || l.blocks.Mark(p) != nil {
		return false
	}
	l.given++
	return true
}

// needed returns the number of subnets that are leased, requested or resting.
func (l *leases) needed(wall time.Time) int {
	l.sweep(wall)
	return l.given + len(l.waiting) + len(l.resting)
}

func (l *leases) sweep(wall time.Time) {
	l.resting = slices.DeleteFunc(l.resting, func(r rest) bool { return !r.Until.After(wall) })
}

// returnShares returns unused shares to the root, as long as the others would suffice if the
// need grew by a quarter and half a share. The margin prevents that the root, which gives
// shares ahead of need, gives them again at once.
func (m *Machine) returnShares() {
	l, r := &m.leases, m.routes.Ranges()
	if l.blocks == nil {
		return
	}
	per, need := 1<<(r.Subnet-r.Share), l.needed(m.fx.Wall)
	enough := need + max(need/4, 8) + per/2
	unused, left := l.blocks.Unused(m.fx.Now), len(l.blocks.Whole())
	before := len(l.returned)
	for i := len(unused) - 1; i >= 0 && left > 1 && (left-1)*per >= enough; i-- {
		l.blocks.Remove(unused[i])
		l.returned = append(l.returned, unused[i])
		left--
	}
	if len(l.returned) > before {
		m.save()
	}
}

func (m *Machine) save() {
	m.leases.sweep(m.fx.Wall)
	m.fx.Journal.Put(DocKind, DocKey, record{m.routes.Ranges(), m.routes.Shares(), m.leases.resting, m.leases.returned})
}

// Restore loads the network's document. Call it before RestoreNode.
func (m *Machine) Restore(data []byte) error {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	m.routes.SetRanges(r.Ranges, r.Shares)
	l := &m.leases
	l.blocks, l.resting = ipam.NewBlocks(r.Ranges.Subnet, subnetRest), r.Resting
	for _, p := range r.Shares {
		if err := l.blocks.Add(p); err != nil {
			return err
		}
	}
	l.returned = r.Returned
	for _, p := range l.returned {
		l.blocks.Remove(p)
	}
	return nil
}

// startLeases restarts the rests that a restart of the cluster interrupted.
func (m *Machine) startLeases() {
	l := &m.leases
	l.sweep(m.fx.Wall)
	if l.blocks == nil {
		return // no subnet was ever given
	}
	for _, r := range l.resting {
		if l.blocks.Mark(r.Subnet) == nil {
			l.blocks.Give(m.fx.Now, r.Subnet)
		}
	}
	m.fx.Timers.Set(effects.Key{Kind: effects.Lease}, m.fx.Now.Add(m.cfg.Return))
}

// setShares replaces the cluster's shares, which must be sorted. Waiting nodes, and nodes
// whose subnet is no longer in a share, get new leases.
func (m *Machine) setShares(r wire.NetRanges, shares []netip.Prefix) {
	l := &m.leases
	if l.blocks != nil && slices.Equal(slices.SortedFunc(slices.Values(append(l.blocks.Whole(), l.returned...)), netip.Prefix.Compare), shares) {
		return
	}
	l.returned = slices.DeleteFunc(l.returned, func(p netip.Prefix) bool { return !slices.Contains(shares, p) })
	if l.blocks == nil {
		l.blocks = ipam.NewBlocks(r.Subnet, subnetRest)
	}
	for _, p := range l.blocks.Whole() {
		if !slices.Contains(shares, p) {
			l.blocks.Remove(p)
		}
	}
	for _, p := range shares {
		if !slices.Contains(l.returned, p) {
			// Add fails only for a share that does not match the ranges; the root sends none.
			_ = l.blocks.Add(p)
		}
	}
	m.save()
	for _, id := range step.Keys(m.nodes) {
		n := m.nodes[id]
		if p := n.subnet; p.IsValid() && !slices.ContainsFunc(shares, func(of netip.Prefix) bool { return of.Contains(p.Addr()) }) {
			m.endLease(n)
			l.waiting[id] = true
		}
	}
	m.leaseWaiting()
}

// LeasesDue gives subnets to the waiting nodes, first to those that claim one.
func (m *Machine) LeasesDue() Result {
	m.leaseWaiting()
	m.routes.EndRestored()
	return m.result()
}

func (m *Machine) leaseWaiting() {
	for _, named := range []bool{true, false} {
		for _, id := range step.Keys(m.leases.waiting) {
			if n := m.nodes[id]; n != nil && n.claimed.IsValid() == named {
				m.lease(n)
			}
		}
	}
}

// lease gives a node a permanent subnet, or makes it wait for a share. A node keeps the
// subnet that it claims if it is free: the store may be an older copy, and the node's
// instances have addresses in that subnet. For some time after a start, a subnet that looks
// free may belong to a node that was not heard yet. Until then a node only gets a subnet for
// which it reports the digest of its lease, which depends on a secret.
func (m *Machine) lease(n *node) {
	l := &m.leases
	var p netip.Prefix
	early := m.fx.Timers.Has(effects.Key{Kind: effects.Lease})
	if l.blocks != nil && n.claimed.IsValid() && (!early || n.leaseHeld == m.leaseOf(n.id, n.claimed).Digest()) {
		p, _ = l.blocks.Take(m.fx.Now, n.claimed)
	}
	if l.blocks != nil && !p.IsValid() && !early {
		p, _ = l.blocks.Take(m.fx.Now, netip.Prefix{})
	}
	if !p.IsValid() {
		if !l.waiting[n.id] {
			l.waiting[n.id] = true
			m.out.Report = true // the root is asked for a share
		}
		return
	}
	delete(l.waiting, n.id)
	l.given++
	if m.out.Report = true; n.boot != 0 {
		n.owesAnswer = true
		m.MarkDue(n.id)
	}
	n.subnet = p
	m.out.Leased, m.out.Save, m.out.Places = append(m.out.Leased, n.id), append(m.out.Save, n.id), append(m.out.Places, n.id)
	m.setSlot(n)
	m.setMember(n)
}

// endLease takes back a node's subnet and starts its rest.
func (m *Machine) endLease(n *node) {
	l := &m.leases
	delete(l.waiting, n.id)
	if !n.subnet.IsValid() {
		return
	}
	l.given--
	if r := m.relayAt(n.id, n.subnet); r.Slot != 0 {
		m.fx.Emit(ToRelay, DropSlot{r.Slot})
	}
	l.blocks.Give(m.fx.Now, n.subnet)
	l.resting = append(l.resting, rest{n.subnet, m.fx.Wall.Add(subnetRest)})
	m.save()
	n.subnet = netip.Prefix{}
	m.routes.DropMember(n.id)
	m.out.Leased, m.out.Places = append(m.out.Leased, n.id), append(m.out.Places, n.id)
}

func (m *Machine) Lease(id api.NodeID) (wire.NetLease, bool) {
	n := m.nodes[id]
	if n == nil || !n.subnet.IsValid() {
		return wire.NetLease{}, false
	}
	return m.leaseOf(id, n.subnet), true
}

func (m *Machine) leaseOf(id api.NodeID, subnet netip.Prefix) wire.NetLease {
	return wire.NetLease{
		Node: id, Cluster: m.cfg.Cluster, Ranges: m.routes.Ranges(), Subnet: subnet, Relay: m.relayAt(id, subnet),
		Secret: m.derive(id, subnet, "secret"), Unencrypted: m.cfg.Unencrypted, Interest: m.cfg.Interest,
	}
}

// ToRelay is the address of the cluster's own relay, which receives SetSlot and DropSlot.
// Each may be sent twice. A relay starts without slots and gets all when the core starts.
const ToRelay api.Addr = "relay"

type (
	// SetSlot sets a node's slot at the relay.
	SetSlot struct {
		Node   api.NodeID
		Slot   uint32
		Ticket uint64
		Secret []byte
	}
	// DropSlot removes a slot.
	DropSlot struct{ Slot uint32 }
)

func (m *Machine) setSlot(n *node) {
	if r := m.relayAt(n.id, n.subnet); r.Slot != 0 {
		m.fx.Emit(ToRelay, SetSlot{n.id, r.Slot, r.Ticket, m.derive(n.id, n.subnet, "secret")})
	}
}

// relayAt derives a node's slot from its subnet, which no other node has, and its ticket
// from the cluster's seed, so that neither is stored.
func (m *Machine) relayAt(id api.NodeID, subnet netip.Prefix) api.Relay {
	if !subnet.IsValid() || !subnet.Addr().Is4() {
		return api.Relay{}
	}
	a := subnet.Addr().As4()
	return api.Relay{
		Addr: m.cfg.Relay, Slot: binary.BigEndian.Uint32(a[:]),
		Ticket: binary.BigEndian.Uint64(m.derive(id, subnet, "ticket")),
	}
}

func (m *Machine) derive(id api.NodeID, subnet netip.Prefix, what string) []byte {
	h := hmac.New(sha256.New, m.cfg.Seed)
	for _, part := range []string{what, string(id), subnet.String()} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return h.Sum(nil)
}
