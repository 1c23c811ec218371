package overlay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestRoundTripsOfTCPAreMeasuredBetweenServices(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2)}}})
	far := w.c.services.Route(svc("web")).Backends[1].Address
	ms := time.Millisecond
	w.step(Sampled{[]Flow{
		{Local: client, Remote: vip(1), Sockets: 3, RTT: 4 * ms, Least: 2 * ms, Sent: 90},
		{Local: w.c.lease.Ranges.To6(client), Remote: w.c.lease.Ranges.To6(far), Sockets: 1, RTT: 8 * ms, Least: 3 * ms, Sent: 10, Retransmitted: 5},
		{Local: ip("10.16.99.99"), Remote: vip(1), Sockets: 1, RTT: ms, Least: ms},                            // no such endpoint
		{Local: client, Remote: ip("203.0.113.1"), Sockets: 1, RTT: ms, Least: ms},                            // outside the overlay
		{Local: client, Remote: ip("10.16.200.1"), Sockets: 1, RTT: ms, Least: ms},                            // unknown address
		{Local: client, Remote: vip(1), RTT: ms, Least: ms},                                                   // no sockets
		{Local: client, Remote: vip(1), Sockets: 1},                                                           // not measured
		{Local: client, Remote: client, Sockets: 1, RTT: 30 * time.Microsecond, Least: 20 * time.Microsecond}, // itself
	}})
	at, _ := w.c.endpoints.At(client)
	own := at.Service()
	want := api.PairStatus{Local: own, Remote: svc("web"), RTT: 5 * ms, Least: 2 * ms, Again: 0.05, Connections: 4, Seen: w.now}
	if got := w.c.View().Pairs(); len(got) != 2 || got[0].Remote != own || got[1] != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	if r := w.c.View().Routes(); len(r) != 1 || len(r[0].Pairs) != 1 || r[0].Pairs[0] != want {
		t.Errorf("%+v", r)
	}
	tr, _, err := w.c.View().Trace(at.Attach.Instance, vip(1).String())
	if err != nil || !strings.Contains(fmt.Sprint(tr.Steps), "{latency 5ms, 2ms at least, by 4 connections 0s ago; 5.0 % of segments sent again true}") {
		t.Errorf("%+v, %v", tr, err)
	}
	w.now = w.now.Add(wire.MaxNetPairAge)
	if got := w.c.View().Pairs(); len(got) != 2 { // nothing was stepped
		t.Errorf("%+v", got)
	}
	w.step(Sampled{})
	w.checkIndexes()
}

// Without probes, the node's coordinate follows the TCP round trip of the nearest connection to each
// peer.
func TestTCPMovesTheCoordinateWhereNobodyProbes(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	r := route("web", 1, 1, 1, 2)
	for i := range r.Peers {
		r.Peers[i].Coord = at(0)
	}
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	near := w.c.services.Route(svc("web")).Backends[0].Address
	sample := func(least ...time.Duration) bool {
		was := w.c.measure.Coordinate().Error
		var flows []Flow
		for _, d := range least {
			flows = append(flows, Flow{Local: client, Remote: near, Sockets: 1, RTT: 10 * d, Least: d})
		}
		w.now = w.now.Add(15 * time.Second)
		w.step(Sampled{flows})
		return w.c.measure.Coordinate().Error != was
	}
	if !sample(time.Second, 20*time.Millisecond) {
		t.Fatal("what TCP measured counts for nothing")
	}
	if d := w.c.measure.Coordinate().Height + w.c.measure.Coordinate().Adjustment; d > 0.5 {
		t.Errorf("the slowest connection counts: %+v", w.c.measure.Coordinate())
	}
	w.step(Measured{Key: key(1), RTT: 20 * time.Millisecond, Coord: at(0)})
	if sample(20 * time.Millisecond) {
		t.Error("it counts beside a probe")
	}
	if !sample(20 * time.Millisecond) {
		t.Error("it does not count when the probe is old")
	}
	if w.step(Sampled{[]Flow{{Local: client, Remote: vip(1), Sockets: 1, RTT: time.Second, Least: time.Second}}}); !w.c.View().Peers()[1].Measured.IsZero() {
		t.Error("a semantic address is somebody's")
	}
}

// The tunnel does not see packets on a kernel path. The plane counts their bytes, and round trips are
// still measured.
func TestKernelPathsAreObserved(t *testing.T) {
	w := peered(t)
	w.now = w.now.Add(time.Hour)
	w.agrees(1, w.c.kernel.Status(key(1)).Accepts)
	if st := w.c.View().Peers()[0]; st.Path != api.PathRoute || st.Kernel != nil {
		t.Fatalf("%+v", st)
	} else if _, known := st.Carried(); known {
		t.Error("what it carries is known before anybody looked")
	}
	asked := 0
	count := func(to, from uint64) {
		w.now = w.now.Add(countEvery)
		w.step(Counted{Peers: map[api.PeerKey][2]uint64{key(1): {to, from}}})
		asked += len(orders[TunnelMeasure](w.last))
	}
	for range 30 {
		count(0, 0)
	}
	if asked != 0 {
		t.Errorf("it is measured %d times, and nothing passes", asked)
	}
	for i := range uint64(30) {
		count(100*i, 90*i)
	}
	if asked != 3 {
		t.Errorf("measured %d times in 30 s", asked)
	}
	st := w.c.View().Peers()[0]
	if c, known := st.Carried(); !known || c != (api.Carried{Sent: 2900, Received: 2610}) {
		t.Errorf("%+v", st)
	}
	w.step(Measured{Key: key(1), RTT: time.Millisecond})
	if st := w.c.View().Peers()[0]; !st.Measured.Equal(w.now) {
		t.Errorf("measured %s", st.Measured)
	}
}
