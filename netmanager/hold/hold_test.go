package hold

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	epoch  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ip     = netip.MustParseAddr
	ranges = api.DefaultNetRanges()
	client = ip("10.16.0.2")
	web    = ip("10.30.0.1")
)

// wire is a device of two channels.
type wire struct {
	in     chan []byte
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	out    [][]byte
}

func newWire() *wire { return &wire{in: make(chan []byte), closed: make(chan struct{})} }

func (w *wire) Read(b []byte, _ func()) (int, error) {
	select {
	case p := <-w.in:
		clear(b[:offload.VnetLen])
		return offload.VnetLen + copy(b[offload.VnetLen:], p), nil
	case <-w.closed:
		return 0, net.ErrClosed
	}
}

func (w *wire) Write(parts [][]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, bytes.Clone(bytes.Join(parts[1:], nil)))
	return nil
}

func (w *wire) Close() error { w.once.Do(func() { close(w.closed) }); return nil }

func (w *wire) sent() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.out
	w.out = nil
	return out
}

// udp is a packet with a payload.
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

func newHold(dev Device) (*Hold, *[]miss) {
	var misses []miss
	return New(dev, Config{
		Local: func(a netip.Addr) bool { return a.As4()[1] == 16 && a.As4()[2] == 0 }, Untwin: ranges.Untwin,
		Miss: func(l, r netip.Addr) { misses = append(misses, miss{l, r}) },
	}), &misses
}

func framed(p []byte) []byte { return append(make([]byte, offload.VnetLen), p...) }

func TestPacketsWaitAndGoOnAsTheyWere(t *testing.T) {
	dev := newWire()
	h, misses := newHold(dev)
	a, b := udp(client, web, "one"), udp(ranges.Twin(client), ranges.Twin(web), "two")
	from := udp(ip("10.16.4.9"), client, "three")
	for _, p := range [][]byte{a, b, from} {
		h.take(epoch, framed(p))
	}
	if want := []miss{{client, web}, {client, ip("10.16.4.9")}}; len(*misses) != 2 || (*misses)[0] != want[0] || (*misses)[1] != want[1] {
		t.Fatalf("%v", *misses)
	}
	h.Release(web)
	h.Release(web)
	if out := dev.sent(); len(out) != 2 || !bytes.Equal(out[0], a) || !bytes.Equal(out[1], b) {
		t.Fatalf("%x", out)
	}
	h.Release(ip("10.16.4.9"))
	if out := dev.sent(); len(out) != 1 || !bytes.Equal(out[0], from) {
		t.Fatalf("%x", out)
	}
	if n, _ := h.Stats(); n != 0 {
		t.Fatalf("%d wait", n)
	}
}

func TestARefusalTellsTheSenderAndItAlone(t *testing.T) {
	dev := newWire()
	h, _ := newHold(dev)
	other := ip("10.16.0.3")
	h.take(epoch, framed(udp(client, web, "x")))
	h.take(epoch, framed(udp(ranges.Twin(client), ranges.Twin(web), "x")))
	h.take(epoch, framed(udp(other, web, "y")))
	h.Refuse(client, web, true)
	out := dev.sent()
	if len(out) != 2 {
		t.Fatalf("%x", out)
	}
	p, ok := parse(out[0])
	if !ok || p.src != web || p.dst != client || p.proto != protoICMP || out[0][20] != 3 || out[0][21] != 13 ||
		checksum(out[0][:20], 0) != 0 || checksum(out[0][20:], 0) != 0 || !bytes.Equal(out[0][28:], udp(client, web, "x")) {
		t.Fatalf("%x", out[0])
	}
	p, ok = parse(out[1])
	if !ok || p.src != ranges.Twin(web) || p.dst != ranges.Twin(client) || p.proto != protoICMPv6 || out[1][40] != 1 || out[1][41] != 1 ||
		checksum(out[1][40:], sum16(out[1][8:40], uint32(len(out[1])-40)+protoICMPv6)) != 0 {
		t.Fatalf("%x", out[1])
	}
	if n, _ := h.Stats(); n != 1 {
		t.Fatal("another's packet was refused, too")
	}
	h.Refuse(netip.Addr{}, web, false)
	if out := dev.sent(); len(out) != 1 || out[0][21] != 1 {
		t.Fatalf("%x", out)
	}
	h.take(epoch, framed(udp(ip("10.16.4.9"), client, "from outside")))
	h.Refuse(client, ip("10.16.4.9"), false)
	if out := dev.sent(); len(out) != 0 {
		t.Fatalf("a remote sender was told: %x", out)
	}
}

func TestWhatMustNotBeAnsweredIsNot(t *testing.T) {
	later, answer := udp(client, web, "x"), udp(client, web, "\x00")
	later[7] = 1 // fragment offset
	answer[9], answer[20] = protoICMP, 3
	echo := bytes.Clone(answer)
	echo[20] = 8
	error6 := udp(ranges.Twin(client), ranges.Twin(web), "x")
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
	laterBehind := behind(udp(ranges.Twin(client), ranges.Twin(web), "\x80"), protoICMPv6, [2]byte{60, 16}, [2]byte{fragment6, 8})
	laterBehind[40+16+2] = 1
	cutOff := behind(udp(ranges.Twin(client), ranges.Twin(web), ""), 17, [2]byte{0, 8})
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
			t.Errorf("%s: %v %v", name, ok, !c.ok)
		}
	}
	dev := newWire()
	h, _ := newHold(dev)
	n := 0
	for i := range byte(200) {
		to := netip.AddrFrom4([4]byte{10, 30, 1, i})
		h.take(time.Now(), framed(udp(client, to, "x")))
		h.Refuse(client, to, false)
		n += len(dev.sent())
	}
	if n < errorBurst || n > errorBurst+errorRate*10 {
		t.Fatalf("%d errors at once", n)
	}
}

