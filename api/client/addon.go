package client

import (
	"context"
	"net/http"

	"github.com/treeline-edge/treeline/api"
)

// Addons are the installed addons.
const Addons Kind = "/v1/addons"

// Addon returns an installed addon.
func (c *Client) Addon(ctx context.Context, id api.AddonID) (api.Addon, error) {
	return Get[api.Addon](ctx, c, pathOf(Addons, id))
}

// InstallAddon installs an addon for a tenant; empty: the caller's. ErrConflict: it is installed, or one of its objects
// exists.
func (c *Client) InstallAddon(ctx context.Context, tenant api.Tenant, n api.NewAddon) (api.AddonApplied, error) {
	return send[api.AddonApplied](ctx, c, Request{Method: http.MethodPost, Path: string(Addons), Query: ListOptions{Tenant: tenant}.query(), Body: n})
}

// AddonOptions are options of UpgradeAddon and RemoveAddon.
type AddonOptions struct {
	At            api.Revision // the addon's; 0 matches any
	Downgrade     bool         // also to an older version
	KeepResources bool         // keep the kinds of which others have resources
}

func (o AddonOptions) request(method string, id api.AddonID, body any) Request {
	q := ListOptions{}.query()
	if o.Downgrade {
		q.Set("downgrade", "true")
	}
	if o.KeepResources {
		q.Set("keep_resources", "true")
	}
	return Request{Method: method, Path: pathOf(Addons, id), Query: q, Header: ifMatch(o.At), Body: body}
}

// UpgradeAddon replaces an addon by another version. ErrConflict: the version is older, one of its new objects exists,
// or resources of others do not fit.
func (c *Client) UpgradeAddon(ctx context.Context, id api.AddonID, n api.NewAddon, o AddonOptions) (api.AddonApplied, error) {
	return send[api.AddonApplied](ctx, c, o.request(http.MethodPut, id, n))
}

// RemoveAddon removes an addon and returns what was deleted. ErrConflict: others have resources of its kinds.
func (c *Client) RemoveAddon(ctx context.Context, id api.AddonID, o AddonOptions) ([]api.AddonChange, error) {
	p, err := send[api.Page[api.AddonChange]](ctx, c, o.request(http.MethodDelete, id, nil))
	return p.Items, err
}
