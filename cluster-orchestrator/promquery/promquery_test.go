package promquery

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/programtest"
)

func service(tenant string) api.ServiceID { return api.ServiceID(tenant + "/a.n.s.n") }

// run starts an Evaluator, and returns what it posts.
func run(t *testing.T, url string) (*Evaluator, chan cluster.Queried) {
	got := make(chan cluster.Queried, 1000)
	e := New(Options{URL: url, Label: "tenant", Post: func(in cluster.Input) { got <- in.(cluster.Queried) }, Every: 100 * time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return e, got
}

func TestAnAnswerIsOneNumber(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"success","data":{"resultType":"scalar","result":[1,"4.5"]}}`:                             "4.5",
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"7"]}]}}`:       "7",
		`{"status":"success","data":{"resultType":"vector","result":[]}}`:                                    "no value",
		`{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"7"]},{"value":[1,"8"]}]}}`: "several values",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"NaN"]}}`:                             "not a number",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"+Inf"]}}`:                            "not a number",
		`{"status":"success","data":{"resultType":"scalar","result":[1,7]}}`:                                 "not a number",
		`{"status":"success","data":{"resultType":"scalar","result":{}}}`:                                    "decode",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`:                                    "is a matrix",
		`{"status":"error","error":"query timed out"}`:                                                       "query timed out",
		`<html>`: "status 200",
		`{"status":"success","data":{"resultType":"vector","result":[` + strings.Repeat(" ", maxAnswer) + `]}}`: "more than 64 KiB",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("query") != `up{tenant="acme/team"}` || r.FormValue("timeout") != "5s" || r.URL.Path != "/prefix/api/v1/query" {
				t.Errorf("request %s %v", r.URL, r.Form)
			}
			fmt.Fprint(w, body)
		}))
		e := New(Options{URL: s.URL + "/prefix/", Label: "tenant"})
		v, err := e.evaluate(t.Context(), service("acme/team"), "up")
		got := fmt.Sprint(v)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%.100s gives %s, want %s", body, got, want)
		}
		s.Close()
	}
	e := New(Options{URL: "http://127.0.0.1:1", Label: "tenant"})
	if _, err := e.evaluate(t.Context(), service("acme"), "up"); err == nil || strings.Contains(err.Error(), "http://") {
		t.Errorf("without a server: %v, want an error without its URL", err)
	}
}

// Expressions of a tenant that take as long as they can leave a turn for another tenant's.
func TestSlowExpressionsOfATenantDelayNobodyElse(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.FormValue("query"), "acme") {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"4"]}}`)
			return
		}
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-r.Context().Done()
		mu.Lock()
		now--
		mu.Unlock()
	}))
	defer s.Close()
	e, got := run(t, s.URL)
	all := autoscale.Queries{}
	for n := range autoscale.MaxTenantExpressions {
		all[service(fmt.Sprintf("hostile/team%d", n))] = "up"
	}
	e.Set(all)
	more := autoscale.Queries{service("acme"): "up"}
	for id, q := range all {
		more[id] = q
	}
	e.Set(more)
	for in := range got {
		if in.Service == service("acme") {
			if in.Value != 4 || in.Fault != "" {
				t.Errorf("%+v", in)
			}
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if most > 1 {
		t.Errorf("%d expressions of a tenant were evaluated at the same time, want 1", most)
	}
}

// A real Prometheus server with series of two tenants: each reads its own, whatever it writes.
func TestATenantReadsItsOwnSeriesOnly(t *testing.T) {
	programtest.Need(t, "prometheus")
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "jobs{tenant=\"acme\",queue=\"a\"} 30\njobs{tenant=\"acme\",queue=\"b\"} 12\njobs{tenant=\"other\"} 1000\n")
	}))
	defer metrics.Close()
	ln, err := freeport.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	ln.Close()
	dir := t.TempDir()
	conf := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs:\n- job_name: jobs\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  static_configs:\n  - targets: [%q]\n", metrics.Listener.Addr())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file", conf, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	e := New(Options{URL: "http://" + at, Label: "tenant"})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		v, err := e.evaluate(t.Context(), service("acme"), "sum(jobs)")
		if err == nil && v == 42 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the sum of the tenant's series is %g, %v; want 42", v, err)
		}
	}
	for query, want := range map[string]string{
		`sum(jobs{queue="a"})`:                        "30",
		`sum(jobs{tenant="other"})`:                   "no value",
		`sum(jobs{tenant=~".*"})`:                     "42",
		`sum({__name__=~".+", tenant=~"other|acme"})`: "42",
		`count(up)`: "no value",
		`scalar(jobs{tenant="other"} or vector(7))`: "7",
		`jobs`: "several values",
		`label_replace(jobs{queue="a"}, "tenant", "other", "", "")`: "30",
	} {
		v, err := e.evaluate(t.Context(), service("acme"), query)
		got := fmt.Sprint(v)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s gives %s, want %s", query, got, want)
		}
	}
}
