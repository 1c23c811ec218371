package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Nodes are the nodes of one cluster, asked of it directly or through the root.
type Nodes struct {
	c    *Client
	base string
}

// NodesOf are the nodes of a cluster through the root.
func (c *Client) NodesOf(id api.ClusterID) Nodes {
	return Nodes{c, string(Clusters) + "/" + api.PathOf(id) + "/nodes"}
}

// OwnNodes are the nodes of the cluster that the client speaks to.
func (c *Client) OwnNodes() Nodes { return Nodes{c, "/v1/nodes"} }

func (n Nodes) path(id api.NodeID) string { return n.base + "/" + api.PathOf(id) }

// List lists the nodes.
func (n Nodes) List(ctx context.Context) ([]api.Node, error) {
	all, _, err := List[api.Node](ctx, n.c, n.base, nil)
	return all, err
}

// Get is one node.
func (n Nodes) Get(ctx context.Context, id api.NodeID) (api.Node, error) {
	return get[api.Node](ctx, n.c, n.path(id))
}

func (n Nodes) order(ctx context.Context, id api.NodeID, verb string) (out api.Node, err error) {
	_, err = n.c.Do(ctx, Request{Method: http.MethodPost, Path: n.path(id) + "/" + verb}, &out)
	return out, err
}

// Cordon keeps new instances off the node.
func (n Nodes) Cordon(ctx context.Context, id api.NodeID) (api.Node, error) {
	return n.order(ctx, id, "cordon")
}

// Uncordon lets instances on the node again.
func (n Nodes) Uncordon(ctx context.Context, id api.NodeID) (api.Node, error) {
	return n.order(ctx, id, "uncordon")
}

// Drain cordons the node and moves its instances elsewhere.
func (n Nodes) Drain(ctx context.Context, id api.NodeID) (api.Node, error) {
	return n.order(ctx, id, "drain")
}

// Remove forgets the node and refuses its certificates.
func (n Nodes) Remove(ctx context.Context, id api.NodeID) error {
	_, err := n.c.Do(ctx, Request{Method: http.MethodDelete, Path: n.path(id)}, nil)
	return err
}

// The rest is what a cluster alone answers, to a client that speaks to it
// (Options.Expect); instances, logs and join tokens are asked as at the root.

// ClusterWhy explains, node by node, where an instance could be placed now.
func (c *Client) ClusterWhy(ctx context.Context, id api.InstanceID) (api.Explanation, error) {
	return get[api.Explanation](ctx, c, string(Instances)+"/"+api.PathOf(id)+"/why")
}

// ScaleLocally sets how many instances the cluster runs of a service while the
// root is away.
func (c *Client) ScaleLocally(ctx context.Context, id api.ServiceID, replicas int) error {
	_, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: string(Services) + "/" + api.PathOf(id) + "/scale", Body: api.Replicas{Replicas: replicas},
	}, nil)
	return err
}

// SetGrant replaces a cluster's grant: the tenants whose services it may run, and its
// caps. rev is the expected revision of the cluster; 0 accepts any.
func (c *Client) SetGrant(ctx context.Context, id api.ClusterID, g api.Grant, rev api.Revision) (api.Cluster, error) {
	r := Request{Method: http.MethodPut, Path: string(Clusters) + "/" + api.PathOf(id) + "/grant", Body: g, Header: http.Header{}}
	if rev > 0 {
		r.Header.Set("If-Match", etag(rev))
	}
	var out api.Cluster
	_, err := c.Do(ctx, r, &out)
	return out, err
}

// exchangeEarly is how long before its end an exchanged token is replaced: more than
// renewEarly, so that a stream is renewed with another.
const exchangeEarly = 20 * time.Second

// exchanged are tokens for one cluster.
type exchanged struct {
	root    *Client
	cluster api.ClusterID

	mu   sync.Mutex // guards have, and is held while the root is asked, so that it is asked once
	have api.ClusterAccess
}

// TokensFor are tokens for the own API of a cluster (see Options.Expect), which the
// root that the client speaks to exchanges for the client's own. Streams that are
// followed with them go on when one expires.
func (c *Client) TokensFor(cluster api.ClusterID) Tokens {
	return &exchanged{root: c, cluster: cluster}
}

// Token is Tokens'.
func (e *exchanged) Token(ctx context.Context, refused string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.have.Token == "" || e.have.Token == refused || time.Until(e.have.Expires) < exchangeEarly {
		var got api.ClusterAccess
		_, err := e.root.Do(ctx, Request{Method: http.MethodPost, Path: string(Clusters) + "/" + api.PathOf(e.cluster) + "/access"}, &got)
		if err != nil {
			return "", fmt.Errorf("exchange a token for cluster %s: %w", e.cluster, err)
		}
		e.have = got
	}
	return e.have.Token, nil
}

// JoinTokens lists the open join tokens, at the root for clusters, at a cluster
// for its nodes.
func (c *Client) JoinTokens(ctx context.Context) ([]api.JoinToken, error) {
	all, _, err := List[api.JoinToken](ctx, c, "/v1/tokens", nil)
	return all, err
}

// RevokeJoinToken ends a join token at once.
func (c *Client) RevokeJoinToken(ctx context.Context, id string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/v1/tokens/" + url.PathEscape(id)}, nil)
	return err
}

// PersonalToken makes a personal token of the asker, for scripts: shown once.
func (c *Client) PersonalToken(ctx context.Context, name string, seconds int) (string, error) {
	var out struct {
		Token string `json:"token"`
	}
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/tokens", Body: map[string]any{"name": name, "ttl_seconds": seconds}}, &out)
	return out.Token, err
}

// Ping reports whether the server answers, and its version.
func (c *Client) Ping(ctx context.Context) (version string, err error) {
	var out struct {
		Version string `json:"version"`
	}
	_, err = c.Do(ctx, Request{Method: http.MethodGet, Path: "/version", Open: true}, &out)
	return out.Version, err
}
