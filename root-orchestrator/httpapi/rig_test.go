package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// rig is the API over a real core, loop and TLS server. Only the clusters are fake.
type rig struct {
	t        *testing.T
	web      *httpapi.API
	loop     *loop.Loop[root.Input]
	core     *root.Core
	accounts *account.Service
	tokens   *jointoken.Store
	server   *httptest.Server
	clusters *played
	store    *mem.Store
	ring     *jwt.Ring
	sealer   *seal.Sealer
	life     time.Duration // of access tokens; 0: the default
	stop     func()
}

type option func(*httpapi.Options)

func newRig(t *testing.T, options ...option) *rig {
	t.Helper()
	r := &rig{t: t, store: mem.New(), sealer: newSealer(t)}
	r.start(options...)
	return r
}

// start starts the root from the store.
func (r *rig) start(options ...option) {
	t, st := r.t, r.store
	t.Helper()
	loaded, err := store.Load(t.Context(), st)
	check(t, err)
	if r.ring == nil {
		r.ring = jwt.NewRing(time.Now())
	}
	r.core, r.clusters = root.New(root.Config{}), &played{answers: map[string]string{}}
	check(t, r.core.Restore(loaded))
	r.accounts, err = account.New(account.Options{
		Store: st, Loaded: loaded, Ring: r.ring, Issuer: api.TokenIssuer, Audience: api.TokenAudience,
		Cost: account.Cost{MemoryKiB: 8, Passes: 1, Lanes: 1}, AccessLife: r.life,
	})
	check(t, err)
	r.tokens, err = jointoken.NewStore(st, loaded, "https://root.test:7443", func() [32]byte { return [32]byte{1} }, time.Now)
	check(t, err)
	r.loop = loop.New(r.core, st, func(envs []wire.Envelope) {
		var changes []api.Change
		for _, e := range envs {
			if c, ok := e.Msg.(api.Change); ok {
				changes = append(changes, c)
			}
		}
		r.web.Changed(changes...)
	}, loop.Options[root.Input]{Tick: root.Tick{}})
	o := httpapi.Options{
		Core: r.core, Owner: r.loop, Accounts: r.accounts, Tokens: r.tokens, Clusters: r.clusters, Version: "test", Rate: 10_000,
		Store: st, Loaded: loaded, Sealer: r.sealer,
	}
	for _, set := range options {
		set(&o)
	}
	r.web, err = httpapi.New(o)
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.loop.Run(ctx) }()
	r.server = httptest.NewUnstartedServer(r.web.Handler())
	r.server.EnableHTTP2 = true
	r.server.StartTLS()
	server := r.server
	r.stop = sync.OnceFunc(func() {
		server.CloseClientConnections()
		server.Close()
		cancel()
		check(t, <-done)
	})
	t.Cleanup(r.stop)
	check(t, r.loop.Do(t.Context(), root.Start{}, nil))
}

