package tunnel

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	crand "crypto/rand"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// memory returns the memory in use, in MiB.
func memory() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc+m.StackInuse) / (1 << 20)
}

// delivered returns the number of packets delivered to the device.
func (h *host) delivered() uint64 { return h.Stats()[0].ReceivedPackets }

// settle waits until the engine has processed all datagrams that the socket did not drop.
func settle(h *host, total func() uint64) {
	last, still := uint64(0), 0
	for still < 20 {
		if now := total(); now == last {
			still++
		} else {
			last, still = now, 0
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func sum(d Drops) (n uint64) {
	for _, v := range d {
		n += v
	}
	return n
}

func TestDatagramsOfStrangersAreIgnored(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	seen := b.delivered()
	target := netip.AddrPortFrom(b.under, b.Local().Port())
	c := a.packets("0.0.0.0:0")
	random := rand.New(rand.NewChaCha8([32]byte{1}))
	buf := make([]byte, 1500)
	send := func(d []byte) {
		if _, err := c.WriteToUDPAddrPort(d, target); err != nil {
			t.Fatal(err)
		}
	}
	var before float64
	const n = 100_000
	for i := range n {
		if i == n/10 {
			before = memory()
		}
		for j := range 8 {
			binary.NativeEndian.PutUint64(buf[j*8:], random.Uint64())
		}
		d := buf[:random.IntN(len(buf))]
		switch i % 5 {
		case 0:
			d = d[:0]
		case 1:
			d = d[:min(len(d), 1)]
		case 2:
			if len(d) > 4 {
				copy(d, []byte{byte(1 + i%6), 0, 0, 0}) // with a type of the engine
			}
		case 3:
			d = buf[:[]int{session.InitiationLen, session.ResponseLen, session.CookieLen, session.HeaderLen, 100}[i/5%5]]
			copy(d, []byte{byte(1 + i/5%5), 0, 0, 0})
		}
		send(d)
	}
	settle(b, func() uint64 { return sum(b.Engine.Drops()) })
	after := memory()
	if got := b.delivered(); got != seen {
		t.Errorf("%d packets of random datagrams were delivered, want 0", got-seen)
	}
	if after > before+2 {
		t.Errorf("memory grew from %.1f to %.1f MiB, want at most 2 more", before, after)
	}
	d := b.Engine.Drops()
	if sum(d) < n/4 {
		t.Errorf("drops %v, want at least %d", d, n/4)
	}
	t.Logf("%v; %.1f MiB", d, after)
	a.exec("ping", "-c1", "-w20", b.addr().String())
}

func TestReplayedPacketsAreDropped(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	s := a.peers[b.Public()].send.Load()
	target := netip.AddrPortFrom(b.under, b.Local().Port())
	c := a.packets("0.0.0.0:0")
	in := b.packets(netip.AddrPortFrom(b.addr(), 0).String())
	msg := s.Seal(nil, session.Data, udpPacket(a.addr(), b.addr(), in.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	seen := b.delivered()
	for range 100_000 {
		if _, err := c.WriteToUDPAddrPort(msg, target); err != nil {
			t.Fatal(err)
		}
	}
	settle(b, func() uint64 { return b.Stats()[0].Drops[Replayed] })
	st := b.Stats()[0]
	if got := b.delivered() - seen; got != 1 {
		t.Errorf("a replayed packet was delivered %d times, want once", got)
	}
	if st.Drops[Replayed] < 1000 {
		t.Errorf("drops %v, want at least 1000 replays", st.Drops)
	}
}

// udpPacket returns an inner packet.
func udpPacket(from, to netip.Addr, port uint16) []byte {
	p := make([]byte, 20+8+32)
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	f, g := from.As4(), to.As4()
	copy(p[12:], f[:])
	copy(p[16:], g[:])
	var s uint32
	for i := 0; i < 20; i += 2 {
		s += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(s>>16+s&0xffff))
	binary.BigEndian.PutUint16(p[20:], 9)
	binary.BigEndian.PutUint16(p[22:], port)
	binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20))
	return p
}

// An authenticated peer may send only from its own addresses, and only to this node's.
func TestAPeerCannotForgeAddresses(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	in := b.packets("0.0.0.0:0")
	port := in.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	s := a.peers[b.Public()].send.Load()
	conn := a.conn.NewSender()
	target := netip.AddrPortFrom(b.under, b.Local().Port())
	seen := b.delivered()
	other := netip.MustParseAddr("10.16.5.1")
	six := func(from, to netip.Addr) []byte {
		p := make([]byte, 48)
		p[0], p[5], p[6], p[7] = 0x60, 8, 17, 64
		f, g := from.As16(), to.As16()
		copy(p[8:], f[:])
		copy(p[24:], g[:])
		return p
	}
	r := wire.DefaultNetRanges()
	bad := [][]byte{
		udpPacket(other, b.addr(), port), udpPacket(b.addr(), b.addr(), port), udpPacket(a.addr(), other, port),
		udpPacket(a.addr(), b.under, port), udpPacket(netip.MustParseAddr("127.0.0.1"), b.addr(), port),
		six(r.To6(other), b.six()), six(a.six(), r.To6(other)), six(netip.MustParseAddr("fe80::1"), b.six()), six(netip.IPv6Unspecified(), b.six()),
		{0x45},
		bytes.Repeat([]byte{0xff}, 100),
		{0},
	}
	for _, p := range bad {
		for _, kind := range []session.Kind{session.Data, session.Partial} {
			msg := s.Seal(nil, kind, p)
			if err := conn.Send(target, msg, len(msg)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A packet with a partial checksum but no field for one; and an unknown kind.
	icmp := udpPacket(a.addr(), b.addr(), port)
	icmp[9] = 1
	for kind, p := range map[session.Kind][]byte{session.Partial: icmp, 9: icmp} {
		msg := s.Seal(nil, kind, p)
		conn.Send(target, msg, len(msg))
	}
	eventually(t, "all are dropped", func() bool {
		d := b.Stats()[0].Drops
		return d[Forged] == uint64(2*len(bad)) && d[Malformed] == 2
	})
	if got := b.delivered(); got != seen {
		t.Errorf("%d forged packets were delivered, want 0", got-seen)
	}
	// A correct packet passes.
	msg := s.Seal(nil, session.Data, udpPacket(a.addr(), b.addr(), port))
	conn.Send(target, msg, len(msg))
	eventually(t, "the true one is delivered", func() bool { return b.delivered() == seen+1 })
}

// A flood of initiations, each of which costs a Diffie-Hellman computation, takes no memory and is
// answered with cookies. Peers that return the cookie still connect.
func TestHandshakeFlood(t *testing.T) {
	hs := newHosts(t, 3)
	a, b, flooder := hs[0], hs[1], hs[2]
	for _, h := range hs {
		h.start(Hooks{})
	}
	target := netip.AddrPortFrom(b.under, b.Local().Port())
	// Created in advance, because that costs more than sending them.
	var flood [][]byte
	for i := range 200 {
		var k [32]byte
		crand.Read(k[:])
		id, _ := session.NewIdentity(k)
		_, msg, err := session.Initiate(crand.Reader, id, b.Public(), uint32(i+1), session.Hello{Stamp: 1})
		if err != nil {
			t.Fatal(err)
		}
		session.Sign(msg, b.Public(), [16]byte{})
		flood = append(flood, msg)
	}
	c := flooder.packets("0.0.0.0:0")
	ctx, cancel := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	stop := func() { cancel(); flooding.Wait() }
	t.Cleanup(stop)
	before := memory()
	flooding.Go(func() {
		for {
			for _, m := range flood {
				if ctx.Err() != nil {
					return
				}
				c.WriteToUDPAddrPort(m, target)
			}
		}
	})
	eventually(t, "cookies are asked for", func() bool { return b.Engine.Drops()[Flooded] > 5_000 })
	b.SetPeer(a.record())
	a.SetPeer(b.record())
	a.Connect(b.Public())
	until[Established](a)
	eventually(t, "the flood goes on", func() bool { return b.Engine.Drops()[Flooded] > 20_000 })
	stop()
	settle(b, func() uint64 { return b.Engine.Drops()[Flooded] })
	// Measured without the flood, which allocates while memory is read. 20,000
	// initiations that were kept would take more than 5 MiB.
	if after := memory(); after > before+2 {
		t.Errorf("memory grew from %.1f to %.1f MiB, want at most 2 more", before, after)
	}
	b.mu.Lock()
	held := len(b.Engine.strangers)
	b.mu.Unlock()
	if held > maxStrangers {
		t.Errorf("%d initiations of unknown peers are kept, want at most %d", held, maxStrangers)
	}
	b.SetPeer(a.record())
	a.exec("ping", "-c1", "-w20", b.addr().String())
}

// However many initiations wait, a source gets a cookie, and with it a turn.
func TestAFloodTakesNoTurnsFromPeersWithACookie(t *testing.T) {
	e, err := New(Config{Device: &fakeDevice{}, Key: [32]byte{1}, Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.conn.Close() })
	id, err := session.NewIdentity([32]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	_, msg, err := session.Initiate(crand.Reader, id, e.Public(), 7, session.Hello{Stamp: 1})
	if err != nil {
		t.Fatal(err)
	}
	session.Sign(msg, e.Public(), [16]byte{})
	take := func(last byte) {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, last}), 9)
		e.Receive(Path{Kind: api.PathDirect, Addr: from}, msg)
	}
	for range 10_000 {
		take(1)
	}
	cookies := len(e.cookies) // its slot has changed once, with the first secret
	if len(e.initiations) > longQueue || cookies > 2 {
		t.Fatalf("%d initiations of a flooder and %d cookies for it wait, want at most %d and 2", len(e.initiations), cookies, longQueue)
	}
	other := byte(2)
	for take(other); len(e.cookies) == cookies; take(other) { // it shares the flooder's slot
		other++
	}
	for range cookies {
		<-e.cookies
	}
	cookie, err := session.Cookie((<-e.cookies).msg, msg, e.Public())
	if err != nil {
		t.Fatal(err)
	}
	session.Sign(msg, e.Public(), cookie)
	for range 10_000 {
		take(1) // whose cookie it is not
	}
	had := len(e.initiations)
	if take(other); len(e.initiations) != had+1 || had > longQueue {
		t.Errorf("%d initiations wait after one with a cookie, %d before it, want one more", len(e.initiations), had)
	}
}

// A replayed initiation does not end a session.
func TestAReplayedInitiationIsIgnored(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	_, msg, err := session.Initiate(crand.Reader, a.id, b.Public(), 77, session.Hello{Stamp: 1})
	if err != nil {
		t.Fatal(err)
	}
	session.Sign(msg, b.Public(), [16]byte{})
	target := netip.AddrPortFrom(b.under, b.Local().Port())
	c := a.packets("0.0.0.0:0")
	for i := range 10 {
		c.WriteToUDPAddrPort(msg, target)
		eventually(t, "it is seen for what it is", func() bool { return b.Stats()[0].Drops[Replayed] == uint64(i+1) })
	}
	a.exec("ping", "-c1", "-w20", b.addr().String())
}

// FuzzReceive passes datagrams to the receiver. Nothing unauthenticated may reach the device.
func FuzzReceive(f *testing.F) {
	dev := &fakeDevice{}
	e, err := New(Config{Device: dev, Key: [32]byte{1}, Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		f.Fatal(err)
	}
	e.SetSelf(Lease{Ranges: wire.DefaultNetRanges(), Subnet: netip.MustParsePrefix("10.16.0.0/26")})
	k := &keeper{e: e}
	f.Add([]byte{4, 0, 0, 0}, uint16(3))
	f.Add(make([]byte, session.InitiationLen), uint16(200))
	f.Fuzz(func(t *testing.T, b []byte, each uint16) {
		if len(b) > 60000 {
			return
		}
		m := message(bytes.Clone(b), max(1, int(each)))
		e.rx.take(Path{Kind: api.PathRelayTLS}, m)
		k.receive(time.Now())
		k.tick(time.Now())
		k.out, k.releases = nil, nil
		if dev.written > 0 {
			t.Fatal("something reached the device")
		}
	})
}

// fakeDevice counts written packets.
type fakeDevice struct{ written int }

func (d *fakeDevice) Read([]byte, func()) (int, error) { return 0, net.ErrClosed }
func (d *fakeDevice) Write([][]byte) error             { d.written++; return nil }
func (d *fakeDevice) Joins() (tcp, udp bool)           { return true, true }
func (d *fakeDevice) Partial() bool                    { return true }
func (d *fakeDevice) Name() string                     { return "fake" }
func (d *fakeDevice) Close() error                     { return nil }

// connected returns two engines that have a session, with their devices.
func connected(t *testing.T) (ends [2]*Engine, devices [2]*fakeDevice) {
	t.Helper()
	subnets := []netip.Prefix{netip.MustParsePrefix("10.16.0.0/26"), netip.MustParsePrefix("10.16.1.0/26")}
	for i := range ends {
		devices[i] = &fakeDevice{}
		e, err := New(Config{Device: devices[i], Key: [32]byte{15: byte(i + 1)}, Listen: netip.MustParseAddrPort("127.0.0.1:0")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.conn.Close() })
		e.SetSelf(Lease{Ranges: wire.DefaultNetRanges(), Subnet: subnets[i]})
		ends[i] = e
	}
	for i, e := range ends {
		e.SetPeer(api.Peer{Key: ends[1-i].Public(), Subnets: subnets[1-i : 2-i], Endpoints: []netip.AddrPort{ends[1-i].Local()}})
	}
	x, y := ends[0], ends[1]
	try, msg, _ := session.Initiate(crand.Reader, x.id, y.Public(), 7, session.Hello{AES: true})
	offer, err := session.ReadInitiation(crand.Reader, y.id, msg)
	if err != nil {
		t.Fatal(err)
	}
	reply, theirs, _ := offer.Accept(9, session.Hello{AES: true})
	session.Sign(reply, x.Public(), [16]byte{})
	mine, _, err := try.Finish(reply)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []*session.Session{mine, theirs} {
		e := ends[i]
		s.Created = time.Now()
		p := e.peers[ends[1-i].Public()]
		k := &keys{Session: s, peer: p}
		k.confirmed.Store(true)
		e.mu.Lock()
		e.addKeys(k)
		e.establish(p, k, Path{Kind: api.PathDirect, Addr: ends[1-i].Local()}, 0)
		e.mu.Unlock()
	}
	return ends, devices
}

// leave makes a session valid for n further messages.
func leave(s *session.Session, n uint64) {
	sent := reflect.ValueOf(s).Elem().FieldByName("sent")
	(*atomic.Uint64)(sent.Addr().UnsafePointer()).Store(session.RejectMessages - n)
}

// A packet is sent when all of its fragments are sealed.
func TestPacketWithAnUnsealedFragmentIsDropped(t *testing.T) {
	ends, _ := connected(t)
	x, peer := ends[0], ends[1].Public()
	x.SetMTU(peer, minMTU)
	ranges := wire.DefaultNetRanges()
	packet := make([]byte, offload.LeastIPv6)
	packet[0], packet[6], packet[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
	copy(packet[8:], ranges.To6(netip.MustParseAddr("10.16.0.1")).AsSlice())
	copy(packet[24:], ranges.To6(netip.MustParseAddr("10.16.1.1")).AsSlice())
	frame := append(make([]byte, offload.VnetLen), packet...)
	tx := newTransmitter(x)
	tx.frame(frame, time.Now())
	if s := x.Stats()[0]; s.SentPackets != 1 || s.SentBytes != uint64(len(packet)) || s.Drops != (Drops{}) {
		t.Fatalf("statistics %+v with a fresh session, want one packet of %d bytes sent", s, len(packet))
	}
	leave(x.peers[peer].send.Load(), 1)
	tx.frame(frame, time.Now())
	if s := x.Stats()[0]; s.SentPackets != 1 || s.SentBytes != uint64(len(packet)) || s.Drops[NoAnswer] != 1 {
		t.Errorf("statistics %+v with a session for one more message, want no further packet sent and one dropped", s)
	}
}

// After a warm-up, the data path allocates nothing.
func TestDataPathAllocatesNothing(t *testing.T) {
	ends, devices := connected(t)
	x, y, b := ends[0], ends[1], devices[1]
	frame := append(make([]byte, offload.VnetLen), udpPacket(netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("10.16.1.1"), 9)...)
	tx := newTransmitter(x)
	in := y.conn.NewReceiver()
	round := func() {
		for range 10 {
			tx.frame(frame, time.Now())
		}
		tx.flush()
		for got := b.written; b.written < got+1; {
			n, err := in.Receive()
			if err != nil {
				t.Fatal(err)
			}
			y.rx.batch(in, n)
		}
	}
	for range 10 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n > 0.1 {
		t.Errorf("%.2f allocations for ten packets, want none", n)
	}
	if b.written == 0 || sum(y.Stats()[0].Drops) != 0 {
		t.Errorf("%d packets written, drops %v, want some and none", b.written, y.Stats()[0].Drops)
	}
}

// Packets to an unused address are reported at a bounded rate, and no others.
func TestPacketsToUnusedAddressesAreReported(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	nobody := b.addr().Next()
	out := a.dial("udp", netip.AddrPortFrom(nobody, 9).String())
	flood := func() {
		for range 200 {
			_, _ = out.Write([]byte("anybody?"))
		}
		a.exec("ping", "-c1", "-w20", b.addr().String())
	}
	strays := func() (n int) {
		for {
			select {
			case e := <-b.events:
				if s, ok := e.(Stray); ok {
					if n++; s != (Stray{a.Public(), nobody}) {
						t.Errorf("event %+v, want a stray of the peer to %s", s, nobody)
					}
				}
			default:
				return n
			}
		}
	}
	flood()
	if n := strays(); n > 0 {
		t.Errorf("%d Stray events before SetLocal, want 0", n)
	}
	b.SetLocal([]netip.Addr{b.addr()})
	began := time.Now()
	flood()
	if s := until[Stray](b); s != (Stray{a.Public(), nobody}) {
		t.Errorf("event %+v, want a stray of the peer to %s", s, nobody)
	}
	if n, most := strays(), int(time.Since(began)/strayEvery)+1; n > most {
		t.Errorf("%d Stray events, want at most %d", n, most)
	}
	b.SetLocal([]netip.Addr{b.addr(), nobody})
	time.Sleep(2 * strayEvery) // of those before
	strays()
	flood()
	if n := strays(); n > 0 {
		t.Errorf("%d Stray events for an address in use, want 0", n)
	}
}
