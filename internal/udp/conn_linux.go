package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/rawio"
)

// Conn is a socket. It is safe for concurrent use; each Sender and Receiver is for one
// goroutine.
type Conn struct {
	file  *rawio.File
	v6    bool
	local netip.AddrPort
	gso   atomic.Bool
}

// Listen opens a socket on an address. The unspecified IPv6 address means both families, or IPv4
// if the host has no IPv6. Port 0 means any.
func Listen(at netip.AddrPort) (*Conn, error) {
	c, err := listen(at)
	if err != nil && at.Addr() == netip.IPv6Unspecified() && !errors.Is(err, unix.EADDRINUSE) {
		c, err = listen(netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on UDP %s: %w", at, err)
	}
	return c, nil
}

func listen(at netip.AddrPort) (*Conn, error) {
	c := &Conn{v6: !at.Addr().Unmap().Is4()}
	family := unix.AF_INET
	if c.v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	if err := c.prepare(fd, at); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if c.file, err = rawio.New(fd); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Conn) prepare(fd int, at netip.AddrPort) error {
	var sa unix.Sockaddr
	if !c.v6 {
		sa = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().Unmap().As4()}
	} else {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			return fmt.Errorf("accept both families: %w", err)
		}
		sa = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
		// Never fragment: the path manager finds the MTU by probes and ignores ICMP.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], bufferBytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], bufferBytes) // up to the limit for unprivileged users
		}
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) // fails on older kernels
	_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	c.gso.Store(err == nil)
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("read the port: %w", err)
	}
	switch b := bound.(type) {
	case *unix.SockaddrInet4:
		c.local = netip.AddrPortFrom(netip.AddrFrom4(b.Addr), uint16(b.Port))
	case *unix.SockaddrInet6:
		c.local = netip.AddrPortFrom(netip.AddrFrom16(b.Addr), uint16(b.Port))
	}
	return nil
}

// Local returns the address that the socket is bound to.
func (c *Conn) Local() netip.AddrPort { return c.local }

// Close closes the socket. Blocked calls return net.ErrClosed.
func (c *Conn) Close() error { return c.file.Close() }
