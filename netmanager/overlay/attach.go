package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// attachment is a workload that has an address.
type attachment struct {
	Attach   api.Attach `json:"attach"`
	Address  netip.Addr `json:"address"`
	Ready    bool       `json:"ready,omitempty"` // it listens
	Draining bool       `json:"draining,omitempty"`
	bucket   bucket     // what it may ask
}

func (a *attachment) service() api.ServiceID { return a.Attach.Instance.Service() }

type hostPort struct {
	port     uint16
	protocol string
}

var poolOptions = ipam.Options{First: api.SubnetFirst, Last: api.SubnetLast}

func (c *Core) attach(a api.Attach) error {
	if _, err := api.ParseInstanceID(string(a.Instance)); err != nil {
		return err
	}
	old := c.attached[a.Key]
	if old == nil {
		if c.pool == nil {
			return fmt.Errorf("attach %s: the node has no lease on the network yet: %w", a.Key, api.ErrUnavailable)
		}
		if s := c.services[a.Instance.Service()]; s != nil {
			for k := range s.local {
				if k.Instance == a.Instance && k.Epoch > a.Epoch {
					return fmt.Errorf("attach %s: placement %s is attached: %w", a.Key, k.Epoch, api.ErrConflict)
				}
			}
		}
	}
	for _, p := range a.Ports {
		if k, ok := c.ports[hostPort{p.Host, p.Protocol}]; ok && k != a.Key {
			return fmt.Errorf("attach %s: port %d/%s of the node is %s's: %w", a.Key, p.Host, p.Protocol, k, api.ErrConflict)
		}
	}
	n := &attachment{Attach: a, bucket: newBucket(c.now)}
	if old != nil {
		n.Address, n.bucket = old.Address, old.bucket
		if old.Attach.NetNS == a.NetNS { // else it is another attempt, of which nothing is known yet
			n.Ready, n.Draining = old.Ready, old.Draining
		}
	} else {
		addr, err := c.address()
		if err != nil {
			return fmt.Errorf("attach %s: %w", a.Key, err)
		}
		n.Address = addr
	}
	if old != nil {
		if equalJSON(old, n) {
			return nil
		}
		c.unplace(old)
	}
	c.place(n)
	c.sayOf(n)
	c.journal.Put(kindAttachment, a.Key.String(), n)
	return nil
}

// leastRest is how long an address rests at least, however few there are: by then
// the kernel has forgotten who had it, and so have the peers that its cluster has told.
const leastRest = 5 * time.Second

// address is one that nobody has: one that has rested, and where none is left, as
// when all that the node runs is replaced at once, the one that has rested longest. Where
// none even rests, waiting does not help, and that is ErrFull: other nodes have some.
func (c *Core) address() (netip.Addr, error) {
	addr, err := c.pool.Take(c.now, netip.Addr{})
	if err == nil {
		return addr, nil
	}
	if addr, err = c.pool.TakeEarly(c.now, min(leastRest, c.cfg.Quarantine)); err == nil {
		c.timers.Clear(timerKey{what: timerFreed, addr: addr})
		c.journal.Delete(kindFreed, addr.String())
	} else if c.pool.Resting(c.now) == 0 {
		err = fmt.Errorf("all addresses of %s are taken: %w", c.pool.Prefix(), api.ErrFull)
	}
	return addr, err
}

// place notes an attachment in all the books.
func (c *Core) place(a *attachment) {
	c.attached[a.Attach.Key], c.at[a.Address] = a, a
	for _, p := range a.Attach.Ports {
		c.ports[hostPort{p.Host, p.Protocol}] = a.Attach.Key
	}
	s := c.service(a.service())
	first := len(s.local) == 0
	s.local[a.Attach.Key] = a
	c.localAddresses(s)
	c.dirty.endpoints[a.Address] = struct{}{}
	c.touch(s.id)
	c.dirty.access[s.id] = struct{}{}
	if first {
		c.settleFor(s.id)
	}
}

// unplace is its opposite; what only hung on it is forgotten by the step's end.
func (c *Core) unplace(a *attachment) {
	delete(c.attached, a.Attach.Key)
	delete(c.at, a.Address)
	for _, p := range a.Attach.Ports {
		delete(c.ports, hostPort{p.Host, p.Protocol})
	}
	s := c.services[a.service()]
	delete(s.local, a.Attach.Key)
	c.localAddresses(s)
	c.dirty.endpoints[a.Address] = struct{}{}
	c.touch(s.id)
	c.dirty.access[s.id] = struct{}{}
}

