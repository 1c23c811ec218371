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
