package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
)

func (a *API) registerTokens() {
	tokens := rest.Tag("join tokens")
	create := tokens.Create("/v1/tokens", "Create join token", 404, 409, 503, 504).
		About("Creates a token that lets a cluster join this root or, with kind node, a node join a cluster, which the root asks for it. " +
			"The token is shown once.")
	create.Security = signedIn
	answer(a, create, "", a.createToken)
	answer(a, tokens.Get("/v1/tokens", "List join tokens").About("Those for clusters. Each cluster has those for its nodes."), rights.ClustersJoin,
		func(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[api.JoinToken], error) {
			page := api.Page[api.JoinToken]{Items: []api.JoinToken{}}
			for _, r := range visible(p, rights.ClustersJoin, a.opt.Tokens.List(), func(r jointoken.Record) api.Tenant { return r.Tenant }) {
				page.Items = append(page.Items, r.Public())
			}
			return page, nil
		})
	act(a, tokens.Delete("/v1/tokens/{id}", "Revoke join token", 404), rights.ClustersJoin, a.revokeToken)
	answer(a, tokens.Get("/v1/clusters/{id}/tokens", "List join tokens for nodes", 404, 503, 504).
		About("The root passes the request on to the cluster, which checks the user's rights again."), rights.NodesJoin,
		func(ctx context.Context, p rights.Principal, in *ClusterInput) (out api.Page[api.JoinToken], err error) {
			return out, a.call(ctx, p, rights.NodesJoin, in.ID, http.MethodGet, "/v1/tokens", nil, &out)
		})
	act(a, tokens.Delete("/v1/clusters/{id}/tokens/{token}", "Revoke join token for nodes", 404, 503, 504), rights.NodesJoin, a.revokeNodeToken)
}

func (a *API) createToken(ctx context.Context, p rights.Principal, in *rest.Body[api.TokenRequest]) (out api.JoinToken, err error) {
	r := in.Body
	switch r.Kind {
	case "node":
		// The root issues tokens for clusters; clusters issue tokens for nodes.
		if err := anywhere(p, rights.NodesJoin); err != nil {
			return out, err
		}
		if r.Cluster == "" {
			return out, fmt.Errorf("create a join token for a node: the cluster is missing: %w", api.ErrInvalid)
		}
		record := records.Of(ctx, records.Record{Tenant: p.Tenant, Kind: "token"})
		if err := a.call(ctx, p, rights.NodesJoin, r.Cluster, http.MethodPost, "/v1/tokens", r, &out); err != nil {
			return api.JoinToken{}, err
		}
		// People paste the command: it is made here, of parts that are checked.
		if out.Command, err = out.JoinCommand(); err != nil || out.Kind != "node" || out.Cluster != r.Cluster {
			a.opt.Log.Warn("a cluster answered with a malformed join token", "cluster", r.Cluster, "err", err)
			return api.JoinToken{}, fmt.Errorf("cluster %s answered with a malformed join token: %w", r.Cluster, api.ErrUnavailable)
		}
		record.Tenant, record.Object = a.ownerOf(r.Cluster), string(r.Cluster)+"/"+out.ID
		return out, nil
	case "cluster":
	default:
		return out, fmt.Errorf("create a join token: kind %q, want \"cluster\" or \"node\": %w", r.Kind, api.ErrInvalid)
	}
	tenant := cmp.Or(r.Tenant, p.Tenant)
	if err := rights.Allowed(p, rights.ClustersJoin, tenant); err != nil {
		return out, err
	}
	if tenant != rights.System {
		if _, err := a.opt.Accounts.Tenant(tenant); err != nil {
			return out, err
		}
	}
	if r.Open != nil && *r.Open && tenant != rights.System {
		if err := rights.Allowed(p, rights.SystemWrite, rights.System); err != nil {
			return out, fmt.Errorf("create a join token for a cluster that is open to all tenants: %w", err)
		}
	}
	tok, rec, err := a.opt.Tokens.Create(ctx, jointoken.Order{
		Scope: jointoken.ForCluster, Cluster: r.Cluster, Uses: r.Uses, TTL: time.Duration(r.TTL) * time.Second,
		Tenant: tenant, By: p.User, Open: r.Open,
	})
	if err != nil {
		return out, err
	}
	out = rec.Public()
	records.Of(ctx, records.Record{Tenant: tenant, Kind: "token", Object: rec.ID}).Text = fmt.Sprintf("%d uses until %s", rec.Uses, rec.Expires.UTC().Format(time.RFC3339))
	out.Token, out.Install = tok.Line(), a.opt.Install()
	out.Command, err = out.JoinCommand()
	return out, err
}

func (a *API) revokeToken(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id"`
},
) error {
	r, err := a.opt.Tokens.Get(in.ID)
	if err != nil || !p.Sees(r.Tenant) {
		return missing("join token", in.ID)
	}
	if err := rights.Allowed(p, rights.ClustersJoin, r.Tenant); err != nil {
		return err
	}
	records.Of(ctx, records.Record{Tenant: r.Tenant, Kind: "token", Object: in.ID})
	return a.opt.Tokens.Revoke(ctx, in.ID)
}

func (a *API) revokeNodeToken(ctx context.Context, p rights.Principal, in *struct {
	ClusterInput
	Token string `path:"token" doc:"The token's id, from the list."`
},
) error {
	if !api.ValidMachineName(in.Token) { // token ids have lower-case letters and digits only
		return missing("join token", in.Token) // the id is part of the path at the cluster
	}
	return a.call(ctx, p, rights.NodesJoin, in.ID, http.MethodDelete, "/v1/tokens/"+in.Token, nil, nil)
}
