package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/treeline-edge/treeline/api"
)

// The kinds of configs and secrets.
const (
	Configs Kind = "/v1/configs"
	Secrets Kind = "/v1/secrets"
)

func kindOf(k api.ValueKind) Kind {
	if k == api.KindSecret {
		return Secrets
	}
	return Configs
}

// ValuesList lists configs or secrets, without their values, and the revision to watch from.
func (c *Client) ValuesList(ctx context.Context, kind api.ValueKind, o ListOptions) ([]api.Values, api.Revision, error) {
	return List[api.Values](ctx, c, string(kindOf(kind)), o)
}

// Values returns a config with its values, or a secret without them.
func (c *Client) Values(ctx context.Context, kind api.ValueKind, id api.ValuesID) (api.Values, error) {
	return Get[api.Values](ctx, c, pathOf(kindOf(kind), id))
}

// CreateValues creates a config or a secret of a tenant; empty: the caller's. ErrConflict: it exists.
func (c *Client) CreateValues(ctx context.Context, kind api.ValueKind, tenant api.Tenant, n api.NewValues) (api.Values, error) {
	return send[api.Values](ctx, c, Request{Method: http.MethodPost, Path: string(kindOf(kind)), Query: ListOptions{Tenant: tenant}.query(), Body: n})
}

// ReplaceValues replaces the values of a config or a secret if it is at revision at; 0 matches any.
func (c *Client) ReplaceValues(ctx context.Context, kind api.ValueKind, id api.ValuesID, n api.NewValues, at api.Revision) (api.Values, error) {
	return send[api.Values](ctx, c, Request{Method: http.MethodPut, Path: pathOf(kindOf(kind), id), Body: n, Header: ifMatch(at)})
}

// DeleteValues deletes a config or a secret if it is at revision at; 0 matches any. ErrConflict: a
// service uses it, and force is not set.
func (c *Client) DeleteValues(ctx context.Context, kind api.ValueKind, id api.ValuesID, at api.Revision, force bool) error {
	q := url.Values{}
	if force {
		q.Set("force", "true")
	}
	return c.do(ctx, Request{Method: http.MethodDelete, Path: pathOf(kindOf(kind), id), Query: q, Header: ifMatch(at)})
}
