package client

import (
	"context"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
)

type Me struct {
	User   string     `json:"user"`
	Tenant api.Tenant `json:"tenant,omitempty"`
	Roles  []string   `json:"roles"`
	PAT    string     `json:"pat,omitempty"` // id of the personal token, if the token is one
}

// WhoAmI returns the user that the client's token belongs to.
func (c *Client) WhoAmI(ctx context.Context) (Me, error) { return Get[Me](ctx, c, "/v1/auth/me") }

// PersonalToken creates a personal token with all roles of the caller, and returns it. It expires
// after ttl, which is rounded down to seconds and must be at least a minute. ErrForbidden: the
// client's own token is a personal token.
func (c *Client) PersonalToken(ctx context.Context, name string, ttl time.Duration) (string, error) {
	out, err := send[struct {
		Token string `json:"token"`
	}](ctx, c, Request{Method: http.MethodPost, Path: "/v1/auth/tokens", Body: map[string]any{"name": name, "ttl_seconds": int(ttl / time.Second)}})
	return out.Token, err
}

// CreateJoinToken creates a join token for a cluster, or for a node of a cluster. Only this answer
// contains the token itself.
func (c *Client) CreateJoinToken(ctx context.Context, r api.TokenRequest) (api.JoinToken, error) {
	return send[api.JoinToken](ctx, c, Request{Method: http.MethodPost, Path: "/v1/tokens", Body: r})
}

// joinTokens returns the path of the server's own join tokens, or of those of a cluster at the
// root.
func joinTokens(cluster api.ClusterID) string {
	if cluster == "" {
		return "/v1/tokens"
	}
	return pathOf(Clusters, cluster) + "/tokens"
}

// JoinTokens lists valid join tokens, without their secrets. They are those for nodes of the
// cluster, or if cluster is empty the server's own; the root's own are for clusters.
func (c *Client) JoinTokens(ctx context.Context, cluster api.ClusterID) ([]api.JoinToken, error) {
	all, _, err := List[api.JoinToken](ctx, c, joinTokens(cluster), ListOptions{})
	return all, err
}

// RevokeJoinToken makes a join token invalid. cluster is as for JoinTokens.
func (c *Client) RevokeJoinToken(ctx context.Context, cluster api.ClusterID, id string) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: joinTokens(cluster) + "/" + api.PathOf(id)})
}
