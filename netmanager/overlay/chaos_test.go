package overlay

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

// cluster is a simple model of the cluster. It has all records and sends a node those that the node
// subscribes to.
type cluster struct {
	rev    uint64
	routes map[api.ServiceID]api.Route
	gone   map[api.ServiceID]bool
	boot   uint64
	seq    uint64
	wants  map[wire.Subscription]bool
	again  bool // request a full NetUp
}

func newCluster() *cluster {
	return &cluster{routes: map[api.ServiceID]api.Route{}, wants: map[wire.Subscription]bool{}, gone: map[api.ServiceID]bool{}}
}

// whole returns all records that the node subscribes to.
func (c *cluster) whole() (d wire.NetDown) {
	routes, sources, peers := map[api.ServiceID]bool{}, map[netip.Addr]bool{}, map[api.PeerKey]bool{}
	for _, k := range sorted.Keys(c.wants, func(a, b wire.Subscription) int {
		return a.Address.Compare(b.Address)*4 + compare(string(a.Service+a.For), string(b.Service+b.For))
	}) {
		found := false
		for _, id := range sorted.Ordered(c.routes) {
			r := c.routes[id]
			if k.Service == id || k.Address.IsValid() && slices.Contains(semantic(r.Addresses), k.Address) {
				found = true
				if !routes[id] {
					routes[id] = true
					d.Routes = append(d.Routes, r)
				}
			}
			for _, b := range r.Backends {
				if b.Address == k.Address && k.For != "" {
					found = true
					if !sources[b.Address] {
						sources[b.Address] = true
						d.Sources = append(d.Sources, wire.Source{Address: b.Address, Rev: r.Rev, Service: id, Access: r.Access, Peer: peerRecord(b.Peer[31], 1)})
					}
				}
			}
		}
		if k.For == "" {
			if n := k.Address.As4()[2]; n > 0 && n < 6 {
				found = true
				if !peers[key(n)] {
					peers[key(n)] = true
					d.Peers = append(d.Peers, peerRecord(n, 1))
				}
			}
		}
		if !found {
			d.Refused = append(d.Refused, wire.Refusal{Subscription: k})
		}
	}
	d.Whole = true
	for _, r := range d.Routes {
		d.Held = d.Held.Toggle(r.Digest())
	}
	for _, s := range d.Sources {
		d.Held = d.Held.Toggle(s.Digest())
	}
	for _, p := range d.Peers {
		d.Held = d.Held.Toggle(p.Digest())
	}
	for _, r := range d.Refused {
		d.Held = d.Held.Toggle(r.Digest())
	}
	d.Boot, d.Seq = c.boot, c.seq
	if c.rev%3 == 0 {
		d.Measure = []api.Peer{}
		for n := range c.rev / 3 % 4 {
			d.Measure = append(d.Measure, peerRecord(byte(c.rev/12+n)%8, 1))
		}
	}
	c.rev++
	d.Rev = c.rev
	d.Lease = theLease()
	d.RequestWhole = c.again
	return d
}

