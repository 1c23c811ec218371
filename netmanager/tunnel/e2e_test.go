package tunnel

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// noise returns n pseudo-random bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// serve accepts connections and answers each with the SHA-256 of its data.
func (h *host) serve(addr string) net.Listener {
	l := h.listen("tcp", addr)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s := sha256.New()
				if _, err := io.Copy(s, c); err == nil {
					c.Write(s.Sum(nil))
				}
			}()
		}
	}()
	return l
}

// upload sends b to a server and checks the returned hash.
func (h *host) upload(to net.Addr, b []byte) error {
	c := h.dial("tcp", to.String())
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := c.Write(b); err != nil {
		return err
	}
	c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if want := sha256.Sum256(b); !bytes.Equal(got, want[:]) {
		return fmt.Errorf("upload arrived with hash %x, want the sent one's", got)
	}
	return nil
}

func TestStreamsArriveWhole(t *testing.T) {
	a, b := pair(t)
	var wg sync.WaitGroup
	for _, c := range []struct {
		from, to *host
		at       netip.Addr
	}{{a, b, b.addr()}, {b, a, a.addr()}, {a, b, b.six()}, {b, a, a.six()}} {
		l := c.to.serve(netip.AddrPortFrom(c.at, 0).String())
		for i := range 3 {
			wg.Go(func() {
				if err := c.from.upload(l.Addr(), noise(5_000_000+i)); err != nil {
					t.Errorf("upload to %s: %v", c.at, err)
				}
			})
		}
	}
	wg.Wait()
	for _, h := range []*host{a, b} {
		s := h.Stats()[0]
		if s.Drops != (Drops{}) || s.Loss > 0.01 || !s.Session {
			t.Errorf("statistics of the peer %+v, want a session without drops and loss", s)
		}
		if d := h.Engine.Drops(); d[Malformed]+d[Unknown]+d[WriteFailed]+d[Denied] > 0 {
			t.Errorf("drops without a peer %v, want none malformed, unknown, denied or refused by the device", d)
		}
	}
}

func TestDatagramsOfEverySizeArrive(t *testing.T) {
	a, b := pair(t)
	for _, v6 := range []bool{false, true} {
		at := b.addr()
		if v6 {
			at = b.six()
		}
		a.exec("ping", "-c1", "-w20", at.String()) // the kernel needs a moment before it uses a new IPv6 address
		in := b.packets(netip.AddrPortFrom(at, 0).String())
		out := a.dial("udp", in.LocalAddr().String())
		for _, n := range []int{1, 100, 1352, 1372, 1373, 1472, 4000, 20000, 60000} { // from 1373 on in fragments
			if err := arrives(in, out, noise(n)); err != nil {
				t.Fatalf("datagram of %d bytes to %s: %v", n, at, err)
			}
		}
	}
}

// arrives sends a datagram, and returns an error unless it arrives unchanged.
func arrives(in, out net.Conn, want []byte) error {
	if _, err := out.Write(want); err != nil {
		return err
	}
	_ = in.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 1<<16)
	got, err := in.Read(buf)
	if err == nil && !bytes.Equal(buf[:got], want) {
		err = fmt.Errorf("received %d bytes that differ from the sent ones", got)
	}
	return err
}

func TestRunsOfDatagramsKeepTheirBounds(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String()) // packets before the session are bounded
	in := b.packets(netip.AddrPortFrom(b.addr(), 0).String())
	in.SetReadBuffer(8 << 20)
	out := a.dial("udp", in.LocalAddr().String()).(*net.UDPConn)
	raw, _ := out.SyscallConn()
	raw.Control(func(fd uintptr) { segment(int(fd), 1000) })
	var want [][]byte
	for i := range 50 {
		run := noise(1000*(i%20+1) + i)
		if _, err := out.Write(run); err != nil {
			t.Fatal(err)
		}
		for len(run) > 0 {
			n := min(1000, len(run))
			want, run = append(want, run[:n]), run[n:]
		}
	}
	buf := make([]byte, 1<<16)
	for i, w := range want {
		in.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, err := in.Read(buf)
		if err != nil || !bytes.Equal(buf[:n], w) {
			t.Fatalf("datagram %d of %d: %d bytes, want %d: %v", i, len(want), n, len(w), err)
		}
	}
}

