package tiers

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/programtest"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
	"github.com/treeline-edge/treeline/testbed/promtest"
)

// TestDashboardsFindTheirMetrics runs Debian's Prometheus with deploy/prometheus against a root, a cluster and a node
// with a fake runtime, whose metrics come through its cluster, and evaluates the queries of deploy/grafana. The lab's
// TestServicesTalkAcrossClusters scrapes netmanagers too.
func TestDashboardsFindTheirMetrics(t *testing.T) {
	programtest.Need(t, "prometheus", "promtool")
	r := startRoot(t, func(*root.Config) {})
	r.user(t, "acme/alice", "Application_Provider")
	tok, err := r.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, r.anchor(t), tok.Token)
	c.run(t)
	cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.until(t, "n1", api.NodeReady)
	doc := `{"sla_version":"v2.0","customerID":"x","applications":[{"application_name":"a","application_namespace":"p","microservices":[
		{"microservice_name":"x","microservice_namespace":"p","virtualization":"container","code":"x:1","memory":1,"network":"any","replicas":2},
		{"microservice_name":"large","microservice_namespace":"p","virtualization":"container","code":"x:1","memory":100000,"network":"any"}]}]}`
	_, err = r.admin.Apply(t.Context(), []byte(doc), client.ApplyOptions{Tenant: "acme"})
	check(t, err)

	prom := promtest.Start(t, promtest.Target{
		Root: strings.TrimPrefix(r.url, "https://"), RootToken: r.token, Cluster: strings.TrimPrefix(c.url, "https://"), ClusterToken: c.token,
		CA: []byte(wait(t, filepath.Join(r.cfg.Data, root.CAFile))),
	})
	prom.Scrapes(t, "treeline-cluster", "treeline-node", "treeline-root")
	for _, q := range []string{
		`treeline_instances{job="treeline-root",state="running"} == 2`,
		`treeline_instances{job="treeline-node",instance="n1",cluster="munich",state="running"} == 2`,
		`sum(treeline_unplaceable{job="treeline-root"}) == 1`,
		`treeline_node_resource_allocated{node="n1",resource="memory"} > 0`,
		`treeline_node_resource_capacity{node="n1",resource="cpu"} == 4`,
		`treeline_instance_start_duration_seconds_count{stage="total"} == 2`,
		`treeline_schedule_duration_seconds_count{tier="root",result="placed"} >= 2`,
		`count(treeline_control_bytes_total > 0) == 2`,
		`http_server_request_duration_seconds_count{job="treeline-root",route="/v1/apps",method="PUT",status="200"} == 1`,
	} {
		eventually(t, q, func() bool {
			found, err := prom.Query(q)
			check(t, err)
			return len(found) > 0
		})
	}
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	check(t, err)
	for _, path := range files {
		text, err := os.ReadFile(path)
		check(t, err)
		var dashboard struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		check(t, json.Unmarshal(text, &dashboard))
		for _, p := range dashboard.Panels {
			for _, target := range p.Targets {
				if _, err := prom.Query(target.Expr); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
	for _, path := range []string{"/v1/nodes/n1/metrics", "/v1/nodes/n1/net/metrics", "/v1/prometheus/targets"} {
		if err := c.do("", "GET", path, nil, nil); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("GET %s without a token: %v", path, err)
		}
	}
}
