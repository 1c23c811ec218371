package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxMetrics bounds the metrics of one node, in bytes: some 10,000 series.
const maxMetrics = 2 << 20

// metricsOut is text of Prometheus.
type metricsOut struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// PrometheusTarget is an element of an answer for Prometheus' http_sd_config.
type PrometheusTarget struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// registerMetrics serves the metrics of nodes, which the nodes send through streams that they dial, so that
// a Prometheus reaches nodes behind NATs.
func (a *API) registerMetrics() {
	tag := rest.Tag("metrics")
	text := func(path, id, summary string, r wire.StreamRequest) {
		op := tag.Get(path, summary, 404, 503, 504).Named(id).About("As text of Prometheus. The node's series are its own claims.")
		op.Responses = map[string]*huma.Response{"200": {
			Description: "The metrics.", Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}},
		}}
		handle(a, op, rights.NodesRead, func(ctx context.Context, p rights.Principal, in *nodeIn) (*metricsOut, error) {
			n, err := a.node(ctx, p, in)
			if err != nil {
				return nil, err
			}
			return a.metricsOf(ctx, n.ID, r)
		})
	}
	text("/v1/nodes/{id}/metrics", "nodeMetrics", "Get the metrics of a node engine", wire.StreamRequest{Kind: "metrics"})
	text("/v1/nodes/{id}/net/metrics", "nodeNetMetrics", "Get the metrics of a node's netmanager",
		wire.StreamRequest{Kind: "net", Method: http.MethodGet, Path: netsock.Metrics})
	targets := tag.Get("/v1/prometheus/targets", "List targets for Prometheus").Named("prometheusTargets").
		About("For http_sd_config: the metrics of each node engine and netmanager, at this cluster's address.")
	answer(a, targets, rights.NodesRead, a.prometheusTargets)
}

func (a *API) metricsOf(ctx context.Context, n api.NodeID, r wire.StreamRequest) (*metricsOut, error) {
	r.For = onBehalf(ctx)
	from, err := a.opt.Nodes.Stream(ctx, n, r)
	if err != nil {
		return nil, fmt.Errorf("get the metrics of node %s: %w", n, err)
	}
	defer from.Close()
	defer context.AfterFunc(ctx, func() { _ = from.Close() })()
	text, err := io.ReadAll(io.LimitReader(from, maxMetrics+1))
	if err == nil && len(text) > maxMetrics {
		err = errors.New("they are larger than 2 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("read the metrics of node %s: %s: %w", n, err.Error(), api.ErrUnavailable)
	}
	return &metricsOut{"text/plain; version=0.0.4; charset=utf-8", text}, nil
}

// targetsIn has the host:port at which the caller reaches this cluster.
type targetsIn struct{ host string }

// Resolve implements huma.Resolver.
func (in *targetsIn) Resolve(ctx huma.Context) []error {
	in.host = ctx.Host()
	return nil
}

func (a *API) prometheusTargets(ctx context.Context, _ rights.Principal, in *targetsIn) ([]PrometheusTarget, error) {
	out := []PrometheusTarget{}
	err := a.opt.Owner.Read(ctx, func() {
		for _, n := range a.opt.Core.Nodes() {
			path := "/v1/nodes/" + api.PathOf(n.ID)
			add := func(job, path string) {
				out = append(out, PrometheusTarget{[]string{in.host}, map[string]string{
					"job": job, "instance": string(n.ID), "cluster": string(a.opt.Info().ID), "__metrics_path__": path,
				}})
			}
			add("treeline-node", path+"/metrics")
			if n.Network == api.NetworkOverlay {
				add("treeline-net", path+"/net/metrics")
			}
		}
	})
	return out, err
}
