package offload

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// six is an IPv6 packet.
func six(next byte, payload []byte) []byte {
	p := make([]byte, 40, 40+len(payload))
	p[0], p[6], p[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	p[8], p[23], p[24], p[39] = 0xfd, 1, 0xfd, 2
	return append(p, payload...)
}

// TestFragmentsAddUpToThePacket cuts packets, and fragments of packets, and puts them together.
func TestFragmentsAddUpToThePacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 9, LeastIPv6-40).Draw(t, "payload")
		mtu := rapid.IntRange(56, LeastIPv6).Draw(t, "mtu")
		next, offset, more, id := byte(protoUDP), 0, byte(0), uint32(7)
		packet := six(next, payload)
		if rapid.Bool().Draw(t, "of a fragment") {
			offset, more, id = 8*rapid.IntRange(0, 1000).Draw(t, "offset"), byte(rapid.IntRange(0, 1).Draw(t, "more")), 99
			h := []byte{next, 0, byte(offset >> 8), byte(offset) | more, 0, 0, 0, byte(id)}
			packet = six(protoFragment, append(h, payload...))
		}
		var got []byte
		last := byte(1)
		ok := Fragment(Segment{Packet: bytes.Clone(packet)}, mtu, 7, func(f []byte) {
			at := binary.BigEndian.Uint16(f[42:])
			switch {
			case len(f) > mtu || int(binary.BigEndian.Uint16(f[4:])) != len(f)-40:
				t.Fatalf("a fragment of %d bytes, at most %d: % x", len(f), mtu, f[:48])
			case f[6] != protoFragment || f[40] != next || binary.BigEndian.Uint32(f[44:]) != id || !bytes.Equal(f[7:40], packet[7:40]):
				t.Fatalf("the header is % x", f[:48])
			case int(at&fragmentOffset) != offset+len(got) || last == 0 || len(got)%8 != 0:
				t.Fatalf("at %d after %d bytes", at&fragmentOffset, len(got))
			}
			got, last = append(got, f[48:]...), byte(at&moreFragments)
		})
		if !ok || last != more || !bytes.Equal(got, payload) {
			t.Fatalf("%d bytes became %d, more %d: %v", len(payload), len(got), last, ok)
		}
	})
}

func TestFragmentsHaveACompleteChecksum(t *testing.T) {
	udp := make([]byte, 1240)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	p := six(protoUDP, udp)
	l, ok := parse(p)
	if !ok {
		t.Fatal("no packet")
	}
	l.setPartial(p, len(p))
	whole := p[:40:40]
	if !Fragment(Segment{Packet: p, Partial: true}, 1220, 1, func(f []byte) { whole = append(whole, f[48:]...) }) || !l.valid(whole) {
		t.Errorf("the checksum of %d bytes does not hold", len(whole))
	}
}

func TestPacketsThatMustNotBeFragmentedAreNot(t *testing.T) {
	for name, p := range map[string][]byte{
		"nothing": nil, "IPv4": {0x45, 39: 0}, "short": {0x60, 38: 0}, "hop by hop": six(protoHopByHop, make([]byte, 1000)),
		"routed": six(protoRouting, make([]byte, 1000)), "half a fragment header": six(protoFragment, make([]byte, 7)),
		"beyond the end": six(protoFragment, append([]byte{protoUDP, 0, 0xff, 0xf8, 0, 0, 0, 1}, make([]byte, 1000)...)),
	} {
		if Fragment(Segment{Packet: p}, 600, 1, func(f []byte) { t.Errorf("%s yields % x", name, f) }) {
			t.Errorf("%s is cut", name)
		}
	}
	if Fragment(Segment{Packet: six(protoUDP, make([]byte, 1000))}, 55, 1, func([]byte) {}) {
		t.Error("into fragments without content")
	}
}

func FuzzFragment(f *testing.F) {
	f.Add(six(protoUDP, make([]byte, 1240)), 1220, true)
	f.Add(six(protoFragment, make([]byte, 100)), 56, false)
	f.Fuzz(func(t *testing.T, packet []byte, mtu int, partial bool) {
		got := 0
		ok := Fragment(Segment{Packet: packet, Partial: partial}, min(mtu, MaxPacket), 1, func(f []byte) {
			if got++; len(f) > mtu {
				t.Fatalf("a fragment of %d bytes, at most %d", len(f), mtu)
			}
		})
		if !ok && got > 0 {
			t.Fatalf("%d fragments of what cannot be cut", got)
		}
	})
}
