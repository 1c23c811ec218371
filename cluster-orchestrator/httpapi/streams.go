package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

func (a *API) registerStreams() {
	handle(a, huma.Operation{
		OperationID: "renewStream", Method: http.MethodPost, Path: "/v1/auth/streams/{id}", Summary: "Renew stream", Tags: []string{"instances"},
		Errors: []int{404},
		Description: "A stream (logs, captures) ends when the token expires that opened it. Its answer has the headers Treeline-Stream and " +
			"Treeline-Stream-Life (seconds); shown here with a fresh token of the same user and the same rights, it goes on until that expires.",
	}, a.renewStream)
}

type streamIn struct {
	ID string `path:"id" maxLength:"64" doc:"What Treeline-Stream says."`
}

type streamLife struct {
	Life float64 `json:"life_seconds" doc:"For how long the stream goes on; 0: as long as the token counts."`
}

func (a *API) renewStream(ctx context.Context, p rights.Principal, in *streamIn) (*body[streamLife], error) {
	if p.User == "" {
		return nil, fmt.Errorf("renew stream: no token came along: %w", api.ErrUnauthenticated)
	}
	c := callerOf(ctx)
	return &body[streamLife]{streamLife{c.Life.Seconds()}}, a.grants.Renew(in.ID, c.Life, func(was rights.Principal) (func() error, error) {
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
