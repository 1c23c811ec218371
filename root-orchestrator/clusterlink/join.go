package clusterlink

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// KindIssued is the kind of Issued's documents in a store.
const KindIssued = "issued"

// Issued keeps the certificates that the root has signed for each cluster, so that it can revoke
// them and decide who may have a cluster's name. It is safe for concurrent use.
type Issued struct {
	table   *docs.Table[issued]
	revoked trust.Revocations
}

type issued struct {
	Cluster    api.ClusterID       `json:"cluster"`
	Key        string              `json:"key"` // fingerprint of the authority's key
	Generation identity.Generation `json:"generation,omitzero"`
	Certs      []issuedCert        `json:"certs"`
}

type issuedCert struct {
	Serial  string    `json:"serial"` // hexadecimal
	Ends    time.Time `json:"ends"`
	Revoked bool      `json:"revoked,omitempty"`
	Key     string    `json:"key,omitempty"` // fingerprint; empty: of generation 0, by an earlier release
}

// next returns the generation of a certificate for the cluster's key.
func (d issued) next(key string) identity.Generation {
	g := d.Generation
	if d.Key != "" && d.Key != key {
		g.Key++
	}
	return g
}

func NewIssued(st store.Store, loaded []store.Doc) (*Issued, error) {
	i := &Issued{table: docs.New[issued](KindIssued, st)}
	if err := i.table.Load(loaded); err != nil {
		return nil, err
	}
	for _, d := range i.table.All() {
		i.refuse(d)
	}
	return i, nil
}

// maxCerts limits the valid certificates of one cluster. Each is stored until it expires, so that
// it can be revoked.
const maxCerts = 256

// Revoked implements trust.Verifier.Revoked.
func (i *Issued) Revoked(who identity.Identity, serial *big.Int) bool {
	return i.revoked.Revoked(who, serial)
}

func (i *Issued) refuse(d issued) {
	for _, c := range d.Certs {
		if n, ok := new(big.Int).SetString(c.Serial, 16); ok && c.Revoked {
			i.revoked.Revoke(identity.OfCluster(d.Cluster), n)
		}
	}
}

// key returns the fingerprint of the key that has the cluster's name, "" if there is none.
func (i *Issued) key(c api.ClusterID) string {
	d, _ := i.table.Get(string(c))
	return d.Key
}

// generation returns the generation of a certificate for the cluster's key.
func (i *Issued) generation(c api.ClusterID, key string) identity.Generation {
	d, _ := i.table.Get(string(c))
	return d.next(key)
}

// add stores a certificate for the cluster's key. It returns ErrConflict if the stored key is
// neither key nor replaces, so that only one of two concurrent joins gets a name, and ErrUnavailable
// if the certificate has another generation, after a concurrent change.
func (i *Issued) add(ctx context.Context, now time.Time, c api.ClusterID, key, replaces string, cert *x509.Certificate) error {
	g, err := identity.GenerationOf(cert)
	if err != nil {
		return err
	}
	return i.table.Update(ctx, string(c), func(d issued, _ bool) (issued, error) {
		if d.Key != "" && d.Key != key && d.Key != replaces {
			return d, nameTaken(c)
		}
		if d.next(key) != g.Own() {
			return d, fmt.Errorf("sign a certificate of cluster %s: its key changed meanwhile; try again: %w", c, api.ErrUnavailable)
		}
		d.Cluster, d.Key, d.Generation = c, key, g.Own()
		d.Certs = slices.DeleteFunc(slices.Clone(d.Certs), func(o issuedCert) bool { return o.Ends.Before(now) })
		if len(d.Certs) >= maxCerts {
			return d, fmt.Errorf("sign a certificate of cluster %s: it has %d valid ones, the limit is %d; use one of these: %w", c, len(d.Certs), maxCerts, api.ErrTooMany)
		}
		d.Certs = append(d.Certs, issuedCert{Serial: cert.SerialNumber.Text(16), Ends: cert.NotAfter, Key: key})
		return d, nil
	})
}

// retire revokes the certificates of the cluster's earlier keys. It returns ErrConflict if key is not the
// cluster's key.
func (i *Issued) retire(ctx context.Context, c api.ClusterID, key string) error {
	err := i.table.Update(ctx, string(c), func(d issued, _ bool) (issued, error) {
		if d.Key != key {
			return d, fmt.Errorf("retire the earlier keys of cluster %s: the request has another key than the cluster: %w", c, api.ErrConflict)
		}
		if d.Generation.Oldest == d.Generation.Key {
			return d, nil
		}
		d.Generation.Oldest, d.Certs = d.Generation.Key, slices.Clone(d.Certs)
		for n := range d.Certs {
			d.Certs[n].Revoked = d.Certs[n].Revoked || d.Certs[n].Key != key
		}
		return d, nil
	})
	if err != nil {
		return err
	}
	if d, ok := i.table.Get(string(c)); ok {
		i.refuse(d)
	}
	return nil
}

