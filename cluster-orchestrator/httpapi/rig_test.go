package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/audit"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The callers in these tests; acme operates the cluster.
var people = map[string]rights.Principal{
	"revoked":  {User: operators.UserOf("night"), Tenant: "acme", Roles: []rights.Role{rights.InfrastructureProvider}},
	"guest":    {User: operators.UserOf("guest"), Tenant: "acme", Roles: []rights.Role{rights.InfrastructureProvider}},
	"own":      {User: "operator", Roles: []rights.Role{rights.Admin}}, // the operator's own token
	"named":    {User: operators.UserOf("backup"), Roles: []rights.Role{rights.Admin}},
	"admin":    {User: "admin", Roles: []rights.Role{rights.Admin}},
	"otto":     {User: "acme/otto", Tenant: "acme", Roles: []rights.Role{rights.InfrastructureProvider}},
	"alice":    {User: "acme/alice", Tenant: "acme", Roles: []rights.Role{rights.ApplicationProvider}},
	"rival":    {User: "rival/eve", Tenant: "rival", Roles: []rights.Role{rights.ApplicationProvider}},
	"operator": {User: "rival/omar", Tenant: "rival", Roles: []rights.Role{rights.InfrastructureProvider}},
}

// rig is the API over a real core with its loop. The test simulates nodes and the root.
type rig struct {
	t    *testing.T
	web  *httpapi.API
	loop *loop.Loop[cluster.Input]
	core *cluster.Core // of loop
	desk *jointoken.Store

	audit *audit.Audit

	mu      sync.Mutex // guards the fields below
	removed []api.NodeID
	asked   wire.StreamRequest
	answer  string // content of a stream, in place of what the test writes there
	stream  io.ReadCloser
	open    func() io.ReadCloser // makes each stream, if set
	both    io.ReadWriteCloser   // a stream in both directions
	hold    func()               // delays requests for streams, if set
	revoked []string             // revoked tokens
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newRig(t *testing.T, with ...func(*httpapi.Options)) *rig {
	t.Helper()
	r := &rig{t: t}
	info := api.ClusterInfo{ID: "munich", Tenant: "acme", Location: "a test"}
	core := cluster.New(cluster.Config{ID: info.ID, LocalNumbers: 1_000_000})
	r.core = core
	r.loop = loop.New(core, mem.New(), r.send, loop.Options[cluster.Input]{
		Tick: cluster.Tick{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	var err error
	r.desk, err = jointoken.NewStore(mem.New(), nil, "https://munich.example:7444", func() [32]byte { return [32]byte{1} }, time.Now)
	check(t, err)
	named, err := operators.New(mem.New(), nil, time.Now)
	check(t, err)
	o := httpapi.Options{
		Operators: named,
		Core:      core, Owner: r.loop, Nodes: r, Tokens: r.desk, Info: func() api.ClusterInfo { return info },
		Authenticate: r.caller,
		AuthenticateOnce: func(token, object string) (httpapi.Caller, error) {
			token, only, _ := strings.Cut(token, " for ")
			if only != object {
				return httpapi.Caller{}, fmt.Errorf("token for %q is shown for %q: %w", only, object, api.ErrForbidden)
			}
			return r.caller(token)
		},
		Authority: noRoot{}, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range with {
		f(&o)
	}
	records, err := audit.New(t.Context(), audit.Options{Cluster: "munich", Store: mem.New(), Recorded: func(e api.Event) { r.web.Recorded(e) }})
	check(t, err)
	o.Audit, r.audit = records, records
	r.web = httpapi.New(o)
	r.step(cluster.Start{})
	return r
}

// send passes changes to watchers, as the wiring does.
func (r *rig) send(envs []wire.Envelope) {
	for _, e := range envs {
		if c, ok := e.Msg.(api.Change); ok && e.To == wire.ToWatchers {
			r.web.Changed(c)
		}
	}
}

func (r *rig) caller(token string) (httpapi.Caller, error) {
	p, ok := people[token]
	if !ok {
		return httpapi.Caller{}, fmt.Errorf("token %q: %w", token, api.ErrUnauthenticated)
	}
	return httpapi.Caller{Principal: p, Own: token == "own", Good: func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if slices.Contains(r.revoked, token) {
			return fmt.Errorf("token %q is revoked: %w", token, api.ErrUnauthenticated)
		}
		return nil
	}}, nil
}

// Remove implements Nodes.
func (r *rig) Remove(_ context.Context, n api.NodeID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(r.removed, n)
	return nil
}

// Stream implements Nodes.
func (r *rig) Stream(_ context.Context, n api.NodeID, q wire.StreamRequest) (io.ReadCloser, error) {
	if r.hold != nil {
		r.hold()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = q
	if r.open != nil {
		return r.open(), nil
	}
	if r.stream != nil {
		return r.stream, nil
	}
	if r.answer != "" {
		return io.NopCloser(strings.NewReader(r.answer)), nil
	}
	return io.NopCloser(strings.NewReader("written on " + string(n) + "\n")), nil
}

// Connect implements Nodes.
func (r *rig) Connect(_ context.Context, n api.NodeID, q wire.StreamRequest) (io.ReadWriteCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked = q; r.both == nil {
		return nil, fmt.Errorf("node %s did not answer: %w", n, api.ErrTimeout)
	}
	return r.both, nil
}

func (r *rig) step(in cluster.Input) {
	r.t.Helper()
	check(r.t, r.loop.Do(r.t.Context(), in, nil))
}

// join joins a node with two vCPUs that takes work.
func (r *rig) join(id api.NodeID) {
	r.t.Helper()
	info := api.NodeInfo{ID: id, Runtimes: []string{"container"}, Arch: "amd64", Capacity: api.Resources{MilliCPU: 2000, MemoryMB: 1024}}
	r.step(cluster.JoinNode{Info: info})
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: id, Boot: 1, Seq: 1, Whole: true, Info: &info}})
	r.step(cluster.NodeAlive{Node: id, Alive: wire.Alive{Boot: 1, Seq: 1}})
}

// want adds instances of a tenant's service to the root's desired set.
func (r *rig) want(gen api.Generation, all ...wire.Assignment) {
	r.t.Helper()
	var d api.Digest
	for _, a := range all {
		d = d.Toggle(a.Digest())
	}
	r.step(cluster.Desired{Desired: wire.Desired{Gen: gen, Put: all, Digest: d}})
}

func instance(id api.InstanceID, memory int64) wire.Assignment {
	return wire.Assignment{
		Instance: id, Epoch: api.EpochOf(1, 0), SpecRev: 1,
		Spec: api.Microservice{Name: "web", Namespace: "v1", Virtualization: "container", Code: "web:1", Memory: memory, VCPUs: 0.5},
	}
}

// raw sends a request and returns the response.
func (r *rig) raw(who, method, path, body string) *httptest.ResponseRecorder {
	r.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	w := httptest.NewRecorder()
	r.web.Handler().ServeHTTP(w, req)
	return w
}

// ask sends a request that must have the status. It decodes the response, or the problem of a
// refusal, into out.
func (r *rig) ask(who, method, path string, in any, status int, out any) api.Problem {
	r.t.Helper()
	body := ""
	if in != nil {
		b, err := json.Marshal(in)
		check(r.t, err)
		body = string(b)
	}
	w := r.raw(who, method, path, body)
	if w.Code != status {
		r.t.Errorf("%s %s as %q: %d %s, want %d", method, path, who, w.Code, w.Body, status)
		return api.Problem{}
	}
	var p api.Problem
	switch {
	case status >= 300:
		if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
			r.t.Errorf("%s %s as %q: Content-Type %s", method, path, who, ct)
		}
		check(r.t, json.Unmarshal(w.Body.Bytes(), &p))
		if p.Status != status || p.Code == "" || p.Detail == "" {
			r.t.Errorf("%s %s as %q: problem %+v", method, path, who, p)
		}
	case out != nil:
		check(r.t, json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(out))
	}
	return p
}
