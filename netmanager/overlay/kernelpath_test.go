package overlay

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

const own = "192.168.1.10" // the address of this node

// Copies of constants of package kernelpath.
const (
	linger         = 3 * time.Second
	lapse          = 10 * time.Second
	settling       = 5 * time.Second
	termsTries     = 7
	countEvery     = time.Second
	lostUnanswered = 3
	shunFirst      = 30 * time.Second
	shunMost       = 15 * time.Minute
)

var none plane.Paths

// at lets the tunnel report node n at an address without a NAT.
func (w *world) at(n byte, addr string) step.Effects {
	w.t.Helper()
	return w.step(Path{Key: key(n), Kind: api.PathDirect, NoNAT: true, Addr: netip.AddrPortFrom(ip(addr), 7000), MTU: 1380})
}

// agrees lets node n accept our packets by these paths, from and to the addresses that the tunnel
// observes.
func (w *world) agrees(n byte, ways plane.Paths) step.Effects {
	w.t.Helper()
	q, _ := w.c.peers.Get(key(n))
	w.heard++
	t := peermsg.Terms{Serial: w.heard, Ack: w.sent[key(n)]}
	if ways != none {
		t.Paths, t.From, t.At, t.Port = ways, ip(own), []netip.Addr{q.Path.Addr.Addr()}, 7001
	}
	return w.step(Agreed{key(n), t})
}

// way returns the path to node n in the plane, and the paths on which its packets are accepted.
func (w *world) way(n byte) string {
	p := w.plane.Peers[key(n)]
	return pathOf(p)
}

func pathOf(p plane.Peer) string {
	s := string(p.Path) + " <"
	if p.Accepts.Route {
		s += " route"
	}
	if p.Accepts.VXLAN {
		s += " vxlan"
	}
	if p.Accepts != none {
		s += " from " + p.Via.String()
	}
	return s
}

func (w *world) checkPaths(want ...string) {
	w.t.Helper()
	for i, want := range want {
		if got := w.way(byte(i + 1)); got != want {
			w.t.Fatalf("node %d: %s, want %s", i+1, got, want)
		}
	}
	w.checkIndexes()
}

// peered returns a world with routes to nodes 1 to 3. Node 3 is not in an unencrypted network.
func peered(t *testing.T) *world {
	w, client := readyWith(t, Config{Node: plane.Node{VXLAN: 7001}, Idle: 1000 * time.Hour})
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2, 3)}}})
	w.at(1, "192.168.1.11")
	w.at(2, "192.168.2.12")
	w.at(3, "172.16.0.1")
	return w
}

func TestPacketsAreUnencryptedOnlyIfThePeerAcceptsThem(t *testing.T) {
	w := peered(t)
	const one, two = "direct < route vxlan from 192.168.1.11", "direct < vxlan from 192.168.2.12"
	w.checkPaths(one, two, "direct <")
	w.pass(time.Hour) // they send nothing
	w.checkPaths(one, two, "direct <")
	w.agrees(1, plane.Paths{Route: true, VXLAN: true})
	w.agrees(2, plane.Paths{Route: true, VXLAN: true}) // the peer being on our link does not put us on its link
	w.agrees(3, plane.Paths{Route: true, VXLAN: true}) // the peer's operator cannot declare our network unencrypted
	w.checkPaths("route < route vxlan from 192.168.1.11", "vxlan < vxlan from 192.168.2.12", "direct <")
	w.agrees(1, plane.Paths{VXLAN: true})
	w.agrees(2, plane.Paths{Route: true})
	w.checkPaths("vxlan < route vxlan from 192.168.1.11", two)
	w.agrees(1, none)
	w.checkPaths(one)
	if r := w.c.View().Peers()[0].Reason; r != "it accepts no unencrypted packets from here" {
		t.Error(r)
	}
	good := peermsg.Terms{Serial: 99, Paths: plane.Paths{Route: true, VXLAN: true}, From: ip(own), At: []netip.Addr{ip("192.168.1.11")}, Port: 7001}
	for what, spoil := range map[string]func(*peermsg.Terms){
		"from another address": func(t *peermsg.Terms) { t.From = ip("192.168.1.99") },
		"from none":            func(t *peermsg.Terms) { t.From = netip.Addr{} },
		"at another address":   func(t *peermsg.Terms) { t.At = []netip.Addr{ip("192.168.1.12")} },
		"by another port":      func(t *peermsg.Terms) { t.Paths, t.Port = plane.Paths{VXLAN: true}, 7002 },
	} {
		bad := good
		spoil(&bad)
		w.heard++
		bad.Serial = w.heard
		w.step(Agreed{key(1), bad})
		if got := w.way(1); got != one {
			t.Errorf("taken %s: %s", what, got)
		}
	}
	w.heard += 2
	good.Serial = w.heard
	w.step(Agreed{key(1), good})
	old := good
	old.Serial, old.Paths = good.Serial-1, none
	w.step(Agreed{key(1), old}) // out of order
	w.step(Agreed{key(9), good})
	w.checkPaths("route < route vxlan from 192.168.1.11")
}

