package ca_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func newRoot(t *testing.T) *ca.Authority {
	t.Helper()
	root, err := ca.NewRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func newCluster(t *testing.T, root *ca.Authority, id api.ClusterID) *ca.Authority {
	t.Helper()
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := root.SignCluster(now, csr, id)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.New(ca.Pair{Chain: chain, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t *testing.T) []byte {
	t.Helper()
	_, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func TestSignerDecidesNames(t *testing.T) {
	munich := newCluster(t, newRoot(t), "munich")
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse("treeline://root")
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "cluster"}, DNSNames: []string{"root.example"}, URIs: []*url.URL{u},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := munich.SignNode(now, csr, "n7")
	if err != nil {
		t.Fatal(err)
	}
	leaf := chain[0]
	if id, err := identity.Of(leaf); err != nil || id != identity.OfNode("munich", "n7") {
		t.Errorf("identity %v, %v", id, err)
	}
	if leaf.Subject.CommonName != "n7" || len(leaf.DNSNames) != 0 || leaf.IsCA {
		t.Errorf("the request got through: CN %q, names %v, CA %v", leaf.Subject.CommonName, leaf.DNSNames, leaf.IsCA)
	}
	if len(chain) != 3 {
		t.Errorf("chain of %d certificates, want leaf, cluster, root", len(chain))
	}
}

func TestRefusedRequests(t *testing.T) {
	root := newRoot(t)
	munich := newCluster(t, root, "munich")
	good := request(t)
	forged := append([]byte(nil), good...)
	forged[len(forged)-1] ^= 1
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaCSR, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		sign func() error
		want error
	}{
		"no possession": {func() error { _, err := munich.SignNode(now, forged, "n1"); return err }, api.ErrInvalid},
		"garbage":       {func() error { _, err := munich.SignNode(now, []byte("x"), "n1"); return err }, api.ErrInvalid},
		"giant":         {func() error { _, err := munich.SignNode(now, make([]byte, 1<<20), "n1"); return err }, api.ErrTooLarge},
		"RSA":           {func() error { _, err := munich.SignNode(now, rsaCSR, "n1"); return err }, api.ErrInvalid},
		"node cluster":  {func() error { _, err := munich.SignNode(now, good, "cluster"); return err }, api.ErrInvalid},
		"bad name":      {func() error { _, err := munich.SignNode(now, good, "a/b"); return err }, api.ErrInvalid},
		"bad cluster":   {func() error { _, err := root.SignCluster(now, good, "../x"); return err }, api.ErrInvalid},
		"cluster by a cluster": {
			func() error { _, err := munich.SignCluster(now, good, "munich"); return err }, api.ErrForbidden,
		},
		"ended": {
			func() error { _, err := munich.SignNode(now.Add(2*ca.ClusterLife), good, "n1"); return err }, api.ErrUnavailable,
		},
	} {
		if err := c.sign(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestLeafEndsWithItsAuthority(t *testing.T) {
	munich := newCluster(t, newRoot(t), "munich")
	late := now.Add(ca.ClusterLife - 24*time.Hour)
	chain, err := munich.SignNode(late, request(t), "n1")
	if err != nil {
		t.Fatal(err)
	}
	if chain[0].NotAfter.After(chain[1].NotAfter) {
		t.Errorf("leaf ends %s, its authority %s", chain[0].NotAfter, chain[1].NotAfter)
	}
}

func TestShortLivesAndWhenTheyBegan(t *testing.T) {
	munich := newCluster(t, newRoot(t), "munich")
	for _, life := range []time.Duration{0, time.Second, 9 * time.Second, 25 * time.Second, time.Minute + 7*time.Second, 10*time.Hour - time.Second, 10 * time.Hour, 11 * time.Hour, 2 * ca.ClusterLife} {
		chain, err := munich.WithLife(life).SignNode(now.Add(300*time.Millisecond), request(t), "n1")
		if err != nil {
			t.Fatal(err)
		}
		want := life
		if life == 0 || life > ca.LeafLife {
			want = ca.LeafLife
		}
		if made := ca.IssuedAt(chain[0]); !made.Equal(now) || !chain[0].NotAfter.Equal(now.Add(want)) {
			t.Errorf("life %s: made at %s, ends %s; want %s, %s", life, made, chain[0].NotAfter, now, now.Add(want))
		}
	}
}

// A stolen key of a broker is not accepted as the cluster's.
func TestABrokersCertificateIsNoClients(t *testing.T) {
	munich := newCluster(t, newRoot(t), "munich")
	chain, err := munich.SignServer(now, request(t), "broker.example")
	if err != nil {
		t.Fatal(err)
	}
	if id, err := identity.Of(chain[0]); err != nil || id != identity.OfCluster("munich") || len(chain[0].DNSNames) != 1 {
		t.Errorf("%v %v %v", id, err, chain[0].DNSNames)
	}
	if use := chain[0].ExtKeyUsage; len(use) != 1 || use[0] != x509.ExtKeyUsageServerAuth {
		t.Errorf("good for %v", use)
	}
}

func TestRenewedAuthorityKeepsWhatItSigned(t *testing.T) {
	root := newRoot(t)
	munich := newCluster(t, root, "munich")
	node, err := munich.SignNode(now, request(t), "n1")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := ca.Request(munich.Pair().Key)
	if err != nil {
		t.Fatal(err)
	}
	again, err := root.SignCluster(now.Add(time.Hour), csr, "munich")
	if err != nil {
		t.Fatal(err)
	}
	if err := node[0].CheckSignatureFrom(again[0]); err != nil {
		t.Error(err)
	}
}

// A broker that trusts a cluster's anchor accepts the nodes of that cluster only.
func TestAnchorTrustsOwnNodesOnly(t *testing.T) {
	root := newRoot(t)
	munich, rome := newCluster(t, root, "munich"), newCluster(t, root, "rome")
	anchor, err := munich.Anchor(now)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(anchor)
	for _, c := range []struct {
		by *ca.Authority
		ok bool
	}{{munich, true}, {rome, false}} {
		chain, err := c.by.SignNode(now, request(t), "n1")
		if err != nil {
			t.Fatal(err)
		}
		inter := x509.NewCertPool()
		inter.AddCert(chain[1])
		_, err = chain[0].Verify(x509.VerifyOptions{
			Roots: pool, Intermediates: inter, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if (err == nil) != c.ok {
			t.Errorf("node of %s at munich's broker: %v", c.by.Identity(), err)
		}
	}
}

func TestPairFile(t *testing.T) {
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := ca.LoadPair(dir, "ca.pem"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("no file: %v", err)
	}
	root := newRoot(t)
	for range 2 { // the second time replaces the file
		if err := ca.SavePair(dir, "ca.pem", root.Pair()); err != nil {
			t.Fatal(err)
		}
	}
	p, err := ca.LoadPair(dir, "ca.pem")
	if err != nil || !p.Root().Equal(root.Root()) {
		t.Fatalf("loaded %v, %v", p, err)
	}
	info, err := os.Stat(filepath.Join(path, "ca.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := os.ReadDir(path); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Chmod(filepath.Join(path, "ca.pem"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.LoadPair(dir, "ca.pem"); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a key that others may read: %v", err)
	}
	if err := ca.SavePair(dir, "../ca.pem", root.Pair()); err == nil {
		t.Error("wrote outside of the directory")
	}
}

func TestPairOfStrangersIsRefused(t *testing.T) {
	root := newRoot(t)
	other, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := (ca.Pair{Chain: root.Pair().Chain, Key: other}).Check(); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
}
