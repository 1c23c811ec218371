package ebpf

import (
	"encoding/binary"
	"net/netip"
)

// Addresses in maps are in network byte order, as in packets.

func be32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func addr(v uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

func mask32(bits int) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ^uint32(0)<<(32-bits))
	return binary.NativeEndian.Uint32(b[:])
}

// words returns the 32-bit words of an address, an IPv4 address as one in ::ffff:0:0/96.
func words(a netip.Addr) (w [4]uint32) {
	b := a.As16()
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}
