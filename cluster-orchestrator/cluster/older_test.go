package cluster

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// TestAnOlderClusterGivesNodesTheirOwnSubnets restores the cluster from before n1
// and n2 joined. The later one speaks first, and before it one that is new.
func TestAnOlderClusterGivesNodesTheirOwnSubnets(t *testing.T) {
	w := netWorld(t, 1)
	old := maps.Clone(w.disk)
	join := func(id api.NodeID, had netip.Prefix) {
		w.join(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
		self := api.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}}
		copy(self.Key[:], id)
		w.step(NetUp{id, api.NetUp{Boot: 1, Seq: 1, Self: &self, Whole: true, Subnet: had}})
	}
	join("n1", netip.Prefix{})
	join("n2", netip.Prefix{})
	n0, _ := w.c.Lease("n0")
	n1, _ := w.c.Lease("n1")
	n2, _ := w.c.Lease("n2")
	w.disk = old
	w.restart()
	join("new", netip.Prefix{})
	join("thief", n0.Subnet)
	join("lost", netip.MustParsePrefix("10.99.0.0/26"))
	join("n2", n2.Subnet)
	join("n1", n1.Subnet)
	for id, had := range map[api.NodeID]api.NetLease{"n0": n0, "n1": n1, "n2": n2} {
		if got, _ := w.c.Lease(id); got.Digest() != had.Digest() {
			t.Errorf("%s has %+v, had %+v", id, got, had)
		}
	}
	others := []api.NodeID{"new", "thief", "lost"}
	for _, id := range others {
		if l, ok := w.c.Lease(id); ok {
			t.Errorf("%s has %s at once", id, l.Subnet)
		}
	}
	w.pass(7 * time.Second)
	seen := map[netip.Prefix]bool{}
	for _, id := range append(others, "n0", "n1", "n2") {
		l, ok := w.c.Lease(id)
		if !ok || seen[l.Subnet] {
			t.Errorf("%s has %s", id, l.Subnet)
		}
		seen[l.Subnet] = true
	}
}
