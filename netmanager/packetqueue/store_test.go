package packetqueue

import (
	"net/netip"
	"testing"
	"time"
)

// The misses of an endpoint that sends to many addresses are reported at a bounded rate, those
// of its neighbour at once.
func TestMissesOfAFloodAreRateLimited(t *testing.T) {
	k, now := newStore(), time.Now()
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	flooder, neighbour := at(1), at(2)
	reported, kept := 0, 0
	const seconds, rate = 5, 10_000
	for i := range seconds * rate {
		now = now.Add(time.Second / rate)
		remote := at(1000 + i)
		if here, ask := k.add(now, flooder, remote, []byte{1}); ask {
			reported++
			if here {
				kept++
				k.take(flooder, remote) // refused at once
			}
		} else if here {
			t.Fatal("a packet was kept whose miss was not reported")
		}
		if i%rate == 0 {
			if here, ask := k.add(now, neighbour, remote, []byte{1}); !here || !ask {
				t.Fatalf("the neighbour's packet: kept %v, reported %v, want both", here, ask)
			}
		}
	}
	if most := missBurst + seconds*missRate + 1; reported > most || reported < most/2 || kept != reported {
		t.Errorf("%d misses reported and %d packets kept of %d, want equal and at most %d", reported, kept, seconds*rate, most)
	}
}

// Only pairs with waiting packets are recorded as reported: an instance that has used up its
// share cannot exhaust the records, without which no packets are kept.
func TestOnlyKeptPacketsAreRecorded(t *testing.T) {
	k := newStore()
	a, b := ip("10.16.0.3"), ip("10.16.0.4")
	frame := make([]byte, 60)
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}) }
	for n := range packetBound.Share[0] {
		k.add(epoch, b, at(n/maxPerRemote), frame)
	}
	for n := range 200 {
		remote := at(1000 + n)
		if kept, _ := k.add(epoch, a, remote, frame); !kept {
			t.Fatalf("packet %d of a neighbour is dropped, want it kept", n)
		}
		if kept, ask := k.add(epoch, b, remote, frame); kept || !ask {
			t.Fatalf("packet beyond the share, to where another's waits: kept %v, reported %v, want false, true", kept, ask)
		}
		if _, ask := k.add(epoch, b, remote, frame); ask {
			t.Fatal("the same miss is reported twice at once, want once in missInterval")
		}
	}
	if len(k.reported) > k.count {
		t.Errorf("%d pairs recorded as reported and %d packets wait, want no more pairs", len(k.reported), k.count)
	}
	if kept, ask := k.add(epoch, client, web, frame); !kept || !ask {
		t.Errorf("a neighbour's first packet: kept %v, reported %v, want both", kept, ask)
	}
}

// TestPacketsOfOneInstanceLeaveRoomForOthers floods from a few instances, with small
// and with large packets, also to where the neighbour sends.
func TestPacketsOfOneInstanceLeaveRoomForOthers(t *testing.T) {
	for _, size := range []int{60, 1500, 65000} {
		for _, loud := range []int{1, 4, 8} {
			k := newStore()
			for n := range 4096 {
				for i := range loud {
					from := netip.AddrFrom4([4]byte{10, 16, 1, byte(i)})
					k.add(epoch, from, web, make([]byte, size))
					k.add(epoch, from, netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}), make([]byte, size))
				}
			}
			if k.count > packetBound.Total || k.bytes > maxBytes || k.locals[netip.AddrFrom4([4]byte{10, 16, 1, 0})].packets > packetBound.Share[0] {
				t.Errorf("after %d floods with packets of %d bytes, %d packets with %d bytes wait, want them bounded", loud, size, k.count, k.bytes)
			}
			kept := 0
			for range maxPerRemote {
				if here, _ := k.add(epoch, client, web, make([]byte, 1500)); here {
					kept++
				}
			}
			if kept < maxPerRemote {
				t.Errorf("beside %d floods with packets of %d bytes, %d of a neighbour's first %d packets were kept, want all", loud, size, kept, maxPerRemote)
			}
		}
	}
}

// While packets of a pair wait, its miss is reported once in missInterval, also after the oldest
// packet has expired.
func TestAWaitingPairIsReportedOncePerInterval(t *testing.T) {
	k, now := newStore(), epoch
	a, remote := ip("10.16.0.3"), ip("10.30.0.1")
	var last time.Time
	for range 200 {
		_, report := k.add(now, a, remote, []byte{1})
		if report && !last.IsZero() && now.Sub(last) < missInterval {
			t.Fatalf("reported again after %v, want at least %v", now.Sub(last), missInterval)
		}
		if report {
			last = now
		}
		now = now.Add(missInterval / 5)
	}
	if last.IsZero() {
		t.Error("no miss was reported")
	}
}

// Packets for a service that starts wait longer than others, and no longer than they may.
func TestHeldPacketsWaitForAServiceThatStarts(t *testing.T) {
	k, now := newStore(), epoch
	client, slow, other := ip("10.16.0.3"), ip("10.30.0.1"), ip("10.30.0.2")
	k.add(now, client, slow, []byte{1})
	k.add(now, client, other, []byte{2})
	k.hold(slow, now.Add(30*time.Second))
	now = now.Add(2 * time.Second)
	k.add(now, client, slow, []byte{3})
	if k.count != 2 {
		t.Fatalf("%d packets wait after 2 s, want the two that are held", k.count)
	}
	if next := k.next(); !next.Equal(epoch.Add(30 * time.Second)) {
		t.Errorf("the next expiry is at %v, want after 30 s", next.Sub(epoch))
	}
	if out := k.take(netip.Addr{}, slow); len(out) != 2 || out[0].frame[0] != 1 || len(k.patient) > 0 {
		t.Errorf("%d packets were released, want 2 in order", len(out))
	}
	k.hold(slow, now.Add(30*time.Second))
	k.add(now, client, slow, []byte{4})
	k.expire(now.Add(31 * time.Second))
	if k.count != 0 || len(k.patient) > 0 || len(k.locals)+len(k.pairs)+len(k.reported)+len(k.held) > 0 || !k.next().IsZero() {
		t.Errorf("%d packets and %d holds are left after the wait", k.count, len(k.patient))
	}
}

func TestHeldAddressesAreBounded(t *testing.T) {
	k := newStore()
	for n := range 65_000 {
		k.hold(netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}), epoch.Add(time.Minute))
	}
	if len(k.patient) > maxPatient {
		t.Errorf("%d addresses are held, want at most %d", len(k.patient), maxPatient)
	}
}
