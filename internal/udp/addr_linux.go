package udp

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockaddr is an address of either family in the kernel's form.
type sockaddr struct {
	raw unix.RawSockaddrInet6
	len uint32
}

// set sets the address for an IPv6 or IPv4 socket, and reports whether the socket can reach it.
func (s *sockaddr) set(a netip.AddrPort, v6 bool) bool {
	port := (*[2]byte)(unsafe.Pointer(&s.raw.Port))
	binary.BigEndian.PutUint16(port[:], a.Port())
	addr := a.Addr()
	if v6 {
		s.raw.Family, s.raw.Addr, s.len = unix.AF_INET6, addr.As16(), unix.SizeofSockaddrInet6
		// Zones are interface indexes, as in the kernel: names would need a look-up for each packet.
		zone, _ := strconv.ParseUint(addr.Zone(), 10, 32)
		s.raw.Scope_id = uint32(zone)
		return addr.IsValid()
	}
	if addr = addr.Unmap(); !addr.Is4() {
		return false
	}
	// The port has the same offset as in IPv6; the address follows.
	in4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
	in4.Family, in4.Addr, s.len = unix.AF_INET, addr.As4(), unix.SizeofSockaddrInet4
	return true
}

func (s *sockaddr) get() netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&s.raw.Port))[:])
	if s.raw.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw)).Addr), port)
	}
	a := netip.AddrFrom16(s.raw.Addr).Unmap()
	if s.raw.Scope_id != 0 && a.IsLinkLocalUnicast() {
		a = a.WithZone(strconv.FormatUint(uint64(s.raw.Scope_id), 10))
	}
	return netip.AddrPortFrom(a, port)
}
