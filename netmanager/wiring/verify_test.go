package wiring

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// What a cluster says of a node that the node has not proven is not let in, and
// what stands on it neither.
func TestUnprovenPeersStayOut(t *testing.T) {
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
	stolen := good // somebody else's key under the good one's certificate
	stolen.Key = api.PeerKey{3}
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 16, 0, n}) }
	c := &checker{verifier: trust.New(root.Root()), log: slog.New(slog.DiscardHandler)}
	for range 2 { // the second time from memory
		d := api.NetDown{
			Routes: []api.Route{{
				Service: service("web"), Peers: []api.Peer{good, bad, stolen},
				Backends: []api.Backend{{Address: at(2), Peer: good.Key}, {Address: at(3), Peer: bad.Key}, {Address: at(4), Peer: stolen.Key}},
			}},
			Sources: []api.Source{{Address: at(2), Peer: good}, {Address: at(3), Peer: bad}},
			Peers:   []api.Peer{stolen, good},
			Measure: []api.Peer{bad, good},
		}
		c.down(&d)
		r := d.Routes[0]
		if len(r.Peers) != 1 || len(r.Backends) != 1 || r.Backends[0].Address != at(2) || len(d.Sources) != 1 || len(d.Peers) != 1 || d.Peers[0].Key != good.Key {
			t.Errorf("let in: %+v", d)
		}
		if len(d.Measure) != 1 || d.Measure[0].Key != good.Key {
			t.Errorf("measured: %+v", d.Measure)
		}
		d = api.NetDown{Measure: []api.Peer{stolen}}
		if c.down(&d); d.Measure == nil || len(d.Measure) > 0 {
			t.Errorf("of none that is good: %#v", d.Measure)
		}
		d = api.NetDown{}
		if c.down(&d); d.Measure != nil {
			t.Errorf("of nothing that was said: %#v", d.Measure)
		}
	}
	if n := c.refused.Load(); n != 12 {
		t.Errorf("%d refusals counted, want 12", n)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"relative socket": func(c *Config) { c.Socket = "net.sock" },
		"long socket":     func(c *Config) { c.Socket = "/run/" + strings.Repeat("d", 100) + "/net.sock" },
		"odd plane":       func(c *Config) { c.Plane = "ipvs" },
		"long prefix":     func(c *Config) { c.Prefix = "treeline" }, // with an address it is no device's name
		"odd prefix":      func(c *Config) { c.Prefix = "9/" },
		"odd listen":      func(c *Config) { c.Listen = "everywhere" },
		"odd network":     func(c *Config) { c.Closed = []string{"10.0.0.0/33"} },
		"odd resolver":    func(c *Config) { c.Resolvers = []string{"dns.example"} },
		"open status":     func(c *Config) { c.ListenStatus = "0.0.0.0:9" },
	} {
		c := Defaults()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s passes", name)
		}
	}
}
