package trust_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// rotated returns an authority of munich with a new key, and that with the certificate that retires the earlier keys.
func (w *world) rotated(key uint64) (signing, retired *ca.Authority) {
	k, csr, err := ca.NewRequest()
	if err != nil {
		panic(err)
	}
	of := func(g identity.Generation) *ca.Authority {
		return must(ca.New(ca.Pair{Chain: must(w.root.SignGeneration(w.now, csr, "munich", g)), Key: k}))
	}
	return of(identity.Generation{Key: key}), of(identity.Generation{Key: key, Oldest: key})
}

func TestBothKeysAreTrustedUntilTheEarlierIsRetired(t *testing.T) {
	w := newWorld()
	v := trust.New(w.root.Root())
	signing, retired := w.rotated(1)
	old, fresh := w.node(w.munich, "n1").Chain, w.node(signing, "n1").Chain
	accepted := func(what string, chain []*x509.Certificate, want error) {
		t.Helper()
		if _, err := v.Chain(chain); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	accepted("a certificate of the new key", fresh, nil)
	accepted("a certificate of the earlier key during the rotation", old, nil)
	accepted("a certificate that retires the earlier key", w.node(retired, "n2").Chain, nil)
	accepted("a certificate of a stolen key after its retirement", w.node(w.munich, "n3").Chain, api.ErrForbidden)
	accepted("a certificate of the new key from before the retirement", fresh, nil)
	accepted("an old certificate, replayed after one that does not retire it", old, api.ErrForbidden)
	accepted("a certificate of another cluster", w.node(w.rome, "n1").Chain, nil)
	if n := v.Retirements(); n != 1 {
		t.Errorf("%d retirements, want 1", n)
	}
	later := trust.New(w.root.Root())
	later.Learn(w.node(retired, "n1").Chain)
	if _, err := later.Chain(old); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a certificate of a retired key after a restart: %v, want it refused", err)
	}
}

// Only the root's signature counts: neither another cluster nor the holder of a key of the cluster can retire a key.
func TestOnlyTheRootRetiresKeys(t *testing.T) {
	w := newWorld()
	v := trust.New(w.root.Root())
	foreign := must(ca.NewRoot(w.now)) // a root that a hostile cluster has made
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	forged := must(ca.New(ca.Pair{Chain: must(foreign.SignGeneration(w.now, csr, "munich", identity.Generation{Key: 9, Oldest: 9})), Key: key}))
	chain := w.node(forged, "n1").Chain
	if _, err := v.Chain(chain); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a chain to a root that a cluster has made: %v, want it refused", err)
	}
	// The forged certificate is sent in addition to a valid chain.
	if _, err := v.Chain(append(w.node(w.munich, "n1").Chain, chain[1:]...)); err != nil {
		t.Errorf("a valid chain with a further certificate: %v", err)
	}
	if n := v.Retirements(); n != 0 {
		t.Errorf("a forged certificate has retired %d keys", n)
	}
}

// A machine that was away for the rotation gets an error that says what to do, not only a closed connection.
func TestTheHolderOfARetiredCertificateIsTold(t *testing.T) {
	w := newWorld()
	_, retired := w.rotated(1)
	sv, cv := trust.New(w.root.Root()), trust.New(w.root.Root())
	sv.Learn(retired.Pair().Chain)
	_, serr, cerr := meet(t, sv.Server(server(w.own(retired)), true), cv.Client(identity.OfCluster("munich"), client(w.node(w.munich, "n7"))))
	if serr == nil || !errors.Is(cerr, api.ErrForbidden) || !strings.Contains(cerr.Error(), "join again with a new token") {
		t.Errorf("the server: %v, the node: %v, want an error that names the fix", serr, cerr)
	}
	if _, serr, cerr = meet(t, sv.Server(server(w.own(retired)), true), cv.Client(identity.OfCluster("munich"), client(w.node(retired, "n7")))); serr != nil || cerr != nil {
		t.Errorf("with a renewed certificate: %v, %v", serr, cerr)
	}
	// A server with a stolen key.
	if _, _, err := meet(t, sv.Server(server(w.own(w.munich)), true), cv.Client(identity.OfCluster("munich"), client(w.node(retired, "n7")))); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a server with a retired key: %v, want it refused", err)
	}
}

// A session of an earlier certificate is not resumed after a renewal: the server would refuse it again and again.
func TestARenewedCertificateResumesNoSession(t *testing.T) {
	w := newWorld()
	v := trust.New(w.root.Root())
	signing, retired := w.rotated(1)
	own := w.node(w.munich, "n7")
	conf := v.Client(identity.OfCluster("munich"), func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.TLS(false), nil })
	sc := v.Server(server(w.own(signing)), true)
	for i := range 3 {
		cs, serr, cerr := meet(t, sc, conf)
		if serr != nil || cerr != nil {
			t.Fatal(serr, cerr)
		}
		if i == 1 && !cs.DidResume {
			t.Error("a session with the same certificate was not resumed")
		}
		if i == 2 && cs.DidResume {
			t.Error("a session was resumed with another certificate")
		}
		if i == 1 {
			own = w.node(signing, "n7")
		}
	}
	v.Learn(retired.Pair().Chain)
	if _, serr, cerr := meet(t, sc, conf); serr != nil || cerr != nil {
		t.Errorf("after the retirement: %v, %v", serr, cerr)
	}
}
