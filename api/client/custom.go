package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/treeline-edge/treeline/api"
)

// Custom kinds and resources.
const (
	CustomKinds     Kind = "/v1/kinds"
	CustomResources Kind = "/v1/resources"
)

// CustomKind returns a custom kind.
func (c *Client) CustomKind(ctx context.Context, id api.KindID) (api.CustomKind, error) {
	return Get[api.CustomKind](ctx, c, pathOf(CustomKinds, id))
}

// CreateKind creates a custom kind of a tenant; empty: the caller's. ErrConflict: it exists.
func (c *Client) CreateKind(ctx context.Context, tenant api.Tenant, n api.NewCustomKind) (api.CustomKind, error) {
	return send[api.CustomKind](ctx, c, Request{Method: http.MethodPost, Path: string(CustomKinds), Query: ListOptions{Tenant: tenant}.query(), Body: n})
}

// ReplaceKind replaces a custom kind if it is at revision at; 0 matches any. ErrConflict: resources violate the schema.
func (c *Client) ReplaceKind(ctx context.Context, id api.KindID, n api.NewCustomKind, at api.Revision) (api.CustomKind, error) {
	return send[api.CustomKind](ctx, c, Request{Method: http.MethodPut, Path: pathOf(CustomKinds, id), Body: n, Header: ifMatch(at)})
}

// DeleteKind deletes a custom kind if it is at revision at; 0 matches any. ErrConflict: it has resources, and force is
// not set.
func (c *Client) DeleteKind(ctx context.Context, id api.KindID, at api.Revision, force bool) error {
	q := url.Values{}
	if force {
		q.Set("force", "true")
	}
	return c.do(ctx, Request{Method: http.MethodDelete, Path: pathOf(CustomKinds, id), Query: q, Header: ifMatch(at)})
}

// CustomResource returns a custom resource.
func (c *Client) CustomResource(ctx context.Context, id api.CustomID) (api.CustomResource, error) {
	return Get[api.CustomResource](ctx, c, pathOf(CustomResources, id))
}

// CreateResource creates a custom resource of a tenant; empty: the caller's. ErrConflict: it exists; ErrNotFound: the
// tenant has no such kind.
func (c *Client) CreateResource(ctx context.Context, tenant api.Tenant, n api.NewCustomResource) (api.CustomResource, error) {
	return send[api.CustomResource](ctx, c, Request{Method: http.MethodPost, Path: string(CustomResources), Query: ListOptions{Tenant: tenant}.query(), Body: n})
}

// ReplaceResource replaces a custom resource if it is at revision at; 0 matches any.
func (c *Client) ReplaceResource(ctx context.Context, id api.CustomID, n api.NewCustomResource, at api.Revision) (api.CustomResource, error) {
	return send[api.CustomResource](ctx, c, Request{Method: http.MethodPut, Path: pathOf(CustomResources, id), Body: n, Header: ifMatch(at)})
}

// DeleteResource deletes a custom resource if it is at revision at; 0 matches any.
func (c *Client) DeleteResource(ctx context.Context, id api.CustomID, at api.Revision) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: pathOf(CustomResources, id), Header: ifMatch(at)})
}
