package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// worldWithPeer returns a world whose client has flows to web on nodes 1 and 2.
func worldWithPeer(t *testing.T) *world {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2)}}})
	for n := range byte(2) {
		w.step(Path{Key: key(n + 1), Kind: api.PathDirect})
	}
	w.checkIndexes()
	return w
}

// use lets time pass while the client calls web.
func (w *world) use(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.pass(min(time.Minute, end.Sub(w.now)))
		w.step(Miss{Local: ip("10.16.0.2"), Remote: vip(1)})
	}
}

// notices returns the notices and their receivers, one line each.
func notices(eff step.Effects) (out []string) {
	for _, m := range orders[TunnelNotice](eff) {
		line := fmt.Sprintf("%d:", m.Key[31])
		for _, x := range m.Entries {
			of := "?"
			for _, a := range []Attach{attachOf("client", 0, 1), attachOf("web", 5, 7)} {
				if x.Of == peermsg.PlacementOf(a.Key) {
					of = fmt.Sprint(uint64(a.Epoch))
				}
			}
			line += fmt.Sprintf(" %s@%s is %d", x.Address, of, x.State)
		}
		out = append(out, line)
	}
	return out
}

func serial(t *testing.T, eff step.Effects) uint64 {
	t.Helper()
	all := orders[TunnelNotice](eff)
	if len(all) == 0 {
		t.Fatal("nobody is reported")
	}
	return all[0].Serial
}

// says lets node n send a notice about its backend behind vip(1).
func (w *world) noticed(n byte, serial uint64, e api.Epoch, s peermsg.State) step.Effects {
	w.t.Helper()
	return w.step(Noticed{key(n), peermsg.Notice{Serial: serial, Entries: []peermsg.Entry{{Address: instanceAt(n, 1), Of: webOn(n, e), State: s}}}})
}

// webOn returns the placement of web on node n; epoch 0 means any.
func webOn(n byte, e api.Epoch) peermsg.Placement {
	if e == 0 {
		return 0
	}
	return peermsg.PlacementOf(wire.Key{Instance: svc("web").Instance(int(n) - 1), Epoch: e})
}

func (w *world) leadsTo(nodes ...byte) {
	w.t.Helper()
	want := ""
	for _, n := range nodes {
		want += fmt.Sprintf("%s*1 ", instanceAt(n, 1))
	}
	if got := w.backendsOf(vip(1)); got != want {
		w.t.Fatalf("flows go to %q, want %q", got, want)
	}
}

func TestDepartingInstancesAreAnnouncedUntilConfirmed(t *testing.T) {
	w := worldWithPeer(t)
	web := attachOf("web", 5, 7)
	w.step(web)
	if eff := w.step(listens(web)); len(notices(eff)) > 0 {
		t.Errorf("news of what nobody avoids: %q", notices(eff))
	}
	eff := w.step(Drain{web.Key})
	want := []string{"1: 10.16.0.3@7 is 1", "2: 10.16.0.3@7 is 1"}
	if got := notices(eff); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	first := serial(t, eff)
	if eff := w.step(Drain{web.Key}); len(notices(eff)) > 0 {
		t.Errorf("%q is no news", notices(eff))
	}
	w.step(NoticeAcked{key(1), peermsg.NoticeAck{Serial: first}})
	w.step(NoticeAcked{key(2), peermsg.NoticeAck{Serial: first + 1}}) // a serial that was never sent
	if w.c.View().NoticesAcked() {
		t.Error("one has not confirmed")
	}
	n := 0
	for range 100 {
		w.now = w.now.Add(notice.FirstRepeat)
		for _, line := range notices(w.step(Tick{})) {
			if n++; line != want[1] {
				t.Errorf("%q", line)
			}
		}
	}
	if n != notice.Tries-1 {
		t.Errorf("%d repetitions", n)
	}
	if !w.c.View().NoticesAcked() {
		t.Error("who does not answer is waited for")
	}
	eff = w.step(Detach{web.Key})
	if got, want := notices(eff), []string{"1: 10.16.0.3@7 is 2", "2: 10.16.0.3@7 is 2"}; !slices.Equal(got, want) || serial(t, eff) <= first {
		t.Errorf("%q, %d after %d", got, serial(t, eff), first)
	}
	if w.c.View().NoticesAcked() {
		t.Error("who confirmed before does not count")
	}
	w.step(NoticeAcked{key(1), peermsg.NoticeAck{Serial: serial(t, eff)}})
	if !w.c.View().NoticesAcked() {
		t.Error("all that answer have confirmed")
	}
	last := serial(t, eff)
	w.checkIndexes()
	w.restart()
	eff = w.step(Session{key(2)})
	if got, want := notices(eff), []string{"2: 10.16.0.3@7 is 2 10.16.0.2@1 is 1"}; !slices.Equal(got, want) || serial(t, eff) <= last {
		t.Errorf("after a restart: %q, %d after %d", got, serial(t, eff), last)
	}
	w.use(notice.KeepGone)
	if got, want := notices(w.step(Session{key(2)})), []string{"2: 10.16.0.2@1 is 1"}; !slices.Equal(got, want) {
		t.Errorf("too long ago: %q", got)
	}
	w.checkIndexes()
}

