package paths

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func pair(t *testing.T, seed uint64, a, b kind) (w *world, x, y *host) {
	w = newWorld(t, seed, a, b)
	w.begin()
	return w, w.hosts[0], w.hosts[1]
}

func (w *world) settle(x, y *host) {
	w.t.Helper()
	w.talk(x, 50*time.Millisecond)
	w.talk(y, 50*time.Millisecond)
	w.run(10 * time.Second)
	if !w.bothDirect() {
		w.t.Fatalf("no direct path: %+v / %+v", x.m.Report(), y.m.Report())
	}
	x.gap, y.gap = 0, 0
}

func TestDeadPeerIsKnownWithinASecond(t *testing.T) {
	for seed := range uint64(20) {
		for _, k := range []kind{none, portRestricted, symmetric} {
			w, x, y := pair(t, seed, k, k)
			w.talk(x, 50*time.Millisecond)
			w.talk(y, 50*time.Millisecond)
			w.run(10*time.Second + time.Duration(seed)*17*time.Millisecond)
			y.dead = true
			died := w.now
			for !x.m.Report().Silent && w.now.Sub(died) < 5*time.Second {
				w.run(10 * time.Millisecond)
			}
			// Packets that were under way when the peer died still arrive, even through the relay.
			if d := w.now.Sub(died) - 2*w.delay - w.delay/2; d > time.Second+20*time.Millisecond {
				t.Errorf("%v, seed %d: known after %v", k, seed, d)
			}
			y.dead = false
			w.run(10 * time.Second)
			if r := x.m.Report(); r.Silent {
				t.Errorf("%v, seed %d: still thought dead: %+v", k, seed, r)
			}
		}
	}
}

func TestOneLostDirectionFallsBackToTheRelay(t *testing.T) {
	w, x, y := pair(t, 3, portRestricted, fullCone)
	w.settle(x, y)
	direct := x.m.Report().Path
	w.cut["A"+direct.String()] = true
	w.run(30 * time.Second)
	if r := x.m.Report(); !r.Path.Relay() || r.Silent || r.Reason == "" {
		t.Errorf("A goes by %+v", r)
	}
	// One second until B misses A's packets and answers through the relay, and another one until A, which
	// receives nothing directly from B, has missed its replies.
	if y.gap > 2200*time.Millisecond {
		t.Errorf("B heard nothing for %v", y.gap)
	}
	w.cut = map[string]bool{}
	w.run(90 * time.Second)
	if r := x.m.Report(); r.Path != direct {
		t.Errorf("A does not come back: %+v", r)
	}
}

// The relay stops while the next round of punching is minutes away.
func TestFailedRelayBeginsTheSearchForADirectPath(t *testing.T) {
	for seed := range uint64(3) {
		for _, k := range []kind{none, fullCone, restricted, portRestricted} {
			w, x, y := pair(t, seed, k, portRestricted)
			w.direct = false
			w.talk(x, 50*time.Millisecond)
			w.talk(y, 50*time.Millisecond)
			w.run(75 * time.Second)
			for _, h := range w.hosts {
				if r := h.m.Report(); !r.Path.Relay() || h.m.punch.fails < 3 {
					t.Fatalf("%v, seed %d: %+v after %d rounds, want the relay after 3", k, seed, r, h.m.punch.fails)
				}
			}
			w.direct, w.relay = true, false
			w.run(8 * time.Second)
			if !w.bothDirect() || x.m.Report().Silent || y.m.Report().Silent {
				t.Errorf("%v, seed %d: not direct 8 s after the end of the relay: %+v / %+v", k, seed, x.m.Report(), y.m.Report())
			}
		}
	}
}

