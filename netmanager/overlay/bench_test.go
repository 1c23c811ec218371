package overlay

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// many returns a core that subscribes to n services, and the message that answers all of them. Each
// service has two backends, on a hundred nodes in all.
func many(b *testing.B, n int) (c *Core, client netip.Addr, answer wire.NetDown) {
	b.Helper()
	w := newWorld(b, Config{MaxOpen: n})
	w.step(Link{true})
	lease := theLease()
	lease.Ranges.Subnet, lease.Subnet = 24, cidr("10.16.0.0/24")
	w.step(Down{wire.NetDown{Rev: 1, Lease: lease}})
	w.step(attachOf("client", 0, 1))
	a, _ := w.c.View().Attached(attachOf("client", 0, 1).Key)
	c = w.c
	now := w.now
	for i := range n {
		now = now.Add(time.Second / 20)
		v := netip.AddrFrom4([4]byte{10, 30, byte(i >> 8), byte(i)})
		c.Step(now, Miss{Local: a.Address, Remote: v})
		r := api.Route{Service: svc(fmt.Sprintf("s%d", i)), Rev: 1, Addresses: api.ServiceAddresses{RoundRobin: v}}
		for j := range 2 {
			node := byte(1 + (i+j)%100)
			at := netip.AddrFrom4([4]byte{10, 17 + byte(i>>12), node, byte(i)})
			p := peerRecord(node, 1)
			p.Subnets = nil
			for x := range byte(6) {
				p.Subnets = append(p.Subnets, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 17 + x, node, 0}), 24))
			}
			r.Backends = append(r.Backends, api.Backend{Instance: r.Service.Instance(j), Epoch: 1, Address: at, Peer: key(node), State: api.BackendUp})
			r.Peers = append(r.Peers, p)
		}
		answer.Routes = append(answer.Routes, r)
	}
	answer.Boot, answer.Rev, answer.Whole = c.boot, 2, true
	answer.Seq, _ = c.subs.Position()
	c.Step(now, Tick{})
	return c, a.Address, answer
}

// BenchmarkFullSync applies a full NetDown with 10,000 routes. It should take at most a second.
func BenchmarkFullSync(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		c, _, answer := many(b, 10000)
		b.StartTimer()
		eff := c.Step(c.now, Down{answer})
		if ch := orders[plane.Change](eff); len(ch) != 1 || len(ch[0].SetServices) != 10000 {
			b.Fatalf("%d changes", len(ch))
		}
	}
}

// BenchmarkLookup looks up a name among 10,000 routes.
func BenchmarkLookup(b *testing.B) {
	c, client, answer := many(b, 10000)
	c.Step(c.now, Down{answer})
	for b.Loop() {
		if a := c.View().Lookup(client, "any.rr.s4711.eu.shop.prod.treeline."); !a.Found || len(a.Addrs) != 1 {
			b.Fatalf("%+v", a)
		}
	}
}

// BenchmarkRouteUpdate changes one route of 10,000.
func BenchmarkRouteUpdate(b *testing.B) {
	c, _, answer := many(b, 10000)
	c.Step(c.now, Down{answer})
	r := answer.Routes[4711]
	for i := 0; b.Loop(); i++ {
		r.Rev++
		r.Backends = append([]api.Backend(nil), r.Backends[0], r.Backends[1])
		r.Backends[i%2].State = api.BackendDraining
		r.Backends[1-i%2].State = api.BackendUp
		_, rev := c.subs.Position()
		c.Step(c.now, Down{wire.NetDown{Boot: c.boot, Rev: rev + 1, Records: wire.Records{Routes: []api.Route{r}}}})
	}
}

// BenchmarkMissOfAKnownAddress measures the core's share of the delay of a missed packet.
func BenchmarkMissOfAKnownAddress(b *testing.B) {
	c, client, answer := many(b, 10000)
	c.Step(c.now, Down{answer})
	now := c.now
	for b.Loop() {
		now = now.Add(time.Second)
		c.Step(now, Miss{Local: client, Remote: ip("10.30.18.103")})
	}
}
