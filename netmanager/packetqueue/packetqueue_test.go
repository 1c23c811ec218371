package packetqueue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	epoch  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ip     = netip.MustParseAddr
	ranges = wire.DefaultNetRanges()
	client = ip("10.16.0.2")
	web    = ip("10.30.0.1")
)

// wire is a device that the test reads from and writes to.
type fakeWire struct {
	in     chan []byte
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	out    [][]byte
}

func newWire() *fakeWire { return &fakeWire{in: make(chan []byte), closed: make(chan struct{})} }

func (w *fakeWire) Read(b []byte, _ func()) (int, error) {
	select {
	case p := <-w.in:
		clear(b[:offload.VnetLen])
		return offload.VnetLen + copy(b[offload.VnetLen:], p), nil
	case <-w.closed:
		return 0, net.ErrClosed
	}
}

func (w *fakeWire) Write(parts [][]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, bytes.Clone(bytes.Join(parts[1:], nil)))
	return nil
}

func (w *fakeWire) Close() error { w.once.Do(func() { close(w.closed) }); return nil }

func (w *fakeWire) sent() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.out
	w.out = nil
	return out
}

// udp returns a packet with a payload.
func udp(src, dst netip.Addr, payload string) []byte {
	if src.Is4() {
		b := make([]byte, 28+len(payload))
		b[0], b[8], b[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		copy(b[28:], payload)
		return b
	}
	b := make([]byte, 48+len(payload))
	b[0], b[6], b[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	copy(b[48:], payload)
	return b
}

type miss struct{ local, remote netip.Addr }

func newQueue(dev Device) (*Queue, *[]miss) {
	var misses []miss
	return New(dev, Config{
		Local: func(a netip.Addr) bool { return a.As4()[1] == 16 && a.As4()[2] == 0 }, To4: ranges.To4,
		Miss: func(l, r netip.Addr) { misses = append(misses, miss{l, r}) },
	}), &misses
}

func framed(p []byte) []byte { return append(make([]byte, offload.VnetLen), p...) }

func TestReleasedPacketsAreUnchanged(t *testing.T) {
	dev := newWire()
	h, misses := newQueue(dev)
	a, b := udp(client, web, "one"), udp(ranges.To6(client), ranges.To6(web), "two")
	from := udp(ip("10.16.4.9"), client, "three")
	for _, p := range [][]byte{a, b, from} {
		h.take(epoch, framed(p))
	}
	if want := []miss{{client, web}, {client, ip("10.16.4.9")}}; len(*misses) != 2 || (*misses)[0] != want[0] || (*misses)[1] != want[1] {
		t.Fatalf("misses %v, want %v", *misses, want)
	}
	h.Release(web)
	h.Release(web)
	if out := dev.sent(); len(out) != 2 || !bytes.Equal(out[0], a) || !bytes.Equal(out[1], b) {
		t.Fatalf("released %x, want the two packets to %s unchanged", out, web)
	}
	h.Release(ip("10.16.4.9"))
	if out := dev.sent(); len(out) != 1 || !bytes.Equal(out[0], from) {
		t.Fatalf("released %x, want the packet from 10.16.4.9 unchanged", out)
	}
	if n, _ := h.Stats(); n != 0 {
		t.Fatalf("%d packets wait after their release, want 0", n)
	}
}

func TestARefusalIsSentOnlyToTheLocalSender(t *testing.T) {
	dev := newWire()
	h, _ := newQueue(dev)
	other := ip("10.16.0.3")
	h.take(epoch, framed(udp(client, web, "x")))
	h.take(epoch, framed(udp(ranges.To6(client), ranges.To6(web), "x")))
	h.take(epoch, framed(udp(other, web, "y")))
	h.Refuse(client, web, true)
	out := dev.sent()
	if len(out) != 2 {
		t.Fatalf("refusal wrote %x, want two ICMP errors", out)
	}
	p, ok := parse(out[0])
	if !ok || p.src != web || p.dst != client || p.proto != protoICMP || out[0][20] != 3 || out[0][21] != 13 ||
		checksum(out[0][:20], 0) != 0 || checksum(out[0][20:], 0) != 0 || !bytes.Equal(out[0][28:], udp(client, web, "x")) {
		t.Fatalf("ICMP error %x, want prohibited from %s to %s with the packet", out[0], web, client)
	}
	p, ok = parse(out[1])
	if !ok || p.src != ranges.To6(web) || p.dst != ranges.To6(client) || p.proto != protoICMPv6 || out[1][40] != 1 || out[1][41] != 1 ||
		checksum(out[1][40:], sum16(out[1][8:40], uint32(len(out[1])-40)+protoICMPv6)) != 0 {
		t.Fatalf("ICMPv6 error %x, want prohibited between the IPv6 addresses", out[1])
	}
	if n, _ := h.Stats(); n != 1 {
		t.Fatalf("%d packets wait after a refusal to one endpoint, want 1 of the other", n)
	}
	h.Refuse(netip.Addr{}, web, false)
	if out := dev.sent(); len(out) != 1 || out[0][21] != 1 {
		t.Fatalf("refusal to all wrote %x, want one host unreachable", out)
	}
	h.take(epoch, framed(udp(ip("10.16.4.9"), client, "from outside")))
	h.Refuse(client, ip("10.16.4.9"), false)
	if out := dev.sent(); len(out) != 0 {
		t.Fatalf("refusal wrote %x for a remote sender, want nothing", out)
	}
}

func TestUnanswerablePacketsGetNoICMPError(t *testing.T) {
	later, answer := udp(client, web, "x"), udp(client, web, "\x00")
	later[7] = 1 // fragment offset
	answer[9], answer[20] = protoICMP, 3
	echo := bytes.Clone(answer)
	echo[20] = 8
	error6 := udp(ranges.To6(client), ranges.To6(web), "x")
	error6[6], error6[40] = protoICMPv6, 1
	// behind puts a packet's content behind headers, each of the kind and length (in bytes).
	behind := func(b []byte, proto byte, headers ...[2]byte) []byte {
		b, all := bytes.Clone(b), []byte(nil)
		b[6] = proto
		for _, h := range slices.Backward(headers) {
			x := make([]byte, h[1])
			x[0], b[6] = b[6], h[0]
			switch h[0] {
			case authentication:
				x[1] = h[1]/4 - 2
			case fragment6:
			default:
				x[1] = h[1]/8 - 1
			}
			all = append(x, all...)
		}
		b = slices.Insert(b, 40, all...)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
		return b
	}
	laterBehind := behind(udp(ranges.To6(client), ranges.To6(web), "\x80"), protoICMPv6, [2]byte{60, 16}, [2]byte{fragment6, 8})
	laterBehind[40+16+2] = 1
	cutOff := behind(udp(ranges.To6(client), ranges.To6(web), ""), 17, [2]byte{0, 8})
	cutOff[41] = 9
	for name, c := range map[string]struct {
		b  []byte
		ok bool
	}{
		"datagram": {udp(client, web, "x"), true}, "later fragment": {later, false}, "ICMP error": {answer, false}, "echo": {echo, true},
		"ICMPv6 error": {error6, false}, "ICMPv6 error behind options": {behind(error6, protoICMPv6, [2]byte{0, 8}), false},
		"ICMPv6 error behind all there is": {behind(error6, protoICMPv6, [2]byte{0, 16}, [2]byte{60, 8}, [2]byte{43, 24}, [2]byte{fragment6, 8}, [2]byte{authentication, 12}), false},
		"datagram behind options":          {behind(error6, 17, [2]byte{0, 16}, [2]byte{60, 8}), true},
		"later fragment behind options":    {laterBehind, false}, "headers without an end": {cutOff, false}, "to a group": {udp(client, ip("224.0.0.1"), "x"), false},
	} {
		p, ok := parse(c.b)
		if !ok || p.refusable(c.b) != c.ok {
			t.Errorf("%s: parsed %v, refusable %v, want true, %v", name, ok, !c.ok, c.ok)
		}
	}
	dev := newWire()
	h, _ := newQueue(dev)
	n := 0
	for i := range byte(200) {
		to := netip.AddrFrom4([4]byte{10, 30, 1, i})
		h.take(time.Now(), framed(udp(client, to, "x")))
		h.Refuse(client, to, false)
		n += len(dev.sent())
	}
	if n < errorBurst || n > errorBurst+errorRate*10 {
		t.Fatalf("%d ICMP errors at once to one endpoint, want %d and few more", n, errorBurst)
	}
}

func TestPacketsExpire(t *testing.T) {
	k := newStore()
	k.add(epoch, client, web, make([]byte, 100))
	k.add(epoch.Add(600*time.Millisecond), client, web, make([]byte, 50))
	k.expire(epoch.Add(maxWait))
	if k.count != 1 || k.bytes != 50 || k.locals[client] != (load{1, 50}) {
		t.Fatalf("store after the first packet expired: %+v, want one packet of 50 bytes", k)
	}
	k.expire(k.next())
	if k.count+k.bytes+len(k.held)+len(k.locals)+len(k.pairs)+len(k.reported)+len(k.queue) != 0 || !k.next().IsZero() {
		t.Fatalf("store after all packets expired: %+v, want it empty", k)
	}
}

func TestAFloodIsBoundedPerEndpoint(t *testing.T) {
	k := newStore()
	asks := 0
	now := epoch
	frame := make([]byte, 1500)
	for n := range 200000 {
		now = now.Add(5 * time.Microsecond)
		if _, ask := k.add(now, client, netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}), frame); ask {
			asks++
		}
	}
	if k.count > packetBound.Share[0] || k.bytes > maxBytes || len(k.held) > packetBound.Share[0] || len(k.reported) > 2*packetBound.Total || cap(k.queue) > 8*packetBound.Total {
		t.Fatalf("flood of one endpoint: %d packets, %d bytes, %d remotes, %d reported, queue of %d, want them bounded", k.count, k.bytes, len(k.held), len(k.reported), cap(k.queue))
	}
	if asks > 4*packetBound.Share[0] {
		t.Fatalf("%d misses of one endpoint reported in a second, want at most four for each packet that waits", asks)
	}
	for n := range 20 {
		kept, ask := k.add(now, ip("10.16.0.3"), ip("10.16.9.9"), frame)
		if kept != (n < maxPerRemote) || ask != (n == 0) {
			t.Fatalf("packet %d of another endpoint: kept %v, reported %v", n, kept, ask)
		}
	}
	for n := range 100 {
		k.add(now, netip.AddrFrom4([4]byte{10, 16, 1, byte(n)}), netip.AddrFrom4([4]byte{10, 30, 77, byte(n)}), make([]byte, 65000))
	}
	if k.count > packetBound.Total || k.bytes > maxBytes {
		t.Fatalf("%d packets with %d bytes wait, want at most %d with %d", k.count, k.bytes, packetBound.Total, maxBytes)
	}
}