// A peer that answers on the relay now and then cannot make each silence begin a round.
func TestRelayThatFailsOftenBeginsFewRounds(t *testing.T) {
	w, x, y := pair(t, 1, none, none)
	w.direct = false
	w.talk(x, 50*time.Millisecond)
	w.talk(y, 50*time.Millisecond)
	w.run(75 * time.Second)
	clear(x.probes)
	for range 30 {
		w.relay = false
		w.run(1500 * time.Millisecond)
		w.relay = true
		w.run(500 * time.Millisecond)
	}
	probes := 0
	for _, n := range x.probes {
		probes += n
	}
	if most := 2 * len(schedule) * int(time.Minute/backoff[0]); probes == 0 || probes > most {
		t.Errorf("%d probes in a minute, want 1 to %d", probes, most)
	}
}

// A laptop moves from one network to another.
func TestRoamingHeals(t *testing.T) {
	for seed := range uint64(10) {
		for _, k := range []kind{none, fullCone, portRestricted, symmetric} {
			w, x, y := pair(t, seed, k, restricted)
			w.settle(x, y)
			x.kind, x.addr = portRestricted, netip.MustParseAddrPort("172.20.5.9:7100")
			x.nats = []*nat{newNAT(portRestricted, "203.0.113.77")}
			moved := w.now
			w.after(200*time.Millisecond, func() { w.bind(x) }) // when the kernel has reported the change
			w.run(3 * time.Second)
			if x.gap > time.Second+200*time.Millisecond || y.gap > time.Second+200*time.Millisecond {
				t.Errorf("%v, seed %d: nothing for %v and %v", k, seed, x.gap, y.gap)
			}
			if !w.bothDirect() || y.m.Report().Path.Addr.Addr() != x.nats[0].outer {
				t.Errorf("%v, seed %d: not direct %v after the move: %+v / %+v", k, seed, w.now.Sub(moved), x.m.Report(), y.m.Report())
			}
		}
	}
}

// A NAT loses its mappings or changes its address, without notice.
func TestRebindingHeals(t *testing.T) {
	for seed := range uint64(10) {
		for _, k := range []kind{fullCone, restricted, portRestricted} {
			w, x, y := pair(t, seed, k, portRestricted)
			w.settle(x, y)
			port := x.nats[0].port
			x.nats[0] = newNAT(k, "203.0.113.78")
			x.nats[0].port = port + 500
			w.run(3 * time.Second)
			if x.gap > 1200*time.Millisecond || y.gap > 1200*time.Millisecond {
				t.Errorf("%v, seed %d: nothing for %v and %v", k, seed, x.gap, y.gap)
			}
			w.run(20 * time.Second)
			if !w.bothDirect() {
				t.Errorf("%v, seed %d: not direct again: %+v / %+v", k, seed, x.m.Report(), y.m.Report())
			}
		}
	}
}

func TestARestartedPeerGetsTheCandidatesAgain(t *testing.T) {
	w, x, y := pair(t, 5, portRestricted, portRestricted)
	w.settle(x, y)
	y.restart(99)
	w.bind(y)
	w.step(y, Peer{Relay: true})
	w.step(y, Established{})
	w.step(x, Established{})
	w.run(5 * time.Second)
	if !w.bothDirect() {
		t.Errorf("%+v / %+v", x.m.Report(), y.m.Report())
	}
}

// Ends restart in any order and messages are lost. In the end each has the other's present candidates.
func TestPeersAgreeOnCandidatesAfterRestarts(t *testing.T) {
	for seed := range uint64(300) {
		w, x, y := pair(t, seed, none, none)
		w.talk(x, 50*time.Millisecond)
		w.talk(y, 50*time.Millisecond)
		w.loss = 0.3
		random := func(most time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(most))) }
		for range 1 + w.rng.IntN(6) {
			w.run(random(1 + random(time.Second)))
			h := w.hosts[w.rng.IntN(2)]
			if w.rng.IntN(4) == 0 {
				h.dead = true
				w.run(random(time.Minute))
			}
			w.restarted(h, random(200*time.Millisecond), random(100*time.Millisecond))
		}
		w.run(100*time.Millisecond + random(300*time.Millisecond)) // until there is a session
		w.loss = 0
		w.run(30 * time.Second)
		for _, h := range w.hosts {
			if their := h.m.theirs; their.Boot != h.peer.m.ours.boot || !slices.Equal(their.List, h.peer.m.ownCandidates()) || !h.m.Report().NoNAT {
				t.Errorf("seed %d: %s knows %+v of a peer at %v: %+v", seed, h.name, their, h.peer.addr, h.m.Report())
			}
		}
	}
}

