package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
)

const (
	rootIdentity    = "treeline://root"
	clusterIdentity = "treeline://cluster/"
)

// OfCluster returns the identity of a cluster's own port, for Options.Expect.
func OfCluster(id api.ClusterID) string { return clusterIdentity + string(id) }

// tlsConfig trusts only the pinned root certificate. It checks the identity in the server's
// certificate instead of the host name, because addresses change behind NATs and identities do not.
func tlsConfig(o Options) (*tls.Config, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS13}
	if len(o.CA) == 0 {
		return tc, nil
	}
	p := &pins{expect: cmp.Or(o.Expect, rootIdentity), followed: o.Followed}
	for b, rest := pem.Decode(o.CA); b != nil; b, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(b.Bytes); err == nil {
			p.trusted = append(p.trusted, c)
		}
	}
	if len(p.trusted) == 0 {
		return nil, fmt.Errorf("the CA to pin is not a PEM certificate: %w", api.ErrInvalid)
	}
	tc.InsecureSkipVerify = true // VerifyConnection checks the chain and the identity
	tc.VerifyConnection = p.verify
	return tc, nil
}

// pins are the root certificates that a client trusts. It follows them when the root's key is replaced.
type pins struct {
	expect   string
	followed func(ca []byte)

	mu      sync.Mutex // guards trusted
	trusted []*x509.Certificate
}

func (p *pins) verify(cs tls.ConnectionState) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := verify(cs, poolOf(p.trusted...), p.expect); err != nil {
		return err
	}
	after := roots.Follow(time.Now(), p.trusted, cs.PeerCertificates)
	// The holder of the newest key shows the earlier certificates until they are retired.
	if len(after) > 1 && roots.Contains(cs.PeerCertificates, after[0]) && verify(cs, poolOf(after[0]), p.expect) == nil {
		after = slices.DeleteFunc(slices.Clone(after), func(c *x509.Certificate) bool { return !roots.Contains(cs.PeerCertificates, c) })
	}
	if slices.EqualFunc(after, p.trusted, (*x509.Certificate).Equal) {
		return nil
	}
	p.trusted = after
	if p.followed != nil {
		var text []byte
		for _, c := range after {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		p.followed(text)
	}
	return nil
}

func poolOf(all ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range all {
		pool.AddCert(c)
	}
	return pool
}

func verify(cs tls.ConnectionState, pool *x509.CertPool, expect string) error {
	leaf := cs.PeerCertificates[0]
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return fmt.Errorf("the server's certificate is not signed by the pinned CA: this is another installation, or the connection is intercepted, or the key of the root's CA was replaced since this client last connected "+
			"(to pin another CA, ask an administrator for the pin in treeline rotate root-ca --list, and give it to treeline login --pin): %w: %w", err, api.ErrUnauthenticated)
	}
	for _, chain := range chains {
		// The issuer must have the same identity, so that no cluster can certify another.
		if states(chain[0], expect) && len(chain) > 1 && states(chain[1], expect) {
			return nil
		}
	}
	return fmt.Errorf("the server is %v, want %s: %w", leaf.URIs, expect, api.ErrUnauthenticated)
}

func states(c *x509.Certificate, id string) bool {
	return len(c.URIs) == 1 && c.URIs[0].String() == id
}

// PinOf returns the pin for FetchCA of a PEM certificate, or "" if ca is none.
func PinOf(ca []byte) string {
	b, _ := pem.Decode(ca)
	if b == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(b.Bytes))
}

// FetchCA returns the root's CA certificate in PEM from a TLS handshake with the root. pin is its
// SHA-256 hash in hexadecimal, which join tokens contain and the root prints. ErrUnauthenticated:
// the server sends no certificate with that hash.
func FetchCA(ctx context.Context, server, pin string) ([]byte, error) {
	u, err := url.Parse(server)
	want, err2 := hex.DecodeString(strings.TrimPrefix(pin, "sha256:"))
	if err != nil || u.Scheme != "https" || u.Host == "" || err2 != nil || len(want) != sha256.Size {
		return nil, fmt.Errorf("address %q, pin %q: want https://host:port and 64 hexadecimal digits: %w", server, pin, api.ErrInvalid)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "443")
	}
	var found []byte
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 5 * time.Second},
		Config: &tls.Config{
			MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // VerifyConnection checks the hash
			VerifyConnection: func(cs tls.ConnectionState) error {
				for _, c := range cs.PeerCertificates {
					if sum := sha256.Sum256(c.Raw); c.IsCA && string(sum[:]) == string(want) {
						found = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
						pool := x509.NewCertPool()
						pool.AddCert(c)
						return verify(cs, pool, rootIdentity)
					}
				}
				return fmt.Errorf("%s has no CA certificate with the pinned hash: this is another installation, or the connection is intercepted: %w", server, api.ErrUnauthenticated)
			},
		},
	}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", server, unreachable(ctx, err))
	}
	return found, conn.Close()
}
