package clusterlink

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// The files of a node's credentials, in its data directory.
const (
	pairFile = "node.pem"
	metaFile = "node.json"
	keyFile  = "join.pem" // the key of a join that was not answered yet
)

// Credentials are what a node got when it joined.
type Credentials struct {
	ID      api.NodeID    `json:"id"`
	Cluster api.ClusterID `json:"cluster"`
	URL     string        `json:"url"`            // of the cluster: https://host:port
	MQTT    string        `json:"mqtt,omitempty"` // the broker's URL; empty: the cluster's own port
	// Token is the id of the join token that was used last. It distinguishes a new token
	// from the same one left in the configuration; empty: not known.
	Token string  `json:"token,omitempty"`
	Pair  ca.Pair `json:"-"`
}

// Load reads the credentials in dir; ErrNotFound where the node has not joined.
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

// Joined reports whether dir has credentials, damaged ones included.
func Joined(dir *os.Root) bool {
	_, err := dir.Stat(metaFile)
	return !errors.Is(err, fs.ErrNotExist)
}

// SavePair keeps a renewed certificate.
func SavePair(dir *os.Root, p ca.Pair) error { return ca.SavePair(dir, pairFile, p) }

// Join asks the token's cluster to take the node in, and keeps what it gets in
// dir, mode 0600. A join that was cut off is repeated with the same key, and
// then costs the token no second use. info.ID may be empty: the cluster names
// the node then.
func Join(ctx context.Context, dir *os.Root, line string, info api.NodeInfo) (Credentials, error) {
	t, err := jointoken.Parse(line)
	if err != nil {
		return Credentials{}, err
	}
	if t.Scope != jointoken.ForNode {
		return Credentials{}, fmt.Errorf("join token is for a %s, not for a node: %w", t.Scope, api.ErrInvalid)
	}
	key, err := enrol.Key(dir, keyFile)
	if err != nil {
		return Credentials{}, err
	}
	csr, err := enrol.Request(key)
	if err != nil {
		return Credentials{}, err
	}
	c, err := join(ctx, line, t, csr, key, info)
	if err != nil {
		return Credentials{}, err
	}
	if err := c.save(dir); err != nil {
		return Credentials{}, err
	}
	return c, enrol.Forget(dir, keyFile)
}

// Rejoin joins the same cluster again with the node's key and name, for a token that has a
// new address or after the cluster removed the node. On an error it returns had, and the
// stored credentials stay as they are.
func Rejoin(ctx context.Context, dir *os.Root, had Credentials, line string, info api.NodeInfo) (Credentials, error) {
	t, err := jointoken.Parse(line)
	if err != nil {
		return had, err
	}
	if err := had.Fits(t); err != nil {
		return had, err
	}
	csr, err := enrol.Request(had.Pair.Key)
	if err != nil {
		return had, err
	}
	info.ID = had.ID
	c, err := join(ctx, line, t, csr, had.Pair.Key, info)
	if err != nil {
		return had, err
	}
	if err := c.save(dir); err != nil {
		return had, err
	}
	return c, nil
}

// Fits returns an error (ErrConflict) unless the token is for a node of the cluster and
// installation that issued the credentials.
func (c *Credentials) Fits(t jointoken.Token) error {
	switch {
	case t.Scope != jointoken.ForNode:
		return fmt.Errorf("join token is for a %s, and this is node %s of cluster %s: %w", t.Scope, c.ID, c.Cluster, api.ErrConflict)
	case t.Cluster != c.Cluster:
		return fmt.Errorf("join token is for cluster %q, and this is node %s of cluster %s: %w", t.Cluster, c.ID, c.Cluster, api.ErrConflict)
	case sha256.Sum256(c.Pair.Root().Raw) != t.CA:
		return fmt.Errorf("join token is for cluster %s of another installation: %w", t.Cluster, api.ErrConflict)
	}
	return nil
}

// Note stores the id of the token with which the node joined.
func (c *Credentials) Note(dir *os.Root, token string) error {
	c.Token = token
	return c.saveMeta(dir)
}

