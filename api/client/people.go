package client

import (
	"context"
	"net/http"

	"github.com/treeline-edge/treeline/api"
)

// Me is who a token says that asks.
type Me struct {
	User   string     `json:"user"`
	Tenant api.Tenant `json:"tenant,omitempty"`
	Roles  []string   `json:"roles"`
	PAT    string     `json:"pat,omitempty"` // the personal token's id, if it is one
}

// WhoAmI is who asks, as the root sees it.
func (c *Client) WhoAmI(ctx context.Context) (Me, error) { return get[Me](ctx, c, "/v1/auth/me") }

// Tokens lists the join tokens for clusters, without their secrets.
func (c *Client) Tokens(ctx context.Context) ([]api.JoinToken, error) {
	all, _, err := List[api.JoinToken](ctx, c, "/v1/tokens", nil)
	return all, err
}

// NodeTokens lists the join tokens for nodes of a cluster, which the root asks
// for them.
func (c *Client) NodeTokens(ctx context.Context, id api.ClusterID) ([]api.JoinToken, error) {
	all, _, err := List[api.JoinToken](ctx, c, string(Clusters)+"/"+api.PathOf(id)+"/tokens", nil)
	return all, err
}

// RevokeNodeToken ends a join token for nodes of a cluster.
func (c *Client) RevokeNodeToken(ctx context.Context, cluster api.ClusterID, id string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: string(Clusters) + "/" + api.PathOf(cluster) + "/tokens/" + api.PathOf(id)}, nil)
	return err
}

// RevokeToken ends a join token for clusters.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/v1/tokens/" + api.PathOf(id)}, nil)
	return err
}
