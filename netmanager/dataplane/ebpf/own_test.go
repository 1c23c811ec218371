package ebpf_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var ranges = wire.DefaultNetRanges()

func service(n byte, ident plane.Ident, backends ...netip.Addr) plane.Service {
	s := plane.Service{Address: netip.AddrFrom4([4]byte{10, 30, 0, n}), Ident: ident}
	for _, b := range backends {
		s.Backends = append(s.Backends, plane.Backend{Address: b, Weight: 1})
	}
	return s
}

// Kernels before 6.6 have no tcx: there the same programs are filters.
func TestPlaneWithoutTCX(t *testing.T) {
	w := dataplanetest.NewWorld(t, func(t testing.TB) dataplane.Plane {
		p, err := ebpf.NewClassifier("tl")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, api.PathRoute)
	w.C(4).Serve("c4", 80)
	s := service(1, 4, w.C(4).Addr)
	h := w.Hosts[0]
	h.MustApply(plane.Change{SetServices: []plane.Service{s}})
	c, err := w.C(1).Dial("tcp", netip.AddrPortFrom(s.Address, 80), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := echo(c, "before", true); err != nil {
		t.Fatal(err)
	}
	h.Kill()
	if err := echo(c, "while nobody is there", false); err != nil {
		t.Fatal(err)
	}
	state := h.State
	state.Services = append(state.Services, s)
	h.MustSync(state)
	if err := echo(c, "after", false); err != nil {
		t.Fatal(err)
	}
	if u := h.MustUse().Services[s.Address]; u != 1 {
		t.Errorf("%d flows, want the one", u)
	}
	h.Do(func() { err = h.Plane.Remove(context.Background()) })
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"ingress", "egress"} {
		if out := h.Output("tc", "filter", "show", "dev", w.C(1).Device, side); out != "" {
			t.Errorf("left: %s", out)
		}
	}
}

// Flows from one port to two addresses of a service may have the same backend. The plane must then
// choose another port for one of them, as connection tracking does.
func TestOneClientPortToManyAddressesOfOneBackend(t *testing.T) {
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	c4 := w.C(4)
	c4.Serve("c4", 80)
	w.Hosts[0].MustApply(plane.Change{SetServices: []plane.Service{service(1, 4, c4.Addr), service(2, 4, c4.Addr)}})
	for _, six := range []bool{false, true} {
		for _, network := range []string{"tcp", "udp"} {
			var conns []net.Conn
			for _, a := range []netip.Addr{netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("10.30.0.2"), c4.Addr} {
				if six {
					a = ranges.To6(a)
				}
				c, err := dialReusing(w.C(1).Space, network, netip.AddrPortFrom(a, 80), 5000)
				if err != nil {
					t.Fatalf("%s to %s: %v", network, a, err)
				}
				defer c.Close()
				conns = append(conns, c)
			}
			for round := range 3 {
				for i, c := range conns {
					say := fmt.Sprintf("%d of %d", round, i)
					if err := echo(c, say, round == 0); err != nil {
						t.Fatalf("%s, IPv6 %v: %s: %v", network, six, say, err)
					}
				}
			}
			for _, c := range conns {
				c.Close()
			}
		}
	}
}

// dialReusing opens a flow from a port that may be in use by other flows.
func dialReusing(s *dataplanetest.Space, network string, to netip.AddrPort, local int) (c net.Conn, err error) {
	d := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	if d.LocalAddr = (&net.TCPAddr{Port: local}); network == "udp" {
		d.LocalAddr = &net.UDPAddr{Port: local}
	}
	s.Do(func() { c, err = d.Dial(network, to.String()) })
	return c, err
}

// echo sends a line and expects it back; a TCP server first sends its label.
func echo(c net.Conn, say string, first bool) error {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	if c.RemoteAddr().Network() == "tcp" {
		if first {
			if _, err := io.ReadFull(c, b[:3]); err != nil {
				return err
			}
		}
		fmt.Fprintln(c, say)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && line != say+"\n" {
			return fmt.Errorf("heard %q", line)
		}
		return err
	}
	fmt.Fprint(c, say)
	n, err := c.Read(b)
	if err == nil && string(b[:n]) != "c4\n"+say {
		return fmt.Errorf("heard %q", b[:n])
	}
	return err
}

// A flood ends no connection of another client, even if the connection is silent.
func TestFloodsEvictNoConnection(t *testing.T) {
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	w.C(4).Serve("c4", 80)
	s := service(1, 4, w.C(4).Addr)
	w.Hosts[0].MustApply(plane.Change{SetServices: []plane.Service{s}})
	c, err := w.C(1).Dial("tcp", netip.AddrPortFrom(s.Address, 80), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := echo(c, "before", true); err != nil {
		t.Fatal(err)
	}
	w.C(2).Do(func() { err = flood(w.C(2).Addr, s.Address, 300_000) })
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(c, "after", false); err != nil {
		t.Fatal(err)
	}
	if got, err := w.C(3).Ask("tcp", netip.AddrPortFrom(s.Address, 80)); got != "c4" {
		t.Fatalf("a new flow: %q, %v", got, err)
	}
}

// Answered flows keep their backend during floods of another client: of unanswered first packets, and
// of more answered flows than there are places.
func TestFloodsMoveNoAnsweredFlow(t *testing.T) {
	ebpf.Small(t)
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	for _, n := range []int{4, 5, 6} {
		w.C(n).Serve(fmt.Sprintf("c%d", n), 80)
	}
	s, other := service(1, 4, w.C(4).Addr, w.C(5).Addr), service(2, 5, w.C(6).Addr)
	w.Hosts[0].MustApply(plane.Change{SetServices: []plane.Service{s, other}})
	// C2 must not reset the flows that it sends from raw sockets.
	w.C(2).Output("nft", "add table inet quiet; add chain inet quiet out { type filter hook output priority 0; }; add rule inet quiet out tcp flags rst drop")
	var flows []*dataplanetest.Flow
	for n := range 20 {
		flows = append(flows, w.C(1).Open([]string{"udp", "tcp"}[n%2], netip.AddrPortFrom(s.Address, 80)))
	}
	for _, flood := range []struct {
		what  string
		begin func() error
	}{
		{"50,000 first packets", func() error { return flood(w.C(2).Addr, other.Address, 50_000) }},
		{"20,000 answered UDP flows", func() error { return bulk(w, unix.IPPROTO_UDP, other.Address, 20_000) }},
		{"20,000 answered connections", func() error { return bulk(w, unix.IPPROTO_TCP, other.Address, 20_000) }},
	} {
		var err error
		w.C(2).Do(func() { err = flood.begin() })
		if err != nil {
			t.Fatal(err)
		}
		if got, err := w.C(3).Ask("udp", netip.AddrPortFrom(s.Address, 80)); err != nil { // now the number of turns taken is odd
			t.Errorf("after %s a new flow: %q, %v", flood.what, got, err)
		}
		for _, f := range flows {
			if err := f.Echo(); err != nil {
				t.Errorf("after %s: %v", flood.what, err)
			}
		}
	}
	// The client that flooded has at most its share, distributed over the table.
	for _, h := range w.Hosts {
		each, of := h.Plane.(*ebpf.Plane).Places(t, w.C(2).Addr)
		for kind, places := range of {
			var quarters [4]int
			for _, at := range places {
				quarters[4*at/each]++
			}
			n := len(places)
			if n > each/4 || kind > 0 && (n < each/8 || slices.Min(quarters[:]) < n/8) { // first packets are evicted
				t.Errorf("on %s, of %d places of kind %d whoever flooded has %d, in each quarter %d", h.Name, each, kind, n, quarters)
			}
		}
	}
}

// The table of flows stays consistent while flows begin, move, are evicted and end on all
// processors: an inconsistency would be permanent.
func TestTheFlowTableStaysConsistent(t *testing.T) {
	ebpf.Small(t)
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	for _, n := range []int{4, 5, 6} {
		w.C(n).Serve(fmt.Sprintf("c%d", n), 80)
	}
	one, other := service(1, 4, w.C(4).Addr, w.C(5).Addr), service(2, 5, w.C(6).Addr, w.C(5).Addr)
	h := w.Hosts[0]
	h.MustApply(plane.Change{SetServices: []plane.Service{one, other}})
	var all sync.WaitGroup
	for n := 1; n <= 3; n++ {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			for range 2 { // the same flows twice, concurrently
				c := w.C(n)
				all.Go(func() {
					c.Do(func() {
						if err := errors.Join(call(c.Addr, proto, one.Address, 0, 8_000), call(c.Addr, proto, other.Address, 0, 8_000)); err != nil {
							t.Error(err)
						}
					})
				})
			}
		}
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	ends := 0
	for calling := true; calling; ends++ {
		select {
		case <-done:
			calling = false
		default:
			h.MustApply(plane.Change{End: []netip.Addr{w.C(4 + ends%3).Addr}})
		}
	}
	for _, h := range w.Hosts {
		for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // answers may still arrive
			flows, err := h.Plane.(*ebpf.Plane).Whole()
			if err == nil {
				t.Logf("%s has %d flows, ended %d times", h.Name, flows, ends)
				break
			}
			if time.Now().After(late) {
				t.Fatalf("%s, %d flows, ended %d times: %v", h.Name, flows, ends, err)
			}
		}
	}
}

// A reset connection frees its place soon. Otherwise many connections in sequence would fill the
// table, and each would have to search for a place.
func TestEntriesOfResetConnectionsAreReused(t *testing.T) {
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	w.C(4).Serve("c4", 80)
	s := service(1, 4, w.C(4).Addr)
	w.Hosts[0].MustApply(plane.Change{SetServices: []plane.Service{s}})
	const connections = 3000
	for range connections {
		c, err := w.C(1).Dial("tcp", netip.AddrPortFrom(s.Address, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	for _, h := range w.Hosts {
		if _, of := h.Plane.(*ebpf.Plane).Places(t, w.C(1).Addr); len(of[2]) > connections*3/4 || len(of[2]) == 0 {
			t.Errorf("on %s %d connections in a row took %d places", h.Name, connections, len(of[2]))
		}
	}
}

// bulk opens n flows from different ports to a server that answers, and regularly waits for it. It must
// be called in c2's namespace.
func bulk(w *dataplanetest.World, proto byte, to netip.Addr, n int) error {
	for at := 0; at < n; at += 200 {
		if err := call(w.C(2).Addr, proto, to, at, min(at+200, n)); err != nil {
			return err
		}
		if _, err := w.C(3).Ask("udp", netip.AddrPortFrom(to, 80)); err != nil {
			return err
		}
	}
	return nil
}

// call sends the first packets of flows from the ports 1024+first to 1024+end-1.
func call(from netip.Addr, proto byte, to netip.Addr, first, end int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 40)
	b[0], b[8], b[9] = 0x45, 64, proto
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	for i := first; i < end; i++ {
		p := b[20:]
		clear(p)
		binary.BigEndian.PutUint16(p, uint16(1024+i))
		binary.BigEndian.PutUint16(p[2:], 80)
		if proto == unix.IPPROTO_UDP {
			p = p[:8]
			binary.BigEndian.PutUint16(p[4:], 8) // no checksum
		} else {
			binary.BigEndian.PutUint32(p[4:], uint32(i))
			p[12], p[13] = 5<<4, 2 // SYN
			pseudo := append(append([]byte{}, b[12:20]...), 0, proto, 0, 20)
			binary.BigEndian.PutUint16(p[16:], checksum(append(pseudo, p...)))
		}
		err := unix.Sendto(fd, b[:20+len(p)], 0, &unix.SockaddrInet4{Addr: to.As4()})
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	return nil
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// flood sends n first packets of flows that are not answered, alternately UDP and TCP, from and to
// different ports.
func flood(from, to netip.Addr, n int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 40)
	b[0], b[8] = 0x45, 64
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	for i := range n {
		b[9] = [2]byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP}[i%2]
		binary.BigEndian.PutUint32(b[20:], uint32(i)*2654435761|1<<10|1<<26) // both ports
		binary.BigEndian.PutUint32(b[24:], uint32(i))
		b[32], b[33] = 5<<4, 2 // SYN
		if b[9] == unix.IPPROTO_UDP {
			binary.BigEndian.PutUint16(b[24:], 20)
		}
		err := unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()})
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	return nil
}

// Before it has a lease, a node has no state, and containers may disappear while it does not run.
func TestSyncAfterDevicesDisappeared(t *testing.T) {
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	w.C(1).Serve("c1", 80)
	h, s := w.Hosts[0], w.Hosts[0].State
	h.MustSync(plane.State{Node: plane.Node{Prefix: "tl"}})
	var err error
	w.C(2).Do(func() {
		_, err = net.DialTimeout("tcp", netip.AddrPortFrom(w.C(1).Addr, 80).String(), 300*time.Millisecond)
	})
	if !os.IsTimeout(err) {
		t.Errorf("connect to an unknown endpoint: got %v, want a timeout", err)
	}
	h.Kill()
	h.IP("link del " + w.C(3).Device)
	h.MustSync(s)
	if got, err := w.C(2).Ask("tcp", netip.AddrPortFrom(w.C(1).Addr, 80)); got != "c1" {
		t.Errorf("%q, %v", got, err)
	}
}

// The tunnel's device has no link layer, and its packets were checked.
func TestTunnelledPeers(t *testing.T) {
	w := dataplanetest.NewWorld(t, newEBPF, api.PathDirect)
	for i, h := range w.Hosts {
		go func() {
			for {
				p, err := h.Tunnel.Wait(func([]byte) bool { return true })
				if err != nil || w.Hosts[1-i].Tunnel.Write(p) != nil {
					return
				}
			}
		}()
	}
	w.C(4).Serve("c4", 80)
	s := service(1, 4, w.C(4).Addr)
	w.Hosts[0].MustApply(plane.Change{SetServices: []plane.Service{s}})
	for _, a := range []netip.Addr{s.Address, ranges.To6(s.Address)} {
		for _, network := range []string{"tcp", "udp"} {
			if got, err := w.C(1).Send(network, netip.AddrPortFrom(a, 80), strings.Repeat("x", 1000)); got != "c4" {
				t.Errorf("%s to %s: %q, %v", network, a, got, err)
			}
		}
	}
}

// Records of devices that disappeared are removed, so that a plane does not grow with each instance.
func TestRemovedDevicesAreForgotten(t *testing.T) {
	w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
	h := w.Hosts[0]
	before := h.Plane.(*ebpf.Plane).Hooks()
	most := 0
	for i := range 100 {
		e := plane.Endpoint{Address: netip.AddrFrom4([4]byte{10, 16, 1, byte(20 + i%8)}), Ident: 1, Device: fmt.Sprint("gone", i)}
		h.IP("link add "+e.Device+" type veth", "link set "+e.Device+" up")
		h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
		h.MustApply(plane.Change{DropEndpoints: []netip.Addr{e.Address}})
		h.IP("link del " + e.Device)
		most = max(most, h.Plane.(*ebpf.Plane).Hooks())
	}
	if most > before+100 {
		t.Errorf("%d programs at first, %d remembered after 100 instances", before, most)
	}
	w.C(4).Serve("c4", 80)
	h.MustApply(plane.Change{SetServices: []plane.Service{service(1, 4, w.C(4).Addr)}})
	c, err := w.C(1).Dial("tcp", netip.AddrPortFrom(service(1, 4).Address, 80), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := echo(c, "still", true); err != nil {
		t.Fatal(err)
	}
}

// A device may disappear with its container at any time, even after a start has found the programs on
// it and before it replaces them. The plane then ignores the device and applies the rest.
func TestADeviceRemovedDuringAChangeIsSkipped(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known=%t", known), func(t *testing.T) {
			w := dataplanetest.NewWorld(t, newEBPF, api.PathRoute)
			w.C(1).Serve("c1", 80)
			h, s := w.Hosts[0], w.Hosts[0].State
			h.Kill()
			if !known {
				s.Endpoints = slices.DeleteFunc(slices.Clone(s.Endpoints), func(e plane.Endpoint) bool { return e.Address == w.C(3).Addr })
			}
			index := 0
			h.Do(func() {
				d, err := net.InterfaceByName(w.C(3).Device)
				if err != nil {
					t.Error(err)
					return
				}
				index = d.Index
			})
			h.Plane.(*ebpf.Plane).OnAttach(func(device int) {
				if device == index {
					index = 0
					h.IP("link del " + w.C(3).Device)
				}
			})
			h.MustSync(s)
			if index != 0 {
				t.Fatal("no program of the device was replaced")
			}
			h.MustApply(plane.Change{})
			if got, err := w.C(2).Ask("tcp", netip.AddrPortFrom(w.C(1).Addr, 80)); got != "c1" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
