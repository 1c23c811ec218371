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
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
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
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(o.CA) {
		return nil, fmt.Errorf("the CA to pin is not a PEM certificate: %w", api.ErrInvalid)
	}
	expect := cmp.Or(o.Expect, rootIdentity)
	tc.InsecureSkipVerify = true // VerifyConnection checks the chain and the identity
	tc.VerifyConnection = func(cs tls.ConnectionState) error { return verify(cs, pool, expect) }
	return tc, nil
}

func verify(cs tls.ConnectionState, pool *x509.CertPool, expect string) error {
	leaf := cs.PeerCertificates[0]
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return fmt.Errorf("the server's certificate is not signed by the pinned CA: this is another installation, or the connection is intercepted (to pin another CA: treeline login --ca): %w: %w", err, api.ErrUnauthenticated)
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