func TestTermsFollowThePlaneAndAreRepeatedUntilConfirmed(t *testing.T) {
	w, client := readyWith(t, Config{Node: plane.Node{VXLAN: 7001}, Idle: 1000 * time.Hour})
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	eff := w.at(1, "192.168.1.11")
	var seen []string
	for _, e := range eff.Send {
		switch m := e.Msg.(type) {
		case plane.Change:
			seen = append(seen, pathOf(m.SetPeers[0]))
		case TunnelTerms:
			seen = append(seen, fmt.Sprintf("%+v %s %v %d", m.Paths, m.From, m.At, m.Port))
		}
	}
	if want := []string{"direct < route vxlan from 192.168.1.11", "{Route:true VXLAN:true} 192.168.1.11 [192.168.1.10] 7001"}; !slices.Equal(seen, want) {
		t.Fatalf("%q, want %q", seen, want)
	}
	said := orders[TunnelTerms](eff)[0]
	count := func(d time.Duration) (n int) {
		for end := w.now.Add(d); ; {
			wake := w.last.Wake
			if wake.IsZero() || wake.After(end) {
				w.now = end
				return n
			}
			w.now = later(w.now, wake)
			n += len(orders[TunnelTerms](w.step(Tick{})))
		}
	}
	if n := count(time.Hour); n != termsTries-1 {
		t.Errorf("said %d times more to who does not answer", n)
	}
	if n := len(orders[TunnelTerms](w.at(1, "192.168.1.11"))); n != 1 {
		t.Errorf("said %d times to who is there again", n)
	}
	if n := len(orders[TunnelTerms](w.step(Agreed{key(1), peermsg.Terms{Serial: 5}}))); n != 1 {
		t.Errorf("who has not heard them is reported %d times", n)
	}
	if n := len(orders[TunnelTerms](w.step(Agreed{key(1), peermsg.Terms{Serial: 5, Ack: said.Serial}}))); n != 0 {
		t.Errorf("who has heard them, and was heard, is reported %d times", n)
	}
	if n := count(time.Hour); n != 0 {
		t.Errorf("said %d times to who has confirmed", n)
	}
}

func TestAWithdrawnPathIsAcceptedForAWhile(t *testing.T) {
	w := peered(t)
	w.agrees(1, plane.Paths{Route: true})
	w.agrees(2, plane.Paths{VXLAN: true})
	l := theLease()
	l.Unencrypted = []netip.Prefix{cidr("192.168.2.0/24"), cidr(own + "/32")}
	eff := w.answer(wire.NetDown{Lease: l})
	// Our packets take the tunnel at once. What the peer sends before it receives the terms is not lost.
	w.checkPaths("direct < route vxlan from 192.168.1.11", "direct < vxlan from 192.168.2.12")
	if said := orders[TunnelTerms](eff); len(said) != 2 || said[0].Paths != none || said[1].Paths != none {
		t.Fatalf("%+v", said)
	}
	w.pass(linger - time.Millisecond)
	w.checkPaths("direct < route vxlan from 192.168.1.11", "direct < vxlan from 192.168.2.12")
	w.pass(time.Millisecond)
	w.checkPaths("direct <", "direct <")
}

