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
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/identity"
)

// Lifetimes of certificates. A node may be off for a month without losing its certificate.
const (
	RootLife    = 10 * 365 * 24 * time.Hour
	ClusterLife = 365 * 24 * time.Hour
	LeafLife    = 30 * 24 * time.Hour
)

// backdate is how much earlier than now a certificate becomes valid, for machines whose clocks
// are behind. Certificates that last less than ten times as long are dated back by a tenth of
// their lifetime; otherwise they would be due for renewal at once.
const backdate = time.Hour

// Authority signs certificates with one key. It is safe for concurrent use.
type Authority struct {
	pair Pair
	id   identity.Identity
	life time.Duration
}

// NewRoot makes a root authority with a new key and a self-signed certificate.
func NewRoot(now time.Time) (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	cert, err := selfSign(key, rootSubject, identity.OfRoot(), now, -1)
	if err != nil {
		return nil, fmt.Errorf("make the root certificate: %w", err)
	}
	return New(Pair{Chain: []*x509.Certificate{cert}, Key: key})
}

const rootSubject = "Treeline root"

// Successor makes the pair of a new key of the root: its certificate, the link that a's key signs for it, and a's certificate. It
// fails with ErrForbidden unless a is the root's authority, and with ErrConflict if a has an earlier key that is not retired.
func (a *Authority) Successor(now time.Time) (Pair, error) {
	if a.id.Kind != identity.Root {
		return Pair{}, fmt.Errorf("%s replaces the root's key: only the root may: %w", a.id, api.ErrForbidden)
	}
	if len(a.pair.Chain) > 1 {
		return Pair{}, fmt.Errorf("replace the root's key: the key before is not retired yet: %w", api.ErrConflict)
	}
	g, err := identity.GenerationOf(a.pair.Chain[0])
	if err != nil {
		return Pair{}, err
	}
	e, err := identity.Generation{Key: g.Key + 1, Oldest: g.Key + 1}.Extension()
	if err != nil {
		return Pair{}, err
	}
	key, err := NewKey()
	if err != nil {
		return Pair{}, err
	}
	cert, err := selfSign(key, rootSubject, a.id, now, -1, e)
	if err != nil {
		return Pair{}, fmt.Errorf("make the root certificate: %w", err)
	}
	earlier := a.pair.Chain[0]
	t := rootTemplate(rootSubject, a.id, now, -1)
	t.NotAfter = earlier.NotAfter
	if t.SerialNumber, err = newSerial(); err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, earlier, key.Public(), a.pair.Key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the new root key with the earlier one: %w", err)
	}
	link, err := x509.ParseCertificate(der)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the new root key with the earlier one: %w", err)
	}
	return Pair{Chain: []*x509.Certificate{cert, link, earlier}, Key: key}, nil
}

// Retired returns the pair without the root certificates before the newest, and the links between them.
func (p Pair) Retired() Pair {
	i := slices.IndexFunc(p.Chain, roots.Is)
	return Pair{Chain: slices.Clone(p.Chain[:i+1]), Key: p.Key}
}

// RootGeneration returns the generation of the newest root certificate in the chain (Root), and of the oldest one that the holder of
// the pair trusts (RootOldest).
func (p Pair) RootGeneration() (identity.Generation, error) {
	all := p.Roots()
	if len(all) == 0 {
		return identity.Generation{}, nil
	}
	newest, err := identity.GenerationOf(all[0])
	if err != nil {
		return identity.Generation{}, err
	}
	last, err := identity.GenerationOf(all[len(all)-1])
	return identity.Generation{Root: newest.Key, RootOldest: last.Key}, err
}

// New returns the authority whose certificate is the first of the pair's chain. It fails with
// ErrInvalid if the certificate may not sign, and with ErrUnauthenticated if it has no identity.
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

// WithLife returns a copy of the authority whose certificates last at most d; 0: the defaults.
func (a *Authority) WithLife(d time.Duration) *Authority {
	b := *a
	b.life = d
	return &b
}

// IssuedAt returns when an Authority signed the certificate, in whole seconds.
func IssuedAt(c *x509.Certificate) time.Time {
	// A lifetime of L seconds is dated back by L/10, which is an eleventh of the whole period.
	return c.NotBefore.Add(min(backdate, (c.NotAfter.Sub(c.NotBefore) / 11).Truncate(time.Second)))
}

func (a *Authority) Pair() Pair                  { return a.pair }
func (a *Authority) Identity() identity.Identity { return a.id }
func (a *Authority) Root() *x509.Certificate     { return a.pair.Root() }

// Hash returns the SHA-256 of the root's certificate, which join tokens pin.
func (a *Authority) Hash() [sha256.Size]byte { return sha256.Sum256(a.Root().Raw) }

// SignCluster makes the certificate of cluster id's authority from its request (PKCS #10, DER).
// A cluster renews with the same key, so that the certificates that it signed stay valid. It
// fails with ErrForbidden if a is not the root's authority.
func (a *Authority) SignCluster(now time.Time, csr []byte, id api.ClusterID) ([]*x509.Certificate, error) {
	return a.SignGeneration(now, csr, id, identity.Generation{})
}

