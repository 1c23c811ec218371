package measure_test

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func key(n byte) (k api.PeerKey) {
	k[0], k[31] = n+1, n
	return k
}

func record(n byte) api.Peer { return api.Peer{Key: key(n), Rev: 1} }

// at is a coordinate on the first axis of the latency space.
func at(d time.Duration) *api.Coordinate {
	c := vivaldi.New()
	c.Vec[0], c.Error = d.Seconds(), 0.1
	return &c
}

// measuring returns a machine that measures peer 1.
func measuring() *measure.Machine {
	m := measure.New()
	m.SetSelf(key(0))
	m.SetPeers(start, []api.Peer{record(1)})
	return m
}

// requests counts the measurements that m requests until end. Each is answered with
// rtt, unless that is 0.
func requests(m *measure.Machine, end time.Time, rtt time.Duration) (n int) {
	for now := m.Next(); !now.IsZero() && !now.After(end); now = m.Next() {
		for _, k := range m.Expire(now).Measure {
			n++
			if rtt > 0 {
				m.Measured(now, k, rtt, at(10*time.Millisecond))
			}
		}
	}
	return n
}

func TestSilentPeerIsMeasuredRarely(t *testing.T) {
	m := measuring()
	n := requests(m, start.Add(2*time.Minute), 0)
	if n <= 8 {
		t.Errorf("%d measurements in the first 2 min, want more than a burst: the peer may have been starting", n)
	}
	end := start.Add(time.Hour)
	if n += requests(m, end, 0); n < 15 || n > 40 {
		t.Errorf("%d measurements in an hour, want 15 to 40", n)
	}
	m.Measured(end, key(1), time.Millisecond, nil)
	end = end.Add(5 * time.Minute)
	requests(m, end, 20*time.Millisecond)
	if n := requests(m, end.Add(10*time.Minute), 20*time.Millisecond); n < 15 {
		t.Errorf("%d measurements in 10 min after the peer answered, want 15 or more", n)
	}
}

func TestRemovedPeersAreNotMeasured(t *testing.T) {
	m := measure.New()
	m.SetSelf(key(0))
	accepted, _ := m.SetPeers(start, []api.Peer{record(1), record(2), record(0), record(1)})
	if len(accepted) != 2 || m.Digest() != record(1).Digest().Toggle(record(2).Digest()) {
		t.Errorf("accepted %d records with digest %x, want those of peers 1 and 2", len(accepted), m.Digest())
	}
	_, before := m.SetPeers(start, nil)
	if n := requests(m, start.Add(time.Hour), 0); n != 0 || len(before) != 2 || m.Digest() != 0 {
		t.Errorf("%d measurements of no peer, after %d peers", n, len(before))
	}
}

func TestMeasuredPeersAreBounded(t *testing.T) {
	var many []api.Peer
	for n := range byte(100) {
		many = append(many, record(n+1))
	}
	if accepted, _ := measure.New().SetPeers(start, many); len(accepted) != 64 {
		t.Errorf("%d of 100 peers are measured, want 64", len(accepted))
	}
}

func TestCoordinateIsReportedWhenItMoved(t *testing.T) {
	m := measuring()
	reports := 0
	for i := range 600 {
		eff := m.Measured(start.Add(time.Duration(i)*time.Second), key(1), 30*time.Millisecond, at(100*time.Millisecond))
		if c := m.Coordinate(); !eff.Moved || !vivaldi.Valid(&c) {
			t.Fatalf("measurement %d moved the coordinate: %v, to %+v", i, eff.Moved, c)
		}
		if eff.Report {
			reports++
		}
	}
	if reports < 2 || reports > 10 {
		t.Errorf("%d reports in 10 min, want 2 to 10", reports)
	}
	if d := vivaldi.Distance(m.Reported(), *at(100 * time.Millisecond)); d < 20*time.Millisecond || d > 45*time.Millisecond {
		t.Errorf("the reported coordinate is %s from the peer, want about 30 ms", d)
	}
	next := measure.New()
	next.Restore(m.Reported())
	if vivaldi.Moved(next.Coordinate(), m.Reported(), 0.1) {
		t.Errorf("restored coordinate is %+v, want %+v", next.Coordinate(), m.Reported())
	}
}

func TestImpossibleCoordinatesAreIgnored(t *testing.T) {
	m := measuring()
	for _, c := range []*api.Coordinate{nil, at(time.Hour), at(11 * time.Second), {Vec: []float64{1}}, {Vec: make([]float64, 8), Error: -1}} {
		if m.Measured(start, key(1), 30*time.Millisecond, c); vivaldi.Moved(m.Coordinate(), vivaldi.New(), 0.1) {
			t.Errorf("coordinate %v of a peer moved the node", c)
		}
	}
}
