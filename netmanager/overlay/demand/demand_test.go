package demand

import (
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func at(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)}) }

func TestDemandsOfOneServiceLeaveRoomForOthers(t *testing.T) {
	m, now := New(), time.Unix(1000, 0)
	taken := 0
	for n := range 65_000 {
		if m.Add(now, wire.Subscription{Address: at(n), For: "t/a.n.hostile.n"}) > 0 {
			taken++
		}
	}
	if taken != Bound.Share[0] || m.Len() != taken {
		t.Errorf("%d demands of one service were taken, want %d", taken, Bound.Share[0])
	}
	if m.Add(now, wire.Subscription{Address: at(1), For: "t/a.n.other.n"}) != Wait {
		t.Error("another service has no room")
	}
	for i := range Bound.Total {
		m.Add(now, wire.Subscription{Address: at(i), For: api.ServiceID(rune('a' + i%26))})
	}
	if m.Len() > Bound.Total || len(m.Take()) > wire.MaxDemands {
		t.Errorf("%d demands, want at most %d", m.Len(), Bound.Total)
	}
}

func TestDemandsLeaveNothingBehind(t *testing.T) {
	m, now := New(), time.Unix(1000, 0)
	k := wire.Subscription{Address: at(1), For: "t/a.n.c.n"}
	m.Add(now, k)
	if !m.Due() || len(m.Take()) != 1 || m.Due() {
		t.Fatal("a new demand is not sent once")
	}
	if !m.Drop(at(1)) || m.Drop(at(1)) || m.Len() > 0 || !m.Next().IsZero() || len(m.of) > 0 {
		t.Error("a dropped demand left something behind")
	}
	m.Add(now, k)
	times := 0
	for over := false; !over; times++ {
		now = m.Next()
		_, over = m.Expire(now)
	}
	if took := now.Sub(time.Unix(1000, 0)); took != Wait || m.Len() > 0 || len(m.send) > 0 || times > 20 {
		t.Errorf("a demand ended after %v and %d repetitions", took, times)
	}
}
