package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
)

// Lifetimes of certificates. A leaf survives a month without power; to end one sooner, revoke
// it.
const (
	RootLife    = 10 * 365 * 24 * time.Hour
	ClusterLife = 365 * 24 * time.Hour
	LeafLife    = 30 * 24 * time.Hour
)

// backdate is how far behind a machine's clock may be at its first handshake. A certificate
// that lasts less than ten times that is dated back by a tenth of its life; otherwise it would
// be due for renewal at once.
const backdate = time.Hour

// Authority signs certificates with one key. It is safe for concurrent use.
type Authority struct {
	pair Pair
	id   identity.Identity
	life time.Duration
}

// NewRoot makes a root authority with a new key.
func NewRoot(now time.Time) (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	cert, err := selfSign(key, "Treeline root", identity.OfRoot(), now, -1)
	if err != nil {
		return nil, fmt.Errorf("make the root certificate: %w", err)
	}
	return New(Pair{Chain: []*x509.Certificate{cert}, Key: key})
}

// New returns the authority whose certificate is the first of the pair's chain. A certificate
// that may not sign or has no identity is ErrInvalid.
func New(p Pair) (*Authority, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	id, err := identity.Of(p.Chain[0])
	if err != nil {
		return nil, err
	}
	if !p.Chain[0].IsCA || id.Kind == identity.Node {
		return nil, fmt.Errorf("certificate of %s is not of an authority: %w", id, api.ErrInvalid)
	}
	return &Authority{pair: p, id: id}, nil
}

// WithLife returns the same authority with certificates that last at most d; 0: the default.
func (a *Authority) WithLife(d time.Duration) *Authority {
	b := *a
	b.life = d
	return &b
}

// MadeAt returns when one of our authorities made the certificate, to the second.
func MadeAt(c *x509.Certificate) time.Time {
	// With a life of L seconds, the span is L + L/10 in whole seconds; of that, an
	// eleventh is L/10 again.
	return c.NotBefore.Add(min(backdate, (c.NotAfter.Sub(c.NotBefore) / 11).Truncate(time.Second)))
}

// Pair returns the authority's key and chain.
func (a *Authority) Pair() Pair { return a.pair }

// Identity returns the identity of the authority.
func (a *Authority) Identity() identity.Identity { return a.id }

// Root returns the root's certificate.
func (a *Authority) Root() *x509.Certificate { return a.pair.Root() }

// Hash returns the SHA-256 of the root's certificate, which join tokens pin.
func (a *Authority) Hash() [sha256.Size]byte { return sha256.Sum256(a.Root().Raw) }

// SignCluster makes the certificate of cluster id's authority from its request (PKCS #10,
// DER). A cluster that renews keeps its key, so that what it signed stays valid. Only the
// root's authority can (ErrForbidden).
func (a *Authority) SignCluster(now time.Time, csr []byte, id api.ClusterID) ([]*x509.Certificate, error) {
	t := template(identity.OfCluster(id), now, a.lasts(ClusterLife))
	t.Subject.CommonName = clusterSubject(id)
	t.IsCA, t.MaxPathLenZero = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	// X.509 constrains the host of a URI only: no cluster can vouch for the root. Package
	// trust checks that a cluster vouches for itself and its own nodes only.
	t.PermittedDNSDomainsCritical = true
	t.PermittedURIDomains = []string{"cluster"}
	if a.id.Kind != identity.Root {
		return nil, fmt.Errorf("%s signs the authority of cluster %s: only the root may: %w", a.id, id, api.ErrForbidden)
	}
	return a.sign(t, csr, identity.OfCluster(id))
}

// SignNode makes the certificate of node id of the authority's cluster.
func (a *Authority) SignNode(now time.Time, csr []byte, id api.NodeID) ([]*x509.Certificate, error) {
	who := identity.OfNode(a.id.Cluster, id)
	return a.sign(template(who, now, a.lasts(LeafLife)), csr, who)
}

// SignOwn makes a certificate for the authority's own machine, the root or the cluster, as
// server and as client. names are the DNS names and addresses of its servers.
func (a *Authority) SignOwn(now time.Time, csr []byte, names ...string) ([]*x509.Certificate, error) {
	return a.sign(a.own(now, names), csr, a.id)
}

func (a *Authority) own(now time.Time, names []string) *x509.Certificate {
	t := template(a.id, now, a.lasts(LeafLife))
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return t
}

func (a *Authority) lasts(most time.Duration) time.Duration {
	if a.life > 0 {
		return min(a.life, most)
	}
	return most
}

// SignServer makes a certificate for a server elsewhere that speaks for the authority's
// machine, such as a broker. It is not valid for clients: with its key one can listen, but not
// act for the cluster at the root.
func (a *Authority) SignServer(now time.Time, csr []byte, names ...string) ([]*x509.Certificate, error) {
	t := a.own(now, names)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.sign(t, csr, a.id)
}

