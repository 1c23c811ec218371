package dataplanetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// packet is an IP packet with the payload of a protocol.
func packet(proto byte, src, dst netip.Addr, body []byte) []byte {
	if src.Is4() {
		p := make([]byte, 20, 20+len(body))
		p[0], p[8], p[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(p[2:], uint16(20+len(body)))
		copy(p[12:], src.AsSlice())
		copy(p[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(p[10:], sum(p))
		return append(p, body...)
	}
	p := make([]byte, 40, 40+len(body))
	p[0], p[6], p[7] = 0x60, proto, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(body)))
	copy(p[8:], src.AsSlice())
	copy(p[24:], dst.AsSlice())
	return append(p, body...)
}

func udp(src, dst netip.AddrPort, body string) []byte {
	u := make([]byte, 8, 8+len(body))
	binary.BigEndian.PutUint16(u, src.Port())
	binary.BigEndian.PutUint16(u[2:], dst.Port())
	binary.BigEndian.PutUint16(u[4:], uint16(8+len(body)))
	u = append(u, body...)
	pseudo := append(append(src.Addr().AsSlice(), dst.Addr().AsSlice()...), 0, unix.IPPROTO_UDP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(u)))
	binary.BigEndian.PutUint16(u[6:], sum(append(pseudo, u...)))
	return packet(unix.IPPROTO_UDP, src.Addr(), dst.Addr(), u)
}

// sum is the Internet checksum (RFC 1071).
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// Inject sends an IP packet with any source from the space.
func (s *Space) Inject(p []byte) { s.t.Helper(); s.InjectAll(slices.Values([][]byte{p})) }

// InjectAll is Inject for many packets.
func (s *Space) InjectAll(packets iter.Seq[[]byte]) {
	s.t.Helper()
	var err error
	s.Do(func() {
		var fds [2]int
		for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if fds[i], err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
				return
			}
			defer unix.Close(fds[i])
		}
		for p := range packets {
			if p[0]>>4 == 4 {
				err = unix.Sendto(fds[0], p, 0, &unix.SockaddrInet4{Addr: [4]byte(p[16:20])})
			} else {
				err = unix.Sendto(fds[1], p, 0, &unix.SockaddrInet6{Addr: [16]byte(p[24:40])})
			}
			if err != nil {
				return
			}
		}
	})
	if err != nil {
		s.t.Fatalf("inject in %s: %v", s.Name, err)
	}
}

// listen opens a raw socket on one of the container's addresses, or a UDP socket.
func (c *Container) listen(network, address string) net.PacketConn {
	c.t.Helper()
	var p net.PacketConn
	var err error
	c.Do(func() { p, err = net.ListenPacket(network, address) })
	if err != nil {
		c.t.Fatalf("listen on %s %s in %s: %v", network, address, c.Name, err)
	}
	c.t.Cleanup(func() { p.Close() })
	return p
}

func addrs(p []byte) (src, dst netip.Addr) {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	case len(p) >= 40:
		return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	}
	return src, dst
}

func between(src, dst netip.Addr) func([]byte) bool {
	return func(p []byte) bool { s, d := addrs(p); return s == src && d == dst }
}

func echoIsAnswered(t *testing.T, w *World) {
	w.Hosts[0].publish(w.service(1, 4))
	for six, a := range both(vip(1)) {
		network := []string{"ip4:icmp", "ip6:ipv6-icmp"}[six]
		request, reply := []byte{8, 128}[six], []byte{0, 129}[six]
		p := w.C(1).listen(network, both(w.C(1).Addr)[six].String())
		m := []byte{request, 0, 0, 0, 0x12, 0x34, 0, 1, 'p', 'i', 'n', 'g'}
		if six == 0 { // the kernel sets the checksum of ICMPv6
			binary.BigEndian.PutUint16(m[2:], sum(m))
		}
		if _, err := p.WriteTo(m, &net.IPAddr{IP: a.AsSlice()}); err != nil {
			t.Fatal(err)
		}
		_ = p.SetDeadline(time.Now().Add(patience))
		for b := make([]byte, 1500); ; {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				t.Fatalf("ping %s: %v", a, err)
			}
			if n >= 12 && b[0] == reply && bytes.Equal(b[8:12], m[8:]) {
				if from.String() != a.String() {
					t.Errorf("ping %s: %s answered", a, from)
				}
				break
			}
		}
	}
}