// restart stops the root and starts it again from the store.
func (r *rig) restart(options ...option) {
	r.t.Helper()
	r.stop()
	r.start(options...)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// user creates a user with the roles and the user's tenant, and returns a token.
func (r *rig) user(id account.UserID, roles ...rights.Role) string {
	r.t.Helper()
	ctx := r.t.Context()
	if t := id.Tenant(); t != rights.System {
		if _, err := r.accounts.Tenant(t); err != nil {
			_, err = r.accounts.CreateTenant(ctx, t, "")
			check(r.t, err)
		}
	}
	_, err := r.accounts.CreateUser(ctx, id, "", roles)
	check(r.t, err)
	code, err := r.accounts.Invite(ctx, id, 0)
	check(r.t, err)
	s, err := r.accounts.Redeem(ctx, id, code.Text, "correct horse battery")
	check(r.t, err)
	return s.Access
}

func (r *rig) client(token string) *client.Client {
	r.t.Helper()
	o := client.Options{URL: r.server.URL, HTTP: r.server.Client()}
	if token != "" {
		o.Tokens = client.Static(token)
	}
	c, err := client.New(o)
	check(r.t, err)
	return c
}

func (r *rig) apply(tenant api.Tenant, app string, replicas int) api.App {
	r.t.Helper()
	sla, err := api.ParseSLA([]byte(slaOf(app, replicas)))
	check(r.t, err)
	var out api.App
	check(r.t, r.loop.Do(r.t.Context(), root.Apply{Tenant: tenant, Spec: sla.Applications[0], By: "test"}, func() {
		out, _ = r.core.App(tenant.App(app, "prod"))
	}))
	return out
}

func slaOf(app string, replicas int) string {
	return fmt.Sprintf(`{"sla_version":"v2.0","applications":[{"application_name":%q,"application_namespace":"prod",
		"microservices":[{"microservice_name":"web","microservice_namespace":"v1","virtualization":"container",
		"code":"example.org/web:1","memory":64,"vcpus":0.5,"replicas":%d}]}]}`, app, replicas)
}

// join adds a cluster of the tenant that has reported one node.
func (r *rig) join(id api.ClusterID, tenant api.Tenant) {
	r.t.Helper()
	ctx := r.t.Context()
	check(r.t, r.loop.Do(ctx, root.JoinCluster{Info: api.ClusterInfo{ID: id, Tenant: tenant}}, nil))
	room := api.Resources{MilliCPU: 4000, MemoryMB: 4096, StorageMB: 4096}
	check(r.t, r.loop.Do(ctx, root.Report{Report: wire.Report{
		Cluster: id, Boot: 1, Seq: 1, Whole: true,
		Aggregate: api.Aggregate{
			Nodes: 1, Capacity: room, Free: room, Mean: room, Largest: room,
			Slots: []api.Slot{{Runtime: "container", Arch: "amd64", Network: true, Nodes: 1, Features: []string{api.FeatureScale, api.FeatureStorage}, Free: room, Largest: room}},
		},
	}}, nil))
}

// raw sends a request with the given body and headers.
func (r *rig) raw(method, path, token, body string, header ...string) (int, http.Header, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.server.URL+path, strings.NewReader(body))
	check(r.t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.server.Client().Do(req)
	check(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(r.t, err)
	return resp.StatusCode, resp.Header, string(text)
}

func problemIn(t *testing.T, text string) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal([]byte(text), &p); err != nil || p.Status == 0 {
		t.Fatalf("no problem: %s", text)
	}
	return p
}

// played is a fake Clusters.
type played struct {
	mu      sync.Mutex // guards all below
	asked   []string   // "<cluster> <kind> <method> <path>"
	bodies  string     // the bodies of all requests
	silent  api.ClusterID
	endless bool // streams do not end
	answers map[string]string
	revoked []api.ClusterID

	connected io.ReadWriteCloser // the stream in both directions; nil: not connected
	request   wire.StreamRequest // of Connect

	hold, held chan struct{} // an api request closes held, and waits for hold
	gate       chan struct{} // all requests wait for its close
}

func (p *played) Ask(_ context.Context, c api.ClusterID, r wire.StreamRequest) (io.ReadCloser, error) {
	if p.gate != nil {
		<-p.gate
	}
	if p.hold != nil {
		close(p.held)
		<-p.hold
		p.hold = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", c, r.Kind, r.Method, r.Path)))
	p.bodies += string(r.Body)
	if p.endless {
		body, w := io.Pipe()
		begin := "line 1\n"
		if r.Kind == "api" {
			begin = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\nline 1\n"
		}
		go func() { _, _ = io.WriteString(w, begin) }()
		return body, nil
	}
	if r.Kind == "logs" {
		return io.NopCloser(strings.NewReader("line 1\nline 2\n")), nil
	}
	text, ok := p.answers[r.Method+" "+r.Path]
	if !ok || c == p.silent {
		return nil, fmt.Errorf("cluster %s is not connected: %w", c, api.ErrUnavailable)
	}
	return io.NopCloser(bytes.NewReader([]byte(text))), nil
}

func (p *played) Connect(_ context.Context, c api.ClusterID, r wire.StreamRequest) (io.ReadWriteCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.request = r; p.connected == nil {
		return nil, fmt.Errorf("cluster %s is not connected: %w", c, api.ErrUnavailable)
	}
	return p.connected, nil
}

func (p *played) Revoke(_ context.Context, c api.ClusterID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revoked = append(p.revoked, c)
	return nil
}

// httpAnswer is an HTTP answer as a cluster sends it.
func httpAnswer(status int, body any) string {
	b, _ := json.Marshal(body)
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), len(b), b)
}
