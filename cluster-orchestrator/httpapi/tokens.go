package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
)

type tokenIn struct {
	ID string `path:"id" maxLength:"64" doc:"The token's id, as the list has it."`
}

func (a *API) registerTokens() {
	tokens := rest.Tag("tokens")
	answer(a, tokens.Create("/v1/tokens", "Create a join token for nodes; it is shown once").Named("createToken"), rights.NodesJoin, a.createToken)
	answer(a, tokens.Get("/v1/tokens", "List open join tokens").Named("listTokens"), rights.NodesJoin, a.tokens)
	act(a, tokens.Delete("/v1/tokens/{id}", "Revoke a join token", 404).Named("revokeToken"), rights.NodesJoin, a.revokeToken)
}

func (a *API) createToken(ctx context.Context, p rights.Principal, in *rest.Body[api.TokenRequest]) (out api.JoinToken, err error) {
	req, info := in.Body, a.opt.Info()
	if req.Kind != "" && req.Kind != string(jointoken.ForNode) || req.Cluster != "" && req.Cluster != info.ID {
		return out, fmt.Errorf("create join token: cluster %s issues tokens for its own nodes only: %w", info.ID, api.ErrInvalid)
	}
	ttl := time.Duration(req.TTL) * time.Second
	if left, named := a.opt.Operators.Left(p.User); named { // what its holder creates ends with it
		ttl = min(cmp.Or(ttl, jointoken.DefaultTTL), max(left, time.Second))
	}
	tok, rec, err := a.opt.Tokens.Create(ctx, jointoken.Order{
		Scope: jointoken.ForNode, Cluster: info.ID, Uses: req.Uses, TTL: ttl,
		Tenant: info.Tenant, By: p.User,
	})
	if err != nil {
		return out, err
	}
	if left, named := a.opt.Operators.Left(p.User); named && left == 0 { // meanwhile, and so its revocation may not have seen the new token
		err := a.opt.Tokens.Revoke(context.WithoutCancel(ctx), rec.ID)
		return out, errors.Join(fmt.Errorf("create join token: the token of %s is revoked or has expired: %w", p.User, api.ErrUnauthenticated), err)
	}
	a.opt.Log.Info("join token created", "token", rec.ID, "uses", rec.Uses, "expires", rec.Expires, "by", p.User)
	records.Of(ctx, records.Record{Kind: "token", Object: rec.ID}).Text = fmt.Sprintf("%d uses until %s", rec.Uses, rec.Expires.UTC().Format(time.RFC3339))
	out = rec.Public()
	out.Token, out.Install = tok.Line(), a.opt.Install()
	out.Command, err = out.JoinCommand()
	return out, err
}

func (a *API) tokens(context.Context, rights.Principal, *rest.None) (api.Page[api.JoinToken], error) {
	var all []api.JoinToken
	for _, r := range a.opt.Tokens.List() {
		all = append(all, r.Public())
	}
	return page(0, all, nil)
}

func (a *API) revokeToken(ctx context.Context, _ rights.Principal, in *tokenIn) error {
	return a.opt.Tokens.Revoke(ctx, in.ID)
}