func TestIdlePeersCostNothing(t *testing.T) {
	w, x, y := pair(t, 1, portRestricted, portRestricted)
	w.settle(x, y)
	x.sending, y.sending = false, false
	w.run(2 * time.Minute)
	before := x.sentCtl
	w.run(3 * time.Minute)
	if n := x.sentCtl - before; n > 20 {
		t.Errorf("%d messages in 3 minutes of waiting for traffic", n)
	}
	w.run(10 * time.Minute)
	before = x.sentCtl + y.sentCtl
	w.run(time.Hour)
	if n := x.sentCtl + y.sentCtl - before; n != 0 || !x.wake.IsZero() {
		t.Errorf("%d messages in an idle hour, next step at %v", n, x.wake)
	}
	// The first packet afterwards arrives, and later ones soon go directly.
	x.sending, y.got = true, 0
	w.run(2 * time.Second)
	if y.got < 35 || x.m.Report().Path.Relay() {
		t.Errorf("after the pause %d packets arrived by %+v", y.got, x.m.Report())
	}
}

func TestPathBetweenBurstsIsKept(t *testing.T) {
	w, x, y := pair(t, 1, portRestricted, restricted)
	w.settle(x, y)
	x.sending, y.sending = false, false
	for range 4 {
		w.run(2 * time.Minute)
		if !w.bothDirect() {
			t.Fatalf("the path was lost between bursts: %+v / %+v", x.m.Report(), y.m.Report())
		}
		w.data(x)
		w.report(x)
	}
}

func TestLongestPacketIsFound(t *testing.T) {
	for _, mtu := range []int{1500, 1492, 1450, 1400, 1281, 1280} {
		want := 1280
		for _, s := range sizes {
			if s <= mtu {
				want = s
			}
		}
		w, x, y := pair(t, 2, fullCone, portRestricted)
		w.mtu = mtu
		w.settle(x, y)
		if r := x.m.Report(); r.MTU != want {
			t.Errorf("over %d: %d, want %d", mtu, r.MTU, want)
		}
		w.mtu = 1330 // the MTU of the path shrinks
		w.run(30 * time.Second)
		if r := x.m.Report(); r.MTU != min(want, 1320) || r.Path.Relay() {
			t.Errorf("%d became 1330: %d by %v", mtu, r.MTU, r.Path)
		}
		w.mtu = 1500
		w.run(11 * time.Minute)
		if r := x.m.Report(); r.MTU != 1500 {
			t.Errorf("the way grew: %d", r.MTU)
		}
	}
}

func TestLongestPacketIsFoundDespiteLoss(t *testing.T) {
	w, x, y := pair(t, 2, none, none)
	w.loss = 0.05
	w.settle(x, y)
	if r := x.m.Report(); r.MTU < 1460 {
		t.Errorf("the MTU is %d, want at least 1460", r.MTU)
	}
}

func TestRoundTripAndLossAreMeasured(t *testing.T) {
	w, x, y := pair(t, 2, none, none)
	w.settle(x, y)
	if r := x.m.Report(); r.MinRTT < 40*time.Millisecond || r.MinRTT > 50*time.Millisecond || r.RTT < r.MinRTT || r.Loss > 0 {
		t.Errorf("the report is %+v, want a round trip of 40 to 50 ms without loss", r)
	}
	w.loss = 0.3
	w.run(10 * time.Minute)
	if r := x.m.Report(); r.Loss < 0.1 || r.Loss > 0.9 {
		t.Errorf("at 30 %% each way: %v", r.Loss)
	}
}

