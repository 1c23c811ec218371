package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The layout of the packet that tl_end runs with: the first place, the end of the resets, the
// start of the resets, their maximum number, and the size of one.
const (
	endFrom   = 14 // after the Ethernet header
	endTo     = endFrom + 4
	endResets = endTo + 4
	resets    = 128
	resetSize = 20
)

// end ends the flows to the instances to, and the flows without an answer to the others. A
// client on this node gets a reset that fits its connection. The next packet of any client
// opens another flow.
func (p *Plane) end(to, unanswered []netip.Addr) error {
	all := map[uint32]uint32{} // 1: all of its flows; 0: those without an answer
	for each, addrs := range [][]netip.Addr{unanswered, to} {
		for _, a := range addrs {
			if a.Is4() {
				all[be32(a)] = uint32(each)
			}
		}
	}
	var resets []reset
	var failed error
	for some := range slices.Chunk(slices.Collect(maps.Keys(all)), int(p.o.TlEnding.MaxEntries())) {
		ending := map[uint32]uint32{}
		for _, a := range some {
			ending[a] = all[a]
		}
		these, err := p.over(ending)
		if resets = append(resets, these...); err != nil {
			failed = fmt.Errorf("end flows: %w", err)
			break
		}
	}
	return errors.Join(failed, p.send(resets)) // for flows that have ended, whatever failed
}

// over ends flows in the kernel, so that no flow that begins meanwhile is mistaken for another.
func (p *Plane) over(ending map[uint32]uint32) (all []reset, err error) {
	t := newTable[uint32, uint32](p.o.TlEnding)
	defer func() { err = errors.Join(err, t.become(&tx{}, nil)) }()
	if err := t.become(&tx{}, ending); err != nil {
		return nil, err
	}
	packet := make([]byte, endResets+resets*resetSize)
	out := make([]byte, len(packet))
	for at := uint32(0); at < p.o.TlFlows.MaxEntries(); {
		binary.NativeEndian.PutUint32(packet[endFrom:], at)
		run := ebpf.RunOptions{Data: packet, DataOut: out}
		next, err := p.o.TlEnd.Run(&run)
		if err != nil {
			return all, err
		}
		end := int(binary.NativeEndian.Uint32(out[endTo:]))
		if next <= at || end < endResets || end > len(run.DataOut) {
			return all, fmt.Errorf("from place %d to %d, resets to %d of %d bytes", at, next, end, len(run.DataOut))
		}
		for b := range slices.Chunk(out[endResets:end], resetSize) {
			var r reset
			if _, err := binary.Decode(b, binary.NativeEndian, &r); err != nil {
				return all, err
			}
			all = append(all, r)
		}
		at = next
	}
	return all, nil
}

// reset is a reset for the side that opened a TCP flow which has ended.
type reset struct {
	Flow objectsTuple
	Ack  uint32 // the next byte that it expects
}

// send sends resets to containers on this node. A failure is not an error: the container
// notices when it sends.
func (p *Plane) send(resets []reset) error {
	var fds [2]int
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			fd = -1
		} else if err != nil {
			return fmt.Errorf("open a socket for resets: %w", err)
		}
		fds[i] = fd
		defer unix.Close(fd)
	}
	for _, r := range resets {
		src, dst := addr(r.Flow.Src), addr(r.Flow.Dst)
		if r.Flow.Family == 6 {
			src, dst = p.node.Ranges.Twin(src), p.node.Ranges.Twin(dst)
			if fds[1] >= 0 {
				_ = unix.Sendto(fds[1], r.packet(src, dst), 0, &unix.SockaddrInet6{Addr: src.As16()})
			}
			continue
		}
		_ = unix.Sendto(fds[0], r.packet(src, dst), 0, &unix.SockaddrInet4{Addr: src.As4()})
	}
	return nil
}

// packet returns the reset from dst to src (RFC 9293, section 3.5.2).
func (r reset) packet(src, dst netip.Addr) []byte {
	tcp := make([]byte, 20)
	binary.NativeEndian.PutUint16(tcp[0:], r.Flow.Dport)
	binary.NativeEndian.PutUint16(tcp[2:], r.Flow.Sport)
	tcp[12] = 5 << 4
	const rst = 4
	tcp[13] = rst
	binary.NativeEndian.PutUint32(tcp[4:], r.Ack)
	pseudo := append(append([]byte{}, dst.AsSlice()...), src.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], sum(append(pseudo, tcp...)))
	if src.Is4() {
		ip := make([]byte, 20, 40)
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
		copy(ip[12:], dst.AsSlice())
		copy(ip[16:], src.AsSlice())
		return append(ip, tcp...) // the kernel sets length and checksum
	}
	ip := make([]byte, 40, 60)
	ip[0], ip[5], ip[6], ip[7] = 0x60, byte(len(tcp)), unix.IPPROTO_TCP, 64
	copy(ip[8:], dst.AsSlice())
	copy(ip[24:], src.AsSlice())
	return append(ip, tcp...)
}

// sum returns the Internet checksum of b, whose length is even (RFC 1071).
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