func TestPingPasses(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c2", "-i0.1", "-W10", b.addr().String())
	a.exec("ping", "-c2", "-i0.1", "-W10", b.six().String())
	a.exec("ping", "-c2", "-i0.1", "-W10", "-s", "5000", b.addr().String())
	until[Traffic](a)
	if e := until[Established](a); e.RTT == 0 || e.From.Kind != api.PathDirect {
		t.Errorf("event %+v, want a direct path and the handshake's round trip", e)
	}
}

func TestLongPacketsAreAnsweredWithICMP(t *testing.T) {
	a, b := pair(t)
	a.SetMTU(b.Public(), 1280)
	for _, at := range []netip.Addr{b.addr(), b.six()} {
		l := b.serve(netip.AddrPortFrom(at, 0).String())
		if err := a.upload(l.Addr(), noise(3_000_000)); err != nil {
			t.Errorf("upload to %s: %v", at, err)
		}
	}
	if s := a.Stats()[0]; s.Drops[TooLong] == 0 || s.MTU != 1280 {
		t.Errorf("statistics %+v, want drops of too long packets and MTU 1280", s)
	}
}

// The engine detects the MTU of this host's devices.
func TestASmallMTUIsDetected(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	for _, h := range []*host{a, b} {
		run(t, "ip", "-n", h.ns, "link", "set", "dev", "eth0", "mtu", "1300")
	}
	for _, at := range []netip.Addr{b.addr(), b.six()} { // IPv6 packets are up to 1280 bytes on any path
		l := b.serve(netip.AddrPortFrom(at, 0).String())
		if err := a.upload(l.Addr(), noise(3_000_000)); err != nil {
			t.Errorf("upload to %s: %v", at, err)
		}
		in := b.packets(netip.AddrPortFrom(at, 0).String())
		out := a.dial("udp", in.LocalAddr().String())
		for _, n := range []int{1172, 1173, 1200, 1232, 1233, 4000} { // QUIC needs 1200
			if err := arrives(in, out, noise(n)); err != nil {
				t.Errorf("datagram of %d bytes to %s: %v", n, at, err)
			}
		}
	}
	if s := a.Stats()[0]; s.MTU != 1220 {
		t.Errorf("MTU of the peer %d, want 1220", s.MTU)
	}
}

func TestIPv6CarriesTheTunnel(t *testing.T) {
	hs := newHosts(t, 2)
	for i, h := range hs {
		h.under = netip.MustParseAddr("2001:db8::1")
		if i == 1 {
			h.under = h.under.Next()
		}
		run(t, "ip", "-n", h.ns, "addr", "add", h.under.String()+"/64", "dev", "eth0", "nodad")
		h.start(Hooks{})
	}
	a, b := hs[0], hs[1]
	a.SetPeer(b.record())
	b.SetPeer(a.record())
	l := b.serve(netip.AddrPortFrom(b.six(), 0).String())
	if err := a.upload(l.Addr(), noise(3_000_000)); err != nil {
		t.Errorf("upload over IPv6: %v", err)
	}
	if s := b.Stats()[0]; s.From.Addr.Addr() != a.under {
		t.Errorf("last message came from %v, want from %v", s.From, a.under)
	}
}

