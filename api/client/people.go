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
	t, err := c.CreateToken(ctx, name, ttl)
	return t.Token, err
}

// Token is a personal token. Only the answer to its creation contains the token itself.
type Token struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Name    string    `json:"name"`
	Roles   []string  `json:"roles"`
	Expires time.Time `json:"expires"`
	Created time.Time `json:"created"`
	Token   string    `json:"token,omitempty"`
}

// CreateToken is PersonalToken with some of the caller's roles only; none: all. ErrForbidden: the caller
// does not have a role.
func (c *Client) CreateToken(ctx context.Context, name string, ttl time.Duration, roles ...string) (Token, error) {
	return send[Token](ctx, c, Request{Method: http.MethodPost, Path: "/v1/auth/tokens", Body: map[string]any{"name": name, "ttl_seconds": int(ttl / time.Second), "roles": append([]string{}, roles...)}})
}

// Tokens lists the caller's personal tokens.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	all, _, err := List[Token](ctx, c, "/v1/auth/tokens", ListOptions{})
	return all, err
}

// RevokeToken makes a personal token of the caller invalid.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: "/v1/auth/tokens/" + api.PathOf(id)})
}

// ChangePassword changes the caller's password, and ends all sessions and personal tokens of the caller.
// ErrForbidden: the old password is wrong, or the client's token is a personal token.
func (c *Client) ChangePassword(ctx context.Context, old, password string) error {
	return c.do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/password", Body: api.ChangePassword{Old: old, Password: password}})
}

type TenantInfo struct {
	Path    api.Tenant `json:"path"`
	Title   string     `json:"title,omitempty"`
	Created time.Time  `json:"created"`
}

// Tenants lists the caller's tenant and those below it; an Admin of the system sees all.
func (c *Client) Tenants(ctx context.Context) ([]TenantInfo, error) {
	all, _, err := List[TenantInfo](ctx, c, "/v1/tenants", ListOptions{})
	return all, err
}

// Tenant returns a tenant. ErrForbidden: the user may not see it.
func (c *Client) Tenant(ctx context.Context, path api.Tenant) (TenantInfo, error) {
	return Get[TenantInfo](ctx, c, "/v1/tenants/"+api.PathOf(path))
}

// DeleteTenant deletes a tenant. ErrConflict: it has users, tenants below it, applications, volumes or
// clusters.
func (c *Client) DeleteTenant(ctx context.Context, t api.Tenant) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: "/v1/tenants/" + api.PathOf(t)})
}

type User struct {
	ID       string    `json:"id"`
	Email    string    `json:"email,omitempty"`
	Roles    []string  `json:"roles"`
	Disabled bool      `json:"disabled,omitempty"`
	Pending  bool      `json:"pending,omitempty"` // has no password yet
	Created  time.Time `json:"created"`
}

// Users lists the users whom the caller may see.
func (c *Client) Users(ctx context.Context) ([]User, error) {
	all, _, err := List[User](ctx, c, "/v1/users", ListOptions{})
	return all, err
}

func (c *Client) User(ctx context.Context, id string) (User, error) {
	return Get[User](ctx, c, "/v1/users/"+api.PathOf(id))
}

// SetUser changes the e-mail address and the roles of a user, and whether the user may sign in.
// ErrForbidden: the caller could not give the user's present roles or the new ones.
func (c *Client) SetUser(ctx context.Context, u User) (User, error) {
	return send[User](ctx, c, Request{Method: http.MethodPut, Path: "/v1/users/" + api.PathOf(u.ID), Body: map[string]any{
		"email": u.Email, "roles": append([]string{}, u.Roles...), "disabled": u.Disabled,
	}})
}

// DeleteUser deletes a user with all credentials.
func (c *Client) DeleteUser(ctx context.Context, id string) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: "/v1/users/" + api.PathOf(id)})
}

// CreateJoinToken creates a join token for a cluster, or for a node of a cluster. Only this answer
// contains the token itself.
func (c *Client) CreateJoinToken(ctx context.Context, r api.TokenRequest) (api.JoinToken, error) {
	return send[api.JoinToken](ctx, c, Request{Method: http.MethodPost, Path: "/v1/tokens", Body: r})
}

// joinTokens returns the path of the server's own join tokens, or of those of a cluster at the
// root.
func (c *Client) joinTokens(cluster api.ClusterID) string {
	if cluster == "" {
		return "/v1/tokens"
	}
	return c.inCluster(cluster) + "/tokens"
}

// JoinTokens lists valid join tokens, without their secrets. They are those for nodes of the
// cluster, or if cluster is empty the server's own; the root's own are for clusters.
func (c *Client) JoinTokens(ctx context.Context, cluster api.ClusterID) ([]api.JoinToken, error) {
	all, _, err := List[api.JoinToken](ctx, c, c.joinTokens(cluster), ListOptions{})
	return all, err
}

// RevokeJoinToken makes a join token invalid. cluster is as for JoinTokens.
func (c *Client) RevokeJoinToken(ctx context.Context, cluster api.ClusterID, id string) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: c.joinTokens(cluster) + "/" + api.PathOf(id)})
}