// SignGeneration is SignCluster for a cluster whose key was replaced.
func (a *Authority) SignGeneration(now time.Time, csr []byte, id api.ClusterID, g identity.Generation) ([]*x509.Certificate, error) {
	t := template(identity.OfCluster(id), now, a.lifetime(ClusterLife))
	t.Subject.CommonName = clusterSubject(id)
	t.IsCA, t.MaxPathLenZero = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	// X.509 constrains only the host of a URI: this prevents a cluster from signing for the root.
	// Package trust checks that a cluster signs only for itself and its own nodes.
	t.PermittedDNSDomainsCritical = true
	t.PermittedURIDomains = []string{"cluster"}
	own, err := a.pair.RootGeneration()
	if err != nil {
		return nil, err
	}
	if g.Root, g.RootOldest = own.Root, own.RootOldest; g != (identity.Generation{}) {
		e, err := g.Extension()
		if err != nil {
			return nil, err
		}
		t.ExtraExtensions = []pkix.Extension{e}
	}
	if a.id.Kind != identity.Root {
		return nil, fmt.Errorf("%s signs the authority of cluster %s: only the root may: %w", a.id, id, api.ErrForbidden)
	}
	return a.sign(t, csr, identity.OfCluster(id))
}

// SignNode makes the certificate of node id of the authority's cluster.
func (a *Authority) SignNode(now time.Time, csr []byte, id api.NodeID) ([]*x509.Certificate, error) {
	who := identity.OfNode(a.id.Cluster, id)
	return a.sign(template(who, now, a.lifetime(LeafLife)), csr, who)
}

// SignOwn makes a certificate for the authority's own machine, the root or the cluster, as
// server and as client. names are the DNS names and addresses of its servers.
func (a *Authority) SignOwn(now time.Time, csr []byte, names ...string) ([]*x509.Certificate, error) {
	return a.sign(a.own(now, names), csr, a.id)
}

func (a *Authority) own(now time.Time, names []string) *x509.Certificate {
	t := template(a.id, now, a.lifetime(LeafLife))
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return t
}

func (a *Authority) lifetime(limit time.Duration) time.Duration {
	if a.life > 0 {
		return min(a.life, limit)
	}
	return limit
}

// SignServer makes a certificate for another server with the authority's identity, such as a
// broker. It is not valid for clients, so that the server cannot act as the cluster at the root.
func (a *Authority) SignServer(now time.Time, csr []byte, names ...string) ([]*x509.Certificate, error) {
	t := a.own(now, names)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.sign(t, csr, a.id)
}

// Anchor returns a self-signed certificate with the authority's name and key, for programs that
// trust self-signed certificates only (Mosquitto's cafile). With the root's certificate they would
// accept the nodes of all clusters.
func (a *Authority) Anchor(now time.Time) (*x509.Certificate, error) {
	cert, err := selfSign(a.pair.Key, a.pair.Chain[0].Subject.CommonName, a.id, now, 0)
	if err != nil {
		return nil, fmt.Errorf("make the anchor of %s: %w", a.id, err)
	}
	return cert, nil
}

// sign signs t for the key in the request, if the authority may issue for who. It returns the new
// certificate and the authority's chain.
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
		return fail(fmt.Errorf("the authority's own certificate expired at %s; renew it first: %w", issuer.NotAfter.UTC().Format(time.RFC3339), api.ErrUnavailable))
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

// backdated returns by how much a certificate with this lifetime is dated back, in whole seconds,
// so that IssuedAt is exact.
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

func rootTemplate(subject string, who identity.Identity, now time.Time, maxPath int) *x509.Certificate {
	t := template(who, now, RootLife)
	t.Subject.CommonName = subject
	t.IsCA, t.MaxPathLen, t.MaxPathLenZero = true, maxPath, maxPath == 0
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.ExtKeyUsage = nil
	t.NotBefore = t.NotBefore.Add(-backdate)
	return t
}

func selfSign(key crypto.Signer, subject string, who identity.Identity, now time.Time, maxPath int, more ...pkix.Extension) (*x509.Certificate, error) {
	t := rootTemplate(subject, who, now, maxPath)
	t.ExtraExtensions = more
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
		return nil, fmt.Errorf("generate a serial number: %w", err)
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

// Request returns a certificate request for the key (PKCS #10, DER). It has no names, because the
// signer decides them.
func Request(key crypto.Signer) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return csr, nil
}

// maxRequest bounds a request before it is parsed.
const maxRequest = 16 << 10

// RequestKey returns the public key of a request. It fails with ErrInvalid if the signature is
// wrong or the key is neither ECDSA P-256 nor Ed25519, and with ErrTooLarge above maxRequest.
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

// Fingerprint returns the SHA-256 of a request's public key, in hex. The use of a join token is
// bound to it.
func Fingerprint(csr []byte) (string, error) {
	pub, err := RequestKey(csr)
	if err != nil {
		return "", err
	}
	return KeyFingerprint(pub)
}

// KeyFingerprint returns the SHA-256 of a public key, in hex, as Fingerprint does.
func KeyFingerprint(pub crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", fmt.Errorf("encode a public key: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(der)), nil
}
