package paths

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// directIn reports whether a direct path is possible: each side's packets must reach a mapping that lets
// them in. Only the destination of its packets sees the mapping of a symmetric NAT, so the other side
// must accept unknown ports.
func directIn(a, b kind) bool {
	if a == blocked || b == blocked {
		return false
	}
	lenient := func(k kind) bool { return k == none || k == fullCone || k == restricted }
	switch {
	case a == symmetric:
		return lenient(b)
	case b == symmetric:
		return lenient(a)
	}
	return true
}

// TestEveryPairOfNATsConnects checks each pair of NATs with several losses and seeds: data arrives from the
// beginning, and directly where possible.
func TestEveryPairOfNATsConnects(t *testing.T) {
	for _, loss := range []float64{0, 0.02, 0.10} {
		seeds := uint64(8)
		if testing.Short() {
			seeds = 2
		}
		var table strings.Builder
		for a := range kinds {
			fmt.Fprintf(&table, "%16s", a)
			for b := range kinds {
				var took time.Duration
				relayed := 0
				for seed := range seeds {
					w := newWorld(t, seed, a, b)
					w.loss = loss
					w.begin()
					w.talk(w.hosts[0], 50*time.Millisecond)
					w.talk(w.hosts[1], 50*time.Millisecond)
					direct := time.Duration(0)
					for w.now.Sub(w.start) < 30*time.Second {
						w.run(50 * time.Millisecond)
						if direct == 0 && w.bothDirect() {
							direct = w.now.Sub(w.start)
						}
					}
					for _, h := range w.hosts {
						if h.got < 500 || h.gap > 1200*time.Millisecond {
							t.Errorf("%v to %v, loss %v, seed %d: %s got %d of 600 packets, once none for %v", a, b, loss, seed, h.name, h.got, h.gap)
						}
						if r := h.m.Report(); r.Path.Relay() && r.Reason == "" {
							t.Errorf("%v to %v: %s does not say why it is relayed", a, b, h.name)
						}
					}
					if direct == 0 {
						relayed++
					}
					took = max(took, direct)
					if want := directIn(a, b); want != w.bothDirect() {
						t.Errorf("%v to %v, loss %v, seed %d: direct %v, want %v: %s / %s", a, b, loss, seed, w.bothDirect(), want,
							w.hosts[0].m.Report().Reason, w.hosts[1].m.Report().Reason)
					}
				}
				cell := "relay"
				if relayed == 0 {
					cell = fmt.Sprintf("%d ms", took.Milliseconds())
				} else if relayed < int(seeds) {
					cell = "some"
				}
				fmt.Fprintf(&table, "%10s", cell)
			}
			fmt.Fprintln(&table)
		}
		t.Logf("loss %v: direct after at most, over %d seeds\n%s", loss, seeds, table.String())
	}
}

func (w *world) bothDirect() bool {
	for _, h := range w.hosts {
		if r := h.m.Report(); r.Path.Relay() || !r.Proven {
			return false
		}
	}
	return true
}
