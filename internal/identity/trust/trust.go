// Package trust checks the machine at the other end of a TLS connection: its
// chain up to a pinned root, that each authority vouches only for its own, its
// revocation, and who it is. Host names prove nothing here: machines sit behind
// NATs and change addresses, so the identity in the certificate is what counts.
//
//	v := trust.New(root)
//	cfg := v.Client(identity.OfCluster("munich"), keeper.GetClientCertificate)
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
)

// Verifier checks peers against pinned roots. The zero value trusts nobody.
type Verifier struct {
	Roots   *x509.CertPool
	Revoked func(who identity.Identity, serial *big.Int) bool // nil: nobody is revoked
	Now     func() time.Time                                  // nil: time.Now
}

// New trusts what the given certificates vouch for.
func New(roots ...*x509.Certificate) *Verifier {
	pool := x509.NewCertPool()
	for _, c := range roots {
		pool.AddCert(c)
	}
	return &Verifier{Roots: pool}
}

// Peer is the checked identity of the connection's other end; a peer that is
// not to be trusted is ErrUnauthenticated, a revoked one ErrForbidden. It works
// for resumed connections too, where crypto/tls itself checks less.
func (v *Verifier) Peer(cs tls.ConnectionState) (identity.Identity, error) {
	return v.check(cs, x509.ExtKeyUsageAny)
}

// Chain is the checked identity of a certificate that did not come with a
// connection, the first of the chain. It refuses what Peer refuses.
func (v *Verifier) Chain(chain []*x509.Certificate) (identity.Identity, error) {
	return v.check(tls.ConnectionState{PeerCertificates: chain}, x509.ExtKeyUsageAny)
}

func (v *Verifier) check(cs tls.ConnectionState, use x509.ExtKeyUsage) (identity.Identity, error) {
	if len(cs.PeerCertificates) == 0 {
		return identity.Identity{}, fmt.Errorf("peer shows no certificate: %w", api.ErrUnauthenticated)
	}
	leaf := cs.PeerCertificates[0]
	id, err := identity.Of(leaf)
	if err != nil {
		return identity.Identity{}, err
	}
	opts := x509.VerifyOptions{
		Roots: v.Roots, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: v.now(),
	}
	if opts.Roots == nil {
		opts.Roots = x509.NewCertPool() // nil would mean the machine's own roots
	}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return identity.Identity{}, fmt.Errorf("certificate of %s: %w: %w", id, err, api.ErrUnauthenticated)
	}
	i := slices.IndexFunc(chains, ownOnly)
	if i < 0 {
		return identity.Identity{}, fmt.Errorf("certificate of %s: signed by an authority that does not vouch for it: %w", id, api.ErrUnauthenticated)
	}
	if v.Revoked != nil {
		for _, c := range chains[i] {
			// An authority that is revoked takes all that it signed along.
			if who, err := identity.Of(c); err == nil && v.Revoked(who, c.SerialNumber) {
				return identity.Identity{}, fmt.Errorf("certificate of %s: %s is revoked: %w", id, who, api.ErrForbidden)
			}
		}
	}
	return id, nil
}

func (v *Verifier) now() time.Time {
	if v.Now == nil {
		return time.Now()
	}
	return v.Now()
}

// ownOnly reports whether each authority of the chain vouches for what it may.
// X.509's own constraints cannot say it: they see the host of a URI, not its path.
func ownOnly(chain []*x509.Certificate) bool {
	below, err := identity.Of(chain[0])
	for _, c := range chain[1:] {
		var above identity.Identity
		if err == nil {
			above, err = identity.Of(c)
		}
		if err != nil || !above.MayIssue(below) {
			return false
		}
		below = above
	}
	return err == nil
}

// Server is the TLS configuration of a server: TLS 1.3, its certificate from
// cert, and clients that are checked when they show a certificate. With
// required, a client without one is refused; without it, clients who bring a
// token instead may come, and Peer tells them apart. Sessions may be resumed,
// which spares a reconnect storm; revocation is checked again each time.
func (v *Verifier) Server(cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), required bool) *tls.Config {
	auth := tls.RequestClientCert
	if required {
		auth = tls.RequireAnyClientCert
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: cert,
		ClientAuth:     auth,
		ClientCAs:      v.Roots, // a hint: browsers then offer no certificates of others
		VerifyConnection: func(cs tls.ConnectionState) error {
			if !required && len(cs.PeerCertificates) == 0 {
				return nil
			}
			_, err := v.check(cs, x509.ExtKeyUsageClientAuth)
			return err
		},
	}
}

// Client is the TLS configuration of a client that will speak to one machine
// and no other. cert is its own certificate; nil shows none.
func (v *Verifier) Client(expect identity.Identity, cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: cert,
		ClientSessionCache:   NewSessions(),
		// crypto/tls would check a host name, which proves nothing here, and a
		// pool; VerifyConnection checks the pool, the identity and revocation.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			id, err := v.check(cs, x509.ExtKeyUsageServerAuth)
			if err != nil {
				return err
			}
			if id != expect {
				return fmt.Errorf("server is %s, want %s: %w", id, expect, api.ErrUnauthenticated)
			}
			return nil
		},
	}
}

// NewSessions keeps the few sessions that one client resumes.
func NewSessions() tls.ClientSessionCache { return tls.NewLRUClientSessionCache(8) }

// Revocations is a list of the revoked, by identity or by serial number. It is
// safe for concurrent use; the zero value is empty.
type Revocations struct {
	mu      sync.RWMutex // guards both maps
	whole   map[identity.Identity]bool
	serials map[string]bool
}

// RevokeIdentity refuses every certificate of the machine, until Restore.
func (r *Revocations) RevokeIdentity(who identity.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole == nil {
		r.whole = map[identity.Identity]bool{}
	}
	r.whole[who] = true
}

// RevokeSerial refuses one certificate of the machine, for good.
func (r *Revocations) RevokeSerial(who identity.Identity, serial *big.Int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serials == nil {
		r.serials = map[string]bool{}
	}
	r.serials[serialKey(who, serial)] = true
}

// Restore lifts RevokeIdentity: the machine may join again.
func (r *Revocations) Restore(who identity.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.whole, who)
}

// Revoked is for Verifier.Revoked.
func (r *Revocations) Revoked(who identity.Identity, serial *big.Int) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.whole[who] || r.serials[serialKey(who, serial)]
}

func serialKey(who identity.Identity, serial *big.Int) string {
	return who.String() + " " + serial.Text(16)
}