func TestARestartKeepsKernelPaths(t *testing.T) {
	w := peered(t)
	w.agrees(1, plane.Paths{Route: true})
	const both = "route < route vxlan from 192.168.1.11"
	w.restart()
	w.checkPaths(both)
	w.step(Path{Key: key(1), Kind: api.PathNone}) // the tunnel has no path yet
	w.checkPaths(both)
	w.step(Session{key(1)})
	w.step(Path{Key: key(1), Kind: api.PathRelay}) // sessions begin there
	w.checkPaths(both)
	w.pass(lapse - time.Millisecond)
	w.at(1, "192.168.1.11")
	w.agrees(1, plane.Paths{Route: true})
	w.pass(time.Hour)
	w.checkPaths(both)
	w.step(Path{Key: key(1), Kind: api.PathRelay, Idle: true}) // nobody uses it, so this is no evidence
	w.pass(time.Hour)
	w.checkPaths(both)
	w.at(1, "192.168.1.11")
	w.step(Path{Key: key(1), Kind: api.PathDirect, Addr: netip.MustParseAddrPort("192.168.1.11:7000")}) // after the peer's restart everything is proven again
	w.checkPaths(both)
	w.at(1, "192.168.1.11")
	w.pass(settling)
	w.checkPaths(both)
	w.step(Path{Key: key(1), Kind: api.PathRelay})
	w.pass(settling)
	w.checkPaths("direct < route vxlan from 192.168.1.11")
	w.pass(linger)
	w.checkPaths("direct <")
}

func TestTermsEndWithoutRepetitionInANewSession(t *testing.T) {
	w := peered(t)
	w.agrees(1, plane.Paths{Route: true})
	eff := w.step(Session{key(1)})
	if said := orders[TunnelTerms](eff); len(said) == 0 || said[0].Ack != 0 || !said[0].Paths.Route {
		t.Fatalf("%+v", said)
	}
	w.checkPaths("route < route vxlan from 192.168.1.11")
	w.pass(lapse) // the peer may be an older netmanager now
	w.checkPaths("direct < route vxlan from 192.168.1.11")
	// Terms of a later process count regardless of the address.
	w.step(Agreed{key(1), peermsg.Terms{Serial: 1, Paths: plane.Paths{Route: true}, From: ip(own), At: []netip.Addr{ip("192.168.1.11")}}})
	w.checkPaths("route < route vxlan from 192.168.1.11")
}

func TestANodeThatMovedNegotiatesAgain(t *testing.T) {
	w := peered(t)
	w.agrees(1, plane.Paths{Route: true, VXLAN: true})
	w.at(1, "192.168.1.77")
	w.checkPaths("direct < route vxlan from 192.168.1.77")
	w.agrees(1, plane.Paths{Route: true, VXLAN: true})
	w.checkPaths("route < route vxlan from 192.168.1.77")
	self := w.c.self
	self.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("192.168.1.9:7000")}
	eff := w.step(self)
	w.checkPaths("direct < route vxlan from 192.168.1.77") // the peer does not expect us at this address
	if said := orders[TunnelTerms](eff); len(said) == 0 || !slices.Equal(said[0].At, []netip.Addr{ip("192.168.1.9")}) {
		t.Fatalf("%+v", said)
	}
	w.answer(wire.NetDown{Records: wire.Records{RemovedRoutes: []api.ServiceID{svc("web")}}})
	if said := orders[TunnelSend](w.last); len(said) != 2 || said[0].Message.(peermsg.Terms).Paths != none {
		t.Fatalf("who is forgotten is not reported: %+v", said)
	}
}

// counts waits for a count, and lets the plane report the bytes to and from node 1.
func (w *world) counts(to, from uint64) (probe peermsg.TrafficProbe, ok bool) {
	w.t.Helper()
	w.pass(countEvery)
	eff := w.step(Counted{map[api.PeerKey][2]uint64{key(1): {to, from}}})
	for _, m := range orders[TunnelSend](eff) {
		if p, is := m.Message.(peermsg.TrafficProbe); is && m.Key == key(1) {
			return p, true
		}
	}
	return probe, false
}

func TestAPathOnWhichNothingArrivesIsAvoided(t *testing.T) {
	w := peered(t)
	const on, off = "route < route vxlan from 192.168.1.11", "direct < route vxlan from 192.168.1.11"
	w.agrees(1, plane.Paths{Route: true})
	answer := func(p peermsg.TrafficProbe, arrived uint64) {
		w.step(Arrived{key(1), peermsg.Traffic{Serial: p.Serial, Bytes: arrived}})
	}
	p, ok := w.counts(0, 0)
	if !ok {
		t.Fatal("a new way is not asked about")
	}
	answer(p, 40)
	if _, ok := w.counts(0, 0); ok {
		t.Fatal("it is asked about where nothing was sent")
	}
	arrived := uint64(40)
	for n := range uint64(100) { // packets that arrive prove the path, even if none come back
		arrived += 7
		p, _ := w.counts(100*(n+1), 0)
		answer(p, arrived)
	}
	w.checkPaths(on)
	away := shunFirst
	for try := range 7 {
		if try > 0 { // the new attempt begins with a TrafficProbe
			p, _ := w.counts(20000*uint64(try), 0)
			answer(p, arrived)
		}
		p, _ = w.counts(20000*uint64(try)+10001, 0)
		answer(p, arrived)
		w.checkPaths(on)
		p, _ = w.counts(20000*uint64(try)+10002, 5) // packets that come back prove nothing about the other direction
		answer(p, arrived)
		w.checkPaths(off)
		if r := w.c.View().Peers()[0].Reason; !strings.Contains(r, "nothing gets through by route") {
			t.Error(r)
		}
		w.pass(away - time.Millisecond)
		w.checkPaths(off)
		w.pass(time.Millisecond)
		w.checkPaths(on)
		away = min(2*away, shunMost)
	}
}

