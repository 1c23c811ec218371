package tiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/programtest"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// TestPrometheusScrapesAllDaemons runs Debian's Prometheus with deploy/prometheus against a root, a cluster and a
// node with a fake runtime, whose metrics come through its cluster, and evaluates the queries of deploy/grafana.
func TestPrometheusScrapesAllDaemons(t *testing.T) {
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

	dir := t.TempDir()
	write := func(name, text string) { check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	copied := func(name string) string {
		text, err := os.ReadFile(filepath.Join("../../deploy/prometheus", name))
		check(t, err)
		return string(text)
	}
	write("root.token", r.token)
	write("cluster.token", c.token)
	write("treeline-ca.pem", wait(t, filepath.Join(r.cfg.Data, root.CAFile)))
	write("rules.yml", copied("rules.yml"))
	write("rules_test.yml", copied("rules_test.yml"))
	conf := strings.NewReplacer("root.example:7443", strings.TrimPrefix(r.url, "https://"), "c1.example:7444", strings.TrimPrefix(c.url, "https://"), "15s", "1s").
		Replace(copied("prometheus.yml"))
	write("prometheus.yml", conf)
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}, {"check", "config", "prometheus.yml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	var targets []map[string]any
	check(t, c.do(c.token, "GET", "/v1/prometheus/targets", nil, &targets))
	at := startPrometheus(t, dir)
	query := func(q string) (all []sample, err error) {
		resp, err := http.Get(at + "/api/v1/query?query=" + neturl.QueryEscape(q))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		var out struct {
			Status, Error string
			Data          struct{ Result []sample }
		}
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.Status != "success" {
			return nil, fmt.Errorf("%s: %s %w", q, out.Error, err)
		}
		return out.Data.Result, nil
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		resp, err := http.Get(at + "/api/v1/targets")
		if err == nil {
			text, _ := io.ReadAll(resp.Body)
			t.Logf("targets: %s", text)
			resp.Body.Close()
		}
	})
	jobs := []string{"treeline-cluster", "treeline-node", "treeline-root"}
	eventually(t, "Prometheus scrapes all daemons", func() bool {
		var up []string
		found, _ := query(`up == 1`)
		for _, s := range found {
			up = append(up, s.Metric["job"])
		}
		slices.Sort(up)
		return slices.Equal(up, jobs)
	})
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
			found, err := query(q)
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
				if _, err := query(target.Expr); err != nil {
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

type sample struct{ Metric map[string]string }

// startPrometheus runs Prometheus with the configuration in dir and returns its URL.
func startPrometheus(t *testing.T, dir string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0", "--log.format=json")
	cmd.Dir = dir
	logs, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	address, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for dec := json.NewDecoder(logs); ; {
			var line struct{ Msg, Address, Err, Level string }
			if dec.Decode(&line) != nil {
				return
			}
			if line.Level != "info" {
				t.Log(line)
			}
			if line.Msg == "Listening on" {
				address <- line.Address
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = cmd.Wait()
	})
	select {
	case a := <-address:
		return "http://" + a
	case <-ended:
		t.Fatal("prometheus ended")
	}
	return ""
}
