package clusterlink

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The files of a node's credentials, in its data directory.
const (
	pairFile = "node.pem"
	metaFile = "node.json"
)

// Credentials are the result of a node's join.
type Credentials struct {
	ID      api.NodeID    `json:"id"`
	Cluster api.ClusterID `json:"cluster"`
	URL     string        `json:"url"`            // of the cluster: https://host:port
	MQTT    string        `json:"mqtt,omitempty"` // the broker's URL, if Brokers is empty; empty: the cluster's own port
	// Brokers are the addresses of the brokers at the time of the join, as in wire.Desired.Brokers.
	Brokers []string `json:"brokers,omitempty"`
	// Replicas are the URLs of all replicas of the cluster, as the cluster has told.
	Replicas []string `json:"replicas,omitempty"`
	// Token is the id of the join token that was used last. A different id in the
	// configuration is a new token. Empty: unknown.
	Token string  `json:"token,omitempty"`
	Pair  ca.Pair `json:"-"`
}

// Load reads the credentials in dir. It fails with ErrNotFound if the node has not joined.
func Load(dir *os.Root) (c Credentials, err error) {
	c.Pair, err = enrol.Load(dir, pairFile, metaFile, &c)
	return c, err
}

// Joined reports whether dir has credentials, damaged ones included.
func Joined(dir *os.Root) bool {
	_, err := dir.Stat(metaFile)
	return !errors.Is(err, fs.ErrNotExist)
}

// SavePair saves a renewed certificate.
func SavePair(dir *os.Root, p ca.Pair) error { return ca.SavePair(dir, pairFile, p) }

// Join joins the token's cluster and stores the credentials in dir. If info.ID is empty, the
// cluster chooses the id. Join may be repeated, see enrol.Open. further are URLs of the cluster besides
// that in the token.
func Join(ctx context.Context, dir *os.Root, line string, info api.NodeInfo, further ...string) (Credentials, error) {
	client, err := enrol.Open(dir, line, jointoken.ForNode)
	if err != nil {
		return Credentials{}, err
	}
	client.Further = further
	c, err := join(ctx, line, client, info)
	if err != nil {
		return Credentials{}, err
	}
	if err := c.save(dir); err != nil {
		return Credentials{}, err
	}
	return c, enrol.RemoveKey(dir)
}

// Rejoin joins the same cluster again with the node's key and name, for a token that has a
// new address or after the cluster removed the node. On an error it returns had, and the
// stored credentials stay as they are.
func Rejoin(ctx context.Context, dir *os.Root, had Credentials, line string, info api.NodeInfo, further ...string) (Credentials, error) {
	t, err := jointoken.Parse(line)
	if err == nil {
		err = had.CheckToken(t)
	}
	if err != nil {
		return had, err
	}
	client, err := enrol.NewClient(t, had.Pair.Key)
	if err != nil {
		return had, err
	}
	info.ID, client.Further = had.ID, further
	c, err := join(ctx, line, client, info)
	if err == nil {
		err = c.save(dir)
	}
	if err != nil {
		return had, err
	}
	return c, nil
}

// CheckToken returns an error (ErrConflict) unless the token is for a node of the cluster and
// installation that issued the credentials.
func (c *Credentials) CheckToken(t jointoken.Token) error {
	switch {
	case t.Scope != jointoken.ForNode:
		return fmt.Errorf("join token is for a %s, and this is node %s of cluster %s: %w", t.Scope, c.ID, c.Cluster, api.ErrConflict)
	case t.Cluster != c.Cluster:
		return fmt.Errorf("join token is for cluster %q, and this is node %s of cluster %s: %w", t.Cluster, c.ID, c.Cluster, api.ErrConflict)
	case c.Token != "" && t.ID() == c.Token: // the root's certificate may have changed since the node joined with it
	case !slices.ContainsFunc(c.Pair.Roots(), func(r *x509.Certificate) bool { return sha256.Sum256(r.Raw) == t.CA }):
		return fmt.Errorf("join token is for cluster %s of another installation, or the key of its root's certificate authority was replaced while this node was away; "+
			"if so, let the node join with an empty data directory: %w", t.Cluster, api.ErrConflict)
	}
	return nil
}

// SaveReplicas stores the URLs of the cluster's replicas.
func (c *Credentials) SaveReplicas(dir *os.Root, urls []string) error {
	c.Replicas = replicas.Clean(urls)
	return enrol.SaveMeta(dir, metaFile, c)
}

// SaveTokenID stores the id of the token with which the node joined.
func (c *Credentials) SaveTokenID(dir *os.Root, token string) error {
	c.Token = token
	return enrol.SaveMeta(dir, metaFile, c)
}

// join sends the join request to the token's cluster and verifies the answer.
func join(ctx context.Context, line string, client enrol.Client, info api.NodeInfo) (c Credentials, err error) {
	t := client.Token
	var joined wire.NodeJoined
	c.Pair, err = client.Join(ctx, "/v1/join/node", wire.JoinNode{Token: line, CSR: client.CSR, Info: info}, &joined,
		func() (string, identity.Identity) { return joined.Chain, identity.OfNode(t.Cluster, joined.ID) })
	if err != nil {
		return Credentials{}, fmt.Errorf("join cluster %s: %w", t.Cluster, err)
	}
	c.ID, c.Cluster, c.URL, c.MQTT, c.Token = joined.ID, t.Cluster, t.URL, joined.MQTT, t.ID()
	c.Brokers, c.Replicas = joined.Brokers[:min(len(joined.Brokers), wire.MaxBrokers)], replicas.Clean(joined.Replicas)
	return c, nil
}

func (c *Credentials) save(dir *os.Root) error { return enrol.Save(dir, pairFile, metaFile, c.Pair, c) }
