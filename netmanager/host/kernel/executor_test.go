package kernel

import (
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// While the kernel rejects orders, the queue stays bounded. Callers that wait are answered after the
// sync of the whole state.
func TestWaitingOrdersAreBounded(t *testing.T) {
	x := NewExecutor(Options{})
	address := netip.MustParseAddr("10.16.0.2")
	waits, made := make(barrier), connect{address, make(chan error, 1)}
	x.Order(made)
	for n := range 10 * maxOrders {
		switch n % 4 {
		case 0:
			x.Order(plane.Change{DropEndpoints: []netip.Addr{address}})
		case 1:
			x.Order(overlay.Refuse{Local: address})
		case 2:
			x.Order(overlay.Ask{})
		case 3:
			x.Order(overlay.Release{Remote: address})
		}
		if n == maxOrders/2 {
			x.Order(waits)
		}
		if len(x.queue) > maxOrders {
			t.Fatalf("%d orders wait, want at most %d", len(x.queue), maxOrders)
		}
	}
	at := map[any]int{}
	for i, m := range x.queue {
		switch m.(type) {
		case resync, connect, barrier, overlay.Ask:
			if _, twice := at[m]; !twice {
				at[m] = i + 1
			}
		}
	}
	all, first, second, asked := at[resync{}], at[made], at[waits], at[overlay.Ask{}]
	if all == 0 || first <= all || second <= first || asked == 0 {
		t.Errorf("positions of sync %d, connect %d, barrier %d, question %d; want sync first, then connect before barrier, and a question (0: missing)", all, first, second, asked)
	}
}
