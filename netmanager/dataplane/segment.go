package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Segments sends TCP segments without data from any source address, to end connections of
// instances.
type Segments struct{ four, six int } // raw sockets; six is -1 on a host without IPv6

// OpenSegments opens the sockets in the network namespace of the calling thread.
func OpenSegments() (*Segments, error) {
	four, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	six, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		six = -1
	} else if err != nil {
		unix.Close(four)
		return nil, fmt.Errorf("open a raw IPv6 socket: %w", err)
	}
	return &Segments{four, six}, nil
}

// Close closes the sockets.
func (s *Segments) Close() {
	unix.Close(s.four)
	if s.six >= 0 {
		unix.Close(s.six)
	}
}

// Send sends a segment. It does not report a failure: the receiver detects the end of the
// connection when it sends next.
func (s *Segments) Send(src, dst netip.AddrPort, sequence uint32, flags byte) {
	from, to := src.Addr().AsSlice(), dst.Addr().AsSlice()
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], sequence)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[16:], checksum(from, to, tcp))
	if dst.Addr().Is4() {
		ip := make([]byte, 20, 40) // the kernel sets length and checksum
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
		copy(ip[12:], from)
		copy(ip[16:], to)
		_ = unix.Sendto(s.four, append(ip, tcp...), 0, &unix.SockaddrInet4{Addr: dst.Addr().As4()})
		return
	}
	if s.six < 0 {
		return
	}
	ip := make([]byte, 40, 60)
	ip[0], ip[5], ip[6], ip[7] = 0x60, byte(len(tcp)), unix.IPPROTO_TCP, 64
	copy(ip[8:], from)
	copy(ip[24:], to)
	_ = unix.Sendto(s.six, append(ip, tcp...), 0, &unix.SockaddrInet6{Addr: dst.Addr().As16()})
}

// checksum returns TCP's checksum, which includes the addresses (RFC 9293, section 3.1).
func checksum(from, to, tcp []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP + len(tcp))
	for _, b := range [][]byte{from, to, tcp} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