func TestADroppedPeerIsRemoved(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	before := b.Total()
	if s := b.Stats()[0]; before.SentBytes == 0 || before.SentBytes != s.SentBytes || before.ReceivedBytes != s.ReceivedBytes {
		t.Errorf("Total() = %+v, want the counts of the only peer %+v", before, s)
	}
	b.DropPeer(a.Public())
	if n := b.Total(); n != before { // a counter never decreases
		t.Errorf("Total() after the peer was dropped = %+v, want %+v as before", n, before)
	}
	out := a.dial("udp", netip.AddrPortFrom(b.addr(), 9).String())
	out.Write([]byte("still there?"))
	eventually(t, "its messages mean nothing", func() bool { return b.Engine.Drops()[Unknown] > 0 })
	until[UnknownPeer](b) // the restarted engine starts a handshake, and is unknown
	if n := len(b.Stats()); n != 0 {
		t.Errorf("%d peers after the only one was dropped, want 0", n)
	}
	b.SetPeer(a.record())
	a.exec("ping", "-c1", "-w20", b.addr().String())
	if n := b.Total(); n.SentBytes <= before.SentBytes || n.ReceivedBytes <= before.ReceivedBytes {
		t.Errorf("Total() = %+v after more traffic, want more than %+v", n, before)
	}
}

func TestAnUnknownPeerIsReportedAndThenAnswered(t *testing.T) {
	hs := newHosts(t, 2)
	a, b := hs[0], hs[1]
	a.start(Hooks{})
	b.start(Hooks{Event: func(e Event) {
		if u, ok := e.(UnknownPeer); ok && u.Key == a.Public() && u.Claim == a.subnet.Addr() {
			b.SetPeer(a.record())
		}
	}})
	a.SetPeer(b.record())
	began := time.Now()
	a.exec("ping", "-c1", "-w20", b.addr().String())
	t.Logf("first ping after %v", time.Since(began))
	until[UnknownPeer](b)
}

