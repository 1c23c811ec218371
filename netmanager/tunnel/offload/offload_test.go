package offload

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// super is a frame from the kernel: TCP or UDP, with a payload to split into segments of size.
type super struct {
	v6, udp bool
	options int // words of TCP
	flags   byte
	id      uint16
	seq     uint32
	size    int
	payload []byte
	port    uint16
}

func (s super) frame() []byte {
	l4 := 20
	if s.v6 {
		l4 = 40
	}
	head := l4 + 8
	if !s.udp {
		head = l4 + 20 + 4*s.options
	}
	p := append(make([]byte, head), s.payload...)
	l := layout{v6: s.v6, proto: protoTCP, l4: l4, payload: head}
	if s.udp {
		l.proto = protoUDP
	}
	if s.v6 {
		p[0], p[6], p[7] = 0x60, l.proto, 64
		for i := 8; i < 40; i++ {
			p[i] = byte(i * 7)
		}
	} else {
		p[0], p[1], p[8], p[9] = 0x45, 2, 64, l.proto
		binary.BigEndian.PutUint16(p[4:], s.id)
		copy(p[12:], []byte{10, 16, 0, 1, 10, 16, 1, 2})
	}
	binary.BigEndian.PutUint16(p[l4:], s.port)
	binary.BigEndian.PutUint16(p[l4+2:], 80)
	v := vnet{flags: needsCsum, csumStart: uint16(l4), csumOff: uint16(l.csum())}
	if s.udp {
		v.gso = gsoUDP
	} else {
		v.gso = gsoTCP4
		if s.v6 {
			v.gso = gsoTCP6
		}
		if s.flags&tcpCWR != 0 {
			v.gso |= gsoECN
		}
		binary.BigEndian.PutUint32(p[l4+4:], s.seq)
		p[l4+12], p[l4+13] = byte(5+s.options)<<4, s.flags
		p[l4+14] = 3
		for i := range 4 * s.options {
			p[l4+20+i] = byte(i)
		}
	}
	v.hdrLen, v.size = uint16(head), uint16(s.size)
	if len(s.payload) <= s.size {
		v.gso, v.size, v.hdrLen = gsoNone, 0, 0
	}
	l.setLen(p, len(p))
	l.setPartial(p, len(p))
	return append(v.bytes(), p...)
}

func (v vnet) bytes() []byte {
	b := make([]byte, VnetLen)
	v.put(b)
	return b
}

var supers = rapid.Custom(func(t *rapid.T) super {
	s := super{
		v6: rapid.Bool().Draw(t, "v6"), udp: rapid.Bool().Draw(t, "udp"), options: rapid.IntRange(0, 10).Draw(t, "options"),
		id: rapid.Uint16().Draw(t, "id"), seq: rapid.Uint32().Draw(t, "seq"), size: rapid.IntRange(8, 1400).Draw(t, "size"),
		port: rapid.Uint16Range(1, 4).Draw(t, "port"), flags: 0x10,
	}
	for _, f := range []byte{tcpPSH, tcpFIN, tcpCWR, 0x40} {
		if rapid.Bool().Draw(t, "flag") {
			s.flags |= f
		}
	}
	s.payload = make([]byte, rapid.IntRange(1, min(s.size*45, 60000)).Draw(t, "len"))
	for i := range s.payload {
		s.payload[i] = byte(i * 31)
	}
	return s
})

// cut returns copies of the Splitter's segments of a frame.
func cut(t interface{ Fatalf(string, ...any) }, frame []byte) (out []Segment) {
	var s Splitter
	if err := s.Start(bytes.Clone(frame)); err != nil {
		t.Fatalf("start: %v", err)
	}
	var seg Segment
	for each, left := s.Size(); s.Next(&seg); each, left = s.Size() {
		if len(seg.Packet) != each || left == 0 {
			t.Fatalf("segment of %d bytes, foretold %d, %d left", len(seg.Packet), each, left)
		}
		out = append(out, Segment{bytes.Clone(seg.Packet), seg.Partial})
	}
	return out
}

func joined(j *Joiner) (out [][]byte) {
	j.Flush(func(parts [][]byte) error {
		out = append(out, bytes.Join(parts, nil))
		return nil
	})
	return out
}

