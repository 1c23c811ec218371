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

// Sockets inspects the sockets of a network namespace, which exists until Close. It is not safe for
// concurrent use.
type Sockets struct {
	path string
	ns   *os.File
	nl   *nl.NetlinkSocket // nil: not open
	buf  []byte
}

// SocketsOf returns the sockets of the namespace at path. It fails with ErrGone if it is missing.
func SocketsOf(path string) (*Sockets, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("list sockets of %s: %w: %w", path, api.ErrGone, err)
	}
	return &Sockets{path: path, ns: ns, buf: make([]byte, 32<<10)}, nil
}

// Close releases the namespace.
func (s *Sockets) Close() {
	s.hangUp()
	_ = s.ns.Close()
}

// hangUp closes the netlink socket, which discards the rest of an answer.
func (s *Sockets) hangUp() {
	if s.nl != nil {
		s.nl.Close()
		s.nl = nil
	}
}

// maxSockets bounds how many sockets of a kind are inspected. A workload with more, all on
// loopback, counts as listening.
const maxSockets = 1024

// Listen reports whether the namespace can be reached from outside: a TCP socket listens, or an
// unconnected UDP socket has a port, on an address other than loopback; or there are maxSockets
// on loopback.
func (s *Sockets) Listen() (bool, error) {
	if s.nl == nil {
		var err error
		if s.nl, err = nl.GetNetlinkSocketAt(netns.NsHandle(s.ns.Fd()), netns.None(), unix.NETLINK_INET_DIAG); err != nil {
			return false, fmt.Errorf("list sockets of %s: %w", s.path, err)
		}
	}
	for _, r := range []diagRequest{
		{family: unix.AF_INET, protocol: unix.IPPROTO_TCP, states: 1 << unix.BPF_TCP_LISTEN},
		{family: unix.AF_INET, protocol: unix.IPPROTO_UDP, states: 1 << unix.BPF_TCP_CLOSE}, // unconnected
		{family: unix.AF_INET6, protocol: unix.IPPROTO_TCP, states: 1 << unix.BPF_TCP_LISTEN},
		{family: unix.AF_INET6, protocol: unix.IPPROTO_UDP, states: 1 << unix.BPF_TCP_CLOSE},
	} {
		n := 0
		whole, err := dump(s.nl.GetFd(), s.buf, r, func(b []byte) bool {
			n++
			return !listens(b) && n < maxSockets
		})
		if err != nil {
			s.hangUp()
			return false, fmt.Errorf("list sockets of %s: %w", s.path, err)
		}
		if !whole {
			s.hangUp()
			return true, nil
		}
	}
	return false, nil
}

func listens(b []byte) bool {
	return binary.BigEndian.Uint16(b[diagPort:]) != 0 && !diagAddress(b, diagSource).IsLoopback()
}
