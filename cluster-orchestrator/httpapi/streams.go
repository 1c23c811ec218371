package httpapi

import (
	"context"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
)

func (a *API) renewStream(ctx context.Context, p rights.Principal, in *rest.RenewStream) (rest.StreamLife, error) {
	if p.User == "" {
		return rest.StreamLife{}, fmt.Errorf("renew stream: the request has no token: %w", api.ErrUnauthenticated)
	}
	c := callerOf(ctx)
	return rest.StreamLife{Seconds: c.Life.Seconds()}, a.grants.Renew(in.ID, c.Life, func(was rights.Principal) (func() error, error) {
		if was.User != p.User {
			return nil, fmt.Errorf("stream %q: %w", in.ID, api.ErrNotFound)
		}
		for _, r := range was.Roles {
			if !p.Has(r) {
				return nil, fmt.Errorf("renew stream: the new token does not give %s the role %s: %w", p.User, r, api.ErrForbidden)
			}
		}
		return c.Good, nil
	})
}