// A workload that exits gets no new flows until its next attempt listens, with the same address and
// placement.
func TestANewAttemptGetsNewFlows(t *testing.T) {
	w := worldWithPeer(t)
	web := attachOf("web", 5, 7)
	w.step(web)
	w.step(listens(web))
	before := serial(t, w.step(Drain{web.Key}))
	web.NetNS = "/proc/2/ns/net"
	if got := notices(w.step(web)); len(got) > 0 {
		t.Errorf("before it listens: %q", got)
	}
	eff := w.step(listens(web))
	if got := notices(eff); len(got) != 2 || got[0] != "1: 10.16.0.3@7 is 0" || serial(t, eff) <= before {
		t.Errorf("%q, %d after %d", got, serial(t, eff), before)
	}
	w.restart() // peers that missed the notice get it in a new session
	if got := notices(w.step(Session{key(1)})); len(got) != 1 || got[0] != "1: 10.16.0.2@1 is 1 10.16.0.3@7 is 0" && got[0] != "1: 10.16.0.3@7 is 0 10.16.0.2@1 is 1" {
		t.Errorf("%q", got)
	}
}

// A workload with health checks gets flows only while they say so. Peers learn at once when it is not
// ready any more, and when it is ready again.
func TestFlowsFollowHealthChecks(t *testing.T) {
	w := worldWithPeer(t)
	web := attachOf("web", 5, 7)
	web.Checked = true
	w.step(web)
	if eff := w.step(listens(web)); len(eff.Save)+len(eff.Send) > 0 || len(w.c.View().Unready()) != 1 {
		t.Errorf("it listens: %+v, and %d are watched, want no effect and only the other one watched", eff, len(w.c.View().Unready()))
	}
	for i, c := range []struct {
		ready bool
		want  []string
	}{
		{true, nil},
		{true, nil}, // the cluster announces it
		{false, []string{"1: 10.16.0.3@7 is 1", "2: 10.16.0.3@7 is 1"}},
		{true, []string{"1: 10.16.0.3@7 is 0", "2: 10.16.0.3@7 is 0"}},
	} {
		got := notices(w.step(SetReady{web.Key, c.ready}))
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("step %d, ready %t: peers got %q, want %q", i, c.ready, got, c.want)
		}
		if at, _ := w.c.View().Attached(web.Key); at.Ready != c.ready || !at.Checked {
			t.Errorf("step %d: attached as %+v, want ready %t", i, at, c.ready)
		}
		w.checkIndexes()
	}
	w.restart()
	if at, _ := w.c.View().Attached(web.Key); !at.Ready {
		t.Errorf("after a restart it is %+v, want ready as before", at)
	}
}

