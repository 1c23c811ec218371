package peers_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func key(n byte) (k api.PeerKey) { k[0] = n; return k }

func subnet(n byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, n, 0}), 26) }

func record(n byte, rev uint64, cluster api.ClusterID, subnets ...netip.Prefix) api.Peer {
	return api.Peer{Key: key(n), Rev: rev, Cluster: cluster, Subnets: subnets}
}

func machine() *peers.Machine {
	m := peers.New()
	m.SetSelf(key(99))
	m.SetLease(wire.NetLease{Cluster: "c0", Ranges: wire.DefaultNetRanges(), Subnet: subnet(0)})
	return m
}

func TestSubnetClaims(t *testing.T) {
	shared := subnet(1)
	for name, test := range map[string]struct {
		first, second api.Peer
		want          byte // the holder; 0: none
	}{
		"the newer record of one cluster":    {record(1, 2, "c0", shared), record(2, 1, "c0", shared), 1},
		"a newer record takes it":            {record(1, 1, "c0", shared), record(2, 2, "c0", shared), 2},
		"another cluster takes none of ours": {record(1, 1, "c0", shared), record(2, 9, "c9", shared), 1},
		"ours takes it from another cluster": {record(1, 9, "c9", shared), record(2, 1, "c0", shared), 2},
		"our own subnet":                     {record(1, 1, "c0", subnet(0)), record(2, 1, "c0"), 0},
		"a subnet that cannot be a node's":   {record(1, 1, "c0", netip.MustParsePrefix("10.16.1.0/24")), record(2, 1, "c0"), 0},
		"a record about ourselves":           {record(99, 1, "c0", shared), record(2, 1, "c0"), 0},
	} {
		m := machine()
		m.Refer(test.first)
		m.Refer(test.second)
		got, ok := m.At(netip.MustParseAddr("10.16.1.5"))
		if test.want == 0 {
			if got, ok = m.At(netip.MustParseAddr("10.16.0.5")); ok {
				t.Errorf("%s: held by %v", name, got)
			}
			continue
		}
		if !ok || got != key(test.want) {
			t.Errorf("%s: held by %v, want peer %d", name, got, test.want)
		}
	}
}

func TestPeersWithoutReferencesAreSwept(t *testing.T) {
	m := machine()
	m.Refer(record(1, 1, "c0", subnet(1)))
	m.Set(record(1, 2, "c0", subnet(1)))
	m.Release(key(1))
	if removed, _ := m.Sweep(); len(removed) != 0 {
		t.Fatalf("removed %v, which has a record of its own", removed)
	}
	if m.Held() != record(1, 2, "c0", subnet(1)).Digest() {
		t.Errorf("held digest is %x", m.Held())
	}
	m.Unset(key(1))
	removed, changes := m.Sweep()
	if len(removed) != 1 || len(changes.Addresses) != 1 || m.Has(key(1)) || m.Held() != 0 {
		t.Errorf("removed %v with changes %+v, want peer 1 and its subnet", removed, changes)
	}
	if _, ok := m.At(subnet(1).Addr()); ok {
		t.Error("a removed peer holds a subnet")
	}
}

func TestTunnelGetsChangedRecordsOnce(t *testing.T) {
	m := machine()
	m.Refer(record(1, 1, "c0", subnet(1), subnet(0)))
	p, ok := m.Tunnel(key(1), false)
	if !ok || len(p.Subnets) != 1 || p.Subnets[0] != subnet(1) {
		t.Fatalf("the tunnel gets %+v, %v, want the subnet that the peer holds", p, ok)
	}
	if _, ok := m.Tunnel(key(1), false); ok {
		t.Error("the tunnel gets the same record again")
	}
	m.Refer(record(2, 2, "c0", subnet(1)))
	if p, ok := m.Tunnel(key(1), false); !ok || len(p.Subnets) != 0 {
		t.Errorf("after another peer took the subnet: %+v, %v, want none", p, ok)
	}
}

func TestSessionsInUseAreOpenedAfterARestart(t *testing.T) {
	m := machine()
	m.Set(record(1, 1, "c0", subnet(1)))
	m.Report(start, kernelpath.Path{Key: key(1), Kind: api.PathDirect})
	next := machine()
	for _, d := range m.Save() {
		if err := next.Restore(d); err != nil {
			t.Fatal(err)
		}
	}
	if talking := next.Start(); len(talking) != 1 || talking[0] != key(1) {
		t.Errorf("sessions in use before the restart: %v, want peer 1", talking)
	}
}
