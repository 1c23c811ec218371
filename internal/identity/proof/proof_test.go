package proof_test

import (
	"errors"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func pair(t *testing.T, sign func(csr []byte) ca.Pair) ca.Pair {
	t.Helper()
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	p := sign(csr)
	p.Key = key
	return p
}

func TestProofBindsKeyToNode(t *testing.T) {
	now := time.Now()
	root := must(ca.NewRoot(now))
	cluster := func(id api.ClusterID) *ca.Authority {
		return must(ca.New(pair(t, func(csr []byte) ca.Pair { return ca.Pair{Chain: must(root.SignCluster(now, csr, id))} })))
	}
	munich, rome := cluster("munich"), cluster("rome")
	node := func(a *ca.Authority, id api.NodeID) ca.Pair {
		return pair(t, func(csr []byte) ca.Pair { return ca.Pair{Chain: must(a.SignNode(now, csr, id))} })
	}
	n1, n2 := node(munich, "n1"), node(munich, "n2")
	v := trust.New(root.Root())
	key := api.PeerKey{1, 2, 3}
	peer := func(change ...func(*api.Peer)) api.Peer {
		p := api.Peer{
			Key: key, Cluster: "munich", Node: "n1", Proof: must(proof.Sign(n1.Key, key)),
			Chain: [][]byte{n1.Chain[0].Raw, n1.Chain[1].Raw},
		}
		for _, f := range change {
			f(&p)
		}
		return p
	}
	if who, err := proof.Check(v, peer()); err != nil || who != identity.OfNode("munich", "n1") {
		t.Errorf("a sound peer: %v, %v", who, err)
	}
	if _, err := proof.Check(v, peer(func(p *api.Peer) { p.Node = "" })); err != nil {
		t.Errorf("a peer whose name is not told: %v", err)
	}
	other := must(ca.NewRoot(now))
	for name, change := range map[string]func(*api.Peer){
		"another key":            func(p *api.Peer) { p.Key[0]++ },
		"another node's proof":   func(p *api.Peer) { p.Proof = must(proof.Sign(n2.Key, key)) },
		"another node's name":    func(p *api.Peer) { p.Node = "n2" },
		"another cluster's name": func(p *api.Peer) { p.Cluster = "rome" },
		"no proof":               func(p *api.Peer) { p.Proof = nil },
		"a huge proof":           func(p *api.Peer) { p.Proof = make([]byte, 1<<20) },
		"no chain":               func(p *api.Peer) { p.Chain = nil },
		"no authority":           func(p *api.Peer) { p.Chain = p.Chain[:1] },
		"another authority":      func(p *api.Peer) { p.Chain[1] = rome.Pair().Chain[0].Raw },
		"not a certificate":      func(p *api.Peer) { p.Chain[0] = []byte("x") },
		"a long chain":           func(p *api.Peer) { p.Chain = append(p.Chain, p.Chain...) },
		"an authority itself": func(p *api.Peer) {
			p.Chain, p.Node, p.Proof = [][]byte{munich.Pair().Chain[0].Raw}, "", must(proof.Sign(munich.Pair().Key, key))
		},
	} {
		if _, err := proof.Check(v, peer(change)); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := proof.Check(trust.New(other.Root()), peer()); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("another installation: %v", err)
	}
}
