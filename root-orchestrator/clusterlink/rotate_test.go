package clusterlink

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// noCore has no clusters.
type noCore struct{}

func (noCore) Do(context.Context, root.Input, func()) error { return nil }
func (noCore) Read(context.Context, func()) error           { return nil }

// signer is a root that renews the authority of munich.
type signer struct {
	t     *testing.T
	st    store.Store
	root  *ca.Authority
	link  *Link
	trust *trust.Verifier
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	a, err := ca.NewRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{t: t, st: mem.New(), root: a, trust: trust.New(a.Root())}
	s.restart()
	return s
}

// restart reads the documents of the store again, as after a crash.
func (s *signer) restart() {
	s.t.Helper()
	loaded, err := store.Load(s.t.Context(), s.st)
	if err != nil {
		s.t.Fatal(err)
	}
	known, err := NewIssued(s.st, loaded)
	if err != nil {
		s.t.Fatal(err)
	}
	s.trust.Revoked = known.Revoked
	s.link = New(Options{
		Owner: noCore{}, Authority: func() *ca.Authority { return s.root }, Verifier: s.trust, Issued: known,
		Keys: func() jwt.PublicKeys { return nil }, Replicas: func() []string { return nil }, Now: time.Now,
	})
}

func (s *signer) key() (crypto.Signer, []byte) {
	s.t.Helper()
	key, csr, err := ca.NewRequest()
	if err != nil {
		s.t.Fatal(err)
	}
	return key, csr
}

// joined returns the authority of a cluster that has joined.
func (s *signer) joined() *ca.Authority {
	s.t.Helper()
	key, csr := s.key()
	print, err := ca.Fingerprint(csr)
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.link.sign(s.t.Context(), csr, print, "", "munich")
	if err != nil {
		s.t.Fatal(err)
	}
	return s.authority(key, out.Chain)
}

