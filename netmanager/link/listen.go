package link

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// Sockets are those of a network namespace. It belongs to one goroutine, and keeps the
// namespace alive until Close.
type Sockets struct {
	path string
	ns   *os.File
	nl   *nl.NetlinkSocket // nil: not open
	buf  []byte
}

// SocketsOf opens the sockets of the namespace at path. One that is gone is ErrGone.
func SocketsOf(path string) (*Sockets, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("look at the sockets of %s: %w: %w", path, api.ErrGone, err)
	}
	return &Sockets{path: path, ns: ns, buf: make([]byte, 32<<10)}, nil
}

// Close lets the namespace go.
func (s *Sockets) Close() {
	s.hangUp()
	_ = s.ns.Close()
}

// hangUp ends what the kernel has to tell still.
func (s *Sockets) hangUp() {
	if s.nl != nil {
		s.nl.Close()
		s.nl = nil
	}
}

// mostLooked bounds how many sockets of a kind are looked at: who has so many, all on
// loopback, has begun.
const mostLooked = 1024

// Listen reports whether somebody may be reached from outside: a TCP socket listens,
// or a UDP socket has a port and takes from everybody, and not on loopback alone; or that
// there are too many sockets on loopback to see. The kernel passes over those that are
// connected.
func (s *Sockets) Listen() (bool, error) {
	if s.nl == nil {
		var err error
		if s.nl, err = nl.GetNetlinkSocketAt(netns.NsHandle(s.ns.Fd()), netns.None(), unix.NETLINK_INET_DIAG); err != nil {
			return false, fmt.Errorf("look at the sockets of %s: %w", s.path, err)
		}
	}
	for _, r := range []diagRequest{
		{family: unix.AF_INET, protocol: unix.IPPROTO_TCP, states: 1 << unix.BPF_TCP_LISTEN},
		{family: unix.AF_INET, protocol: unix.IPPROTO_UDP, states: 1 << unix.BPF_TCP_CLOSE}, // connected to nobody
		{family: unix.AF_INET6, protocol: unix.IPPROTO_TCP, states: 1 << unix.BPF_TCP_LISTEN},
		{family: unix.AF_INET6, protocol: unix.IPPROTO_UDP, states: 1 << unix.BPF_TCP_CLOSE},
	} {
		n := 0
		whole, err := dump(s.nl.GetFd(), s.buf, r, func(b []byte) bool {
			n++
			return !listens(b) && n < mostLooked
		})
		if err != nil {
			s.hangUp()
			return false, fmt.Errorf("look at the sockets of %s: %w", s.path, err)
		}
		if !whole {
			s.hangUp()
			return true, nil
		}
	}
	return false, nil
}

// listens reports whether a socket takes what comes from outside.
func listens(b []byte) bool {
	return binary.BigEndian.Uint16(b[diagPort:]) != 0 && !diagAddress(b, diagSource).IsLoopback()
}