func TestAPathOfASilentPeerIsAvoided(t *testing.T) {
	w := peered(t)
	const on, off = "route < route vxlan from 192.168.1.11", "direct < route vxlan from 192.168.1.11"
	w.agrees(1, plane.Paths{Route: true})
	w.counts(1, 1)
	for n := range uint64(50) { // the peer's netmanager is down, and flows continue
		w.counts(2+n, 2+n)
	}
	w.checkPaths(on)
	w.pass(time.Hour) // nothing is sent
	w.checkPaths(on)
	for n := range uint64(lostUnanswered) {
		w.checkPaths(on)
		w.counts(100+n, 51)
	}
	w.checkPaths(off)
}

func TestPeersLearnHowManyPacketsArrived(t *testing.T) {
	w := peered(t)
	if eff := w.step(Probed{key(3), peermsg.TrafficProbe{Serial: 1}}); len(orders[Count](eff)) != 0 {
		t.Error("the plane is asked about who is not let in")
	}
	if eff := w.step(Probed{key(1), peermsg.TrafficProbe{Serial: 7}}); len(orders[Count](eff)) != 1 {
		t.Errorf("%+v", eff.Send)
	}
	eff := w.step(Counted{map[api.PeerKey][2]uint64{key(1): {1, 2}}})
	if got := orders[TunnelSend](eff); len(got) != 1 || got[0].Message != (peermsg.Traffic{Serial: 7, Bytes: 2}) || got[0].Connect {
		t.Errorf("%+v", got)
	}
	w.step(Probed{key(1), peermsg.TrafficProbe{Serial: 8}})
	if eff := w.step(Counted{}); len(orders[TunnelSend](eff)) != 0 {
		t.Error("what is not known is reported")
	}
}

// end is one of two nodes that exchange terms.
type end struct {
	*world
	n     byte
	self  Self
	clear bool
}

type bound struct {
	to int
	in Input
}

