package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The flags of bpf/types.h.
const (
	flowAnswer = 1
	flowClosed = 4
)

// end ends the flows that go to the instances to, and those that nobody has answered
// and go to the others. Whoever talks to one from here is told by a reset that fits;
// everybody's next packet begins a flow anew.
func (p *Plane) end(to, unanswered []netip.Addr) error {
	dead, doubted := instances(to), instances(unanswered)
	var resets []reset
	flows, err := dump[objectsTuple, objectsFlow](p.o.TlFlows)
	if err != nil {
		return fmt.Errorf("end flows: %w", err)
	}
	for t, f := range flows {
		opening := t.Proto == unix.IPPROTO_TCP && f.Ack == 0
		if f.Flags&flowAnswer != 0 || !dead[f.Dst] && (!opening || !doubted[f.Dst]) {
			continue
		}
		back := objectsTuple{Src: f.Dst, Dst: f.Src, Sport: f.Dport, Dport: f.Sport, Proto: t.Proto, Family: t.Family}
		_ = p.o.TlFlows.Delete(back)
		_ = p.o.TlFlows.Delete(t)
		if _, here := p.endpoints.have[t.Src]; here && t.Proto == unix.IPPROTO_TCP && !opening && f.Flags&flowClosed == 0 {
			resets = append(resets, reset{flow: t, seq: f.Ack})
		}
	}
	return p.send(resets)
}

func instances(all []netip.Addr) map[uint32]bool {
	set := make(map[uint32]bool, len(all))
	for _, a := range all {
		if a.Is4() {
			set[be32(a)] = true
		}
	}
	return set
}

// reset is what tells the side that opened a TCP flow that it has ended.
type reset struct {
	flow objectsTuple
	seq  uint32 // the byte that it expects next
}

// send sends resets to containers here. One that cannot be sent is not worth an
// error: the container will notice when it sends.
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
		src, dst := addr(r.flow.Src), addr(r.flow.Dst)
		if r.flow.Family == 6 {
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

// packet is the reset that goes from dst back to src (RFC 9293, section 3.5.2).
func (r reset) packet(src, dst netip.Addr) []byte {
	tcp := make([]byte, 20)
	binary.NativeEndian.PutUint16(tcp[0:], r.flow.Dport)
	binary.NativeEndian.PutUint16(tcp[2:], r.flow.Sport)
	tcp[12] = 5 << 4
	const rst = 4
	tcp[13] = rst
	binary.NativeEndian.PutUint32(tcp[4:], r.seq)
	pseudo := append(append([]byte{}, dst.AsSlice()...), src.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], sum(append(pseudo, tcp...)))
	if src.Is4() {
		ip := make([]byte, 20, 40)
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
		copy(ip[12:], dst.AsSlice())
		copy(ip[16:], src.AsSlice())
		return append(ip, tcp...) // the kernel fills in length and checksum
	}
	ip := make([]byte, 40, 60)
	ip[0], ip[5], ip[6], ip[7] = 0x60, byte(len(tcp)), unix.IPPROTO_TCP, 64
	copy(ip[8:], dst.AsSlice())
	copy(ip[24:], src.AsSlice())
	return append(ip, tcp...)
}

// sum is the Internet checksum of b, whose length is even (RFC 1071).
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
