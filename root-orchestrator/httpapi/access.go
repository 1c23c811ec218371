package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

func (a *API) registerAccess() {
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/clusters/{id}/access", Summary: "Exchange token for a cluster", Tags: []string{"clusters"},
		Errors: []int{404}, OperationID: "exchangeToken",
		Description: "Answers with a token for the cluster's own API, which takes neither access tokens nor personal tokens of the root. " +
			"It has the asker's rights, counts at this cluster alone, and lives a few minutes, no longer than the token that was shown.",
	}, rights.ClustersRead, a.exchange)
}

type accessOut struct {
	CacheControl string `header:"Cache-Control"`
	Body         api.ClusterAccess
}

func (a *API) exchange(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" doc:"The cluster."`
},
) (*accessOut, error) {
	c, err := a.cluster(ctx, p, rights.ClustersRead, api.ClusterID(in.ID))
	if err != nil {
		return nil, err
	}
	text, expires, err := a.opt.Accounts.Exchange(asker(ctx), api.ClusterAudience(c.ID))
	return &accessOut{CacheControl: "no-store", Body: api.ClusterAccess{Cluster: c.ID, Token: text, Expires: expires}}, err
}
