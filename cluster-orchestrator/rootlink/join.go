package rootlink

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// The files of a cluster's credentials, in its data directory.
const (
	pairFile = "cluster-ca.pem"
	metaFile = "cluster.json"
	keyFile  = "join.pem" // the key of a join that was not answered yet
)

// Credentials are what a cluster got when it joined: its authority, and what it
// has to know to check people's tokens.
type Credentials struct {
	URL     string            `json:"url"` // of the root: https://host:port
	Info    api.ClusterInfo   `json:"info"`
	JWTKeys map[string]string `json:"jwt_keys"`
	Pair    ca.Pair           `json:"-"` // of the authority
}

// Keys are the keys that people's tokens are signed with.
func (c Credentials) Keys() jwt.PublicKeys {
	keys := jwt.PublicKeys{}
	for kid, text := range c.JWTKeys {
		if b, err := base64.RawURLEncoding.DecodeString(text); err == nil && len(b) == ed25519.PublicKeySize {
			keys[kid] = b
		}
	}
	return keys
}

// Load reads the credentials in dir; ErrNotFound where the cluster has not joined.
func Load(dir *os.Root) (Credentials, error) {
	var c Credentials
	text, err := dir.ReadFile(metaFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("credentials in %s: %w", dir.Name(), api.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, fmt.Errorf("credentials in %s: %w", dir.Name(), err)
	}
	c.Pair, err = ca.LoadPair(dir, pairFile)
	return c, err
}

// Save keeps the credentials in dir, mode 0600.
func (c Credentials) Save(dir *os.Root) error {
	if err := ca.SavePair(dir, pairFile, c.Pair); err != nil {
		return err
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the credentials: %w", err)
	}
	// Last: its presence says that the cluster has joined.
	return ca.WriteFile(dir, metaFile, append(text, '\n'), 0o600)
}

// Join asks the token's root to take the cluster in, and keeps what it gets in
// dir. A join that was cut off is repeated with the same key.
func Join(ctx context.Context, dir *os.Root, line string, info api.ClusterInfo) (Credentials, error) {
	t, err := jointoken.Parse(line)
	if err != nil {
		return Credentials{}, err
	}
	if t.Scope != jointoken.ForCluster {
		return Credentials{}, fmt.Errorf("join token is for a %s, not for a cluster: %w", t.Scope, api.ErrInvalid)
	}
	key, err := enrol.Key(dir, keyFile)
	if err != nil {
		return Credentials{}, err
	}
	csr, err := enrol.Request(key)
	if err != nil {
		return Credentials{}, err
	}
	var joined api.ClusterJoined
	err = call.JSON(ctx, t.HTTPClient(), t.URL+"/v1/join/cluster", api.JoinCluster{Token: line, CSR: csr, Info: info}, &joined)
	if err != nil {
		return Credentials{}, fmt.Errorf("join the root at %s: %w", t.URL, err)
	}
	c := Credentials{URL: t.URL, Pair: ca.Pair{Key: key}}
	if err := c.accept(joined, info.ID); err != nil {
		return Credentials{}, fmt.Errorf("join the root at %s: %w", t.URL, err)
	}
	if sha256.Sum256(c.Pair.Root().Raw) != t.CA {
		return Credentials{}, fmt.Errorf("join the root at %s: the answer is another installation's: %w", t.URL, api.ErrUnauthenticated)
	}
	if err := c.Save(dir); err != nil {
		return Credentials{}, err
	}
	return c, enrol.Forget(dir, keyFile)
}

// Renew asks for a fresh certificate of the authority for the request (PKCS #10,
// DER), which is for the same key, and for what else a join answers. The result
// is not saved.
func (c Credentials) Renew(ctx context.Context, client *http.Client, csr []byte) (Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var renewed api.ClusterJoined
	if err := call.JSON(ctx, client, c.URL+"/v1/cluster/renew", api.Renew{CSR: enrol.Text(csr)}, &renewed); err != nil {
		return c, err
	}
	return c, c.accept(renewed, c.Info.ID)
}

// FetchKeys asks for the keys that people's tokens are signed with now. The
// result is not saved.
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
	var keys api.ClusterKeys
	if err := json.NewDecoder(io.LimitReader(resp.Body, call.MaxAnswer)).Decode(&keys); err != nil {
		return c, fmt.Errorf("fetch the keys for tokens: %w: %w", api.ErrUnavailable, err)
	}
	if len(keys.JWTKeys) == 0 {
		return c, fmt.Errorf("fetch the keys for tokens: the root says that it has none: %w", api.ErrInvalid)
	}
	c.JWTKeys = keys.JWTKeys
	return c, nil
}

func (c *Credentials) accept(joined api.ClusterJoined, id api.ClusterID) error {
	chain, err := ca.DecodeChain([]byte(joined.Chain))
	if err != nil {
		return err
	}
	pair := ca.Pair{Chain: chain, Key: c.Pair.Key}
	if err := pair.Check(); err != nil {
		return err
	}
	who, err := identity.Of(chain[0])
	if err != nil {
		return err
	}
	if who != identity.OfCluster(id) || joined.Info.ID != id {
		return fmt.Errorf("the certificate names %s, the answer %q, and we are %s: %w", who, joined.Info.ID, id, api.ErrInvalid)
	}
	c.Pair, c.Info, c.JWTKeys = pair, joined.Info, joined.JWTKeys
	return nil
}

// Client is an HTTP client of the root with the cluster's certificate. A
// connection that died without a word is found by HTTP/2's pings.
func Client(v *trust.Verifier, own func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) *http.Client {
	return &http.Client{
		Transport: keeper.NewTransport(own, func() *http.Transport {
			return &http.Transport{
				TLSClientConfig:     v.Client(identity.OfRoot(), own),
				ForceAttemptHTTP2:   true,
				HTTP2:               &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 15 * time.Second},
				TLSHandshakeTimeout: 10 * time.Second,
				IdleConnTimeout:     time.Minute,
				Proxy:               http.ProxyFromEnvironment,
			}
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