func TestRunEndsWithoutWaitingPackets(t *testing.T) {
	dev := newWire()
	told := make(chan miss, 1)
	h := New(dev, Config{Local: func(a netip.Addr) bool { return a == client }, To4: ranges.To4, Miss: func(l, r netip.Addr) { told <- miss{l, r} }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	for _, junk := range [][]byte{{}, {0x45}, make([]byte, 60), udp(ip("192.0.2.1"), ip("192.0.2.2"), "none of ours")} {
		dev.in <- junk
	}
	dev.in <- udp(client, web, "x")
	if m := <-told; m != (miss{client, web}) {
		t.Fatalf("miss %v, want of %s to %s", m, client, web)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it is dropped after maxWait
		n, dropped := h.Stats()
		if n == 0 && dropped >= 4 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after a minute %d packets wait and %d are dropped, want 0 and at least 4", n, dropped)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("Run = %v after ctx ended, want nil", err)
	}
	dev = newWire()
	h, _ = newQueue(dev)
	dev.Close()
	if err := h.Run(t.Context()); err == nil {
		t.Fatal("Run = nil with a closed device, want an error")
	}
}

// broken is a device that repeatedly fails n reads in a row and then gives a packet.
type broken struct {
	*fakeWire
	n, failed, given int
}

func (d *broken) Read(b []byte, _ func()) (int, error) {
	if d.failed < d.n {
		d.failed++
		return 0, unix.EFAULT
	}
	d.failed = 0
	d.given++
	return offload.VnetLen + copy(b[offload.VnetLen:], udp(client, web, "x")), nil
}

// A device that was set down or removed needs a restart of the netmanager.
func TestRunEndsWithABrokenDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newQueue(&broken{fakeWire: newWire(), n: maxFailedReads})
		if err := h.Run(t.Context()); !errors.Is(err, unix.EFAULT) {
			t.Errorf("Run with a device that always fails: %v, want EFAULT", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		now := &broken{fakeWire: newWire(), n: maxFailedReads - 1}
		h, _ = newQueue(now)
		if err := h.Run(ctx); err != nil || now.given < 50 {
			t.Errorf("a device that sometimes fails gave %d packets: %v, want at least 50 and nil", now.given, err)
		}
	})
}

// FuzzPackets checks that no malformed packet is read beyond its end, and that an answer is a
// valid packet to the sender.
func FuzzPackets(f *testing.F) {
	f.Add(udp(client, web, "x"))
	f.Add(udp(ranges.To6(client), ranges.To6(web), "x"))
	f.Add([]byte{0x4f, 0, 0, 20})
	f.Add(make([]byte, 48))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > offload.MaxPacket {
			return
		}
		dev := newWire()
		h, _ := newQueue(dev)
		h.take(epoch, framed(b))
		p, ok := parse(b)
		if !ok {
			if n, _ := h.Stats(); n != 0 {
				t.Fatal("a malformed packet waits, want it dropped")
			}
			return
		}
		if !p.refusable(b) {
			return
		}
		e := unreachable(p, b, true)
		q, ok := parse(e)
		if !ok || q.src != p.dst || q.dst != p.src || q.refusable(e) || len(e) > offload.MaxError6 {
			t.Fatalf("answer to %x is %x, want an ICMP error to its sender that is not refusable", b, e)
		}
	})
}

func sum16(b []byte, sum uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// checksum returns the Internet checksum (RFC 1071) of b, added to sum.
func checksum(b []byte, sum uint32) uint16 {
	sum = sum16(b, sum)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
