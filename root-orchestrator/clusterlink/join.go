package clusterlink

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// KindIssued is the kind of Issued's documents in a store.
const KindIssued = "issued"

// Issued remembers which authorities the root has signed for whom, so that a
// cluster that is forgotten can be refused, and its name given again later. It
// is safe for concurrent use.
type Issued struct {
	table   *docs.Table[issued]
	revoked trust.Revocations
}

type issued struct {
	Cluster api.ClusterID `json:"cluster"`
	Key     string        `json:"key"` // fingerprint of the authority's key
	Certs   []issuedCert  `json:"certs"`
}

type issuedCert struct {
	Serial  string    `json:"serial"` // hexadecimal
	Ends    time.Time `json:"ends"`
	Revoked bool      `json:"revoked,omitempty"`
}

// NewIssued is what was issued, as loaded.
func NewIssued(st store.Store, loaded []store.Doc) (*Issued, error) {
	i := &Issued{table: docs.New[issued](KindIssued, st)}
	if err := i.table.Take(loaded); err != nil {
		return nil, err
	}
	for _, d := range i.table.All() {
		i.refuse(d)
	}
	return i, nil
}

// maxCerts bounds the valid certificates of one cluster. Each is stored until it
// expires, so that it can be revoked.
const maxCerts = 256

// Revoked is for trust.Verifier.
func (i *Issued) Revoked(who identity.Identity, serial *big.Int) bool {
	return i.revoked.Revoked(who, serial)
}

func (i *Issued) refuse(d issued) {
	for _, c := range d.Certs {
		if n, ok := new(big.Int).SetString(c.Serial, 16); ok && c.Revoked {
			i.revoked.RevokeSerial(identity.OfCluster(d.Cluster), n)
		}
	}
}

// key is the fingerprint of the key that the cluster's authority has now, "" if
// it has none that counts.
func (i *Issued) key(c api.ClusterID) string {
	d, _ := i.table.Get(string(c))
	return d.Key
}