func TestANoticeOfAPeerOverridesOlderRecords(t *testing.T) {
	w := worldWithPeer(t)
	w.leadsTo(1, 2)
	eff := w.noticed(1, 5, 1, peermsg.Draining)
	w.leadsTo(2)
	sent := slices.IndexFunc(eff.Send, func(e wire.Envelope) bool { _, ok := e.Msg.(plane.Change); return ok })
	confirmed := slices.IndexFunc(eff.Send, func(e wire.Envelope) bool { return e.Msg == TunnelNoticeAck{key(1), 5} })
	if sent < 0 || confirmed < sent {
		t.Errorf("it is confirmed before it is true: %+v", eff.Send)
	}
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 2, 1, 1, 2)}}})
	w.leadsTo(2)
	w.noticed(1, 4, 1, peermsg.Accepting) // out of order
	w.leadsTo(2)
	w.checkIndexes()

	w.pass(5 * time.Second)
	eff = w.noticed(1, 6, 1, peermsg.Gone)
	ended := slices.ContainsFunc(orders[plane.Change](eff), func(c plane.Change) bool { return slices.Contains(c.End, instanceAt(1, 1)) })
	asked := slices.ContainsFunc(messages(eff), func(up wire.NetUp) bool { return len(up.Subscribe) > 0 })
	if !ended || !asked {
		t.Errorf("its flows end: %v; the route is asked for anew: %v", ended, asked)
	}
	w.noticed(2, 1, 1, peermsg.Draining)
	w.leadsTo(2) // it still serves
	w.noticed(2, 2, 0, peermsg.Gone)
	w.leadsTo(2) // neither the peer nor this node has a better backend
	w.noticed(2, 3, 1, peermsg.Gone)
	w.leadsTo() // clients are refused at once
	w.noticed(2, 4, 0, peermsg.Gone)
	w.leadsTo()
	w.checkIndexes()
	w.restart()
	w.leadsTo()
	w.noticed(2, 5, 1, peermsg.Accepting)
	w.leadsTo(2)
	w.checkIndexes()

	next := route("web", 3, 1, 1, 2)
	next.Backends[0].Epoch = 2
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{next}}})
	w.leadsTo(1, 2)
	w.noticed(1, 7, 1, peermsg.Gone) // about an earlier placement
	w.leadsTo(1, 2)
	w.noticed(1, 8, 0, peermsg.Gone) // about any placement
	w.leadsTo(2)
	w.use(notice.KeepMark + time.Second)
	w.leadsTo(1, 2)
	w.checkIndexes()
	for k := range w.docs {
		if k[0] == notice.Kind {
			t.Errorf("%v is left", k)
		}
	}
}

func TestANoticeExpiresAfterTheClockIsSetBack(t *testing.T) {
	w := worldWithPeer(t)
	w.noticed(1, 5, 1, peermsg.Gone)
	w.now = w.now.Add(-24 * time.Hour)
	w.restart()
	w.leadsTo(2)
	w.use(notice.KeepMark + time.Second)
	w.leadsTo(1, 2)
	w.checkIndexes()
}

