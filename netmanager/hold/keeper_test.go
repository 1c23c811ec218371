package hold

import (
	"net/netip"
	"testing"
	"time"
)

// Of an endpoint that sends to all the world the core hears now and then; of its
// neighbour at once.
func TestAFloodIsToldOfNowAndThen(t *testing.T) {
	k, now := newKeeper(), time.Now()
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	flooder, neighbour := at(1), at(2)
	told, kept := 0, 0
	const seconds, rate = 5, 10_000
	for i := range seconds * rate {
		now = now.Add(time.Second / rate)
		remote := at(1000 + i)
		if here, ask := k.add(now, flooder, remote, []byte{1}); ask {
			told++
			if here {
				kept++
				k.take(flooder, remote) // refused at once
			}
		} else if here {
			t.Fatal("a packet waits of which nobody heard")
		}
		if i%rate == 0 {
			if here, ask := k.add(now, neighbour, remote, []byte{1}); !here || !ask {
				t.Fatal("the neighbour's packet does not wait, or nobody heard of it")
			}
		}
	}
	if most := askBurst + seconds*askRate + 1; told > most || told < most/2 || kept != told {
		t.Errorf("%d misses were told and %d packets kept of %d, want at most %d", told, kept, seconds*rate, most)
	}
}

// What is noted as told is what waits: an instance that has its share of the packets,
// and sends to where another's wait, does not use up the notes, without which nobody's
// packets are held.
func TestWhatIsNotKeptIsNotNoted(t *testing.T) {
	k := newKeeper()
	a, b := ip("10.16.0.3"), ip("10.16.0.4")
	frame := make([]byte, 60)
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}) }
	for n := range places.Share[0] {
		k.add(epoch, b, at(n/perRemote), frame)
	}
	for n := range 200 {
		remote := at(1000 + n)
		if kept, _ := k.add(epoch, a, remote, frame); !kept {
			t.Fatalf("packet %d of a neighbour does not wait", n)
		}
		if kept, ask := k.add(epoch, b, remote, frame); kept || !ask {
			t.Fatalf("beside another's packet: kept %v, told %v", kept, ask)
		}
		if _, ask := k.add(epoch, b, remote, frame); ask {
			t.Fatal("the same miss is told twice at once")
		}
	}
	if len(k.asked) > k.count {
		t.Errorf("%d pairs are noted as told, of %d packets that wait", len(k.asked), k.count)
	}
	if kept, ask := k.add(epoch, client, web, frame); !kept || !ask {
		t.Errorf("a neighbour's first packet: kept %v, told %v", kept, ask)
	}
}

// TestPacketsOfOneInstanceLeaveRoomForOthers floods from a few instances, with small
// and with large packets, also to where the neighbour sends.
func TestPacketsOfOneInstanceLeaveRoomForOthers(t *testing.T) {
	for _, size := range []int{60, 1500, 65000} {
		for _, loud := range []int{1, 4, 8} {
			k := newKeeper()
			for n := range 4096 {
				for i := range loud {
					from := netip.AddrFrom4([4]byte{10, 16, 1, byte(i)})
					k.add(epoch, from, web, make([]byte, size))
					k.add(epoch, from, netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}), make([]byte, size))
				}
			}
			if k.count > places.Total || k.bytes > bytesMax || k.locals[netip.AddrFrom4([4]byte{10, 16, 1, 0})].packets > places.Share[0] {
				t.Errorf("%d floods of %d bytes: %d packets with %d bytes wait", loud, size, k.count, k.bytes)
			}
			kept := 0
			for range perRemote {
				if here, _ := k.add(epoch, client, web, make([]byte, 1500)); here {
					kept++
				}
			}
			if kept < perRemote {
				t.Errorf("beside %d floods of %d bytes %d of a neighbour's first %d packets wait", loud, size, kept, perRemote)
			}
		}
	}
}
