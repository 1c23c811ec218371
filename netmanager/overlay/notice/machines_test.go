package notice_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
)

var entry = peermsg.Entry{Address: netip.MustParseAddr("10.16.1.2"), Of: peermsg.PlacementOf(wire.Key{Instance: "acme/shop.prod.web.eu#1", Epoch: 7}), State: peermsg.Draining}

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one   = api.PeerKey{1}
	two   = api.PeerKey{2}
	web   = wire.Key{Instance: "acme/shop.prod.web.eu#1", Epoch: 7}
)

func TestNoticesAreRepeatedUntilConfirmed(t *testing.T) {
	s := notice.NewSender()
	s.Start(5)
	s.Set(start, entry.Address, web, peermsg.Draining)
	n, to := s.Publish(start, []api.PeerKey{one, two})
	if n.Serial != 5<<32+1 || len(n.Entries) != 1 || n.Entries[0] != entry || len(to) != 2 {
		t.Fatalf("published %+v to %v", n, to)
	}
	s.Confirm(one, n.Serial)
	s.Confirm(two, n.Serial+1) // never sent
	if s.Confirmed([]api.PeerKey{one, two}) {
		t.Error("confirmed, though peer 2 was sent no such serial")
	}
	repeats := 0
	for at := s.Next(); !at.IsZero(); at = s.Next() {
		if _, to := s.Repeat(at, []api.PeerKey{one, two}); len(to) > 0 {
			repeats++
			if !slices.Equal(to, []api.PeerKey{two}) {
				t.Errorf("repeated to %v, want peer 2", to)
			}
		}
	}
	if repeats != notice.Tries-1 || !s.Confirmed([]api.PeerKey{one, two}) {
		t.Errorf("%d repetitions, want %d, and not to wait for a peer that does not respond", repeats, notice.Tries-1)
	}
}

func TestNewSessionsAndPeersWithoutRecordsGetTheNotice(t *testing.T) {
	s := notice.NewSender()
	if _, ok := s.Session(start, one); ok {
		t.Error("a session without a notice gets one")
	}
	s.Set(start, entry.Address, web, peermsg.Gone)
	s.Publish(start, nil)
	if n, ok := s.Session(start, one); !ok || len(n.Entries) != 1 {
		t.Errorf("the session gets %+v, %v", n, ok)
	}
	if n, ok := s.Session(start.Add(notice.KeepGone), one); ok {
		t.Errorf("a placement that is long gone is announced: %+v", n)
	}
	unknown := entry.Address.Next()
	n, ok := s.Stray(start.Add(time.Second), one, unknown)
	if want := (peermsg.Entry{Address: unknown, State: peermsg.Gone}); !ok || n.Entries[len(n.Entries)-1] != want {
		t.Errorf("a stray gets %+v, %v, want %+v last", n, ok, want)
	}
	if _, ok := s.Stray(start.Add(time.Second+50*time.Millisecond), one, unknown); ok {
		t.Error("strays are answered more often than every 100 ms")
	}
}

func TestSenderKeepsTheNewestEntries(t *testing.T) {
	s := notice.NewSender()
	a := entry.Address
	for range 3 * peermsg.MaxEntries {
		a = a.Next()
		s.Set(start, a, web, peermsg.Gone)
	}
	n, _ := s.Publish(start, nil)
	if len(n.Entries) != peermsg.MaxEntries-1 || n.Entries[len(n.Entries)-1].Address != a {
		t.Errorf("%d entries, the last for %s, want %d and %s", len(n.Entries), n.Entries[len(n.Entries)-1].Address, peermsg.MaxEntries-1, a)
	}
}

func received(st peermsg.State) notice.Received {
	e := entry
	e.State = st
	return notice.Received{Entry: e, Known: peermsg.PlacementOf(web)}
}

func TestMarksAreReplacedByThePeersNextNotice(t *testing.T) {
	r := notice.NewReceiver()
	for i, step := range []struct {
		serial uint64
		in     notice.Received
		want   []notice.Change
		late   bool
		marked bool
	}{
		{1, received(peermsg.Accepting), nil, false, false},
		{5, received(peermsg.Draining), []notice.Change{{Address: entry.Address, Draining: true}}, false, true},
		{5, received(peermsg.Draining), nil, false, true},
		{4, received(peermsg.Accepting), nil, true, true},
		{6, received(peermsg.Gone), []notice.Change{{Address: entry.Address, Gone: true}}, false, true},
		{7, received(peermsg.Accepting), []notice.Change{{Address: entry.Address}}, false, false},
	} {
		got, ok := r.Take(start, one, step.serial, []notice.Received{step.in})
		if !slices.Equal(got, step.want) || ok == step.late {
			t.Errorf("step %d: changes %+v, taken %v, want %+v", i, got, ok, step.want)
		}
		if _, marked := r.Mark(one, entry.Address, web); marked != step.marked {
			t.Errorf("step %d: marked %v, want %v", i, marked, step.marked)
		}
	}
}

func TestMarksExpireAndAreBounded(t *testing.T) {
	r := notice.NewReceiver()
	for i := range 3 * peermsg.MaxEntries {
		e := peermsg.Entry{Address: netip.AddrFrom4([4]byte{10, 16, byte(i >> 6), byte(i & 63)}), Of: 7, State: peermsg.Gone}
		r.Take(start.Add(time.Duration(i)*time.Millisecond), one, uint64(i), []notice.Received{{Entry: e}})
	}
	if n := r.Count(one); n != peermsg.MaxEntries {
		t.Errorf("%d marks, want %d", n, peermsg.MaxEntries)
	}
	docs := r.Save()
	if len(docs) != 1 {
		t.Fatalf("%d documents of one peer", len(docs))
	}
	next := notice.NewReceiver()
	if err := next.Restore(docs[0], one, true); err != nil {
		t.Fatal(err)
	}
	early := start.Add(-24 * time.Hour) // the clock was set back
	next.Start(early)
	for at := next.Next(); !at.IsZero() && !at.After(early.Add(notice.KeepMark)); at = next.Next() {
		next.Expire(at)
	}
	if n := next.Count(one); n != 0 {
		t.Errorf("%d marks are left after %s", n, notice.KeepMark)
	}
	if docs := next.Save(); len(docs) != 1 || docs[0].Data != nil {
		t.Errorf("saved %+v, want a deletion", docs)
	}
	if err := next.Restore(docs[0], two, false); err != nil || len(next.Save()) != 1 {
		t.Errorf("the document of an unknown peer is not deleted: %v", err)
	}
}