func TestJoinReversesSplit(t *testing.T) {
	j := &Joiner{TCP: true, UDP: true}
	rapid.Check(t, func(t *rapid.T) {
		s := supers.Draw(t, "super")
		frame := s.frame()
		for _, complete := range []bool{false, true} {
			segs := cut(t, frame)
			for _, seg := range segs {
				if complete {
					// A packet with a complete checksum is joined only if the checksum is correct.
					if !Complete(seg.Packet) {
						t.Fatalf("cannot complete a segment")
					}
					seg.Partial = false
				}
				if !j.Add(seg.Packet, seg.Partial) {
					t.Fatalf("segment refused")
				}
			}
			got := joined(j)
			want := frame
			if complete && len(segs) == 1 {
				want = append(make([]byte, VnetLen), segs[0].Packet...)
			}
			if len(got) != 1 || !bytes.Equal(got[0], want) {
				t.Fatalf("complete %v: got %d packets; first differs: %v", complete, len(got), got[0][:80])
			}
		}
	})
}

func TestSegmentsAreWholePackets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := supers.Draw(t, "super")
		var payload []byte
		segs := cut(t, s.frame())
		for i, seg := range segs {
			p := seg.Packet
			l, ok := parse(p)
			if !ok || !seg.Partial {
				t.Fatalf("segment %d does not parse, or has no partial checksum", i)
			}
			if !s.v6 {
				if fold(sum(p[:l.l4], 0)) != 0xffff {
					t.Fatalf("segment %d: header checksum", i)
				}
				if id := binary.BigEndian.Uint16(p[4:]); id != s.id+uint16(i) {
					t.Fatalf("segment %d has id %d", i, id)
				}
			}
			if !s.udp {
				last := i == len(segs)-1
				if seq := binary.BigEndian.Uint32(p[l.l4+4:]); seq != s.seq+uint32(len(payload)) {
					t.Fatalf("segment %d has sequence number %d", i, seq)
				}
				want := s.flags
				if !last {
					want &^= tcpPSH | tcpFIN
				}
				if i > 0 {
					want &^= tcpCWR
				}
				if p[l.l4+13] != want {
					t.Fatalf("segment %d has flags %x, want %x", i, p[l.l4+13], want)
				}
			}
			payload = append(payload, p[l.payload:]...)
			if !Complete(p) || !l.valid(p) {
				t.Fatalf("segment %d: completed checksum does not hold", i)
			}
			p[len(p)-1] ^= 1
			if l.valid(p) {
				t.Fatalf("segment %d: checksum holds for another packet", i)
			}
		}
		if !bytes.Equal(payload, s.payload) {
			t.Fatalf("payload differs")
		}
	})
}

// Interleaved flows that lose packets keep their bytes and their order.
func TestMixedFlowsKeepTheirOrder(t *testing.T) {
	j := &Joiner{TCP: true, UDP: true}
	rapid.Check(t, func(t *rapid.T) {
		var queues [][]Segment
		for i := range rapid.IntRange(1, 12).Draw(t, "flows") {
			s := supers.Draw(t, "super")
			s.port = uint16(100 + i)
			queues = append(queues, cut(t, s.frame()))
		}
		want := map[string][]byte{}
		key := func(p []byte, l layout) string { return string(p[l.l4:l.l4+4]) + string(l.addrs(p)) + string(l.proto) }
		packets := 0
		for packets < 200 {
			i := rapid.IntRange(0, len(queues)-1).Draw(t, "flow")
			if len(queues[i]) == 0 {
				break
			}
			seg := queues[i][0]
			queues[i] = queues[i][1:]
			if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				continue
			}
			l, _ := parse(seg.Packet)
			want[key(seg.Packet, l)] = append(want[key(seg.Packet, l)], seg.Packet[l.payload:]...)
			j.Add(seg.Packet, seg.Partial)
			packets++
		}
		got := map[string][]byte{}
		for _, frame := range joined(j) {
			for _, seg := range cut(t, frame) {
				l, ok := parse(seg.Packet)
				if !ok {
					t.Fatalf("joined packet does not parse")
				}
				got[key(seg.Packet, l)] = append(got[key(seg.Packet, l)], seg.Packet[l.payload:]...)
			}
		}
		for k := range want {
			if !bytes.Equal(got[k], want[k]) {
				t.Fatalf("flow %x: %d bytes, want %d", k, len(got[k]), len(want[k]))
			}
		}
	})
}