// sctpPasses sends an SCTP INIT over raw sockets, so that it does not need the kernel's SCTP. The
// backend receives the INIT at its own address.
func sctpPasses(t *testing.T, w *World) {
	w.Hosts[0].publish(w.service(1, 4))
	for six, a := range both(vip(1)) {
		init := make([]byte, 32)
		binary.BigEndian.PutUint16(init, 1000)
		binary.BigEndian.PutUint16(init[2:], 80)
		init[12], init[15] = 1, 20 // INIT
		binary.BigEndian.PutUint32(init[16:], 0x7ee11e)
		binary.BigEndian.PutUint32(init[20:], 65535)
		init[25], init[27] = 1, 1
		binary.LittleEndian.PutUint32(init[8:], crc32.Checksum(init, crc32.MakeTable(crc32.Castagnoli)))
		src, dst := both(w.C(1).Addr)[six], both(w.C(4).Addr)[six]
		p := w.C(4).listen([]string{"ip4:132", "ip6:132"}[six], dst.String())
		w.C(1).Inject(packet(unix.IPPROTO_SCTP, src, a, init))
		_ = p.SetDeadline(time.Now().Add(patience))
		b := make([]byte, 1500)
		n, from, err := p.ReadFrom(b)
		if err != nil {
			t.Errorf("send SCTP to %s: %v", a, err)
		} else if from.String() != src.String() || n != len(init) || !bytes.Equal(b[12:n], init[12:]) {
			t.Errorf("send SCTP to %s: %d bytes arrived from %s, want %d unchanged bytes from %s", a, n, from, len(init), src)
		}
	}
}

// datagramsOfAllSizesPass sends datagrams of sizes that need fragments on some paths.
func datagramsOfAllSizesPass(t *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 4))
	for _, a := range both(vip(1)) {
		for _, size := range []int{0, 1, 1232, 1400, 1472, 1473, 4000, 30000} {
			c, err := w.C(1).Dial("udp", at(a, 80), 0)
			if err != nil {
				t.Fatal(err)
			}
			body := strings.Repeat("x", size)
			// The first of a size may be answered with the path's MTU.
			for try := 0; ; try++ {
				_ = c.SetDeadline(time.Now().Add(quiet))
				_, err = askUDP(c, body)
				if err == nil || try == 20 {
					break
				}
			}
			c.Close()
			if err != nil {
				t.Errorf("echo %d bytes to %s: %v", size, a, err)
			}
		}
	}
}

// pathMTUIsReported lowers the MTU of the path to the peer to 1280 bytes.
func pathMTUIsReported(t *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 4))
	const mtu = 1280
	w.limitMTU(mtu)
	for six, a := range both(vip(1)) {
		c, err := w.C(1).Dial("udp", at(a, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		level, discover, get := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
		if six == 1 {
			level, discover, get = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
		}
		_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO) })
		if err != nil {
			t.Fatal(err)
		}
		late := time.Now().Add(patience)
		for !errors.Is(err, syscall.EMSGSIZE) && time.Now().Before(late) {
			_, err = c.Write(make([]byte, 1350))
			time.Sleep(time.Millisecond)
		}
		var got int
		_ = raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), level, get) })
		if got != mtu || err != nil {
			t.Errorf("MTU of the path to %s: got %d and error %v, want %d", a, got, err, mtu)
		}
		// TCP passes without a change.
		f := w.C(1).Open("tcp", at(a, 80))
		body := strings.Repeat("y", 200_000) + "\n"
		go func() { _, _ = f.Write([]byte(body)) }()
		if back, err := f.r.ReadString('\n'); err != nil || back != body {
			t.Errorf("%s: %d bytes of %d came back: %v", f, len(back), len(body), err)
		}
	}
}

// narrow sets the MTU of the paths between the hosts.
func (w *World) limitMTU(mtu int) {
	for i, h := range w.Hosts {
		to := w.Hosts[1-i]
		for _, line := range w.routes(h, to) {
			h.IP(strings.Replace(line, "route add", "route replace", 1) + fmt.Sprintf(" mtu %d", mtu))
		}
		h.State.Peers[0].MTU = mtu
		h.MustApply(plane.Change{SetPeers: h.State.Peers})
	}
}

// routes are the lines of ip(8) by which h reaches to's subnet.
func (w *World) routes(h, to *Host) []string {
	six := netip.PrefixFrom(ranges.To6(to.Subnet.Addr()), 96+to.Subnet.Bits())
	switch w.path {
	case api.PathRoute:
		return []string{
			fmt.Sprintf("route add %s via %s dev up0 onlink", to.Subnet, to.Addr),
			fmt.Sprintf("route add %s via %s dev up0 onlink", six, via6(to.Addr)),
		}
	case api.PathVXLAN:
		dev := plane.VXLANDevice(prefix)
		return []string{
			fmt.Sprintf("route add %s encap ip id 1 dst %s via inet6 %s dev %s onlink", to.Subnet, to.Addr, via6(to.Addr), dev),
			fmt.Sprintf("route add %s encap ip id 1 dst %s via %s dev %s onlink", six, to.Addr, via6(to.Addr), dev),
		}
	}
	return []string{fmt.Sprintf("route add %s dev %s", to.Subnet, tunnel), fmt.Sprintf("route add %s dev %s", six, tunnel)}
}
