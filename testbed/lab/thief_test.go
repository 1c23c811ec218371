package lab_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// pair is a daemon's certificate with its key.
func pair(t *testing.T, dir, name string) ca.Pair {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	p, err := ca.LoadPair(root, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shown returns a chain as a peer sends it: without the root's certificate.
func shown(chain []*x509.Certificate) (out [][]byte) {
	for _, c := range chain[:min(2, len(chain))] {
		out = append(out, c.Raw)
	}
	return out
}

// Stolen credentials do not allow impersonation: neither a hostile cluster nor a node with a
// stolen certificate can make a key a peer that is not the certificate's.
func TestStolenIdentitiesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	c2 := s.NewCluster("c2", 2)
	s.Node(c2, netlab.None)
	s.Ready(c2, 1)
	n0, n1, n2 := s.Nodes[0], s.Nodes[1], s.Nodes[2]
	const refusals = "treeline_net_peers_refused_total"

	authority, err := ca.New(pair(t, s.First.Data, "cluster-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := ca.NewRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	forgedKey, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := foreign.SignCluster(time.Now(), csr, "c1")
	if err != nil {
		t.Fatal(err)
	}
	forged, err := ca.New(ca.Pair{Chain: chain, Key: forgedKey})
	if err != nil {
		t.Fatal(err)
	}
	signed := func(by *ca.Authority, at time.Time) ca.Pair {
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := by.SignNode(at, csr, "n1")
		if err != nil {
			t.Fatal(err)
		}
		return ca.Pair{Chain: chain, Key: key}
	}
	mine, theirs, elsewhere := pair(t, n2.Data, "node.pem"), pair(t, n1.Data, "node.pem"), pair(t, s.Nodes[3].Data, "node.pem")
	cluster := pair(t, s.First.Data, "cluster-ca.pem")
	// claim is the record that p's owner would send if the node n of c1 had the key k.
	claim := func(k byte, n api.NodeID, shows ca.Pair, signs ca.Pair) api.Peer {
		p := api.Peer{
			Key: api.PeerKey{0xee, k}, Cluster: "c1", Node: n, Chain: shown(shows.Chain), Rev: 1 << 40,
			Subnets:   []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 23, k, 0}), 26)},
			Endpoints: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.200:4444")},
		}
		var err error
		if p.Proof, err = proof.Sign(signs.Key, p.Key); err != nil {
			t.Fatal(err)
		}
		return p
	}
	replayed := claim(6, "n1", theirs, theirs)
	replayed.Key = api.PeerKey{0xee, 7}
	expired := signed(authority, time.Now().Add(-ca.LeafLife-48*time.Hour))
	untrusted := signed(forged, time.Now())
	lies := map[string]api.Peer{
		"another's certificate, one's own proof":    claim(1, "n1", theirs, mine),
		"one's own certificate and another's name":  claim(2, "n1", mine, mine),
		"a node of another cluster":                 claim(3, "n3", elsewhere, elsewhere),
		"an expired certificate":                    claim(4, "n1", expired, expired),
		"a certificate of nobody we trust":          claim(5, "n1", untrusted, untrusted),
		"another's proof, of another key":           replayed,
		"a cluster's certificate instead of a node": claim(8, "", cluster, cluster),
		"no certificate":                            {Key: api.PeerKey{0xee, 9}, Cluster: "c1", Node: "n1"},
	}
	tell := func(rev uint64, p api.Peer) {
		t.Helper()
		text, err := json.Marshal(wire.NetDown{Rev: rev, Records: wire.Records{Peers: []api.Peer{p}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := netsock.New(n0.NetSocket).Down(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	noStranger := func() {
		t.Helper()
		for _, n := range s.Nodes[:3] {
			for _, p := range n.Peers() {
				if p.Key == (api.PeerKey{0xee, p.Key[1]}) {
					t.Errorf("%s has accepted the forged peer %s", n.Name, p.Key)
				}
			}
		}
	}

	t.Run("as a node's message", func(t *testing.T) {
		defer s.For(t)()
		root := theirs.Root()
		conf := trust.New(root).Client(identity.OfCluster("c1"), func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return mine.TLS(false), nil
		})
		conf.NextProtos = []string{"mqtt"}
		b, err := mqtt.Dial(mqtt.Options{Addr: s.First.Link.Addr(), ClientID: "n2-thief", TLS: conf, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		boot := uint64(1 << 39) // newer than an honest node's, and within bounds
		publish := func(of api.NodeID, self wire.NetSelf) {
			t.Helper()
			boot += 1000 // the honest netmanager takes the next number when the cluster answers
			text, err := json.Marshal(wire.NetUp{Boot: boot, Seq: 1, Whole: true, Self: &self})
			if err != nil {
				t.Fatal(err)
			}
			lab.Within(t, time.Minute, "it is published or refused", func() error {
				err := b.Publish(t.Context(), bus.Message{Topic: topic.Interest.Of(of), Payload: text, QoS: 1})
				if err != nil && strings.Contains(s.First.Log(), topic.Interest.Of(of)) {
					return nil // it was refused
				}
				return err
			})
		}
		says := func(p api.Peer) wire.NetSelf {
			return wire.NetSelf{Key: p.Key, Chain: p.Chain, Proof: p.Proof, Endpoints: p.Endpoints}
		}
		before := n0.NetMetric(refusals)
		s.undisturbed(t, 12<<20, func() {
			// On behalf of the caller's node, which would lose all its subscriptions.
			publish("n0", says(claim(10, "n0", mine, mine)))
			lab.Within(t, time.Minute, "the broker refuses it", func() error {
				if !strings.Contains(s.First.Log(), topic.Interest.Of("n0")) {
					return fmt.Errorf("the cluster's log does not contain the refusal")
				}
				return nil
			})
			// As itself, with n1's recorded announcement: n1 keeps its key.
			key := n1.NetStatus().Key
			sig, err := proof.Sign(theirs.Key, key)
			if err != nil {
				t.Fatal(err)
			}
			publish("n2", wire.NetSelf{Key: key, Chain: shown(theirs.Chain), Proof: sig})
			s.caller.More(t, 20)
			// With another node's certificate and its own key: the nodes that subscribe to n2 refuse it. The honest n2 soon
			// replaces it.
			c, err := s.client.Dial(t.Context(), "udp", s.own(s.mole).String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			lab.Within(t, time.Minute, "n0 refuses it", func() error {
				publish("n2", says(lies["another's certificate, one's own proof"]))
				_, _ = c.Write([]byte("who are you?"))
				if n0.NetMetric(refusals) == before {
					return fmt.Errorf("no peer was refused")
				}
				return nil
			})
		})
		noStranger()
		own := s.Nodes[2].NetStatus().Key
		lab.Within(t, time.Minute, "the honest n2 is known again", func() error {
			c, err := s.client.Dial(t.Context(), "udp", s.own(s.mole).String())
			if err != nil {
				return err
			}
			_, _ = c.Write([]byte("who are you?")) // a demand for its route
			_ = c.Close()
			if !slices.ContainsFunc(n0.Peers(), func(p api.PeerStatus) bool { return p.Key == own }) {
				return fmt.Errorf("n0 does not have its key %s", own)
			}
			return nil
		})
	})
	t.Run("as a cluster's message", func(t *testing.T) {
		defer s.For(t)()
		rev := uint64(1) << 60
		s.undisturbed(t, 12<<20, func() {
			before := n0.NetMetric(refusals)
			tell(rev, claim(11, "n2", mine, mine))
			if n := n0.NetMetric(refusals); n != before {
				t.Fatalf("an honest peer was refused: %v refusals, want %v", n, before)
			}
			for name, p := range lies {
				before := n0.NetMetric(refusals)
				rev++
				tell(rev, p)
				if n := n0.NetMetric(refusals); n != before+1 {
					t.Errorf("%s: %v refusals, before %v; want one more", name, n, before)
				}
				if slices.ContainsFunc(n0.Peers(), func(q api.PeerStatus) bool { return q.Key == p.Key }) {
					t.Errorf("%s: the forged key became a peer, want it refused", name)
				}
			}
		})
	})
}
