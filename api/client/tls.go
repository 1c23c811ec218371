package client

import (
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

const rootIdentity = "treeline://root"

// tlsConfig trusts the pinned root and the identity alone: names and addresses
// change behind NATs, the identity in the certificate does not.
func tlsConfig(o Options) (*tls.Config, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS13}
	if len(o.CA) == 0 {
		return tc, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(o.CA) {
		return nil, fmt.Errorf("the CA to pin is no PEM certificate: %w", api.ErrInvalid)
	}
	expect := o.Expect
	if expect == "" {
		expect = rootIdentity
	}
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
		return fmt.Errorf("the server is not below the pinned CA; it is another installation, or somebody stands between (treeline login --ca pins another): %w: %w", err, api.ErrUnauthenticated)
	}
	for _, chain := range chains {
		// The issuer is the same machine's authority: no cluster vouches for another.
		if states(chain[0], expect) && len(chain) > 1 && states(chain[1], expect) {
			return nil
		}
	}
	return fmt.Errorf("the server is %v and not %s: %w", leaf.URIs, expect, api.ErrUnauthenticated)
}

func states(c *x509.Certificate, id string) bool {
	return len(c.URIs) == 1 && c.URIs[0].String() == id
}

// PinOf returns the pin of a certificate in PEM for FetchCA, or "" if there is none.
func PinOf(ca []byte) string {
	b, _ := pem.Decode(ca)
	if b == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(b.Bytes))
}

// FetchCA gets the root's certificate from the server itself, which shows it,
// and accepts it by its SHA-256 in hexadecimal: what a join token pins and the
// root prints. Another is ErrUnauthenticated.
func FetchCA(ctx context.Context, server, pin string) ([]byte, error) {
	u, err := url.Parse(server)
	want, err2 := hex.DecodeString(strings.TrimPrefix(pin, "sha256:"))
	if err != nil || u.Scheme != "https" || u.Host == "" || err2 != nil || len(want) != sha256.Size {
		return nil, fmt.Errorf("address %q with pin %q: want https://host:port and 64 hexadecimal digits: %w", server, pin, api.ErrInvalid)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "443")
	}
	var found []byte
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 5 * time.Second},
		Config: &tls.Config{
			MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // the CA is known by its hash alone; VerifyConnection checks
			VerifyConnection: func(cs tls.ConnectionState) error {
				for _, c := range cs.PeerCertificates {
					if sum := sha256.Sum256(c.Raw); c.IsCA && string(sum[:]) == string(want) {
						found = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
						pool := x509.NewCertPool()
						pool.AddCert(c)
						return verify(cs, pool, rootIdentity)
					}
				}
				return fmt.Errorf("%s does not show the pinned CA; it is another installation, or somebody stands between: %w", server, api.ErrUnauthenticated)
			},
		},
	}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", server, unreachable(ctx, err))
	}
	return found, conn.Close()
}