func (s *signer) authority(key crypto.Signer, chain string) *ca.Authority {
	s.t.Helper()
	pair, err := enrol.VerifyChain(key, chain, identity.OfCluster("munich"))
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := ca.New(pair)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// own returns a certificate of the cluster itself.
func (s *signer) own(a *ca.Authority) ca.Pair {
	s.t.Helper()
	key, csr := s.key()
	chain, err := a.SignOwn(time.Now(), csr)
	if err != nil {
		s.t.Fatal(err)
	}
	return ca.Pair{Chain: chain, Key: key}
}

// renew sends a request on a connection with own.
func (s *signer) renew(own ca.Pair, req wire.Renew) (wire.ClusterJoined, error) {
	s.t.Helper()
	text, err := json.Marshal(req)
	if err != nil {
		s.t.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/v1/cluster/renew", bytes.NewReader(text))
	r.TLS = &tls.ConnectionState{PeerCertificates: own.Chain}
	id, err := s.link.peer(r)
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	w := httptest.NewRecorder()
	if err := s.link.renew(w, r, id); err != nil {
		return wire.ClusterJoined{}, err
	}
	var out wire.ClusterJoined
	return out, json.Unmarshal(w.Body.Bytes(), &out)
}

func (s *signer) rotate(own ca.Pair, by crypto.Signer, csr []byte) (wire.ClusterJoined, error) {
	s.t.Helper()
	sig, err := proof.SignRotation(by, "munich", csr)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.renew(own, wire.Renew{CSR: enrol.EncodeRequest(csr), Proof: sig})
}

func (s *signer) refused(what string, err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (s *signer) generation(a *ca.Authority, want identity.Generation) {
	s.t.Helper()
	if g, err := identity.GenerationOf(a.Pair().Chain[0]); err != nil || g != want {
		s.t.Errorf("the authority has the generation %+v (%v), want %+v", g, err, want)
	}
}

func TestAClusterReplacesTheKeyOfItsAuthority(t *testing.T) {
	s := newSigner(t)
	old := s.joined()
	s.generation(old, identity.Generation{})
	oldOwn := s.own(old)
	key, csr := s.key()
	out, err := s.rotate(oldOwn, old.Pair().Key, csr)
	if err != nil {
		t.Fatal(err)
	}
	s.generation(s.authority(key, out.Chain), identity.Generation{Key: 1})

	// The answer was lost, and the root crashed.
	s.restart()
	if out, err = s.rotate(oldOwn, old.Pair().Key, csr); err != nil {
		t.Fatal(err)
	}
	next := s.authority(key, out.Chain)
	s.generation(next, identity.Generation{Key: 1})

	// The earlier key is valid, but gets nothing any more.
	_, other := s.key()
	_, err = s.rotate(oldOwn, old.Pair().Key, other)
	s.refused("a second new key, signed by the earlier one", err, api.ErrConflict)
	oldCSR, err := ca.Request(old.Pair().Key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.renew(oldOwn, wire.Renew{CSR: enrol.EncodeRequest(oldCSR)})
	s.refused("a renewal of the earlier key", err, api.ErrConflict)
	_, err = s.renew(oldOwn, wire.Renew{CSR: enrol.EncodeRequest(oldCSR), Retire: true})
	s.refused("the earlier key retires the new one", err, api.ErrConflict)

	own := s.own(next)
	for range 2 { // it may be repeated
		if out, err = s.renew(own, wire.Renew{CSR: enrol.EncodeRequest(csr), Retire: true}); err != nil {
			t.Fatal(err)
		}
		s.generation(s.authority(key, out.Chain), identity.Generation{Key: 1, Oldest: 1})
	}
	for _, when := range []string{"after its retirement", "after a restart of the root"} {
		_, err = s.rotate(oldOwn, old.Pair().Key, other)
		s.refused("a rotation by a stolen key "+when, err, api.ErrForbidden)
		_, err = s.renew(s.own(old), wire.Renew{CSR: enrol.EncodeRequest(oldCSR)})
		s.refused("a renewal by a stolen key "+when, err, api.ErrForbidden)
		if out, err = s.renew(own, wire.Renew{CSR: enrol.EncodeRequest(csr)}); err != nil {
			t.Errorf("a renewal of the new key %s: %v", when, err)
		} else {
			s.generation(s.authority(key, out.Chain), identity.Generation{Key: 1, Oldest: 1})
		}
		s.restart()
	}
}

// The key of a certificate that an authority has issued, such as that of the cluster's port, must not become an authority.
func TestOnlyTheAuthoritysKeyReplacesIt(t *testing.T) {
	s := newSigner(t)
	a := s.joined()
	own := s.own(a)
	_, csr := s.key()
	_, err := s.renew(own, wire.Renew{CSR: enrol.EncodeRequest(csr)})
	s.refused("a new key without a signature", err, api.ErrForbidden)
	_, err = s.rotate(own, own.Key, csr)
	s.refused("a new key that the key of a certificate has signed", err, api.ErrForbidden)
	sig, err := proof.SignRotation(a.Pair().Key, "rome", csr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.renew(own, wire.Renew{CSR: enrol.EncodeRequest(csr), Proof: sig})
	s.refused("a signature for another cluster", err, api.ErrForbidden)
	_, err = s.renew(own, wire.Renew{CSR: enrol.EncodeRequest(csr), Retire: true})
	s.refused("retiring with another key", err, api.ErrForbidden)

	// The holder of a certificate shows an authority that it has made itself before the true one.
	fake, err := ca.NewRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	fakeKey, fakeCSR := s.key()
	chain, err := fake.SignCluster(time.Now(), fakeCSR, "munich")
	if err != nil {
		t.Fatal(err)
	}
	forged := ca.Pair{Key: own.Key, Chain: append(own.Chain[:1:1], chain[0], own.Chain[1], own.Chain[2])}
	_, err = s.rotate(forged, fakeKey, csr)
	s.refused("a key signed by a forged authority", err, api.ErrForbidden)
	if g := s.link.opt.Issued.generation("munich", "another key"); g.Key != 1 {
		t.Errorf("the next key would have generation %d, want 1", g.Key)
	}
}