// TestTwoPeersAlwaysAgree lets two cores exchange messages over a network that loses, duplicates and
// reorders, with restarts, moves and changes of configuration. A node never sends unencrypted packets on
// a network that its own operator has not declared unencrypted. When messages arrive again, both send
// only what the other accepts, and use the best path available.
func TestTwoPeersAlwaysAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 9))
		var ends [2]*end
		var under []bound
		addrs := [2][]string{{"192.168.1.10", "192.168.3.10"}, {"192.168.1.11", "192.168.4.11"}}
		lease := func(i int) *wire.NetLease {
			l := theLease()
			l.Rev, l.Cluster = uint64(rng.Uint32()), api.ClusterID(fmt.Sprintf("c%d", i))
			l.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, byte(i + 1), 0}), 26)
			if !ends[i].clear {
				l.Unencrypted = nil
			}
			return l
		}
		obey := func(i int, eff step.Effects) {
			for _, e := range eff.Send {
				var in Input
				switch m := e.Msg.(type) {
				case TunnelTerms:
					in = Agreed{key(byte(i + 1)), m.Terms}
				case TunnelSend:
					if x, ok := m.Message.(peermsg.Terms); ok {
						in = Agreed{key(byte(i + 1)), x}
					}
				}
				if in != nil {
					under = append(under, bound{1 - i, in})
				}
			}
		}
		do := func(i int, in Input) { obey(i, ends[i].step(in)) }
		see := func(i int) { // what the tunnel reports of the other end
			do(i, Path{Key: key(byte(2 - i)), Kind: api.PathDirect, NoNAT: true, MTU: 1380, Addr: ends[1-i].self.Endpoints[0]})
		}
		move := func(i int) {
			x := rng.IntN(2)
			a := ip(addrs[i][x])
			s := Self{NetSelf: wire.NetSelf{Key: key(byte(i + 1)), Endpoints: []netip.AddrPort{netip.AddrPortFrom(a, 7000)}}}
			if on, _ := a.Prefix(24); rng.IntN(4) > 0 { // otherwise it has a /32
				s.OnLink = []netip.Prefix{on}
			}
			ends[i].self = s
			do(i, s)
		}
		begin := func(i int) {
			e := ends[i]
			other := byte(2 - i)
			p := peerRecord(other, 1)
			do(i, Link{true})
			obey(i, e.answer(wire.NetDown{Lease: lease(i), Records: wire.Records{Peers: []api.Peer{p}}}))
			do(i, e.self)
		}
		for i := range ends {
			cfg := Config{Node: plane.Node{VXLAN: 7001}}
			if rng.IntN(4) == 0 {
				cfg.VXLAN = 0
			}
			ends[i] = &end{world: newWorld(t, cfg), n: byte(i + 1), clear: true}
			move(i)
			begin(i)
		}
		session := func() {
			for i := range ends {
				do(i, Session{key(byte(2 - i))})
			}
		}
		pass := func(d time.Duration, lossy bool) {
			until := ends[0].now.Add(d)
			for {
				if n := len(under); n > 0 {
					x := 0
					if lossy {
						x = rng.IntN(n)
					}
					b := under[x]
					if !lossy || rng.IntN(5) > 0 {
						under = slices.Delete(under, x, x+1)
					}
					if !lossy || rng.IntN(3) > 0 {
						do(b.to, b.in)
					}
					continue
				}
				at, who := until, -1
				for i, e := range ends {
					if wake := e.c.next(); !wake.IsZero() && wake.Before(at) {
						at, who = wake, i
					}
				}
				for _, e := range ends {
					e.now = later(e.now, at)
				}
				if who < 0 {
					return
				}
				do(who, Tick{})
			}
		}
		policy := func() {
			for i, e := range ends {
				p := e.plane.Peers[key(byte(2-i))]
				if (p.Path == api.PathRoute || p.Path == api.PathVXLAN) && !e.clear {
					t.Fatalf("end %d sends by %s what its operator has not called clear", i, p.Path)
				}
			}
		}
		session()
		see(0)
		see(1)
		for range rapid.IntRange(5, 40).Draw(t, "steps") {
			i := rng.IntN(2)
			switch rng.IntN(8) {
			case 0:
				ends[i].restart()
				move(i)
				begin(i)
				session()
			case 1:
				move(i)
				see(1 - i)
			case 2:
				ends[i].clear = rng.IntN(2) == 0
				obey(i, ends[i].answer(wire.NetDown{Lease: lease(i)}))
			case 3:
				session()
			case 4:
				do(i, Path{Key: key(byte(2 - i)), Kind: []api.PathKind{api.PathRelay, api.PathNone}[rng.IntN(2)], Idle: rng.IntN(2) == 0})
			case 5, 6:
				see(i)
			}
			policy()
			pass(time.Duration(rng.IntN(4000))*time.Millisecond, true)
			policy()
		}
		// From now on nothing is lost.
		under = nil
		session()
		see(0)
		see(1)
		pass(settling+lapse+linger, false)
		both := ends[0].clear && ends[1].clear
		for i, e := range ends {
			o := ends[1-i]
			p, q := e.plane.Peers[key(byte(2-i))], o.plane.Peers[key(byte(1+i))]
			on := func(e, o *end) bool {
				return slices.ContainsFunc(e.self.OnLink, func(p netip.Prefix) bool { return p.Contains(o.self.Endpoints[0].Addr()) })
			}
			want := api.PathDirect
			switch {
			case both && on(e, o) && on(o, e):
				want = api.PathRoute
			case both && e.cfg.VXLAN != 0 && o.cfg.VXLAN != 0:
				want = api.PathVXLAN
			}
			if p.Path != want {
				t.Fatalf("end %d sends by %s and not by %s; the other takes %s", i, p.Path, want, pathOf(q))
			}
			if p.Path == api.PathRoute && !q.Accepts.Route || p.Path == api.PathVXLAN && !q.Accepts.VXLAN || want != api.PathDirect && q.Via != e.self.Endpoints[0].Addr() {
				t.Fatalf("end %d sends by %s to %s, and the other has %s", i, p.Path, p.Via, pathOf(q))
			}
			if !e.clear && p.Accepts != none {
				t.Fatalf("end %d takes %s in", i, pathOf(p))
			}
		}
	})
}
