package measure_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
)

const (
	ms     = time.Millisecond
	client = api.ServiceID("acme/shop.prod.client.eu")
	web    = api.ServiceID("acme/shop.prod.web.eu")
)

func sample(remote api.ServiceID, node api.NodeID, least time.Duration) measure.Sample {
	return measure.Sample{
		Flow:  measure.Flow{Sockets: 2, RTT: 5 * least, Least: least, Sent: 90, Retransmitted: 9},
		Local: client, Remote: remote, To: measure.End{Service: remote, Node: node}, Known: true,
	}
}

func TestFlowsOfTwoServicesAreOnePair(t *testing.T) {
	s := measure.NewServices()
	other := sample(web, "n2", 3*ms)
	other.Sockets, other.Sent, other.Retransmitted = 6, 10, 1
	s.Sampled(start, []measure.Sample{sample(web, "n1", 2*ms), other})
	want := api.PairStatus{Local: client, Remote: web, RTT: (2*10*ms + 6*15*ms) / 8, Least: 2 * ms, Again: 0.1, Connections: 8, Seen: start}
	if got := s.Pairs(start); len(got) != 1 || got[0] != want {
		t.Errorf("pairs are %+v, want %+v", got, want)
	}
	end := start.Add(wire.MaxNetPairAge)
	if got := s.Pairs(end); len(got) != 0 {
		t.Errorf("expired pairs are listed: %+v", got)
	}
	s.Sampled(end, nil)
	if p, ok := s.Pair(client, web); ok {
		t.Errorf("an expired pair is kept: %+v", p)
	}
}

func TestPairsAndEndsAreBounded(t *testing.T) {
	s := measure.NewServices()
	s.SetReported([]api.ServiceID{client})
	var all []measure.Sample
	for i := range measure.MaxPairs + 10 {
		all = append(all, sample(api.ServiceID(fmt.Sprintf("acme/shop.prod.s%d.eu", i)), "n1", ms))
	}
	s.Sampled(start, all)
	s.Sampled(start, all)
	if n := len(s.Pairs(start)); n != measure.MaxPairs {
		t.Errorf("%d pairs of %d samples, want %d", n, len(all), measure.MaxPairs)
	}
	if n := len(s.Report(start, true)); n != measure.MaxEnds {
		t.Errorf("%d ends of %d are reported, want %d", n, len(all), measure.MaxEnds)
	}
	var ids []api.ServiceID
	for i := range 2000 {
		ids = append(ids, api.ServiceID(fmt.Sprintf("acme/shop.prod.s%d.eu", i)))
	}
	s.SetReported(ids)
	if s.Reports(ids[1024]) || !s.Reports(ids[1023]) {
		t.Error("want the first 1024 services to be reported")
	}
}

func TestOnlyChangedRoundTripsAreReported(t *testing.T) {
	s := measure.NewServices()
	s.SetReported([]api.ServiceID{client})
	now := start
	for i, step := range []struct{ least, want time.Duration }{
		{10 * ms, 10 * ms},
		{11 * ms, 0},
		{90 * ms, 0}, // possibly a new connection
		{10 * ms, 0},
		{90 * ms, 0},
		{90 * ms, 90 * ms},
		{10 * ms, 10 * ms},
	} {
		now = now.Add(30 * time.Second)
		s.Sampled(now, []measure.Sample{sample(web, "n1", step.least)})
		var got time.Duration
		if s.Due(now) {
			for _, p := range s.Report(now, false) {
				got = p.Least
			}
		}
		if got != step.want {
			t.Fatalf("step %d: after a sample of %s %s is reported, want %s", i, step.least, got, step.want)
		}
	}
	if s.Sampled(now, []measure.Sample{sample(web, "n1", 300*ms), sample(web, "n2", ms)}); s.Due(now) {
		t.Error("a report is due twice within 30 s")
	}
	s.Sampled(now, []measure.Sample{sample(web, "n1", wire.MaxNetPairRTT+1)})
	for _, p := range s.Report(now, true) {
		if p.Least > wire.MaxNetPairRTT {
			t.Errorf("an impossible round trip is reported: %+v", p)
		}
	}
	now = now.Add(wire.MaxNetPairAge)
	s.Sampled(now, nil)
	if got := s.Report(now, true); len(got) != 0 {
		t.Errorf("expired ends are reported: %+v", got)
	}
}
