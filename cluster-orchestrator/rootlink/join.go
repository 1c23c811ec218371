package rootlink

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The files of a cluster's credentials, in its data directory.
const (
	pairFile = "cluster-ca.pem"
	metaFile = "cluster.json"
)

// Credentials are what a cluster receives when it joins: its certificate authority, and the
// keys that verify users' tokens.
type Credentials struct {
	URL     string            `json:"url"` // of the root: https://host:port
	Info    api.ClusterInfo   `json:"info"`
	JWTKeys map[string]string `json:"jwt_keys"` // Ed25519 public keys by key id, base64url
	// Replicas are the URLs of all replicas of the root, as the root has told.
	Replicas []string `json:"replicas,omitempty"`
	Pair     ca.Pair  `json:"-"` // of the authority
}

// Keys returns the decoded JWTKeys. It leaves out invalid ones.
func (c Credentials) Keys() jwt.PublicKeys {
	keys := jwt.PublicKeys{}
	for kid, text := range c.JWTKeys {
		if b, err := base64.RawURLEncoding.DecodeString(text); err == nil && len(b) == ed25519.PublicKeySize {
			keys[kid] = b
		}
	}
	return keys
}

// Files returns the names of the files that Save writes.
func Files() []string { return []string{pairFile, metaFile} }

// Load reads the credentials in dir. It returns ErrNotFound if the cluster has not joined.
func Load(dir *os.Root) (c Credentials, err error) {
	c.Pair, err = enrol.Load(dir, pairFile, metaFile, &c)
	return c, err
}

// Save stores the credentials in dir, mode 0600.
func (c Credentials) Save(dir *os.Root) error { return enrol.Save(dir, pairFile, metaFile, c.Pair, c) }

// Join joins the root of the join token line and stores the credentials in dir. It may be
// repeated; see enrol.Open. further are URLs of the root besides that in the token.
func Join(ctx context.Context, dir *os.Root, line string, info api.ClusterInfo, further ...string) (c Credentials, err error) {
	client, err := enrol.Open(dir, line, jointoken.ForCluster)
	if err != nil {
		return Credentials{}, err
	}
	var joined wire.ClusterJoined
	c.URL, client.Further = client.Token.URL, further
	c.Pair, err = client.Join(ctx, "/v1/join/cluster", wire.JoinCluster{Token: line, CSR: client.CSR, Info: info}, &joined,
		func() (string, identity.Identity) { return joined.Chain, identity.OfCluster(info.ID) })
	if err == nil {
		err = c.take(joined, info.ID)
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("join the root at %s: %w", c.URL, err)
	}
	if err := c.Save(dir); err != nil {
		return Credentials{}, err
	}
	return c, enrol.RemoveKey(dir)
}

// Renew requests a new certificate of the authority and current values of Info and JWTKeys.
// csr is PKCS #10 in DER, for the same key. Renew does not save the result.
func (c Credentials) Renew(ctx context.Context, client *http.Client, csr []byte) (Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var renewed wire.ClusterJoined
	if err := call.JSON(ctx, client, c.URL+"/v1/cluster/renew", wire.Renew{CSR: enrol.EncodeRequest(csr)}, &renewed); err != nil {
		return c, err
	}
	pair, err := enrol.VerifyChain(c.Pair.Key, renewed.Chain, identity.OfCluster(c.Info.ID))
	if err != nil {
		return c, err
	}
	c.Pair = pair
	return c, c.take(renewed, c.Info.ID)
}

// FetchKeys requests current JWTKeys. It does not save the result.
func (c Credentials) FetchKeys(ctx context.Context, client *http.Client) (Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/v1/cluster/keys", nil)
	if err != nil {
		return c, fmt.Errorf("fetch the keys for tokens: %w", err)
	}
	resp, err := call.Do(client, req)
	if err != nil {
		return c, fmt.Errorf("fetch the keys for tokens: %w", err)
	}
	defer resp.Body.Close()
	var keys wire.ClusterKeys
	if err := json.NewDecoder(io.LimitReader(resp.Body, call.MaxAnswer)).Decode(&keys); err != nil {
		return c, fmt.Errorf("fetch the keys for tokens: %w: %w", api.ErrUnavailable, err)
	}
	if len(keys.JWTKeys) == 0 {
		return c, fmt.Errorf("fetch the keys for tokens: the root sent none: %w", api.ErrInvalid)
	}
	c.JWTKeys = keys.JWTKeys
	return c, nil
}

// take copies Info, JWTKeys and Replicas from an answer.
func (c *Credentials) take(joined wire.ClusterJoined, id api.ClusterID) error {
	if joined.Info.ID != id {
		return fmt.Errorf("the answer is for cluster %q, want %s: %w", joined.Info.ID, id, api.ErrInvalid)
	}
	c.Info, c.JWTKeys, c.Replicas = joined.Info, joined.JWTKeys, replicas.Clean(joined.Replicas)
	return nil
}

// Client returns an HTTP client for the root with the cluster's certificate. It detects dead
// connections with HTTP/2 pings, and sends requests to the replica of the root that is active. It finds
// a root that is gone within 15 s, so that it is back at another replica before its dead time.
func Client(v *trust.Verifier, own func(*tls.CertificateRequestInfo) (*tls.Certificate, error), roots *replicas.Addresses) *http.Client {
	pings := &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 10 * time.Second}
	c := keeper.Client(v, identity.OfRoot(), own, time.Minute, pings)
	c.Transport = roots.Transport(c.Transport, takeover)
	return c
}

// takeover is how long requests wait for a replica of the root to become active.
const takeover = 8 * time.Second
