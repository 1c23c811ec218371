package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
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

// end ends the flows to the instances in to, and the flows without an answer to those in
// unanswered. A client on this node gets a reset that its connection accepts. The next packet of any
// client opens another flow.
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
		these, err := p.endInKernel(ending)
		if resets = append(resets, these...); err != nil {
			failed = fmt.Errorf("end flows: %w", err)
			break
		}
	}
	return errors.Join(failed, p.sendResets(resets)) // for the flows that have ended, even after an error
}

// endInKernel ends flows in the kernel, so that a flow that begins meanwhile is not ended by mistake.
func (p *Plane) endInKernel(ending map[uint32]uint32) (all []reset, err error) {
	t := newTable[uint32, uint32](p.o.TlEnding)
	defer func() {
		var x tx
		t.replace(&x, nil)
		err = errors.Join(err, x.err)
	}()
	var x tx
	if t.replace(&x, ending); x.err != nil {
		return nil, x.err
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
			return all, fmt.Errorf("invalid result of the program tl_end: entries %d to %d, resets up to byte %d of %d", at, next, end, len(run.DataOut))
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

// sendResets sends resets to containers on this node (RFC 9293, section 3.5.2).
func (p *Plane) sendResets(resets []reset) error {
	segments, err := dataplane.OpenSegments()
	if err != nil {
		return err
	}
	defer segments.Close()
	for _, r := range resets {
		client, server := addr(r.Flow.Src), addr(r.Flow.Dst)
		if r.Flow.Family == 6 {
			client, server = p.node.Ranges.To6(client), p.node.Ranges.To6(server)
		}
		// The fields are in network order.
		b := binary.NativeEndian.AppendUint16(nil, r.Flow.Sport)
		b = binary.NativeEndian.AppendUint16(b, r.Flow.Dport)
		b = binary.NativeEndian.AppendUint32(b, r.Ack)
		segments.Send(netip.AddrPortFrom(server, binary.BigEndian.Uint16(b[2:])), netip.AddrPortFrom(client, binary.BigEndian.Uint16(b)),
			binary.BigEndian.Uint32(b[4:]), resetFlag)
	}
	return nil
}

const resetFlag = 4 // RST of a TCP header
