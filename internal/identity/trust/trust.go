// Package trust verifies the peer of a TLS connection: its chain up to a pinned root, that each
// authority of the chain may issue what it signed, revocation, and the identity. It does not check
// host names, because machines are behind NATs and change addresses.
//
//	v := trust.New(root)
//	cfg := v.Client(identity.OfCluster("munich"), keeper.GetClientCertificate)
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
)

// Verifier verifies peers against pinned roots. The zero value trusts nothing.
type Verifier struct {
	Roots   *x509.CertPool
	Revoked func(who identity.Identity, serial *big.Int) bool // nil: nobody is revoked
	Now     func() time.Time                                  // nil: time.Now

	current atomic.Pointer[x509.CertPool] // used instead of Roots after Learn has changed them
	retired retired
}

// New makes a verifier that trusts the given root certificates.
func New(roots ...*x509.Certificate) *Verifier {
	pool := x509.NewCertPool()
	for _, c := range roots {
		pool.AddCert(c)
	}
	return &Verifier{Roots: pool}
}

// Peer returns the verified identity of a connection's peer. It fails with ErrUnauthenticated if
// the peer is not trusted, and with ErrForbidden if it is revoked. It verifies resumed
// connections completely; crypto/tls does not.
func (v *Verifier) Peer(cs tls.ConnectionState) (identity.Identity, error) {
	return v.check(cs, x509.ExtKeyUsageAny)
}

// Chain is Peer for a chain that was received outside a TLS handshake.
func (v *Verifier) Chain(chain []*x509.Certificate) (identity.Identity, error) {
	return v.check(tls.ConnectionState{PeerCertificates: chain}, x509.ExtKeyUsageAny)
}

func (v *Verifier) check(cs tls.ConnectionState, use x509.ExtKeyUsage) (identity.Identity, error) {
	if len(cs.PeerCertificates) == 0 {
		return identity.Identity{}, fmt.Errorf("peer sent no certificate: %w", api.ErrUnauthenticated)
	}
	leaf := cs.PeerCertificates[0]
	id, err := identity.Of(leaf)
	if err != nil {
		return identity.Identity{}, err
	}
	opts := x509.VerifyOptions{
		Roots: v.Pool(), Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: v.now(),
	}
	if opts.Roots == nil {
		opts.Roots = x509.NewCertPool() // nil would mean the roots of the operating system
	}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
		return identity.Identity{}, fmt.Errorf("certificate of %s: %w; if the key of the root's certificate authority was replaced while one of the two machines was away, "+
			"that one has to join again, with an empty data directory and a new token: %w", id, err, api.ErrUnauthenticated)
	}
	if err != nil {
		return identity.Identity{}, fmt.Errorf("certificate of %s: %w: %w", id, err, api.ErrUnauthenticated)
	}
	i := slices.IndexFunc(chains, ownOnly)
	if i < 0 {
		return identity.Identity{}, fmt.Errorf("certificate of %s: its issuer may not issue it: %w", id, api.ErrUnauthenticated)
	}
	if err := v.retired.check(chains[i]); err != nil {
		return identity.Identity{}, fmt.Errorf("certificate of %s: %w", id, err)
	}
	if v.Revoked != nil {
		for _, c := range chains[i] {
			// The revocation of an authority revokes all certificates below it.
			if who, err := identity.Of(c); err == nil && v.Revoked(who, c.SerialNumber) {
				return identity.Identity{}, fmt.Errorf("certificate of %s: %s is revoked: %w", id, who, api.ErrForbidden)
			}
		}
	}
	return id, nil
}

// Pool returns the roots that are trusted now: Roots, unless Learn has changed them.
func (v *Verifier) Pool() *x509.CertPool {
	if p := v.current.Load(); p != nil {
		return p
	}
	return v.Roots
}

func (v *Verifier) now() time.Time {
	if v.Now == nil {
		return time.Now()
	}
	return v.Now()
}

// ownOnly reports whether each authority of the chain may issue the certificate below it. X.509
// name constraints apply to the host of a URI, not to its path.
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

// Server returns the TLS configuration of a server: TLS 1.3, its certificate from cert, and
// verified client certificates. Unless required, clients may connect without a certificate and use
// a token. Sessions may be resumed, which helps when many clients reconnect; each connection is
// verified completely.
func (v *Verifier) Server(cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), required bool) *tls.Config {
	auth := tls.RequestClientCert
	if required {
		auth = tls.RequireAnyClientCert
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: cert,
		ClientAuth:     auth,
		ClientCAs:      v.Pool(), // a hint, so that browsers do not offer unrelated certificates
		VerifyConnection: func(cs tls.ConnectionState) error {
			if !required && len(cs.PeerCertificates) == 0 {
				return nil
			}
			_, err := v.check(cs, x509.ExtKeyUsageClientAuth)
			return err
		},
	}
}

// Client returns the TLS configuration of a client that talks to one machine only. cert is its
// own certificate; nil: none.
//
// It fails with ErrForbidden if cert's issuer is retired, which the server's certificate shows: the server would
// close the connection without a reason.
func (v *Verifier) Client(expect identity.Identity, cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: v.unretired(cert),
		ClientSessionCache:   &sessions{own: cert, all: tls.NewLRUClientSessionCache(maxSessions)},
		// crypto/tls would check a host name. VerifyConnection checks the chain, the identity and
		// revocation.
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

const maxSessions = 8 // of one client

// sessions is a session cache of one client. A resumed session has the client's certificate of its first connection, which
// the server may refuse once it was renewed. Therefore a renewed certificate resumes no sessions.
type sessions struct {
	own func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	all tls.ClientSessionCache
}

func (s *sessions) Get(key string) (*tls.ClientSessionState, bool) { return s.all.Get(s.of(key)) }

func (s *sessions) Put(key string, session *tls.ClientSessionState) { s.all.Put(s.of(key), session) }

func (s *sessions) of(key string) string {
	if s.own == nil {
		return key
	}
	if c, err := s.own(nil); err == nil && c.Leaf != nil {
		return c.Leaf.SerialNumber.Text(16) + " " + key
	}
	return key
}

// Revocations lists revoked certificates. It is safe for concurrent use; the zero value is empty.
type Revocations struct {
	mu      sync.RWMutex // guards serials
	serials map[string]bool
}

// Revoke revokes one certificate of the machine permanently.
func (r *Revocations) Revoke(who identity.Identity, serial *big.Int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serials == nil {
		r.serials = map[string]bool{}
	}
	r.serials[serialKey(who, serial)] = true
}

func (r *Revocations) Revoked(who identity.Identity, serial *big.Int) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.serials[serialKey(who, serial)]
}

func serialKey(who identity.Identity, serial *big.Int) string {
	return who.String() + " " + serial.Text(16)
}
