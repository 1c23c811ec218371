package lab

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// NetNS returns the path of a host's network namespace; see Inside.NetNS for an instance's.
func NetNS(h *netlab.Host) string { return "/var/run/netns/" + h.Netns() }

// NetNS returns the path of the instance's network namespace.
func (in *Inside) NetNS() string { return in.net }

// Sniffer records the packets that enter a network namespace by any device except loopback,
// before any rule could refuse them.
type Sniffer struct {
	mu      sync.Mutex // guards the field below
	packets [][]byte   // from the IP header on
}

// Sniff starts to record the packets that enter the namespace at path, until the test ends.
func (l *Lab) Sniff(path string) *Sniffer {
	l.t.Helper()
	fd, err := -1, error(nil)
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
	l.spaceAt(path).do(func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
	})
	if err != nil {
		l.t.Fatalf("sniff at %s: %v", path, err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
	file := os.NewFile(uintptr(fd), "sniffer")
	l.t.Cleanup(func() { _ = file.Close() })
	s := &Sniffer{}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := file.Read(buf)
			if errors.Is(err, os.ErrClosed) {
				return
			} else if err != nil {
				continue
			}
			s.mu.Lock()
			s.packets = append(s.packets, bytes.Clone(buf[:n]))
			s.mu.Unlock()
		}
	}()
	return s
}

// Saw returns the number of packets that contain the marker.
func (s *Sniffer) Saw(marker string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.packets {
		if bytes.Contains(p, []byte(marker)) {
			n++
		}
	}
	return n
}

// Datagrams returns the payloads of the received UDP datagrams over IPv4 that keep selects.
func (s *Sniffer) Datagrams(keep func(from, to netip.AddrPort) bool) (out [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.packets {
		if len(p) < 28 || p[0] != 0x45 || p[9] != unix.IPPROTO_UDP {
			continue
		}
		at := func(ip, port int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[ip:])), binary.BigEndian.Uint16(p[port:]))
		}
		if keep(at(12, 20), at(16, 22)) {
			out = append(out, p[28:])
		}
	}
	return out
}

