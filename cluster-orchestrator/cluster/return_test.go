package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestUnusedSharesAreReturned: a cluster grows beyond one share and shrinks again.
func TestUnusedSharesAreReturned(t *testing.T) {
	second := netip.MustParsePrefix("10.16.16.0/20")
	w := netWorld(t, 0)
	w.step(RootNet{wire.RootNet{Rev: 2, Ranges: wire.DefaultNetRanges(), Shares: []netip.Prefix{share, second}}})
	for i := range 70 {
		id := api.NodeID(fmt.Sprintf("n%02d", i))
		w.join(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
		w.net(id)
	}
	returned := func() []netip.Prefix {
		t.Helper()
		w.now = w.now.Add(time.Minute)
		w.c.uplink.Due()
		w.ack()
		for _, r := range w.reports() {
			return r.Net.Returned
		}
		t.Fatalf("no report in %+v", w.last.Send)
		return nil
	}
	if got := returned(); len(got) > 0 {
		t.Fatalf("with 70 nodes it returns %v", got)
	}
	for id := range w.nodes {
		w.nodes[id].off = true
	}
	w.pass(40 * time.Second)
	for i := 2; i < 70; i++ {
		w.step(RemoveNode{api.NodeID(fmt.Sprintf("n%02d", i))})
	}
	if got := returned(); len(got) > 0 {
		t.Fatalf("while removed nodes' subnets rest it returns %v", got)
	}
	for end := w.now.Add(31 * time.Minute); w.now.Before(end); {
		w.now = w.now.Add(2 * time.Second) // a longer step would count as a pause of the process
		w.ack()
	}
	if got := returned(); !slices.Equal(got, []netip.Prefix{second}) {
		t.Fatalf("with 2 nodes it returns %v", got)
	}
	w.restart()
	if got := returned(); !slices.Equal(got, []netip.Prefix{second}) {
		t.Fatalf("after a restart it returns %v", got)
	}
	w.step(RootNet{wire.RootNet{Rev: 3, Ranges: wire.DefaultNetRanges(), Shares: []netip.Prefix{share}}})
	if got := returned(); len(got) > 0 {
		t.Errorf("when the root has it, it returns %v", got)
	}
	if l, ok := w.c.Lease("n00"); !ok || !share.Contains(l.Subnet.Addr()) {
		t.Errorf("a node has %+v", l)
	}
}