func TestAbsenceOfNATIsDetected(t *testing.T) {
	for a := range kinds {
		for b := range kinds {
			w, x, y := pair(t, 4, a, b)
			w.talk(x, 50*time.Millisecond)
			w.talk(y, 50*time.Millisecond)
			w.run(5 * time.Second)
			want := a == none && b == none
			if x.m.Report().NoNAT != want || y.m.Report().NoNAT != want {
				t.Errorf("%v to %v: %v %v", a, b, x.m.Report().NoNAT, y.m.Report().NoNAT)
			}
		}
	}
}

// After a restart both ends learn again that there is no NAT, although nobody searches for another path.
func TestAbsenceOfNATIsDetectedAfterARestart(t *testing.T) {
	w, x, y := pair(t, 4, none, none)
	w.talk(x, 50*time.Millisecond)
	w.talk(y, 50*time.Millisecond)
	w.run(5 * time.Second)
	y.restart(99)
	w.bind(y)
	w.step(y, Peer{Relay: true, Endpoints: []netip.AddrPort{x.addr}})
	w.step(y, Established{From: Path{Addr: x.addr}})
	w.step(x, Established{From: Path{Addr: y.addr}})
	w.run(5 * time.Second)
	if !x.m.Report().NoNAT || !y.m.Report().NoNAT {
		t.Errorf("%+v\n%+v", x.m.Report(), y.m.Report())
	}
}

func TestReasonsAreReadable(t *testing.T) {
	w, x, _ := pair(t, 1, symmetric, symmetric)
	w.talk(x, 50*time.Millisecond)
	w.run(60 * time.Second)
	if got, want := x.m.Report().Reason, "symmetric NAT on both sides: punching failed 3 times, next try in "; len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("the reason is %q, want symmetric NAT on both sides", got)
	}
	w, x, _ = pair(t, 1, blocked, symmetric)
	w.talk(x, 50*time.Millisecond)
	w.run(10 * time.Second)
	if got := x.m.Report().Reason; got != "UDP is blocked on this side" {
		t.Errorf("the reason is %q, want that UDP is blocked on this side", got)
	}
}

// lone returns a machine with a session and a relay. The test plays the peer.
func machineWithoutPeer(cfg Config) *Machine {
	m := New(cfg)
	now := time.Unix(1e9, 0)
	m.Step(now, Self{
		Own:    []netip.AddrPort{netip.MustParseAddrPort("192.168.1.2:7100")},
		Links:  []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")},
		Mapped: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:2000")}, NAT: Easy,
	})
	m.Step(now, Peer{Relay: true})
	m.Step(now, Established{})
	return m
}

func TestDangerousCandidatesAreRefused(t *testing.T) {
	m := machineWithoutPeer(Config{Refuse: netip.MustParsePrefix("10.16.0.0/13").Contains})
	var list []Candidate
	for _, a := range []string{
		"127.0.0.1:1", "224.0.0.1:5", "0.0.0.0:9", "255.255.255.255:9", "10.17.0.1:9", "192.168.1.2:99", "192.168.1.255:9",
		"203.0.113.1:2000", "169.254.1.1:5", "[::1]:5", "[ff02::1]:5", "[fe80::1]:5", "[::]:5", "198.51.100.1:0", "245.0.0.1:5", "0.1.2.3:4",
	} {
		list = append(list, Candidate{Static, netip.MustParseAddrPort(a)})
	}
	good := Candidate{Static, netip.MustParseAddrPort("198.51.100.9:7000")}
	now := time.Unix(1e9, 0)
	for i, c := range list {
		out := m.Step(now, Received{Path{}, Candidates{Boot: 1, Rev: uint32(i + 1), Punch: true, List: []Candidate{c}}.Append(nil)})
		for _, s := range out.Send {
			if !s.Path.Relay() {
				t.Errorf("%v is probed", s.Path)
			}
		}
	}
	out := m.Step(now, Received{Path{}, Candidates{Boot: 1, Rev: 99, Punch: true, List: []Candidate{good}}.Append(nil)})
	if !slices.ContainsFunc(out.Send, func(s Send) bool { return s.Path.Addr == good.Addr }) {
		t.Error("a good one is not probed")
	}
}