// join sends the join request to the token's cluster and verifies the answer.
func join(ctx context.Context, line string, t jointoken.Token, csr string, key crypto.Signer, info api.NodeInfo) (Credentials, error) {
	var joined api.NodeJoined
	err := call.JSON(ctx, t.HTTPClient(), t.URL+"/v1/join/node", api.JoinNode{Token: line, CSR: csr, Info: info}, &joined)
	if err != nil {
		return Credentials{}, fmt.Errorf("join cluster %s: %w", t.Cluster, err)
	}
	c := Credentials{ID: joined.ID, Cluster: joined.Cluster, URL: t.URL, MQTT: joined.MQTT, Token: t.ID()}
	if c.Pair, err = accept(ca.Pair{Key: key}, joined); err != nil {
		return Credentials{}, fmt.Errorf("join cluster %s: %w", t.Cluster, err)
	}
	if sha256.Sum256(c.Pair.Root().Raw) != t.CA || joined.Cluster != t.Cluster {
		return Credentials{}, fmt.Errorf("join cluster %s: the answer is another installation's: %w", t.Cluster, api.ErrUnauthenticated)
	}
	return c, nil
}

// save keeps the credentials in dir, mode 0600.
func (c *Credentials) save(dir *os.Root) error {
	if err := SavePair(dir, c.Pair); err != nil {
		return err
	}
	return c.saveMeta(dir) // last: its presence says that the node has joined
}

func (c *Credentials) saveMeta(dir *os.Root) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the credentials: %w", err)
	}
	return ca.WriteFile(dir, metaFile, append(text, '\n'), 0o600)
}

// Brokers asks the cluster for the addresses of its broker, for a node that reaches none
// of those that it knows.
func Brokers(ctx context.Context, client *http.Client, url string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var out api.NodeBrokers
	if err := call.JSON(ctx, client, url+"/v1/node/brokers", struct{}{}, &out); err != nil {
		return nil, fmt.Errorf("ask the cluster for its broker: %w", err)
	}
	return out.Brokers, nil
}

func accept(pair ca.Pair, joined api.NodeJoined) (ca.Pair, error) {
	chain, err := ca.DecodeChain([]byte(joined.Chain))
	if err != nil {
		return ca.Pair{}, err
	}
	pair.Chain = chain
	if err := pair.Check(); err != nil {
		return ca.Pair{}, err
	}
	who, err := identity.Of(chain[0])
	if err != nil {
		return ca.Pair{}, err
	}
	if want := identity.OfNode(joined.Cluster, joined.ID); who != want {
		return ca.Pair{}, fmt.Errorf("the certificate names %s, the answer %s: %w", who, want, api.ErrInvalid)
	}
	return pair, nil
}

// Renew asks the cluster for a fresh certificate: keeper's Renew.
func Renew(client *http.Client, url string) func(context.Context, []byte) ([]*x509.Certificate, error) {
	return func(ctx context.Context, csr []byte) ([]*x509.Certificate, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		var renewed api.NodeJoined
		if err := call.JSON(ctx, client, url+"/v1/node/renew", api.Renew{CSR: enrol.Text(csr)}, &renewed); err != nil {
			return nil, err
		}
		return ca.DecodeChain([]byte(renewed.Chain))
	}
}

// Client is an HTTP client of the cluster with the node's certificate. It keeps
// no connection for longer than it is used: an idle node has one, to the broker.
func Client(v *trust.Verifier, c Credentials, own func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) *http.Client {
	return &http.Client{
		Transport: keeper.NewTransport(own, func() *http.Transport {
			return &http.Transport{
				TLSClientConfig:     v.Client(identity.OfCluster(c.Cluster), own),
				ForceAttemptHTTP2:   true,
				TLSHandshakeTimeout: 10 * time.Second,
				IdleConnTimeout:     5 * time.Second,
				Proxy:               http.ProxyFromEnvironment,
			}
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