// Datagram returns an IP packet of either family with a UDP datagram.
func Datagram(from, to netip.AddrPort, payload []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_UDP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], max(1, checksum(append(pseudo, udp...))))
	if from.Addr().Is6() {
		h := []byte{0x60, 0, 0, 0, byte(len(udp) >> 8), byte(len(udp)), unix.IPPROTO_UDP, 64}
		h = append(append(h, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		return append(h, udp...)
	}
	n := 20 + len(udp)
	h := []byte{0x45, 0, byte(n >> 8), byte(n), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	h = append(append(h, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, udp...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		sum += w
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Raw sends IPv4 packets unchanged from a network namespace, with any source address.
type Raw struct{ fd int }

// Raw opens a sender at the namespace.
func (l *Lab) Raw(path string) *Raw {
	l.t.Helper()
	fd, err := -1, error(nil)
	l.spaceAt(path).do(func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) })
	if err != nil {
		l.t.Fatalf("send raw at %s: %v", path, err)
	}
	l.t.Cleanup(func() { _ = unix.Close(fd) })
	return &Raw{fd}
}

// Send sends a packet to the destination in its header.
func (r *Raw) Send(packet []byte) error {
	return unix.Sendto(r.fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
}

// Memory returns the anonymous memory of the process in bytes. Pages from files are not
// counted, because the kernel can reclaim them at any time.
func (p *Proc) Memory() (sum int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	for line := range strings.Lines(string(text)) {
		if name, kib, _ := strings.Cut(line, ":"); name == "RssAnon" || name == "VmSwap" {
			n, _ := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			sum += n << 10
		}
	}
	return sum
}

// NetStatus returns the status of the node's netmanager.
func (n *Node) NetStatus() api.NetStatus {
	n.lab.t.Helper()
	s, err := netsock.New(n.NetSocket).Status(n.lab.ctx)
	if err != nil {
		n.lab.t.Fatalf("status of %s: %v", n.Net.Name, err)
	}
	return s
}

// NetMetric returns the sum of a metric of the node's netmanager.
func (n *Node) NetMetric(name string) float64 {
	n.lab.t.Helper()
	v, err := metric(n.lab.ctx, filepath.Join(n.Data+"-net", "status.sock"), name)
	if err != nil {
		n.lab.t.Fatalf("metrics of %s: %v", n.Net.Name, err)
	}
	return v
}

func metric(ctx context.Context, socket, name string) (sum float64, err error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://netmanager/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(key, "{"); bare == name {
			v, _ := strconv.ParseFloat(value, 64)
			sum += v
		}
	}
	return sum, err
}

// OverlayKey returns the node's private key of the overlay network, for tests that steal it.
func (n *Node) OverlayKey() (key [32]byte) {
	n.lab.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.Data+"-net", "overlay.key"))
	if err != nil {
		n.lab.t.Fatalf("%v", err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(raw) != len(key) {
		n.lab.t.Fatalf("the overlay key of %s: %d bytes, %v", n.Name, len(raw), err)
	}
	return [32]byte(raw)
}

// Hostile is a node under the control of an attacker. Its netmanager has ended, and a
// tunnel with its key sends any packet, without a policy.
type Hostile struct {
	Engine *tunnel.Engine
	Subnet netip.Prefix

	out    chan []byte
	events chan tunnel.Event
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex // guards the field below
	got [][]byte
}

// TakeOver ends the node's netmanager and opens a tunnel with its key.
func (n *Node) TakeOver(h *netlab.Host) *Hostile {
	l := n.lab
	l.t.Helper()
	was := n.NetStatus()
	n.Net.Kill9()
	v := &Hostile{
		Subnet: was.Subnet, out: make(chan []byte, 1024), events: make(chan tunnel.Event, 64), closed: make(chan struct{}),
	}
	var err error
	l.spaceOf(h).do(func() {
		v.Engine, err = tunnel.New(tunnel.Config{
			Device: v, Key: n.OverlayKey(), Listen: netip.AddrPortFrom(netip.IPv6Unspecified(), was.Listen.Port()),
			Hooks: tunnel.Hooks{Event: func(e tunnel.Event) {
				select {
				case v.events <- e:
				default:
				}
			}},
		})
	})
	if err != nil {
		l.t.Fatalf("open a tunnel as %s: %v", n.Name, err)
	}
	v.Engine.SetSelf(tunnel.Lease{Ranges: wire.DefaultNetRanges(), Subnet: v.Subnet})
	l.wg.Go(func() { _ = v.Engine.Run(l.ctx) })
	return v
}

// Aim directs all packets to one node, and returns when there is a session with it.
func (v *Hostile) Aim(ctx context.Context, key api.PeerKey, at netip.AddrPort) error {
	v.Engine.SetPeer(api.Peer{Key: key, Subnets: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Endpoints: []netip.AddrPort{at}})
	path := tunnel.Path{Kind: api.PathDirect, Addr: at}
	v.Engine.SetTries(key, path)
	v.Engine.SetPath(key, path)
	v.Engine.Connect(key)
	for {
		select {
		case e := <-v.events:
			if x, ok := e.(tunnel.Established); ok && x.Peer == key {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Send sends a packet through the tunnel.
func (v *Hostile) Send(packet []byte) {
	v.out <- append(make([]byte, offload.VnetLen), packet...)
}

// Got returns the number of received packets that contain the marker.
func (v *Hostile) Got(marker string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.got {
		if bytes.Contains(p, []byte(marker)) {
			n++
		}
	}
	return n
}

// Read implements tun.Device, as do the methods below.
func (v *Hostile) Read(b []byte, idle func()) (int, error) {
	select {
	case p := <-v.out:
		return copy(b, p), nil
	default:
	}
	if idle != nil {
		idle()
	}
	select {
	case p := <-v.out:
		return copy(b, p), nil
	case <-v.closed:
		return 0, net.ErrClosed
	}
}

// Write records a packet from a peer.
func (v *Hostile) Write(parts [][]byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.got = append(v.got, bytes.Join(parts[1:], nil))
	return nil
}

// Joins returns that packets arrive singly.
func (v *Hostile) Joins() (tcp, udp bool) { return false, false }

// Partial returns that checksums are complete.
func (v *Hostile) Partial() bool { return false }

// Name returns a name for errors.
func (v *Hostile) Name() string { return "hostile" }

// Close ends Read.
func (v *Hostile) Close() error {
	v.once.Do(func() { close(v.closed) })
	return nil
}

// AddressesOf returns the semantic addresses of a service of any tenant.
func (l *Lab) AddressesOf(id api.ServiceID) api.ServiceAddresses {
	l.t.Helper()
	all, _, err := l.API.Services(l.ctx, client.ListOptions{Tenant: id.Tenant()})
	if err != nil {
		l.t.Fatalf("list services: %v", err)
	}
	for _, s := range all {
		if s.ID == id {
			return s.Addresses
		}
	}
	l.t.Fatalf("service %s does not exist", id)
	return api.ServiceAddresses{}
}