func TestAPeersNoticeAppliesOnlyToItsInstances(t *testing.T) {
	w := worldWithPeer(t)
	of := func(a netip.Addr, p peermsg.Placement) []peermsg.Entry {
		return []peermsg.Entry{{Address: a, Of: p, State: peermsg.Gone}}
	}
	w.step(Noticed{key(2), peermsg.Notice{Serial: 1, Entries: of(instanceAt(1, 1), webOn(1, 1))}})
	w.step(Noticed{key(2), peermsg.Notice{Serial: 2, Entries: of(ip("10.30.1.1"), 1)}})
	w.step(Noticed{key(2), peermsg.Notice{Serial: 3, Entries: of(w.c.View().List()[0].Address, 1)}})
	w.step(Noticed{key(9), peermsg.Notice{Serial: 1, Entries: of(instanceAt(1, 1), webOn(1, 1))}}) // a peer without a record
	w.leadsTo(1, 2)
	if n := w.c.received.Count(key(2)); n > 0 {
		t.Errorf("%d words are remembered", n)
	}

	wide := peerRecord(2, 9)
	for i := range byte(peers.MaxSubnets) {
		wide.Subnets = append(wide.Subnets, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 17, i, 0}), 26))
	}
	w.answer(wire.NetDown{Records: wire.Records{Peers: []api.Peer{wide}}})
	for i := range 10 * peermsg.MaxEntries {
		a := netip.AddrFrom4([4]byte{10, 17, byte(i % (peers.MaxSubnets - 1)), byte(i / (peers.MaxSubnets - 1) % 64)})
		w.step(Noticed{key(2), peermsg.Notice{Serial: uint64(10 + i), Entries: of(a, peermsg.Placement(1+i))}})
		w.now = w.now.Add(time.Millisecond)
	}
	if n := w.c.received.Count(key(2)); n != peermsg.MaxEntries {
		t.Errorf("%d words are remembered", n)
	}
	w.leadsTo(1, 2)
	w.checkIndexes()
	w.restart()
	w.checkIndexes()
	w.answer(wire.NetDown{Whole: true, Records: wire.Records{Refused: []wire.Refusal{{Subscription: wire.Subscription{Address: vip(1), For: svc("client")}}}}})
	w.checkIndexes()
	for k := range w.docs {
		if k[0] == notice.Kind {
			t.Errorf("%v is left of a peer that is gone", k)
		}
	}
}

func TestAPeerWithoutRecordsGetsTheNotice(t *testing.T) {
	w := worldWithPeer(t)
	web := attachOf("web", 5, 7)
	w.step(web)
	for a, want := range map[netip.Addr]string{
		ip("10.16.0.9"): "1: 10.16.0.9@? is 2", ip("10.16.0.3"): "", ip("10.16.1.3"): "",
	} {
		w.now = w.now.Add(time.Second)
		eff := w.step(Stray{key(1), a})
		if got := notices(eff); len(got) > 1 || len(got) == 1 && got[0] != want || len(got) == 0 && want != "" {
			t.Errorf("%s: %q", a, got)
		}
	}
	n := 0
	for i := range 1000 {
		w.now = w.now.Add(time.Millisecond)
		n += len(notices(w.step(Stray{key(1), ip("10.16.0.9").Next()})))
		n += len(notices(w.step(Stray{key(7), netip.AddrFrom4([4]byte{10, 16, 0, byte(10 + i%50)})}))) // a peer without a record
	}
	if n < 9 || n > 11 {
		t.Errorf("reported %d times in a second", n)
	}
	w.step(Detach{web.Key})
	w.now = w.now.Add(time.Second)
	if got := notices(w.step(Stray{key(2), ip("10.16.0.3")})); len(got) == 0 || got[len(got)-1] != "2: 10.16.0.3@7 is 2" {
		t.Errorf("%q", got)
	}
	w.checkIndexes()
}

// Notices are bounded. They keep the latest entries.
func TestANoticeHasOnlyTheLatestEntries(t *testing.T) {
	w := worldWithPeer(t)
	for i := range 200 {
		web := attachOf("web", i, 7)
		if eff := w.step(web); eff.Err != nil {
			t.Fatal(eff.Err)
		}
		eff := w.step(Detach{web.Key})
		last := orders[TunnelNotice](eff)[0].Entries
		if len(last) >= peermsg.MaxEntries || last[len(last)-1].Of != peermsg.PlacementOf(web.Key) {
			t.Fatalf("%d words, the last %+v", len(last), last[len(last)-1])
		}
		w.use(endpoints.MinQuarantine)
	}
	w.checkIndexes()
}
