package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
)

func (a *API) registerStreams() {
	handle(a, huma.Operation{
		OperationID: "renewStream", Method: http.MethodPost, Path: "/v1/auth/streams/{id}", Summary: "Renew stream", Tags: []string{"instances"},
		Errors:      []int{404},
		Description: rest.AboutRenewal,
	}, a.renewStream)
}

func (a *API) renewStream(ctx context.Context, p rights.Principal, in *rest.RenewStream) (*body[rest.StreamLife], error) {
	if p.User == "" {
		return nil, fmt.Errorf("renew stream: no token came along: %w", api.ErrUnauthenticated)
	}
	c := callerOf(ctx)
	return &body[rest.StreamLife]{rest.StreamLife{Seconds: c.Life.Seconds()}}, a.grants.Renew(in.ID, c.Life, func(was rights.Principal) (func() error, error) {
		if was.User != p.User {
			return nil, fmt.Errorf("stream %q: %w", in.ID, api.ErrNotFound)
		}
		for _, r := range was.Roles {
			if !p.Has(r) {
				return nil, fmt.Errorf("renew stream: the fresh token does not make %s %s: %w", p.User, r, api.ErrForbidden)
			}
		}
		return c.Good, nil
	})
}