// A peer that names many addresses, and sends from many, makes this node send only little to others.
func TestHostilePeerCannotFloodOthers(t *testing.T) {
	m := machineWithoutPeer(Config{})
	now := time.Unix(1e9, 0)
	bytesOut, probes := 0, 0
	var wake time.Time
	take := func(out Output) {
		for _, s := range out.Send {
			msg, _ := Parse(s.Body)
			if _, ok := msg.(Probe); ok && !s.Path.Relay() {
				probes++
				bytesOut += max(s.Size, len(s.Body))
			}
		}
		wake = out.Wake
	}
	for i := range 60_000 { // a minute, with a message each millisecond
		now = now.Add(time.Millisecond)
		ip := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		from := Path{netip.AddrPortFrom(ip, 53)}
		var body []byte
		if i%2 == 0 {
			body = Candidates{Boot: uint32(i + 1), Rev: uint32(i), Punch: true, Moved: true, List: []Candidate{{Mapped, from.Addr}}}.Append(nil)
			from = Path{}
		} else {
			body = Ack{uint32(i)}.Append(nil)
		}
		take(m.Step(now, Received{from, body}))
		if !wake.IsZero() && !wake.After(now) {
			take(m.Step(now, Tick{}))
		}
	}
	if probes > 10*60+24 {
		t.Errorf("%d probes in a minute", probes)
	}
	if n := len(m.direct); n > maxAddresses {
		t.Errorf("%d addresses are kept", n)
	}
	t.Logf("%d probes, %d bytes to strangers in a minute", probes, bytesOut)
}

// A peer that proves many addresses of its own makes the machine keep only a few.
func TestProvenAddressesAreBounded(t *testing.T) {
	m := machineWithoutPeer(Config{})
	now := time.Unix(1e9, 0)
	var answer func(Output)
	answer = func(out Output) {
		for _, s := range out.Send {
			if p, ok := first(Parse(s.Body)).(Probe); ok && !s.Path.Relay() {
				answer(m.Step(now, Received{s.Path, Reply{Token: p.Token}.Append(nil)}))
			}
		}
	}
	for i := range 3000 {
		now = now.Add(time.Second)
		var list []Candidate
		for j := range MaxCandidates {
			list = append(list, Candidate{Mapped, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, byte(j), byte(i >> 8), byte(i)}), 53)})
		}
		answer(m.Step(now, Received{Path{}, Candidates{Boot: 1, Rev: uint32(i), Punch: true, List: list}.Append(nil)}))
		answer(m.Step(now, Received{Path{list[0].Addr}, Ack{1}.Append(nil)}))
		answer(m.Step(now, Tick{}))
		if len(m.direct) > maxAddresses+1 {
			t.Fatalf("%d addresses are kept", len(m.direct))
		}
	}
	if m.Report().Path.Relay() {
		t.Error("none of them was believed in; the test proves nothing")
	}
}

// A peer that cannot receive a probe cannot prove its path.
func TestGuessedReplyProvesNothing(t *testing.T) {
	m := machineWithoutPeer(Config{})
	now := time.Unix(1e9, 0)
	victim := netip.MustParseAddrPort("198.51.100.9:7000")
	out := m.Step(now, Received{Path{}, Candidates{Boot: 1, Rev: 1, Punch: true, List: []Candidate{{Mapped, victim}}}.Append(nil)})
	var token uint64
	for _, s := range out.Send {
		if msg, _ := Parse(s.Body); s.Path.Addr == victim {
			token = msg.(Probe).Token
		}
	}
	if token == 0 {
		t.Fatal("not probed")
	}
	for i := range uint64(1000) {
		m.Step(now, Received{Path{victim}, Reply{Token: token + 1 + i}.Append(nil)})
	}
	m.Step(now, Received{Path{}, Reply{Token: token}.Append(nil)}) // the right token on the wrong path
	if r := m.Report(); !r.Path.Relay() {
		t.Fatalf("proved by guessing: %+v", r)
	}
	m.Step(now, Received{Path{victim}, Reply{Token: token}.Append(nil)})
	if r := m.Report(); r.Path.Addr != victim {
		t.Fatalf("not proved by the token: %+v", r)
	}
}

