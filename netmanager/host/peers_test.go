package host

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Unproven peers are removed from the cluster's messages, with the backends and sources that
// refer to them.
func TestUnprovenPeersAreRemoved(t *testing.T) {
	now := time.Now()
	root := must[*ca.Authority](t)(ca.NewRoot(now))
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := root.SignCluster(now, csr, clusterID)
	if err != nil {
		t.Fatal(err)
	}
	cluster := must[*ca.Authority](t)(ca.New(ca.Pair{Chain: chain, Key: key}))
	peer := func(id api.NodeID, k byte) api.Peer {
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := cluster.SignNode(now, csr, id)
		if err != nil {
			t.Fatal(err)
		}
		p := api.Peer{Key: api.PeerKey{k}, Cluster: clusterID, Node: id, Chain: [][]byte{chain[0].Raw, chain[1].Raw}}
		p.Proof = must[[]byte](t)(proof.Sign(key, p.Key))
		return p
	}
	good, bad := peer("n1", 1), peer("n2", 2)
	bad.Proof = good.Proof
	stolen := good // another key with the good peer's certificate
	stolen.Key = api.PeerKey{3}
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 16, 0, n}) }
	c := NewPeerCheck(trust.New(root.Root()), slog.New(slog.DiscardHandler))
	for range 2 { // the second time from the cache
		d := wire.NetDown{
			Records: wire.Records{Routes: []api.Route{{
				Service: service("web"), Peers: []api.Peer{good, bad, stolen},
				Backends: []api.Backend{{Address: at(2), Peer: good.Key}, {Address: at(3), Peer: bad.Key}, {Address: at(4), Peer: stolen.Key}},
			}}, Sources: []wire.Source{{Address: at(2), Peer: good}, {Address: at(3), Peer: bad}}, Peers: []api.Peer{stolen, good}},
			Measure: []api.Peer{bad, good},
		}
		c.Clean(&d)
		r := d.Routes[0]
		if len(r.Peers) != 1 || len(r.Backends) != 1 || r.Backends[0].Address != at(2) || len(d.Sources) != 1 || len(d.Peers) != 1 || d.Peers[0].Key != good.Key {
			t.Errorf("left after Clean: %+v, want only the proven peer", d)
		}
		if len(d.Measure) != 1 || d.Measure[0].Key != good.Key {
			t.Errorf("peers to measure: %+v, want only the proven peer", d.Measure)
		}
		d = wire.NetDown{Measure: []api.Peer{stolen}}
		if c.Clean(&d); d.Measure == nil || len(d.Measure) > 0 {
			t.Errorf("Measure of unproven peers alone: %#v, want empty and not nil", d.Measure)
		}
		d = wire.NetDown{}
		if c.Clean(&d); d.Measure != nil {
			t.Errorf("Measure of a message without one: %#v, want nil", d.Measure)
		}
	}
	if n := c.Refused(); n != 12 {
		t.Errorf("Refused() = %d, want 12", n)
	}
}
