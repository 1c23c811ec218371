package wiring

import (
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// A kernel that refuses what it is told, for hours: what is ordered meanwhile takes no
// more memory than before, and whoever waits is answered after all has been told.
func TestOrdersThatNobodyCarriesOutAreBounded(t *testing.T) {
	o := newOrders()
	address := netip.MustParseAddr("10.16.0.2")
	waits, made := make(barrier), connect{address, make(chan error, 1)}
	o.order(made)
	for n := range 10 * mostOrders {
		switch n % 4 {
		case 0:
			o.order(plane.Change{DropEndpoints: []netip.Addr{address}})
		case 1:
			o.order(overlay.Refuse{Local: address})
		case 2:
			o.order(overlay.Ask{})
		case 3:
			o.order(overlay.Release{Remote: address})
		}
		if n == mostOrders/2 {
			o.order(waits)
		}
		if len(o.queue) > mostOrders {
			t.Fatalf("%d wait", len(o.queue))
		}
	}
	at := map[any]int{}
	for i, m := range o.queue {
		switch m.(type) {
		case resync, connect, barrier, overlay.Ask:
			if _, twice := at[m]; !twice {
				at[m] = i + 1
			}
		}
	}
	all, first, second, asked := at[resync{}], at[made], at[waits], at[overlay.Ask{}]
	if all == 0 || first <= all || second <= first || asked == 0 {
		t.Errorf("all is told as number %d, a device made as %d, a wait ended as %d, use asked for as %d", all, first, second, asked)
	}
}
