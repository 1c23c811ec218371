package link

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// Sockets are those of a network namespace, as the kernel lists them (sock_diag(7)).
// It belongs to one goroutine, and keeps the namespace alive until Close.
type Sockets struct{ nl *netlink.Handle }

// SocketsOf opens the sockets of the namespace at path. One that is gone is ErrGone.
func SocketsOf(path string) (*Sockets, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("look at the sockets of %s: %w: %w", path, api.ErrGone, err)
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("look at the sockets of %s: %w", path, err)
	}
	return &Sockets{nl}, nil
}

// Close lets the namespace go.
func (s *Sockets) Close() { s.nl.Close() }

// The states of sockets (include/net/tcp_states.h). A UDP socket is "closed" while
// it is connected to nobody.
const (
	tcpClose  = 7
	tcpListen = 10
)

// Listen reports whether somebody may be reached from outside: a TCP socket listens,
// or a UDP socket has a port and takes from everybody, and not on loopback alone.
func (s *Sockets) Listen() (bool, error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		tcp, err := s.nl.SocketDiagTCP(family)
		if err != nil {
			return false, fmt.Errorf("list TCP sockets: %w", err)
		}
		udp, err := s.nl.SocketDiagUDP(family)
		if err != nil {
			return false, fmt.Errorf("list UDP sockets: %w", err)
		}
		if open(tcp, tcpListen) || open(udp, tcpClose) {
			return true, nil
		}
	}
	return false, nil
}

func open(all []*netlink.Socket, state uint8) bool {
	for _, s := range all {
		if s.State == state && s.ID.SourcePort != 0 && !s.ID.Source.IsLoopback() {
			return true
		}
	}
	return false
}