// Anchor returns the authority's certificate, self-signed, with the same name and key.
// Programs that trust self-signed certificates only (Mosquitto's cafile) get a cluster's
// anchor; with the root's they would accept any cluster's nodes.
func (a *Authority) Anchor(now time.Time) (*x509.Certificate, error) {
	cert, err := selfSign(a.pair.Key, a.pair.Chain[0].Subject.CommonName, a.id, now, 0)
	if err != nil {
		return nil, fmt.Errorf("make the anchor of %s: %w", a.id, err)
	}
	return cert, nil
}

// sign makes every certificate.
func (a *Authority) sign(t *x509.Certificate, csr []byte, who identity.Identity) ([]*x509.Certificate, error) {
	fail := func(err error) ([]*x509.Certificate, error) {
		return nil, fmt.Errorf("%s signs a certificate for %s: %w", a.id, who, err)
	}
	if err := who.Check(); err != nil {
		return fail(err)
	}
	if !a.id.MayIssue(who) {
		return fail(api.ErrForbidden)
	}
	pub, err := RequestKey(csr)
	if err != nil {
		return fail(err)
	}
	issuer := a.pair.Chain[0]
	if t.NotAfter.After(issuer.NotAfter) {
		t.NotAfter = issuer.NotAfter
	}
	t.NotBefore = t.NotBefore.Add(-backdated(t.NotAfter.Sub(t.NotBefore)))
	if !t.NotAfter.After(t.NotBefore) {
		return fail(fmt.Errorf("the authority itself ended at %s; renew it first: %w", issuer.NotAfter.UTC().Format(time.RFC3339), api.ErrUnavailable))
	}
	if t.SerialNumber, err = newSerial(); err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, issuer, pub, a.pair.Key)
	if err != nil {
		return fail(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	return append([]*x509.Certificate{cert}, a.pair.Chain...), nil
}

// backdated returns how much earlier than its making a certificate begins, in whole seconds,
// so that MadeAt is exact.
func backdated(life time.Duration) time.Duration {
	return max(0, min(backdate, (life/10).Truncate(time.Second)))
}

// template returns a certificate before sign dates it back.
func template(who identity.Identity, now time.Time, life time.Duration) *x509.Certificate {
	now = now.Truncate(time.Second)
	t := &x509.Certificate{
		Subject:               pkix.Name{CommonName: who.CommonName()},
		NotBefore:             now,
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	t.URIs = append(t.URIs, who.URL())
	return t
}

func selfSign(key crypto.Signer, subject string, who identity.Identity, now time.Time, maxPath int) (*x509.Certificate, error) {
	t := template(who, now, RootLife)
	t.Subject.CommonName = subject
	t.IsCA, t.MaxPathLen, t.MaxPathLenZero = true, maxPath, maxPath == 0
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.ExtKeyUsage = nil
	t.NotBefore = t.NotBefore.Add(-backdate)
	var err error
	if t.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func clusterSubject(id api.ClusterID) string { return "Treeline cluster " + string(id) }

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// NewKey makes an ECDSA P-256 key, which every TLS stack supports.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a private key: %w", err)
	}
	return key, nil
}

// NewRequest makes a key and a certificate request for it.
func NewRequest() (*ecdsa.PrivateKey, []byte, error) {
	key, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	csr, err := Request(key)
	return key, csr, err
}

// Request returns a certificate request for the key (PKCS #10, DER). It has no names: the
// signer decides names.
func Request(key crypto.Signer) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return csr, nil
}

// maxRequest bounds a request before it is parsed.
const maxRequest = 16 << 10

// RequestKey returns the public key of a request after checking its signature. Anything but a
// well-signed request for a P-256 or Ed25519 key is ErrInvalid.
func RequestKey(csr []byte) (crypto.PublicKey, error) {
	if len(csr) > maxRequest {
		return nil, fmt.Errorf("certificate request of %d bytes, at most %d: %w", len(csr), maxRequest, api.ErrTooLarge)
	}
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request cannot be read: %w: %w", err, api.ErrInvalid)
	}
	switch key := req.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return nil, fmt.Errorf("certificate request has a key on %s, want P-256: %w", key.Params().Name, api.ErrInvalid)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("certificate request has a %s key, want ECDSA on P-256 or Ed25519: %w", req.PublicKeyAlgorithm, api.ErrInvalid)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request is not signed by its key: %w: %w", err, api.ErrInvalid)
	}
	return req.PublicKey, nil
}

// Fingerprint names a request's key. The use of a join token is bound to it.
func Fingerprint(csr []byte) (string, error) {
	pub, err := RequestKey(csr)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", fmt.Errorf("encode a public key: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(der)), nil
}