func (c *Core) detach(k api.Key) {
	a := c.attached[k]
	if a == nil {
		return
	}
	c.unplace(a)
	c.say(a.Address, k, notice.Gone)
	c.dirty.end[a.Address] = struct{}{}
	c.journal.Delete(kindAttachment, k.String())
	if c.pool != nil && c.pool.Taken(a.Address) {
		// It is written down that the address rests, so that a restart does not hand it
		// out while others still send to it.
		c.pool.Give(c.now, a.Address)
		c.journal.Put(kindFreed, a.Address.String(), freedRecord{k})
		c.timers.Set(timerKey{what: timerFreed, addr: a.Address}, c.now.Add(c.cfg.Quarantine))
	}
	if s := c.services[a.service()]; len(s.local) == 0 {
		c.leave(s.id)
	}
}

// ready has flows to its service go to a workload that listens.
func (c *Core) ready(in Ready) {
	a := c.attached[in.Key]
	if a == nil || a.Ready || a.Attach.NetNS != in.NetNS {
		return
	}
	a.Ready = true
	c.sayOf(a)
	c.journal.Put(kindAttachment, in.Key.String(), a)
	c.touch(a.service())
}

func (c *Core) drain(k api.Key) {
	a := c.attached[k]
	if a == nil || a.Draining {
		return
	}
	a.Draining = true
	c.retryLater(a.Address)
	c.sayOf(a)
	c.journal.Put(kindAttachment, k.String(), a)
	c.touch(a.service())
}

// exited has flows avoid a workload whose process has ended, until its next attempt
// listens. They are not ended: its kernel still sends what it had written.
func (c *Core) exited(in Exited) {
	if a := c.attached[in.Key]; a != nil && a.Attach.NetNS == in.NetNS {
		c.drain(in.Key)
	}
}

// leased takes a lease in. What is attached keeps its address, also where the
// subnet is another now, and is served until it is detached.
func (c *Core) leased(l api.NetLease) {
	if c.lease != nil && c.lease.Digest() == l.Digest() {
		c.lease.Rev = l.Rev
		return
	}
	r := l.Ranges
	if !r.Instances.IsValid() || !r.Services.IsValid() || !r.Instances.Addr().Is4() || !r.Services.Addr().Is4() ||
		!l.Subnet.IsValid() || !l.Subnet.Addr().Is4() || l.Subnet.Bits() < r.Instances.Bits() || !r.Instances.Contains(l.Subnet.Addr()) ||
		r.Subnet < r.Instances.Bits() || r.Subnet > 32 {
		return // not one that can be served; the digest that we report says so
	}
	pool := c.pool
	if c.lease == nil || c.lease.Subnet != l.Subnet {
		o := poolOptions
		o.Quarantine = c.cfg.Quarantine
		var err error
		if pool, err = ipam.NewPool(l.Subnet, o); err != nil {
			return // too small
		}
		for a := range c.at {
			_ = pool.Mark(a) // those of another subnet are none of the pool's
		}
	}
	c.pool, c.lease = pool, &l
	c.dirty.all = true
	c.emit(ToTunnel, TunnelSelf{l})
	c.journal.Put(kindLease, keyLease, l)
	for _, k := range sortedKeys(c.peers) { // what is clear and whose what is may be another now
		p := c.peers[k]
		c.reclaim(p)
		c.choosePath(p)
	}
	for _, id := range sortedKeys(c.services) {
		c.localAddresses(c.services[id])
	}
}

func (c *Core) planeNode() plane.Node {
	n := plane.Node{Prefix: c.cfg.Prefix, Tunnel: c.cfg.Tunnel, Hold: c.cfg.Hold, VXLAN: c.cfg.VXLAN, Closed: c.cfg.Closed, Open: c.cfg.Open}
	if c.lease != nil {
		n.Ranges, n.Subnet = c.lease.Ranges, c.lease.Subnet
	}
	return n
}

func (c *Core) planeEndpoint(a netip.Addr) (plane.Endpoint, bool) {
	at := c.at[a]
	if at == nil {
		return plane.Endpoint{}, false
	}
	return plane.Endpoint{
		Address: a, Ident: c.services[at.service()].ident, Device: plane.Device(c.cfg.Prefix, a), Ports: slices.Clone(at.Attach.Ports),
	}, true
}