func (i *Issued) revoke(ctx context.Context, c api.ClusterID) error {
	err := i.table.Update(ctx, string(c), func(d issued, ok bool) (issued, error) {
		if !ok {
			return d, docs.ErrDelete
		}
		d.Key, d.Certs = "", slices.Clone(d.Certs)
		for n := range d.Certs {
			d.Certs[n].Revoked = true
		}
		return d, nil
	})
	if err != nil {
		return err
	}
	if d, ok := i.table.Get(string(c)); ok {
		i.refuse(d)
	}
	return nil
}

// Revoke revokes all certificates and the join token of the cluster and ends its streams.
func (l *Link) Revoke(ctx context.Context, c api.ClusterID) error {
	// Revoke the token first, so that the cluster cannot join again between the two steps.
	if err := l.opt.Tokens.RevokeUses(ctx, jointoken.ForCluster, string(c)); err != nil {
		return fmt.Errorf("end the join token of cluster %s: %w", c, err)
	}
	if err := l.opt.Issued.revoke(ctx, c); err != nil {
		return fmt.Errorf("revoke cluster %s: %w", c, err)
	}
	if conn := l.conn(c); conn != nil {
		conn.close()
	}
	l.streams.End(string(c.Addr()))
	return nil
}

// joinServer admits clusters.
func (l *Link) joinServer() http.Handler {
	return &enrol.Server[wire.JoinCluster, wire.ClusterJoined]{
		Shares: l.shares, Refused: l.refused, Admit: l.joinCluster, Fail: l.fail,
		Describe: func(req wire.JoinCluster) []any { return []any{"cluster", req.Info.ID} },
	}
}

// joinCluster redeems the token, signs the certificate of the cluster's authority, and adds the
// cluster to the core.
func (l *Link) joinCluster(ctx context.Context, req wire.JoinCluster) (wire.ClusterJoined, error) {
	tok, err := jointoken.Parse(req.Token)
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	id := req.Info.ID
	if !api.ValidMachineName(string(id)) {
		return wire.ClusterJoined{}, fmt.Errorf("join cluster %q: the name must be a DNS label in lower case: %w", id, api.ErrInvalid)
	}
	csr, key, err := enrol.ParseRequest(req.CSR)
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	replaces, err := l.nameIsFree(ctx, tok, id, key)
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	_, rec, err := l.opt.Tokens.Redeem(ctx, jointoken.Claim{
		Secret: tok.Secret, Scope: jointoken.ForCluster, Cluster: id, Key: key, Name: string(id),
	})
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	// Sign first: this decides which of two keys gets the name.
	out, err := l.sign(ctx, csr, key, replaces, id)
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	info := req.Info
	info.Tenant = rec.Tenant
	var known api.Cluster
	if err := l.opt.Owner.Do(ctx, root.JoinCluster{Info: info, Open: rec.Open}, func() { known, _ = l.opt.Core.Cluster(id) }); err != nil {
		return wire.ClusterJoined{}, err
	}
	out.Info = known.ClusterInfo
	l.opt.Log.Info("cluster joined", "cluster", id, "tenant", rec.Tenant, "token", rec.ID)
	return out, nil
}

// nameIsFree returns ErrConflict if the name is in use by another cluster. The key that has a name
// may use it, and so may a token of its tenant that is bound to the name, so that a machine can be
// reinstalled. replaces is the key that the new one replaces, or "".
func (l *Link) nameIsFree(ctx context.Context, tok jointoken.Token, id api.ClusterID, key string) (replaces string, err error) {
	var known api.Cluster
	var taken bool
	if err := l.opt.Owner.Read(ctx, func() { known, taken = l.opt.Core.Cluster(id) }); err != nil {
		return "", err
	}
	had := l.opt.Issued.key(id)
	if had == key || had == "" && !taken {
		return "", nil
	}
	rec, err := l.opt.Tokens.Get(tok.ID())
	if err == nil && rec.Cluster == id && (!taken || rec.Tenant == known.Tenant) {
		return had, nil
	}
	return "", nameTaken(id)
}

func nameTaken(id api.ClusterID) error {
	return fmt.Errorf("cluster %s exists; choose another name, or ask for a token that names it: %w", id, api.ErrConflict)
}