func TestPrivateAddressesStayHidden(t *testing.T) {
	for _, hide := range []bool{false, true} {
		m := machineWithoutPeer(Config{Hide: hide})
		var said []netip.AddrPort
		for _, c := range m.ownCandidates() {
			said = append(said, c.Addr)
		}
		if slices.Contains(said, netip.MustParseAddrPort("192.168.1.2:7100")) == hide {
			t.Errorf("hide %v: %v", hide, said)
		}
	}
}

func TestSameLinkComesFirst(t *testing.T) {
	m := machineWithoutPeer(Config{})
	now := time.Unix(1e9, 0)
	near, far := netip.MustParseAddrPort("192.168.1.9:7000"), netip.MustParseAddrPort("198.51.100.9:7000")
	sent := map[netip.AddrPort]uint64{}
	out := m.Step(now, Received{Path{}, Candidates{Boot: 1, Rev: 1, Punch: true, List: []Candidate{{Mapped, far}, {Own, near}}}.Append(nil)})
	collect := func(out Output) {
		for _, s := range out.Send {
			if p, ok := first(Parse(s.Body)).(Probe); ok && sent[s.Path.Addr] == 0 {
				sent[s.Path.Addr] = p.Token
			}
		}
	}
	collect(out)
	for range 5 {
		now = now.Add(20 * time.Millisecond)
		collect(m.Step(now, Tick{}))
	}
	m.Step(now, Received{Path{far}, Reply{Token: sent[far]}.Append(nil)})
	if m.Report().Path.Addr != far {
		t.Fatalf("the report is %+v, want the path to the far address", m.Report())
	}
	m.Step(now, Received{Path{near}, Reply{Token: sent[near]}.Append(nil)})
	if m.Report().Path.Addr != near {
		t.Fatalf("the report is %+v, want the path to the near address", m.Report())
	}
}

func first[T any](v T, _ error) T { return v }

// Inputs come in any order. Nothing panics or loops, and what the machine sends is bounded.
func TestRandomInputsAreHarmless(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, seed, kind(rng.IntN(int(kinds))), kind(rng.IntN(int(kinds))))
		w.loss = rng.Float64() / 2
		w.begin()
		x, y := w.hosts[0], w.hosts[1]
		for range 60 {
			w.run(time.Duration(rng.IntN(3000)) * time.Millisecond)
			h := w.hosts[rng.IntN(2)]
			switch rng.IntN(10) {
			case 0:
				if h.sending = true; h.active {
					break
				}
				w.talk(h, time.Duration(20+rng.IntN(400))*time.Millisecond)
			case 1:
				h.sending = false
			case 2:
				h.restart(rng.Uint64())
				w.step(h, Peer{Relay: rng.IntN(2) == 0})
				w.bind(h)
				w.step(h, Established{})
			case 3:
				w.relay = !w.relay
			case 4:
				h.dead = !h.dead
			case 5:
				h.addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(rng.IntN(4)), byte(2 + rng.IntN(8))}), 7100)
				w.bind(h)
			case 6:
				w.step(h, Peer{Relay: rng.IntN(3) > 0, Endpoints: []netip.AddrPort{h.peer.addr}})
			case 7:
				garbage := make([]byte, rng.IntN(40))
				for i := range garbage {
					garbage[i] = byte(rng.IntN(256))
				}
				if len(garbage) > 0 {
					garbage[0] = byte(rng.IntN(6))
				}
				w.step(h, Received{Path{}, garbage})
			case 8:
				w.mtu = 1280 + rng.IntN(221)
			case 9:
				w.run(time.Duration(rng.IntN(8)) * time.Minute)
			}
		}
		if most := int(w.now.Sub(w.start).Seconds())*40 + 1000; x.sentCtl > most || y.sentCtl > most {
			t.Errorf("seed %d: %d and %d messages in %v", seed, x.sentCtl, y.sentCtl, w.now.Sub(w.start))
		}
	}
}

