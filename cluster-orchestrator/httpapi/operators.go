package httpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
)

type operatorIn struct {
	Name string `path:"name" maxLength:"64" doc:"The token's name."`
}

func (a *API) registerOperators() {
	tokens := rest.Tag("tokens")
	answer(a, tokens.Create("/v1/operators", "Create a named operator token; it is shown once", 409).Named("createOperator"), "", a.createOperator)
	answer(a, tokens.Get("/v1/operators", "List named operator tokens").Named("listOperators"), "", a.operators)
	act(a, tokens.Delete("/v1/operators/{name}", "Revoke a named operator token, and the join tokens that were created with it", 404).Named("revokeOperator"), "", a.revokeOperator)
}

// mayName returns nil if p may create, list and revoke named tokens. It refuses holders of named tokens, so
// that nothing made with a stolen one outlives its revocation.
func (a *API) mayName(p rights.Principal) error {
	if operators.Named(p.User) {
		return fmt.Errorf("operator tokens: %s has a named token, which cannot create, list or revoke any: %w", p.User, api.ErrForbidden)
	}
	return a.allowed(p, rights.SystemWrite)
}

func (a *API) createOperator(ctx context.Context, p rights.Principal, in *rest.Body[api.OperatorRequest]) (out api.OperatorToken, err error) {
	if err := a.mayName(p); err != nil {
		return out, err
	}
	o := operators.Order{Name: in.Body.Name, TTL: time.Duration(in.Body.TTL) * time.Second, By: p.User}
	for _, r := range in.Body.Roles {
		o.Roles = append(o.Roles, rights.Role(r))
	}
	token, r, err := a.opt.Operators.Create(ctx, o)
	if err != nil {
		return out, err
	}
	out = r.Public()
	text := fmt.Sprintf("create token with %s until %s by %s", strings.Join(out.Roles, ", "), r.Expires.UTC().Format(time.RFC3339), p.User)
	if err := a.opt.Audit.RecordToken(ctx, r.Name, p.User, text); err != nil {
		_, _ = a.opt.Operators.Revoke(context.WithoutCancel(ctx), r.Name) // there is no access without its record
		return api.OperatorToken{}, fmt.Errorf("record operator token %s: %w", r.Name, err)
	}
	a.opt.Log.Info("operator token created", "name", r.Name, "roles", out.Roles, "expires", r.Expires, "by", p.User)
	out.Token = token
	return out, nil
}

func (a *API) operators(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[api.OperatorToken], error) {
	if err := a.mayName(p); err != nil {
		return api.Page[api.OperatorToken]{}, err
	}
	var all []api.OperatorToken
	for _, r := range a.opt.Operators.List() {
		all = append(all, r.Public())
	}
	return page(0, all, nil)
}

func (a *API) revokeOperator(ctx context.Context, p rights.Principal, in *operatorIn) error {
	if err := a.mayName(p); err != nil {
		return err
	}
	_, err := a.opt.Operators.Revoke(ctx, in.Name)
	gone := errors.Is(err, api.ErrNotFound)
	if err != nil && !gone {
		return err
	}
	a.Recheck()
	// An earlier revocation may have been interrupted before it revoked these.
	made := slices.DeleteFunc(a.opt.Tokens.List(), func(t jointoken.Record) bool { return t.By != operators.UserOf(in.Name) })
	if gone && len(made) == 0 {
		return err
	}
	a.opt.Log.Info("operator token revoked", "name", in.Name, "by", p.User)
	var failed []error
	for _, t := range made {
		if err := a.opt.Tokens.Revoke(ctx, t.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
			failed = append(failed, fmt.Errorf("operator token %s is revoked, join token %s that it created is not; repeat the request: %w", in.Name, t.ID, err))
		}
	}
	if err := a.opt.Audit.RecordToken(ctx, in.Name, p.User, "revoke token by "+p.User); err != nil {
		failed = append(failed, fmt.Errorf("operator token %s is revoked, which is not recorded: %w", in.Name, err))
	}
	return errors.Join(failed...)
}