func semantic(a api.ServiceAddresses) []netip.Addr {
	return append(slices.Collect(maps.Values(a.Instances)), a.RoundRobin, a.Closest)
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (c *cluster) receive(up wire.NetUp) {
	if up.Boot < c.boot || up.Boot == c.boot && up.Seq <= c.seq {
		return
	}
	if up.Boot > c.boot || up.Seq != c.seq+1 {
		c.again = true
	}
	c.boot, c.seq = up.Boot, up.Seq
	if up.Whole {
		clear(c.wants)
		c.again = false
	}
	for _, k := range up.Subscribe {
		c.wants[k] = true
	}
	for _, k := range up.Unsubscribe {
		delete(c.wants, k)
	}
}

// host is a peer that sends notices about its instances.
type host struct {
	serial uint64
	words  map[netip.Addr]peermsg.Entry
}

func (h *host) notify(a netip.Addr, p peermsg.Placement, s peermsg.State) {
	h.serial++
	h.words[a] = peermsg.Entry{Address: a, Of: p, State: s}
}

func (h *host) notice() peermsg.Notice {
	n := peermsg.Notice{Serial: h.serial}
	for _, a := range sorted.Addrs(h.words) {
		n.Entries = append(n.Entries, h.words[a])
	}
	return n
}

// TestRandomInputsAndLossesEndInTheSameState applies random inputs, loses, duplicates and reorders messages in both
// directions, and kills the netmanager between saves. The indexes and the plane must be correct after
// each step, and at the end both sides must have the same records.
func TestRandomInputsAndLossesEndInTheSameState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		w := newWorld(t, Config{Node: plane.Node{VXLAN: 7001}, MaxOpen: 8, MaxSubscriptions: 30})
		cl := newCluster()
		var ups []wire.NetUp
		var downs []wire.NetDown
		attachedNow := map[wire.Key]bool{}
		rev := uint64(0)
		do := func(in Input) {
			if rng.IntN(25) == 0 { // killed in the middle
				eff := w.c.Step(w.now, in)
				w.save(eff.Save[:rng.IntN(len(eff.Save)+1)])
				w.restart()
				w.step(Link{true})
				if d, ok := in.(Detach); ok {
					delete(attachedNow, d.Key)
				}
				return
			}
			eff := w.step(in)
			ups = append(ups, messages(eff)...)
			switch in := in.(type) {
			case Attach:
				if eff.Err == nil {
					attachedNow[in.Key] = true
				}
			case Detach:
				delete(attachedNow, in.Key)
			}
		}
		anyLocal := func() netip.Addr {
			if l := w.c.View().List(); len(l) > 0 {
				return l[rng.IntN(len(l))].Address
			}
			return netip.Addr{}
		}
		hosts := map[byte]*host{}
		for n := range byte(6) {
			hosts[n] = &host{words: map[netip.Addr]peermsg.Entry{}}
		}
		var notices []Noticed
		names := []string{"a", "b", "c", "d"}
		do(Link{true})
		for range rapid.IntRange(50, 250).Draw(t, "steps") {
			switch rng.IntN(18) {
			case 0, 1:
				a := attachOf(names[rng.IntN(4)], rng.IntN(3), api.Epoch(1+rng.IntN(2)))
				if rng.IntN(2) == 0 {
					a.Addresses = route(names[0], 1, 1).Addresses
				}
				if rng.IntN(4) == 0 {
					a.NetNS = "/proc/2/ns/net"
				}
				do(a)
				if rng.IntN(2) == 0 {
					do(listens(a))
				}
			case 2:
				do(Detach{attachOf(names[rng.IntN(4)], rng.IntN(3), api.Epoch(1+rng.IntN(2))).Key})
			case 3:
				do(Drain{attachOf(names[rng.IntN(4)], rng.IntN(3), api.Epoch(1+rng.IntN(2))).Key})
			case 4, 5:
				do(Miss{Local: anyLocal(), Remote: []netip.Addr{vip(byte(rng.IntN(6))), instanceAt(byte(rng.IntN(6)), byte(rng.IntN(6))), ip("10.30.1.10")}[rng.IntN(3)]})
			case 6:
				do(Query{Local: anyLocal(), Name: []string{names[rng.IntN(4)], "A", "B"}[rng.IntN(3)] + ".treeline"})
			case 7:
				do(PeerUnknown{Key: key(byte(rng.IntN(8))), Claim: instanceAt(byte(rng.IntN(8)), 3)})
			case 8, 9: // a change in the cluster
				rev++
				n := rng.IntN(4)
				id := svc(names[n])
				var nodes []byte
				for range rng.IntN(4) {
					if x := byte(rng.IntN(6)); !slices.Contains(nodes, x) {
						nodes = append(nodes, x)
					}
				}
				r := route(names[n], rev, byte(n+1), nodes...)
				r.Access.Closed = rng.IntN(4) == 0
				if rng.IntN(2) == 0 {
					r.Addresses.Closest = netip.AddrFrom4([4]byte{10, 30, byte(n + 1), 2})
				}
				if cl.routes[id] = r; rng.IntN(4) == 0 {
					delete(cl.routes, id)
				}
				downs = append(downs, cl.whole())
			case 10, 11:
				p := Path{
					Key: key(byte(rng.IntN(6))), Kind: []api.PathKind{api.PathNone, api.PathRelay, api.PathDirect, api.PathDirect}[rng.IntN(4)],
					NoNAT: rng.IntN(2) == 0, Silent: rng.IntN(4) == 0, RTT: time.Duration(rng.IntN(100)) * time.Millisecond, MTU: 1300 + rng.IntN(2)*80,
					Addr: []netip.AddrPort{netip.MustParseAddrPort("192.168.1.7:1"), netip.MustParseAddrPort("192.168.9.7:1"), netip.MustParseAddrPort("1.2.3.4:1")}[rng.IntN(3)],
				}
				do(p)
				do(Measured{Key: p.Key, RTT: p.RTT, Coord: []*api.Coordinate{nil, {}, {Vec: make([]float64, 8)}}[rng.IntN(3)]})
			case 12:
				w.now = w.now.Add(time.Duration(rng.IntN(90000)) * time.Millisecond)
				do(Tick{})
			case 13:
				do(Link{rng.IntN(3) > 0})
			case 14: // a host's instance drains, stops or becomes ready
				n := byte(rng.IntN(6))
				at := byte(1 + rng.IntN(5))
				of := []peermsg.Placement{0, 7, peermsg.PlacementOf(wire.Key{Instance: svc(names[(at-1)%4]).Instance(rng.IntN(2)), Epoch: 1})}[rng.IntN(3)]
				hosts[n].notify(instanceAt(n, at), of, peermsg.State(rng.IntN(3)))
				notices = append(notices, Noticed{key(n), hosts[n].notice()})
			case 15:
				if len(notices) > 0 {
					i := rng.IntN(min(3, len(notices)))
					in := notices[i]
					if rng.IntN(4) > 0 {
						notices = slices.Delete(notices, i, i+1)
					}
					do(in)
				}
				switch k := key(byte(rng.IntN(6))); rng.IntN(7) {
				case 0:
					do(Session{k})
				case 1:
					do(NoticeAcked{k, peermsg.NoticeAck{Serial: w.c.notices.Serial() - uint64(rng.IntN(3))}})
				case 2:
					do(Agreed{k, peermsg.Terms{
						Serial: uint64(rng.IntN(9)), Ack: uint64(rng.IntN(9)), Paths: plane.Paths{Route: rng.IntN(2) == 0, VXLAN: rng.IntN(2) == 0},
						From: ip(own), At: []netip.Addr{ip("192.168.1.7"), ip("192.168.9.7")}, Port: 7001,
					}})
				case 3:
					do(Probed{k, peermsg.TrafficProbe{Serial: rng.Uint64()}})
				case 4:
					do(Arrived{k, peermsg.Traffic{Serial: uint64(rng.IntN(9)), Bytes: uint64(rng.IntN(3))}})
				case 5:
					do(Counted{map[api.PeerKey][2]uint64{k: {uint64(rng.IntN(1000)), uint64(rng.IntN(3))}}})
				default:
					do(Stray{k, instanceAt(0, byte(rng.IntN(70)))})
				}
			default: // the network loses, duplicates or reorders messages
				if len(ups) > 0 {
					i := rng.IntN(min(2, len(ups)))
					if rng.IntN(4) > 0 {
						cl.receive(ups[i])
						downs = append(downs, cl.whole())
					}
					ups = slices.Delete(ups, i, i+1)
				}
				if len(downs) > 0 {
					i := rng.IntN(min(3, len(downs)))
					d := downs[i]
					if rng.IntN(4) > 0 {
						downs = slices.Delete(downs, i, i+1)
					}
					if rng.IntN(4) > 0 {
						do(Down{d})
					}
				}
			}
			w.checkIndexes()
		}
		// Finally all messages arrive.
		w.step(Link{false})
		ups = messages(w.step(Link{true}))
		for range 100 {
			ups = append(ups, w.pass(time.Second)...)
			for len(ups) > 0 {
				up := ups[0]
				ups = ups[1:]
				cl.receive(up)
				ups = append(ups, messages(w.step(Down{cl.whole()}))...)
			}
		}
		w.checkIndexes()
		for n, h := range hosts {
			w.step(Noticed{key(n), h.notice()})
			w.checkIndexes()
			for a, x := range h.words {
				if k, ok := w.c.peers.At(a); !w.c.peers.Has(key(n)) || x.Of == 0 || !ok || k != key(n) {
					continue
				}
				m, marked := w.c.received.Get(key(n), a)
				if avoid := x.State != peermsg.Accepting; avoid != marked || marked && (m.Of != x.Of || m.Gone != (x.State == peermsg.Gone)) {
					t.Fatalf("node %d says %+v, and is believed to say %+v", n, x, m)
				}
			}
		}
		d := cl.whole()
		if d.Held != w.c.View().held() {
			t.Fatalf("the node holds %x and should hold %x; wants %v, the cluster's %v", w.c.View().held(), d.Held, w.subscriptions(), cl.wants)
		}
		for _, k := range w.subscriptions() {
			if w.c.View().outcome(k) == subscriptions.Unanswered {
				t.Fatalf("%+v is unanswered", k)
			}
		}
		for k := range attachedNow {
			if _, ok := w.c.View().Attached(k); !ok {
				t.Fatalf("%s is not attached any more", k)
			}
		}
	})
}
