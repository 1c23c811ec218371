package cluster

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestAnOlderClusterGivesNodesTheirOwnSubnets restores the cluster's store from before n1 and n2
// joined. n2 reports first. Before it, new nodes and nodes that claim other nodes' subnets
// report: a subnet of a node that was heard, of one that was not, and of one of whose lease they
// know all but the secret.
func TestAnOlderClusterGivesNodesTheirOwnSubnets(t *testing.T) {
	w := netWorld(t, 1)
	old := maps.Clone(w.disk)
	claim := func(id api.NodeID, had netip.Prefix, lease api.Digest) {
		w.join(id, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
		self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}}
		copy(self.Key[:], id)
		w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: 1, Self: &self, Whole: true, Subnet: had, Lease: lease}})
	}
	join := func(id api.NodeID, had wire.NetLease) {
		var d api.Digest
		if had.Subnet.IsValid() {
			d = had.Digest()
		}
		claim(id, had.Subnet, d)
	}
	join("n1", wire.NetLease{})
	join("n2", wire.NetLease{})
	n0, _ := w.c.Lease("n0")
	n1, _ := w.c.Lease("n1")
	n2, _ := w.c.Lease("n2")
	w.disk = old
	w.restart()
	guess := n2
	guess.Node, guess.Secret = "guess", make([]byte, len(n2.Secret))
	join("new", wire.NetLease{})
	join("thief", n0)
	claim("first", n1.Subnet, 0)
	join("guess", guess)
	join("again", n2) // claims another node's subnet with that node's digest
	claim("lost", netip.MustParsePrefix("10.99.0.0/26"), 1)
	join("n2", n2)
	join("n1", n1)
	for id, had := range map[api.NodeID]wire.NetLease{"n0": n0, "n1": n1, "n2": n2} {
		if got, _ := w.c.Lease(id); got.Digest() != had.Digest() {
			t.Errorf("%s has %+v, had %+v", id, got, had)
		}
	}
	others := []api.NodeID{"new", "thief", "first", "guess", "again", "lost"}
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
