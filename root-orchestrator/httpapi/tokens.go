package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

func (a *API) registerTokens() {
	tags := []string{"join tokens"}
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/tokens", Summary: "Create join token", Tags: tags, Errors: []int{404, 409, 503, 504},
		DefaultStatus: http.StatusCreated,
		Description: "Makes the line that lets a cluster in here, or, with kind node, a node into a cluster, which is asked for it. " +
			"The line is shown once.",
		Security: signedIn,
	}, "", a.createToken)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/tokens", Summary: "List join tokens", Tags: tags,
		Description: "Those for clusters; a cluster has the ones for its nodes.",
	}, rights.ClustersJoin, a.listTokens)
	handle(a, huma.Operation{
		Method: http.MethodDelete, Path: "/v1/tokens/{id}", Summary: "Revoke join token", Tags: tags, Errors: []int{404},
		DefaultStatus: http.StatusNoContent,
	}, rights.ClustersJoin, a.revokeToken)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/clusters/{id}/tokens", Summary: "List join tokens for nodes", Tags: tags, Errors: []int{404, 503, 504},
		Description: "Asked of the cluster itself, which checks the asker's rights again.",
	}, rights.NodesJoin, a.listNodeTokens)
	handle(a, huma.Operation{
		Method: http.MethodDelete, Path: "/v1/clusters/{id}/tokens/{token}", Summary: "Revoke join token for nodes", Tags: tags,
		Errors: []int{404, 503, 504}, DefaultStatus: http.StatusNoContent,
	}, rights.NodesJoin, a.revokeNodeToken)
}

func (a *API) createToken(ctx context.Context, p rights.Principal, in *struct{ Body api.TokenRequest }) (*struct{ Body api.JoinToken }, error) {
	r := in.Body
	out := &struct{ Body api.JoinToken }{}
	switch r.Kind {
	case "node":
		// The root issues tokens for clusters only; clusters issue those for nodes.
		if err := anywhere(p, rights.NodesJoin); err != nil {
			return nil, err
		}
		if r.Cluster == "" {
			return nil, fmt.Errorf("a token for a node names its cluster: %w", api.ErrInvalid)
		}
		return out, a.call(ctx, p, rights.NodesJoin, r.Cluster, http.MethodPost, "/v1/tokens", r, &out.Body)
	case "cluster":
	default:
		return nil, fmt.Errorf("a join token is of kind \"cluster\" or \"node\", not %q: %w", r.Kind, api.ErrInvalid)
	}
	tenant := r.Tenant
	if tenant == "" {
		tenant = p.Tenant
	}
	if err := rights.Allowed(p, rights.ClustersJoin, tenant); err != nil {
		return nil, err
	}
	if tenant != rights.System {
		if _, err := a.opt.Accounts.Tenant(tenant); err != nil {
			return nil, err
		}
	}
	if r.Open != nil && *r.Open && tenant != rights.System {
		if err := rights.Allowed(p, rights.SystemWrite, rights.System); err != nil {
			return nil, fmt.Errorf("make a token for a cluster that is open to all tenants: %w", err)
		}
	}
	tok, rec, err := a.opt.Tokens.Create(ctx, jointoken.Order{
		Scope: jointoken.ForCluster, Cluster: r.Cluster, Uses: r.Uses, TTL: time.Duration(r.TTL) * time.Second,
		Tenant: tenant, By: p.User, Open: r.Open,
	})
	if err != nil {
		return nil, err
	}
	out.Body = tokenOf(rec)
	out.Body.Token = tok.Line()
	return out, nil
}

func tokenOf(r jointoken.Record) api.JoinToken {
	return api.JoinToken{ID: r.ID, Kind: string(r.Scope), Cluster: r.Cluster, Tenant: r.Tenant, Uses: r.Left(), Expires: r.Expires}
}

func (a *API) listTokens(_ context.Context, p rights.Principal, _ *struct{}) (*struct{ Body api.Page[api.JoinToken] }, error) {
	out := &struct{ Body api.Page[api.JoinToken] }{}
	out.Body.Items = []api.JoinToken{}
	for _, r := range a.opt.Tokens.List() {
		if rights.Allowed(p, rights.ClustersJoin, r.Tenant) == nil {
			out.Body.Items = append(out.Body.Items, tokenOf(r))
		}
	}
	return out, nil
}

func (a *API) revokeToken(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id"`
},
) (*nothing, error) {
	r, err := a.opt.Tokens.Get(in.ID)
	if err != nil || !p.Sees(r.Tenant) {
		return nil, missing("join token", in.ID)
	}
	if err := rights.Allowed(p, rights.ClustersJoin, r.Tenant); err != nil {
		return nil, err
	}
	return nil, a.opt.Tokens.Revoke(ctx, in.ID)
}

func (a *API) listNodeTokens(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" doc:"The cluster."`
},
) (*struct{ Body api.Page[api.JoinToken] }, error) {
	out := &struct{ Body api.Page[api.JoinToken] }{}
	return out, a.call(ctx, p, rights.NodesJoin, api.ClusterID(in.ID), http.MethodGet, "/v1/tokens", nil, &out.Body)
}

func (a *API) revokeNodeToken(ctx context.Context, p rights.Principal, in *struct {
	ID    string `path:"id" doc:"The cluster."`
	Token string `path:"token" doc:"The token's id, as the list has it."`
},
) (*nothing, error) {
	if !api.ValidMachineName(in.Token) { // lower-case letters and digits, as ids of tokens are
		return nil, missing("join token", in.Token) // nor may it become another path at the cluster
	}
	return nil, a.call(ctx, p, rights.NodesJoin, api.ClusterID(in.ID), http.MethodDelete, "/v1/tokens/"+in.Token, nil, nil)
}
