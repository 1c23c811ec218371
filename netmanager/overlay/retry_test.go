package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// retried returns the addresses whose unanswered flows the plane ends.
func retried(eff step.Effects) (all []netip.Addr) {
	for _, c := range orders[plane.Change](eff) {
		all = append(all, c.Retry...)
	}
	return all
}

// A draining instance may have died: flows that it does not answer soon go elsewhere, and answered flows
// stay.
func TestUnansweredFlowsToADrainingInstanceAreMoved(t *testing.T) {
	w := worldWithPeer(t)
	web := attachOf("web", 5, 7)
	w.step(web)
	w.step(listens(web))
	here, _ := w.c.View().Attached(web.Key)
	n := uint64(1)
	later := func(d time.Duration) []netip.Addr {
		w.now = w.now.Add(d)
		return retried(w.step(Tick{}))
	}
	for _, tt := range []struct {
		at   netip.Addr
		goes func() step.Effects
		back func()
	}{
		{here.Address, func() step.Effects { return w.step(Drain{web.Key}) }, func() {
			n++
			web.NetNS = fmt.Sprintf("/proc/%d/ns/net", n)
			w.step(web)
			w.step(listens(web))
		}},
		{instanceAt(1, 1), func() step.Effects { n++; return w.noticed(1, n, 1, peermsg.Draining) }, func() {
			n++
			w.noticed(1, n, 1, peermsg.Accepting)
		}},
	} {
		if got := retried(tt.goes()); len(got) > 0 {
			t.Errorf("at once: %v", got)
		}
		if got := later(answerTime - time.Millisecond); len(got) > 0 {
			t.Errorf("before it could answer: %v", got)
		}
		if got := later(2 * time.Millisecond); !slices.Equal(got, []netip.Addr{tt.at}) {
			t.Errorf("afterwards: %v, want %s", got, tt.at)
		}
		tt.back()
		tt.goes()
		tt.back()
		if got := later(answerTime + time.Millisecond); len(got) > 0 {
			t.Errorf("it takes flows again: %v", got)
		}
	}
	// The end of an earlier attempt's process has no effect; that of the present one has.
	w.step(Exited{web.Key, "/proc/1/ns/net"})
	if got := later(answerTime); len(got) > 0 {
		t.Errorf("an earlier process has ended: %v", got)
	}
	w.step(Exited{web.Key, web.NetNS})
	if got := later(answerTime); !slices.Equal(got, []netip.Addr{here.Address}) {
		t.Errorf("its process has ended: %v", got)
	}
	w.checkIndexes()
}
