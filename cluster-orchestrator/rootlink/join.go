package rootlink

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/proof"
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
	return c.renew(ctx, client, c.Pair.Key, wire.Renew{CSR: enrol.EncodeRequest(csr)})
}

// Rotate is Renew with a new key, for which the present key signs. It may be repeated with the same key.
func (c Credentials) Rotate(ctx context.Context, client *http.Client, key crypto.Signer) (Credentials, error) {
	csr, err := ca.Request(key)
	if err != nil {
		return c, err
	}
	sig, err := proof.SignRotation(c.Pair.Key, c.Info.ID, csr)
	if err != nil {
		return c, err
	}
	next, err := c.renew(ctx, client, key, wire.Renew{CSR: enrol.EncodeRequest(csr), Proof: sig})
	if err != nil {
		return c, fmt.Errorf("have the root sign the new key of the certificate authority (a root of an earlier release cannot): %w", err)
	}
	had, err := identity.GenerationOf(c.Pair.Chain[0])
	if err != nil {
		return c, err
	}
	// A root of an earlier release would ignore the proof.
	if got, err := identity.GenerationOf(next.Pair.Chain[0]); err != nil || got.Key <= had.Key {
		return c, fmt.Errorf("the root has signed the new key as generation %d, want one after %d: %w", got.Key, had.Key, errors.Join(err, api.ErrInvalid))
	}
	return next, nil
}

// Retire is Renew, and has the root refuse the certificates of the keys before the present one.
func (c Credentials) Retire(ctx context.Context, client *http.Client) (Credentials, error) {
	csr, err := ca.Request(c.Pair.Key)
	if err != nil {
		return c, err
	}
	next, err := c.renew(ctx, client, c.Pair.Key, wire.Renew{CSR: enrol.EncodeRequest(csr), Retire: true})
	if err != nil {
		return c, fmt.Errorf("have the root retire the earlier keys of the certificate authority: %w", err)
	}
	if g, err := identity.GenerationOf(next.Pair.Chain[0]); err != nil || g.Oldest != g.Key {
		return c, fmt.Errorf("the root has not retired the earlier keys: %w", errors.Join(err, api.ErrInvalid))
	}
	return next, nil
}

func (c Credentials) renew(ctx context.Context, client *http.Client, key crypto.Signer, req wire.Renew) (Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var renewed wire.ClusterJoined
	if err := call.JSON(ctx, client, c.URL+"/v1/cluster/renew", req, &renewed); err != nil {
		return c, err
	}
	pair, err := enrol.VerifyChain(key, renewed.Chain, identity.OfCluster(c.Info.ID))
	if err != nil {
		return c, err
	}
	if pair.Chain, err = roots.Renewed(time.Now(), c.Pair.Roots(), pair.Chain); err != nil {
		return c, err
	}
	c.Pair = pair
	return c, c.take(renewed, c.Info.ID)
}

// FetchKeys requests current JWTKeys. It does not save the result. behind is true if the root's key was replaced, or an earlier
// one retired, since the certificate of the authority was issued: it must be renewed.
func (c Credentials) FetchKeys(ctx context.Context, client *http.Client) (_ Credentials, behind bool, err error) {
	had, err := identity.GenerationOf(c.Pair.Chain[0])
	if err != nil {
		return c, false, err
	}
	keys, err := c.fetchKeys(ctx, client)
	if err != nil {
		return c, false, err
	}
	c.JWTKeys = keys.JWTKeys
	return c, had.Before(identity.Generation{Root: keys.Root.Key, RootOldest: keys.Root.Oldest}), nil
}

func (c Credentials) fetchKeys(ctx context.Context, client *http.Client) (keys wire.ClusterKeys, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/v1/cluster/keys", nil)
	if err != nil {
		return keys, fmt.Errorf("fetch the keys for tokens: %w", err)
	}
	resp, err := call.Do(client, req)
	if err != nil {
		return keys, fmt.Errorf("fetch the keys for tokens: %w", err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, call.MaxAnswer)).Decode(&keys); err != nil {
		return keys, fmt.Errorf("fetch the keys for tokens: %w: %w", api.ErrUnavailable, err)
	}
	if len(keys.JWTKeys) == 0 {
		return keys, fmt.Errorf("fetch the keys for tokens: the root sent none: %w", api.ErrInvalid)
	}
	return keys, nil
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
