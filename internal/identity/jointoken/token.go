// Package jointoken implements join tokens. A token is a line of text with the server's URL, the
// hash of the CA that must answer there, what may join, an expiry and a secret.
//
// Store makes and redeems tokens, at the root for clusters and at a cluster for its nodes. Token
// encodes the line and dials the server. Package enrol exchanges a token for a certificate.
//
//	tok, rec, err := tokens.Create(ctx, jointoken.Order{Scope: jointoken.ForNode, Uses: 5, TTL: time.Hour})
//	fmt.Println(tok.Line())                        // TL1.….…
//	tok, err := jointoken.Parse(line)              // at the joining machine
//	resp, err := tok.HTTPClient().Post(tok.URL+"/v1/join", …)
package jointoken

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// Scope is the kind of machine that may join with a token.
type Scope string

const (
	ForCluster Scope = "cluster" // a cluster, at the root
	ForNode    Scope = "node"    // a node, at a cluster
)

const (
	prefix     = "TL1"
	secretSize = 16
	maxLine    = 1024
)

// Token is the content of a join line. It has the secret: String hides it, Line does not.
type Token struct {
	URL     string            // https://host:port of the server that redeems it
	CA      [sha256.Size]byte // SHA-256 of the root's certificate
	Scope   Scope
	Cluster api.ClusterID // ForNode: the cluster to join; ForCluster: the only name allowed, or ""
	Expires time.Time     // whole seconds
	Secret  []byte
}

// ID names the token in lists. It does not reveal the secret.
func (t Token) ID() string { return idOf(hashOf(t.Secret)) }

// String returns the token without its secret, for logs.
func (t Token) String() string {
	return fmt.Sprintf("%s.%s(%s at %s)", prefix, t.ID(), t.Scope, t.URL)
}

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText keeps the secret out of JSON.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Line returns the token with its secret as text: TL1.<content>.<secret>.
func (t Token) Line() string {
	// Binary keeps the line short: 120 characters instead of 200.
	b := append([]byte(nil), t.CA[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(t.Expires.Unix()))
	b = append(b, t.Scope[0], byte(len(t.Cluster)))
	b = append(append(b, t.Cluster...), t.URL...)
	return prefix + "." + b64.EncodeToString(b) + "." + b64.EncodeToString(t.Secret)
}

var b64 = base64.RawURLEncoding.Strict()

// Parse parses the result of Line. It fails with ErrInvalid if the line is damaged. It accepts
// expired tokens, because the issuer checks the expiry with its own clock.
func Parse(line string) (Token, error) {
	bad := func(why string) (Token, error) {
		return Token{}, fmt.Errorf("join token %s; copy the whole line that token create printed: %w", why, api.ErrInvalid)
	}
	line = strings.TrimSpace(line)
	parts := strings.Split(line, ".")
	switch {
	case line == "":
		return bad("is empty")
	case len(line) > maxLine:
		return bad("is too long")
	case parts[0] != prefix:
		return bad("does not begin with " + prefix + ".")
	case len(parts) != 3:
		return bad("is cut off")
	}
	b, err := b64.DecodeString(parts[1])
	secret, err2 := b64.DecodeString(parts[2])
	head := sha256.Size + 4 + 2
	if err != nil || err2 != nil || len(secret) != secretSize || len(b) < head || len(b) < head+int(b[head-1]) {
		return bad("is damaged")
	}
	t := Token{Secret: secret, Expires: time.Unix(int64(binary.BigEndian.Uint32(b[sha256.Size:])), 0)}
	copy(t.CA[:], b)
	switch b[head-2] {
	case ForCluster[0]:
		t.Scope = ForCluster
	case ForNode[0]:
		t.Scope = ForNode
	default:
		return bad("has an unknown scope")
	}
	name := head + int(b[head-1])
	t.Cluster, t.URL = api.ClusterID(b[head:name]), string(b[name:])
	if err := t.check(); err != nil {
		return Token{}, err
	}
	return t, nil
}

func (t Token) check() error {
	u, err := url.Parse(t.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("join token's URL %q is not https://host:port: %w", t.URL, api.ErrInvalid)
	}
	if len(t.URL) > 256 {
		return fmt.Errorf("join token's URL has %d bytes, at most 256: %w", len(t.URL), api.ErrInvalid)
	}
	named := t.Cluster != "" || t.Scope == ForNode
	if named && !api.ValidMachineName(string(t.Cluster)) {
		return fmt.Errorf("join token's cluster %q is not a valid name of a cluster: %w", t.Cluster, api.ErrInvalid)
	}
	if u := t.Expires.Unix(); u <= 0 || u > math.MaxUint32 {
		return fmt.Errorf("join token's expiry %s is out of range: %w", t.Expires, api.ErrInvalid)
	}
	return nil
}

// Server returns the identity that must answer at the token's URL.
func (t Token) Server() identity.Identity {
	if t.Scope == ForCluster {
		return identity.OfRoot()
	}
	return identity.OfCluster(t.Cluster)
}

// TLSConfig trusts a server only if its chain ends in the CA certificate with the token's hash and
// its identity is Server. No secret is sent before that.
func (t Token) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Only the CA's hash is known, so that there is no pool before the handshake.
		// VerifyConnection checks everything.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := t.verify(cs)
			return err
		},
	}
}

func (t Token) verify(cs tls.ConnectionState) (*x509.Certificate, error) {
	for _, c := range cs.PeerCertificates {
		if sha256.Sum256(c.Raw) != t.CA || !c.IsCA {
			continue
		}
		id, err := trust.New(c).Peer(cs)
		if err != nil {
			return nil, err
		}
		if id != t.Server() {
			return nil, fmt.Errorf("%s is %s, want %s: %w", t.URL, id, t.Server(), api.ErrUnauthenticated)
		}
		return c, nil
	}
	return nil, fmt.Errorf("%s has another CA than the one that the join token names; the token is for another installation, or the connection is intercepted, or the key of the root's certificate authority was replaced since, and a new token is needed: %w",
		t.URL, api.ErrUnauthenticated)
}

// HTTPClient dials with TLSConfig. It follows no redirects, which could carry the secret
// elsewhere, and keeps no connections.
func (t Token) HTTPClient() *http.Client {
	return &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig: t.TLSConfig(), ForceAttemptHTTP2: true, DisableKeepAlives: true,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, Proxy: http.ProxyFromEnvironment,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Root returns the CA certificate from the response to a request of HTTPClient. The joining
// machine pins it.
func (t Token) Root(resp *http.Response) (*x509.Certificate, error) {
	if resp.TLS == nil {
		return nil, fmt.Errorf("answer of %s came without TLS: %w", t.URL, api.ErrUnauthenticated)
	}
	return t.verify(*resp.TLS)
}

// hashOf returns the stored hash of a secret, which needs no slow hash because it has 128 random
// bits.
func hashOf(secret []byte) string {
	sum := sha256.Sum256(secret)
	return hex.EncodeToString(sum[:])
}

func idOf(hash string) string { return hash[:12] }