// add stores a certificate for the cluster's key. It returns ErrConflict if the
// cluster's stored key is neither key nor replaces: if two keys ask for the same
// name at the same time, one of them gets it.
func (i *Issued) add(ctx context.Context, now time.Time, c api.ClusterID, key, replaces string, cert *x509.Certificate) error {
	return i.table.Update(ctx, string(c), func(d issued, _ bool) (issued, error) {
		if d.Key != "" && d.Key != key && d.Key != replaces {
			return d, nameTaken(c)
		}
		d.Cluster, d.Key = c, key
		d.Certs = slices.DeleteFunc(slices.Clone(d.Certs), func(o issuedCert) bool { return o.Ends.Before(now) })
		if len(d.Certs) >= maxCerts {
			return d, fmt.Errorf("cluster %s has %d certificates that have not expired, at most %d; it has to use one of them: %w", c, len(d.Certs), maxCerts, api.ErrTooMany)
		}
		d.Certs = append(d.Certs, issuedCert{Serial: cert.SerialNumber.Text(16), Ends: cert.NotAfter})
		return d, nil
	})
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

// Revoke revokes all certificates of the cluster and ends its streams.
func (l *Link) Revoke(ctx context.Context, c api.ClusterID) error {
	// The token first, so that the cluster cannot join again between the two steps.
	if err := l.opt.Desk.Retire(ctx, jointoken.ForCluster, string(c)); err != nil {
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

// join lets a cluster in: its token counts one use, its authority is signed,
// and the core knows it.
func (l *Link) join(w http.ResponseWriter, r *http.Request) {
	var req api.JoinCluster
	var out api.ClusterJoined
	err := l.shares.Do(r, apishare.Join(r.RemoteAddr), func(r *http.Request) error {
		err := readJSON(w, r, &req)
		if err == nil {
			out, err = l.joinCluster(r.Context(), req)
		}
		return err
	})
	if err == nil {
		writeJSON(w, out)
		return
	}
	l.refused.Warn(fairshare.Remote(r.RemoteAddr), "cluster", req.Info.ID, "from", r.RemoteAddr, "err", err)
	l.fail(w, r, err)
}

func (l *Link) joinCluster(ctx context.Context, req api.JoinCluster) (api.ClusterJoined, error) {
	tok, err := jointoken.Parse(req.Token)
	if err != nil {
		return api.ClusterJoined{}, err
	}
	id := req.Info.ID
	if !api.ValidMachineName(string(id)) {
		return api.ClusterJoined{}, fmt.Errorf("cluster %q: a name is a DNS label in lower case: %w", id, api.ErrInvalid)
	}
	csr, key, err := readCSR(req.CSR)
	if err != nil {
		return api.ClusterJoined{}, err
	}
	replaces, err := l.nameIsFree(ctx, tok, id, key)
	if err != nil {
		return api.ClusterJoined{}, err
	}
	_, rec, err := l.opt.Desk.Redeem(ctx, jointoken.Claim{
		Secret: tok.Secret, Scope: jointoken.ForCluster, Cluster: id, Key: key, Name: string(id),
	})
	if err != nil {
		return api.ClusterJoined{}, err
	}
	// The certificate first: it decides which of two keys has the name.
	out, err := l.sign(ctx, csr, key, replaces, id)
	if err != nil {
		return api.ClusterJoined{}, err
	}
	info := req.Info
	info.Tenant = rec.Tenant
	var known api.Cluster
	if err := l.opt.Owner.Do(ctx, root.JoinCluster{Info: info, Open: rec.Open}, func() { known, _ = l.opt.Core.Cluster(id) }); err != nil {
		return api.ClusterJoined{}, err
	}
	out.Info = known.ClusterInfo
	l.opt.Log.Info("cluster joined", "cluster", id, "tenant", rec.Tenant, "token", rec.ID)
	return out, nil
}

// nameIsFree reports whether the holder of the token may come as the cluster: a
// name that is taken goes to the key that has it, or to one with a token that
// names it, made for its tenant, so that a machine can be set up anew. Any other
// token would let its holder take somebody's cluster over. It returns the key
// that the new one replaces, if there is any.
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
	rec, err := l.opt.Desk.Get(tok.ID())
	if err == nil && rec.Cluster == id && (!taken || rec.Tenant == known.Tenant) {
		return had, nil
	}
	return "", nameTaken(id)
}

func nameTaken(id api.ClusterID) error {
	return fmt.Errorf("cluster %s exists; choose another name, or ask for a token that names it: %w", id, api.ErrConflict)
}

// renew signs the cluster's authority anew.
func (l *Link) renew(w http.ResponseWriter, r *http.Request, id api.ClusterID) error {
	var req api.Renew
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	csr, key, err := readCSR(req.CSR)
	if err != nil {
		return err
	}
	// A cluster's server key may be signed by its authority and must not become one.
	pub, err := ca.RequestKey(csr)
	if err != nil {
		return err
	}
	chain := r.TLS.PeerCertificates
	same, ok := pub.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || len(chain) < 2 || !same.Equal(chain[1].PublicKey) {
		return fmt.Errorf("cluster %s renews its authority with another key: %w", id, api.ErrForbidden)
	}
	out, err := l.sign(r.Context(), csr, key, key, id)
	if err != nil {
		return err
	}
	err = l.opt.Owner.Read(r.Context(), func() {
		if c, ok := l.opt.Core.Cluster(id); ok {
			out.Info = c.ClusterInfo
		}
	})
	if err != nil {
		return err
	}
	writeJSON(w, out)
	return nil
}

// sign makes the authority's certificate, and remembers it before it is given out.
// replaces is the key that the cluster may have had before.
func (l *Link) sign(ctx context.Context, csr []byte, key, replaces string, id api.ClusterID) (api.ClusterJoined, error) {
	if err := l.shares.Certificate(string(id.Addr())); err != nil {
		return api.ClusterJoined{}, err
	}
	now := l.opt.Now()
	chain, err := l.opt.Authority.SignCluster(now, csr, id)
	if err != nil {
		return api.ClusterJoined{}, err
	}
	if err := l.opt.Issued.add(ctx, now, id, key, replaces, chain[0]); err != nil {
		return api.ClusterJoined{}, err
	}
	return api.ClusterJoined{Chain: string(ca.EncodeChain(chain)), JWTKeys: l.tokenKeys()}, nil
}

// keys tells a cluster with which keys people's tokens are checked today. It is
// asked whenever a token comes with a key that the cluster does not know.
func (l *Link) keys(w http.ResponseWriter, _ *http.Request, _ api.ClusterID) error {
	writeJSON(w, api.ClusterKeys{JWTKeys: l.tokenKeys()})
	return nil
}

func (l *Link) tokenKeys() map[string]string {
	keys := map[string]string{}
	for kid, pub := range l.opt.Keys() {
		keys[kid] = base64.RawURLEncoding.EncodeToString(pub)
	}
	return keys
}

func readCSR(text string) (der []byte, fingerprint string, err error) {
	b, _ := pem.Decode([]byte(text))
	if b == nil || b.Type != "CERTIFICATE REQUEST" {
		return nil, "", fmt.Errorf("the CSR is no PEM certificate request: %w", api.ErrInvalid)
	}
	fingerprint, err = ca.Fingerprint(b.Bytes)
	return b.Bytes, fingerprint, err
}