// renew signs a new certificate for the key of the cluster's authority, or for a key that it has signed.
func (l *Link) renew(w http.ResponseWriter, r *http.Request, id api.ClusterID) error {
	var req wire.Renew
	if err := call.ReadJSON(w, r, &req); err != nil {
		return err
	}
	csr, key, err := enrol.ParseRequest(req.CSR)
	if err != nil {
		return err
	}
	replaces, err := l.mayRenew(r, id, csr, key, req.Proof)
	if err != nil {
		return err
	}
	if req.Retire {
		if replaces != key {
			return fmt.Errorf("retire the earlier keys of cluster %s: the request is for a new key: %w", id, api.ErrInvalid)
		}
		if err := l.opt.Issued.retire(r.Context(), id, key); err != nil {
			return err
		}
		// The stream may be one of the holder of a retired key.
		if conn := l.conn(id); conn != nil {
			conn.close()
		}
		l.opt.Log.Warn("earlier keys of a cluster's authority retired", "cluster", id, "generation", l.opt.Issued.generation(id, key).Key)
	}
	out, err := l.sign(r.Context(), csr, key, replaces, id)
	if err != nil {
		return err
	}
	if replaces != key {
		l.opt.Log.Warn("key of a cluster's authority replaced", "cluster", id, "generation", l.opt.Issued.generation(id, key).Key)
	}
	err = l.opt.Owner.Read(r.Context(), func() {
		if c, ok := l.opt.Core.Cluster(id); ok {
			out.Info = c.ClusterInfo
		}
	})
	if err != nil {
		return err
	}
	call.WriteJSON(w, out)
	return nil
}

// mayRenew returns the fingerprint of the key whose authority has issued the certificate of the connection. It returns
// ErrForbidden unless that is key, or has signed the request: a key that the authority has certified must not become an
// authority.
func (l *Link) mayRenew(r *http.Request, id api.ClusterID, csr []byte, key string, sig []byte) (string, error) {
	fail := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("renew the authority of cluster %s: %w: %w", id, fmt.Errorf(format, args...), api.ErrForbidden)
	}
	chain := r.TLS.PeerCertificates
	if len(chain) < 2 {
		return fail("the connection shows no certificate of the authority")
	}
	// A peer may send further certificates than those that were verified.
	authority := chain[1]
	if who, err := identity.Of(authority); err != nil || who != identity.OfCluster(id) || !authority.IsCA ||
		!l.signed(authority) || chain[0].CheckSignatureFrom(authority) != nil {
		return fail("the second certificate of the connection is not that of its issuer")
	}
	had, err := ca.KeyFingerprint(authority.PublicKey)
	switch {
	case err != nil:
		return "", err
	case had == key && len(sig) > 0:
		return fail("the new key is the present one")
	case had != key && len(sig) == 0:
		return fail("the request has another key")
	case had != key && !proof.CheckRotation(authority, id, csr, sig):
		return fail("the new key is not signed by the present one")
	}
	return had, nil
}

// sign signs a certificate for a cluster's authority and stores it. replaces is the key that the
// cluster may have had before.
func (l *Link) sign(ctx context.Context, csr []byte, key, replaces string, id api.ClusterID) (wire.ClusterJoined, error) {
	if err := l.shares.Certificate(string(id.Addr())); err != nil {
		return wire.ClusterJoined{}, err
	}
	now := l.opt.Now()
	chain, err := l.opt.Authority().SignGeneration(now, csr, id, l.opt.Issued.generation(id, key))
	if err != nil {
		return wire.ClusterJoined{}, err
	}
	if err := l.opt.Issued.add(ctx, now, id, key, replaces, chain[0]); err != nil {
		return wire.ClusterJoined{}, err
	}
	return wire.ClusterJoined{Chain: string(ca.EncodeChain(chain)), JWTKeys: l.tokenKeys(), Replicas: l.opt.Replicas()}, nil
}

// keys serves the public keys that verify users' tokens. A cluster requests them when a token names
// an unknown key.
func (l *Link) keys(w http.ResponseWriter, _ *http.Request, _ api.ClusterID) error {
	call.WriteJSON(w, wire.ClusterKeys{JWTKeys: l.tokenKeys(), Root: l.rootKeys()})
	return nil
}

func (l *Link) tokenKeys() map[string]string {
	keys := map[string]string{}
	for kid, pub := range l.opt.Keys() {
		keys[kid] = base64.RawURLEncoding.EncodeToString(pub)
	}
	return keys
}
