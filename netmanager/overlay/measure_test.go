package overlay

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// at returns a coordinate on the first axis of the latency space.
func at(d time.Duration) *api.Coordinate {
	c := vivaldi.New()
	c.Vec[0], c.Error = d.Seconds(), 0.1
	return &c
}

// measures lets time pass, and returns when each peer was measured.
func (w *world) measures(d time.Duration) map[api.PeerKey][]time.Duration {
	w.t.Helper()
	out := map[api.PeerKey][]time.Duration{}
	for start := w.now; w.now.Sub(start) < d; w.now = w.now.Add(50 * time.Millisecond) {
		for _, o := range orders[TunnelMeasure](w.step(Tick{})) {
			if _, known := w.tunnel[o.Key]; !known {
				w.t.Fatalf("%s is to be measured, of which the tunnel does not know", o.Key)
			}
			out[o.Key] = append(out[o.Key], w.now.Sub(start))
			w.step(Measured{Key: o.Key, RTT: 20 * time.Millisecond, Coord: at(10 * time.Millisecond)})
		}
	}
	return out
}

func TestPeersAreMeasuredWithoutFlows(t *testing.T) {
	w, _ := ready(t)
	w.answer(wire.NetDown{Measure: []api.Peer{peerRecord(1, 1), peerRecord(2, 1), peerRecord(0, 1), peerRecord(1, 1)}})
	w.checkIndexes()
	got := w.measures(10 * time.Minute)
	if len(got) != 2 {
		t.Fatalf("%d peers are measured", len(got))
	}
	for k, times := range got {
		soon := 0
		for _, at := range times {
			if at < 35*time.Second {
				soon++
			}
		}
		if soon < 8 || soon > 11 || len(times) < 20 || len(times) > 35 {
			t.Errorf("%s at %v", k, times)
		}
	}
	if slices.Equal(got[key(1)][1:], got[key(2)][1:]) {
		t.Error("all at once")
	}
	w.answer(wire.NetDown{}) // unchanged
	if got := w.measures(2 * time.Minute); len(got) != 2 {
		t.Fatalf("%d peers are measured", len(got))
	}
	w.answer(wire.NetDown{Measure: []api.Peer{peerRecord(2, 2)}})
	if _, known := w.tunnel[key(1)]; known || w.tunnel[key(2)].Rev != 2 {
		t.Fatalf("the tunnel knows of %v", w.tunnel)
	}
	if got := w.measures(2 * time.Minute); len(got) != 1 || len(got[key(2)]) > 6 {
		t.Fatalf("%v: it is none that is new", got)
	}
	w.answer(wire.NetDown{Measure: []api.Peer{}})
	if got := w.measures(10 * time.Minute); len(got) != 0 || len(w.tunnel) != 0 {
		t.Fatalf("%v are measured, of %v", got, w.tunnel)
	}
	w.checkIndexes()
}

func TestMeasurementsAreReportedToTheCluster(t *testing.T) {
	w, _ := ready(t)
	measured := func() api.Digest {
		t.Helper()
		ups := messages(w.answer(wire.NetDown{RequestHeld: true}))
		if len(ups) != 1 {
			t.Fatalf("%d answers", len(ups))
		}
		return ups[0].Measure
	}
	a, b := peerRecord(1, 1), peerRecord(2, 7)
	w.answer(wire.NetDown{Measure: []api.Peer{a, b}})
	if got := measured(); got != a.Digest().Toggle(b.Digest()) {
		t.Errorf("%x", got)
	}
	w.restart()
	w.step(Link{true})
	if got := measured(); got != 0 {
		t.Errorf("a new life has %x", got)
	}
	w.checkIndexes()
}

func TestACoordinateThatMovedIsReported(t *testing.T) {
	w, _ := ready(t)
	w.answer(wire.NetDown{Measure: []api.Peer{peerRecord(1, 1)}})
	n := 0
	for range 600 {
		eff := w.step(Measured{Key: key(1), RTT: 30 * time.Millisecond, Coord: at(100 * time.Millisecond)})
		if reported := orders[TunnelCoord](eff); len(reported) != 1 || !vivaldi.Valid(&reported[0].Coordinate) {
			t.Fatalf("its peers hear %v", reported)
		}
		for _, up := range messages(eff) {
			if up.Self != nil {
				n++
			}
			w.answer(wire.NetDown{})
		}
		w.now = w.now.Add(time.Second)
	}
	if n < 2 || n > 10 {
		t.Fatalf("%d times", n)
	}
	if d := vivaldi.Distance(w.c.measure.Reported(), *at(100 * time.Millisecond)); d < 20*time.Millisecond || d > 45*time.Millisecond {
		t.Fatalf("it believes that it is %s away", d)
	}
	if w.restart(); vivaldi.Moved(w.c.measure.Coordinate(), w.c.measure.Reported(), 0.1) || vivaldi.Distance(w.c.measure.Coordinate(), vivaldi.New()) < 20*time.Millisecond {
		t.Error("after a restart it is elsewhere")
	}
}

// A peer that measures this node is kept, even without packets of instances.
func TestAPeerThatMeasuresThisNodeIsKept(t *testing.T) {
	w, _ := ready(t)
	w.step(PeerUnknown{Key: key(3), Claim: instanceAt(3, 0)})
	w.answer(wire.NetDown{Records: wire.Records{Peers: []api.Peer{peerRecord(3, 1)}}})
	for range 30 {
		w.pass(time.Minute)
		w.step(Measured{Key: key(3), RTT: time.Millisecond})
	}
	if _, known := w.tunnel[key(3)]; !known {
		t.Fatal("it is forgotten")
	}
	w.pass(10 * time.Minute)
	if _, known := w.tunnel[key(3)]; known {
		t.Fatal("it is kept")
	}
	w.checkIndexes()
}