func TestNothingWaitsForLong(t *testing.T) {
	k := newKeeper()
	k.add(epoch, client, web, make([]byte, 100))
	k.add(epoch.Add(600*time.Millisecond), client, web, make([]byte, 50))
	k.expire(epoch.Add(longest))
	if k.count != 1 || k.bytes != 50 || k.locals[client] != (load{1, 50}) {
		t.Fatalf("%+v", k)
	}
	k.expire(k.next())
	if k.count+k.bytes+len(k.held)+len(k.locals)+len(k.pairs)+len(k.asked)+len(k.queue) != 0 || !k.next().IsZero() {
		t.Fatalf("%+v", k)
	}
}

func TestAFloodTakesBoundedMemoryAndStarvesNobody(t *testing.T) {
	k := newKeeper()
	asks := 0
	now := epoch
	frame := make([]byte, 1500)
	for n := range 200000 {
		now = now.Add(5 * time.Microsecond)
		if _, ask := k.add(now, client, netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}), frame); ask {
			asks++
		}
	}
	if k.count > places.Share[0] || k.bytes > bytesMax || len(k.held) > places.Share[0] || len(k.asked) > 2*places.Total || cap(k.queue) > 8*places.Total {
		t.Fatalf("%d packets, %d bytes, %d remotes, %d asked, queue %d", k.count, k.bytes, len(k.held), len(k.asked), cap(k.queue))
	}
	if asks > 4*places.Share[0] {
		t.Fatalf("the core was told of %d misses in a second", asks)
	}
	for n := range 20 {
		kept, ask := k.add(now, ip("10.16.0.3"), ip("10.16.9.9"), frame)
		if kept != (n < perRemote) || ask != (n == 0) {
			t.Fatalf("packet %d of another: kept %v, told %v", n, kept, ask)
		}
	}
	for n := range 100 {
		k.add(now, netip.AddrFrom4([4]byte{10, 16, 1, byte(n)}), netip.AddrFrom4([4]byte{10, 30, 77, byte(n)}), make([]byte, 65000))
	}
	if k.count > places.Total || k.bytes > bytesMax {
		t.Fatalf("%d packets, %d bytes", k.count, k.bytes)
	}
}

func TestRunEndsAndLeavesNothing(t *testing.T) {
	dev := newWire()
	told := make(chan miss, 1)
	h := New(dev, Config{Local: func(a netip.Addr) bool { return a == client }, Untwin: ranges.Untwin, Miss: func(l, r netip.Addr) { told <- miss{l, r} }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	for _, junk := range [][]byte{{}, {0x45}, make([]byte, 60), udp(ip("192.0.2.1"), ip("192.0.2.2"), "none of ours")} {
		dev.in <- junk
	}
	dev.in <- udp(client, web, "x")
	if m := <-told; m != (miss{client, web}) {
		t.Fatal(m)
	}
	for { // it is dropped when its time has come
		if n, dropped := h.Stats(); n == 0 && dropped >= 4 {
			break
		}
		runtime.Gosched()
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	dev = newWire()
	h, _ = newHold(dev)
	dev.Close()
	if err := h.Run(t.Context()); err == nil {
		t.Fatal("a device that ended is no error")
	}
}

// broken is a device that fails n reads in a row, and then gives a packet, again and again.
type broken struct {
	*wire
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

// Somebody sets the device down, or takes it away: only a new life mends that.
func TestABrokenDeviceIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newHold(&broken{wire: newWire(), n: mostFailed})
		if err := h.Run(t.Context()); !errors.Is(err, unix.EFAULT) {
			t.Errorf("a device that fails for good: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		now := &broken{wire: newWire(), n: mostFailed - 1}
		h, _ = newHold(now)
		if err := h.Run(ctx); err != nil || now.given < 50 {
			t.Errorf("a device that fails now and then gave %d packets: %v", now.given, err)
		}
	})
}

// FuzzPackets holds that no packet, however malformed, is read beyond its end, and
// that an answer to it is itself a packet, to its sender.
func FuzzPackets(f *testing.F) {
	f.Add(udp(client, web, "x"))
	f.Add(udp(ranges.Twin(client), ranges.Twin(web), "x"))
	f.Add([]byte{0x4f, 0, 0, 20})
	f.Add(make([]byte, 48))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > offload.MaxPacket {
			return
		}
		dev := newWire()
		h, _ := newHold(dev)
		h.take(epoch, framed(b))
		p, ok := parse(b)
		if !ok {
			if n, _ := h.Stats(); n != 0 {
				t.Fatal("it waits")
			}
			return
		}
		if !p.refusable(b) {
			return
		}
		e := unreachable(p, b, true)
		q, ok := parse(e)
		if !ok || q.src != p.dst || q.dst != p.src || q.refusable(e) || len(e) > error6 {
			t.Fatalf("%x is answered with %x", b, e)
		}
	})
}