func TestAWrongChecksumIsNeverCorrected(t *testing.T) {
	s := super{size: 100, payload: make([]byte, 300), flags: 0x10, port: 7}
	segs := cut(t, s.frame())
	j := &Joiner{TCP: true}
	for i, seg := range segs {
		Complete(seg.Packet)
		if i == 1 {
			seg.Packet[len(seg.Packet)-1] ^= 0xff
		}
		j.Add(seg.Packet, false)
	}
	got := joined(j)
	if len(got) != 3 || !bytes.Equal(got[1][VnetLen:], segs[1].Packet) {
		t.Fatalf("%d packets; the broken one is joined or changed", len(got))
	}
}

func TestUncommonChecksumsAreCompletedBeforeSending(t *testing.T) {
	// A checksum that the other end could not locate, because it is inside a tunnel.
	p := append([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 47, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}, make([]byte, 20)...)
	p[30] = 9
	frame := append(vnet{flags: needsCsum, csumStart: 24, csumOff: 2}.bytes(), p...)
	segs := cut(t, frame)
	if len(segs) != 1 || segs[0].Partial || fold(sum(segs[0].Packet[24:], 0)) != 0xffff {
		t.Fatalf("%+v", segs)
	}
}

func TestSumAgreesWithItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		start := rapid.Uint64().Draw(t, "start")
		want := uint64(fold(start))
		for i := 0; i < len(b); i += 2 {
			w := uint64(b[i]) << 8
			if i+1 < len(b) {
				w |= uint64(b[i+1])
			}
			if want += w; want > 0xffff {
				want -= 0xffff
			}
		}
		if got := fold(sum(b, start)); uint64(got)%0xffff != want%0xffff {
			t.Fatalf("%x, want %x", got, want)
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add(super{size: 100, payload: make([]byte, 300), flags: 0x18}.frame())
	f.Add(super{v6: true, udp: true, size: 100, payload: make([]byte, 250)}.frame())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var s Splitter
		if s.Start(frame) != nil {
			return
		}
		var seg Segment
		for n := 0; s.Next(&seg); n++ {
			if len(seg.Packet) == 0 || n > MaxPacket {
				t.Fatal("no progress")
			}
		}
	})
}

// FuzzJoin plays an authenticated but hostile peer.
func FuzzJoin(f *testing.F) {
	for _, seg := range cut(&testing.T{}, super{size: 100, payload: make([]byte, 300), flags: 0x18}.frame()) {
		f.Add(seg.Packet, seg.Packet, true)
	}
	f.Add(make([]byte, 20), []byte{0x60}, false)
	f.Fuzz(func(t *testing.T, a, b []byte, partial bool) {
		if len(a) > 9000 || len(b) > 9000 {
			return
		}
		j := &Joiner{TCP: true, UDP: true}
		sent := 0
		for _, p := range [][]byte{a, b, bytes.Clone(a), bytes.Clone(b)} {
			if len(p) > 0 && j.Add(p, partial) {
				sent++
			}
		}
		got := joined(j)
		if len(got) > sent {
			t.Fatalf("%d packets of %d", len(got), sent)
		}
		for _, frame := range got {
			if v := parseVnet(frame); v.gso != gsoNone || v.flags != 0 {
				if int(v.csumStart)+int(v.csumOff)+2 > len(frame)-VnetLen {
					t.Fatal("checksum outside of the packet")
				}
				var s Splitter
				if err := s.Start(frame); err != nil {
					t.Fatalf("joined packet cannot be cut: %v", err)
				}
			}
		}
	})
}

func BenchmarkSplitJoin(b *testing.B) {
	frame := super{size: 1348, payload: make([]byte, 45*1348), flags: 0x10, options: 3}.frame()
	work := make([]byte, len(frame))
	bufs := make([][]byte, 45)
	for i := range bufs {
		bufs[i] = make([]byte, 0, 1500)
	}
	j := &Joiner{TCP: true}
	var s Splitter
	var seg Segment
	write := func([][]byte) error { return nil }
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		copy(work, frame)
		s.Start(work)
		for i := 0; s.Next(&seg); i++ {
			bufs[i] = append(bufs[i][:0], seg.Packet...)
			j.Add(bufs[i], seg.Partial)
		}
		j.Flush(write)
	}
}