func TestRekeyingLosesNothing(t *testing.T) {
	a, b := pair(t)
	l := b.serve(netip.AddrPortFrom(b.addr(), 0).String())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if err := a.upload(l.Addr(), noise(5_000_000)); err != nil {
				t.Errorf("upload during rekeying: %v", err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	until[Established](a)
	for range 8 {
		time.Sleep(200 * time.Millisecond) // much shorter than in production
		a.mu.Lock()
		a.startHandshake(a.peers[b.Public()])
		a.mu.Unlock()
		until[Established](a)
	}
	close(stop)
	<-done
	s := b.Stats()[0]
	unknown := a.Engine.Drops()[Unknown] + b.Engine.Drops()[Unknown]
	if s.Drops[Denied]+s.Drops[Replayed]+unknown > 0 {
		t.Errorf("drops %v and %d messages of unknown sessions during rekeying, want none denied, replayed or unknown", s.Drops, unknown)
	}
}

// A restarted engine has lost its keys. Its hint makes the peer start a handshake at once.
func TestAfterARestartThePeerReconnectsAtOnce(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	until[Established](a)
	b.stop()
	b.start(Hooks{})
	b.SetPeer(a.record())
	began := time.Now()
	out := a.dial("udp", netip.AddrPortFrom(b.addr(), 9).String())
	out.Write([]byte("still there?")) // one packet is enough
	until[Established](a)
	t.Logf("healed within %v", time.Since(began))
	a.exec("ping", "-c1", "-w20", b.addr().String())
	if s := a.Stats()[0]; s.Silent {
		t.Error("the restarted peer counts as silent, want its hint to have started the handshake")
	}
}

// A node drops a peer when no subscription leads to it any more, and may need it again a moment later. The
// peer still has its session: the first packet that it sends must arrive, although nobody repeats it.
func TestTheFirstPacketToAPeerThatLostTheSessionArrives(t *testing.T) {
	a, b := pair(t)
	in := b.packets(netip.AddrPortFrom(b.addr(), 0).String())
	out := a.dial("udp", in.LocalAddr().String())
	if err := arrives(in, out, []byte("before")); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // three reports of an unknown session within a second
		b.DropPeer(a.Public())
		b.SetPeer(a.record())
		p := a.peers[b.Public()]
		eventually(t, "a has heard nothing of b for a while", func() bool {
			return time.Since(epoch.Add(time.Duration(p.received.Load()))) > unprovenAfter
		})
		if err := arrives(in, out, fmt.Appendf(nil, "first packet, round %d", i)); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
}

// A change of the peer's address is reported. The engine follows it only after SetPath.
func TestRoaming(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	c := netip.MustParseAddr("192.0.2.77")
	run(t, "ip", "-n", a.ns, "addr", "add", c.String()+"/24", "dev", "eth0")
	run(t, "ip", "-n", a.ns, "addr", "del", a.under.String()+"/24", "dev", "eth0")
	run(t, "ip", "-n", a.ns, "addr", "replace", c.String()+"/24", "dev", "eth0")
	before := b.Stats()[0].Path
	if err := a.SendControl(b.Public(), *a.peers[b.Public()].path.Load(), []byte("here")); err != nil {
		t.Fatal(err)
	}
	m := until[Moved](b)
	if m.Peer != a.Public() || m.From.Addr.Addr() != c {
		t.Fatalf("event %+v, want the peer from %s", m, c)
	}
	if got := b.Stats()[0].Path; got != before {
		t.Fatalf("path %v after the peer moved, want %v until SetPath", got, before)
	}
	b.SetPath(a.Public(), m.From)
	a.exec("ping", "-c2", "-i0.1", "-W10", b.addr().String())
}

// Silence of the peer is reported while there is something to send.
func TestSilenceIsReported(t *testing.T) {
	a, b := pair(t)
	a.exec("ping", "-c1", "-w20", b.addr().String())
	run(t, "ip", "-n", b.ns, "link", "set", "eth0", "down")
	out := a.dial("udp", netip.AddrPortFrom(b.addr(), 9).String())
	began := time.Now()
	out.Write([]byte("anyone?"))
	until[Silent](a)
	if took := time.Since(began); took < silentAfter {
		t.Errorf("Silent after %v, want not before %v", took, silentAfter)
	}
	run(t, "ip", "-n", b.ns, "link", "set", "eth0", "up")
	until[Recovered](a)
}

func TestControlMessagesArriveOnTheirPath(t *testing.T) {
	hs := newHosts(t, 2)
	a, b := hs[0], hs[1]
	type got struct {
		peer    api.PeerKey
		from    Path
		payload string
	}
	came := make(chan got, 10)
	raw := make(chan string, 10)
	a.start(Hooks{Control: func(p api.PeerKey, from Path, payload []byte) { came <- got{p, from, string(payload)} }})
	b.start(Hooks{
		Control: func(p api.PeerKey, from Path, payload []byte) {
			b.SendControl(p, from, append([]byte("re: "), payload...))
		},
		Raw: func(from netip.AddrPort, d []byte) { raw <- from.String() + string(d) },
	})
	if err := a.SendControl(b.Public(), Path{}, []byte("x")); err == nil {
		t.Fatal("SendControl to an unknown peer = nil, want an error")
	}
	a.SetPeer(b.record())
	b.SetPeer(a.record())
	a.Connect(b.Public())
	until[Established](a)
	path := Path{Kind: api.PathDirect, Addr: b.record().Endpoints[0]}
	if err := a.SendControl(b.Public(), path, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	select {
	case g := <-came:
		if g != (got{b.Public(), path, "re: hello"}) {
			t.Fatalf("control message %+v, want the answer of the peer by %v", g, path)
		}
	case <-time.After(time.Minute):
		t.Fatal("no answer to a control message within a minute")
	}
	if err := a.SendRaw(path.Addr, []byte{RawType, 1, 2}); err != nil {
		t.Fatal(err)
	}
	if got, want := <-raw, a.record().Endpoints[0].String()+"\x20\x01\x02"; got != want {
		t.Fatalf("raw datagram %q, want %q", got, want)
	}
	if err := a.SendRaw(path.Addr, []byte{session.TypeTransport}); err == nil {
		t.Fatal("SendRaw with a type of the engine = nil, want an error")
	}
	// For MTU probes: a payload that the device cannot carry is an error.
	if err := a.SendControl(b.Public(), path, make([]byte, 1440)); err != nil {
		t.Errorf("SendControl of 1440 bytes: %v, want nil", err)
	}
	if err := a.SendControl(b.Public(), path, make([]byte, 1441)); err == nil {
		t.Error("SendControl of 1441 bytes = nil, want an error of the device")
	}
}
