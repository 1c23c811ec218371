package trust_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world has a root, two clusters, and a certificate for each machine.
type world struct {
	root, munich, rome *ca.Authority
	now                time.Time
}

func newWorld() *world {
	w := &world{now: time.Now()}
	w.root = must(ca.NewRoot(w.now))
	w.munich, w.rome = w.cluster("munich"), w.cluster("rome")
	return w
}

func (w *world) cluster(id api.ClusterID) *ca.Authority {
	key, csr, err := ca.NewRequest()
	if err != nil {
		panic(err)
	}
	return must(ca.New(ca.Pair{Chain: must(w.root.SignCluster(w.now, csr, id)), Key: key}))
}

func (w *world) own(a *ca.Authority) ca.Pair {
	key, csr, err := ca.NewRequest()
	if err != nil {
		panic(err)
	}
	return ca.Pair{Chain: must(a.SignOwn(w.now, csr, "localhost")), Key: key}
}

func (w *world) node(a *ca.Authority, id api.NodeID) ca.Pair {
	key, csr, err := ca.NewRequest()
	if err != nil {
		panic(err)
	}
	return ca.Pair{Chain: must(a.SignNode(w.now, csr, id)), Key: key}
}

func server(p ca.Pair) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.TLS(true), nil }
}

func client(p ca.Pair) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.TLS(false), nil }
}

// meet performs a handshake between client and server and exchanges a byte in each direction.
func meet(t *testing.T, sc, cc *tls.Config) (tls.ConnectionState, error, error) {
	t.Helper()
	ln := must(net.Listen("tcp", "127.0.0.1:0"))
	defer ln.Close()
	type result struct {
		cs  tls.ConnectionState
		err error
	}
	done := make(chan result, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			done <- result{err: err}
			return
		}
		c := tls.Server(raw, sc)
		defer c.Close()
		err = c.Handshake()
		if err == nil {
			_, err = c.Write([]byte{1})
		}
		done <- result{c.ConnectionState(), err}
	}()
	c, err := tls.Dial("tcp", ln.Addr().String(), cc)
	if err == nil {
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	r := <-done
	return r.cs, r.err, err
}

func TestMachinesKnowOneAnother(t *testing.T) {
	w := newWorld()
	v := trust.New(w.root.Root())
	cs, serr, cerr := meet(t, v.Server(server(w.own(w.munich)), true),
		v.Client(identity.OfCluster("munich"), client(w.node(w.munich, "n7"))))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	if id, err := v.Peer(cs); err != nil || id != identity.OfNode("munich", "n7") {
		t.Errorf("peer %v, %v", id, err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	w, other := newWorld(), newWorld()
	v := trust.New(w.root.Root())
	srv := v.Server(server(w.own(w.munich)), true)
	node := client(w.node(w.munich, "n7"))
	for name, c := range map[string]struct{ sc, cc *tls.Config }{
		"another root's client": {srv, v.Client(identity.OfCluster("munich"), client(other.node(other.munich, "n7")))},
		"no certificate":        {srv, v.Client(identity.OfCluster("munich"), nil)},
		"another cluster answers": {
			v.Server(server(w.own(w.rome)), true), v.Client(identity.OfCluster("munich"), node),
		},
		"a node answers": {
			v.Server(server(w.node(w.munich, "n1")), true), v.Client(identity.OfCluster("munich"), node),
		},
		"another root answers": {
			v.Server(server(other.own(other.munich)), true), v.Client(identity.OfCluster("munich"), node),
		},
		"zero verifier": {(&trust.Verifier{}).Server(server(w.own(w.munich)), true), v.Client(identity.OfCluster("munich"), node)},
		"a cluster forges a foreign node": {
			srv, v.Client(identity.OfCluster("munich"), client(forge(w.rome, identity.OfNode("munich", "n7")))),
		},
		"a cluster forges the root": {
			v.Server(server(forge(w.rome, identity.OfRoot())), true), v.Client(identity.OfRoot(), node),
		},
		"TLS 1.2": {srv, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, GetClientCertificate: node}},
	} {
		if _, serr, cerr := meet(t, c.sc, c.cc); serr == nil && cerr == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// forge signs a certificate that by may not issue.
func forge(by *ca.Authority, who identity.Identity) ca.Pair {
	key := must(ca.NewKey())
	t := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: who.CommonName()},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{who.URL()},
	}
	p := by.Pair()
	cert := must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, t, p.Chain[0], key.Public(), p.Key))))
	return ca.Pair{Chain: append([]*x509.Certificate{cert}, p.Chain...), Key: key}
}

func TestOptionalClientsMayBringNone(t *testing.T) {
	w := newWorld()
	v := trust.New(w.root.Root())
	srv := v.Server(server(w.own(w.root)), false)
	cs, serr, cerr := meet(t, srv, v.Client(identity.OfRoot(), nil))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	if _, err := v.Peer(cs); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("nobody is %v", err)
	}
	if _, serr, _ := meet(t, srv, v.Client(identity.OfRoot(), client(forge(w.rome, identity.OfNode("munich", "n7"))))); serr == nil {
		t.Error("a forged certificate is worse than none, and was accepted")
	}
}

func TestRevokedIsRefusedOnResumption(t *testing.T) {
	w := newWorld()
	var list trust.Revocations
	v := trust.New(w.root.Root())
	v.Revoked = list.Revoked
	srv := v.Server(server(w.own(w.munich)), true)
	node := w.node(w.munich, "n7")
	cc := trust.New(w.root.Root()).Client(identity.OfCluster("munich"), client(node))
	cc.ServerName = "munich" // the key of the session cache, because the ports differ
	resumed := false
	for range 3 {
		cs, serr, cerr := meet(t, srv, cc)
		if serr != nil || cerr != nil {
			t.Fatal(serr, cerr)
		}
		resumed = cs.DidResume
	}
	if !resumed {
		t.Error("sessions are not resumed")
	}
	list.Revoke(identity.OfNode("munich", "n7"), node.Chain[0].SerialNumber)
	if _, serr, _ := meet(t, srv, cc); !errors.Is(serr, api.ErrForbidden) {
		t.Errorf("a revoked certificate on a resumed session: %v, want ErrForbidden", serr)
	}
}

func TestRevokedClusterTakesItsNodesAlong(t *testing.T) {
	w := newWorld()
	var list trust.Revocations
	v := trust.New(w.root.Root())
	v.Revoked = list.Revoked
	list.Revoke(identity.OfCluster("munich"), w.munich.Pair().Chain[0].SerialNumber)
	_, serr, _ := meet(t, v.Server(server(w.own(w.root)), true), v.Client(identity.OfRoot(), client(w.node(w.munich, "n7"))))
	if !errors.Is(serr, api.ErrForbidden) {
		t.Error(serr)
	}
}