func TestRunsReplay(t *testing.T) {
	run := func() string {
		w, x, y := pair(t, 7, portRestricted, symmetric)
		w.loss = 0.1
		w.talk(x, 50*time.Millisecond)
		w.run(20 * time.Second)
		return fmt.Sprint(x.sentCtl, y.sentCtl, x.got, y.got, x.m.Report(), y.m.Report())
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Probe{7}.Append(nil))
	f.Add(Reply{7, netip.MustParseAddrPort("192.0.2.1:9"), &api.Coordinate{Vec: []float64{0.5, -0.25}, Error: 1, Height: 0.125}}.Append(nil))
	f.Add(Ack{7}.Append(nil))
	f.Add(Candidates{Boot: 1, Rev: 2, NAT: Hard, Punch: true, List: []Candidate{{Own, netip.MustParseAddrPort("[2001:db8::1]:9")}}}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(msg.Append(nil))
		if err != nil || !bytes.Equal(again.Append(nil), msg.Append(nil)) {
			t.Errorf("%+v became %+v, %v", msg, again, err)
		}
		if len(msg.Append(nil)) > len(b) {
			t.Errorf("%d bytes became %d", len(b), len(msg.Append(nil)))
		}
		machineWithoutPeer(Config{}).Step(time.Unix(1e9, 0), Received{Path{}, b})
	})
}

func TestReplyIsNoLongerThanProbe(t *testing.T) {
	if p, r := len(Probe{1}.Append(nil)), len(Reply{1, netip.MustParseAddrPort("192.0.2.1:9"), &api.Coordinate{Vec: make([]float64, maxDimensions)}}.Append(nil)); r > p {
		t.Errorf("%d bytes are answered with %d", p, r)
	}
}

// A Reply carries the coordinate in single precision. Invalid bytes are no coordinate.
func TestRepliesCarryTheCoordinate(t *testing.T) {
	c := api.Coordinate{Vec: []float64{0.125, -0.25, 0, 0, 0, 0, 0, 1}, Error: 0.5, Height: 0.0625}
	b := Reply{Token: 1, Coord: &c}.Append(nil)
	if m, err := Parse(b); err != nil || !reflect.DeepEqual(m.(Reply).Coord, &c) {
		t.Errorf("Parse returned %+v (%v), want the coordinate", m, err)
	}
	for n := len(b) - coordLen; n < len(b); n++ {
		if m, err := Parse(b[:n]); err != nil || m.(Reply).Coord != nil {
			t.Errorf("of %d bytes: %+v, %v", n, m, err)
		}
	}
	if m, err := Parse(append(Reply{Token: 1}.Append(nil), make([]byte, 100)...)); err != nil || m.(Reply).Coord != nil {
		t.Errorf("padding is read as %+v, %v", m, err)
	}
}

// A peer that is measured now and then, without traffic, keeps its path, at the cost of the measurements.
func TestMeasuringKeepsThePath(t *testing.T) {
	w, x, y := pair(t, 1, none, portRestricted)
	w.settle(x, y)
	x.sending, y.sending = false, false
	w.run(10 * time.Minute)
	if r := x.m.Report(); !r.Path.Relay() {
		t.Fatalf("it rests by %s", r.Path)
	}
	w.step(x, Measure{})
	w.run(time.Minute)
	before, samples := x.sentCtl, x.m.Report().Samples
	for range 60 {
		w.step(x, Measure{})
		w.run(30 * time.Second)
	}
	r := x.m.Report()
	if r.Path.Relay() || r.Silent {
		t.Errorf("after half an hour: %+v", r)
	}
	if n := r.Samples - samples; n < 55 || n > 200 {
		t.Errorf("%d round trips of 60 that were asked for", n)
	}
	if n := x.sentCtl - before; n > 400 {
		t.Errorf("%d messages for 60 round trips", n)
	}
	if most := 4 * w.delay; r.Sample <= 0 || r.Sample > most {
		t.Errorf("%s, and at most %s", r.Sample, most)
	}
}
