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

type tokenIn struct {
	ID string `path:"id" maxLength:"64" doc:"The token's id, as the list has it."`
}

func (a *API) registerTokens() {
	tags := []string{"tokens"}
	handle(a, huma.Operation{
		OperationID: "createToken", Method: http.MethodPost, Path: "/v1/tokens", DefaultStatus: http.StatusCreated,
		Summary: "Make a join token for nodes; it is shown once", Tags: tags,
	}, a.createToken)
	handle(a, huma.Operation{OperationID: "listTokens", Method: http.MethodGet, Path: "/v1/tokens", Summary: "List open join tokens", Tags: tags}, a.tokens)
	handle(a, huma.Operation{
		OperationID: "revokeToken", Method: http.MethodDelete, Path: "/v1/tokens/{id}", DefaultStatus: http.StatusNoContent,
		Summary: "Revoke a join token", Tags: tags, Errors: []int{404},
	}, a.revokeToken)
}

func (a *API) createToken(ctx context.Context, p rights.Principal, in *body[api.TokenRequest]) (*body[api.JoinToken], error) {
	if err := a.allowed(p, rights.NodesJoin); err != nil {
		return nil, err
	}
	req, info := in.Body, a.opt.Info()
	if req.Kind != "" && req.Kind != string(jointoken.ForNode) || req.Cluster != "" && req.Cluster != info.ID {
		return nil, fmt.Errorf("cluster %s makes join tokens for its own nodes only: %w", info.ID, api.ErrInvalid)
	}
	tok, rec, err := a.opt.Tokens.Create(ctx, jointoken.Order{
		Scope: jointoken.ForNode, Cluster: info.ID, Uses: req.Uses, TTL: time.Duration(req.TTL) * time.Second,
		Tenant: info.Tenant, By: p.User,
	})
	if err != nil {
		return nil, err
	}
	out := rec.Public()
	out.Token = tok.Line()
	a.opt.Log.Info("join token made", "token", rec.ID, "uses", rec.Uses, "expires", rec.Expires, "by", p.User)
	return &body[api.JoinToken]{out}, nil
}

func (a *API) tokens(_ context.Context, p rights.Principal, _ *none) (*body[api.Page[api.JoinToken]], error) {
	if err := a.allowed(p, rights.NodesJoin); err != nil {
		return nil, err
	}
	out := api.Page[api.JoinToken]{Items: []api.JoinToken{}}
	for _, r := range a.opt.Tokens.List() {
		out.Items = append(out.Items, r.Public())
	}
	return &body[api.Page[api.JoinToken]]{out}, nil
}

func (a *API) revokeToken(ctx context.Context, p rights.Principal, in *tokenIn) (*none, error) {
	if err := a.allowed(p, rights.NodesJoin); err != nil {
		return nil, err
	}
	return &none{}, a.opt.Tokens.Revoke(ctx, in.ID)
}
