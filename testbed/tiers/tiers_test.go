package tiers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

func TestMain(m *testing.M) {
	runReplica()
	leaktest.Main(m)
}

// patience bounds the wait for an event: thousands of instances on a busy machine.
const patience = 3 * time.Minute

// life is one run of a daemon in this process.
type life struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan error
}

func begin(t *testing.T, run func(context.Context) error) *life {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{t: t, cancel: cancel, ended: make(chan error, 1)}
	go func() {
		err := run(ctx)
		if err != nil {
			t.Errorf("daemon ended: %v", err)
		}
		l.ended <- err
	}()
	t.Cleanup(l.stop)
	return l
}

func (l *life) stop() {
	l.cancel()
	err := <-l.ended
	l.ended <- err // for the cleanup
}

func quiet(t *testing.T) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// tier is a running cluster.
type tier struct {
	*life
	ca    *x509.Certificate // the root's
	cfg   cluster.Config
	url   string
	token string // the operator's
	http  *http.Client
	log   *slog.Logger // nil: quiet
}

func startCluster(t *testing.T, root *fakeRoot) *tier {
	t.Helper()
	c := newCluster(t, root.ca.Root(), root.token())
	c.run(t)
	return c
}

// newCluster returns a cluster that does not run yet.
func newCluster(t *testing.T, root *x509.Certificate, token string) *tier {
	c := &tier{ca: root, cfg: cluster.Defaults()}
	c.cfg.Data, c.cfg.Listen, c.cfg.Name = filepath.Join(t.TempDir(), "cluster"), "127.0.0.1:0", "munich"
	c.cfg.Token = daemon.Secret(token)
	c.cfg.Dead = 2 * time.Minute // no re-placement, however long the machine stalls
	return c
}

func (c *tier) run(t *testing.T) {
	t.Helper()
	check(t, c.cfg.Validate())
	_ = os.Remove(filepath.Join(c.cfg.Data, cluster.AddressFile)) // it may be from an earlier run
	cfg, log := c.cfg, c.log
	if log == nil {
		log = quiet(t)
	}
	c.life = begin(t, func(ctx context.Context) error { return cluster.Run(ctx, cfg, log) })
	address := strings.TrimSpace(wait(t, filepath.Join(c.cfg.Data, cluster.AddressFile)))
	c.cfg.Listen = address // a restart keeps it
	c.url = "https://" + address
	c.token = strings.TrimSpace(wait(t, filepath.Join(c.cfg.Data, cluster.OperatorFile)))
	v := trust.New(c.ca)
	tr := &http.Transport{TLSClientConfig: v.Client(identity.OfCluster("munich"), nil), ForceAttemptHTTP2: true}
	c.http = &http.Client{Transport: tr}
	t.Cleanup(tr.CloseIdleConnections)
}

// wait reads a file as soon as it exists.
func wait(t *testing.T, path string) string {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		b, err := os.ReadFile(path)
		if err == nil && len(b) > 0 {
			return string(b)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not appear", path)
		}
		time.Sleep(5 * time.Millisecond) // files have no events
	}
}

// credentialsOfNode returns a node's credentials in its data directory, and its certificate for connections in its name.
func credentialsOfNode(t *testing.T, data string) (clusterlink.Credentials, *keeper.Keeper) {
	t.Helper()
	dir, err := os.OpenRoot(data)
	check(t, err)
	defer dir.Close()
	creds, err := clusterlink.Load(dir)
	check(t, err)
	k, err := keeper.New(keeper.Options{Pair: creds.Pair})
	check(t, err)
	return creds, k
}

// do sends a request to the cluster's API with the token. It waits as long as the rate of requests is exceeded, as clients do.
func (c *tier) do(token, method, path string, in, out any) error {
	deadline := time.Now().Add(patience)
	for {
		err := c.try(token, method, path, in, out)
		if !errors.Is(err, api.ErrTooMany) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// raw sends a request to the cluster's API with the token.
func (c *tier) raw(token, method, path string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	check(c.t, err)
	req, err := http.NewRequest(method, c.url+path, bytes.NewReader(body))
	check(c.t, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return call.Do(c.http, req)
}

func (c *tier) try(token, method, path string, in, out any) error {
	resp, err := c.raw(token, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out != nil {
		check(c.t, json.NewDecoder(resp.Body).Decode(out))
	}
	return nil
}

func (c *tier) nodeToken(req api.TokenRequest) string {
	c.t.Helper()
	var tok api.JoinToken
	check(c.t, c.do(c.token, "POST", "/v1/tokens", req, &tok))
	return tok.Token
}

func (c *tier) nodeConfig(t *testing.T, name, token string) node.Config {
	cfg := node.Defaults()
	cfg.Data = filepath.Join(t.TempDir(), "n")
	cfg.Name, cfg.Token, cfg.CPUs, cfg.Memory = name, daemon.Secret(token), 4, 4096
	cfg.Fake = newRuntime()
	return cfg
}

// startNode joins a node and waits until it has reported to the cluster.
func (c *tier) startNode(t *testing.T, name string) (*life, node.Config) {
	t.Helper()
	cfg := c.nodeConfig(t, name, c.nodeToken(api.TokenRequest{}))
	l := begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.until(t, api.NodeID(name), api.NodeReady)
	return l, cfg
}

func (c *tier) until(t *testing.T, n api.NodeID, s api.NodeStatus) api.Node {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var v api.Node
		err := c.do(c.token, "GET", "/v1/nodes/"+string(n), nil, &v)
		if err == nil && v.Status == s {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %s is %q (%v), want %q", n, v.Status, err, s)
		}
		time.Sleep(5 * time.Millisecond) // the API has no watch
	}
}

func web(n int) wire.Assignment {
	return wire.Assignment{
		Instance: api.ServiceID("acme/shop.prod.web.v1").Instance(n), Epoch: api.EpochOf(7, 0), SpecRev: 7,
		Spec: api.Microservice{Name: "web", Namespace: "v1", Virtualization: "container", Code: "web:1", Memory: 64, VCPUs: 0.5},
	}
}

func TestDesiredComesDownAndObservedGoesUp(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	_, cfg := c.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	root.until("there is a node", func(r wire.Report) bool { return r.Aggregate.Nodes == 1 && r.Aggregate.Free.MilliCPU == 4000 })

	began := time.Now()
	root.set(web(0))
	o := root.observed(web(0).Instance, api.Running)
	t.Logf("desired to running and reported in %s", time.Since(began))
	if o.Node != "" || o.Epoch.Root() != 7 {
		t.Errorf("observed %+v, want no node in the report to the root", o)
	}
	if got := rt.running(); len(got) != 1 || got[0].Instance != web(0).Instance {
		t.Errorf("the runtime runs %v, want only the desired instance", got)
	}

	// The node reports a crash to the root and then restarts the workload.
	goOn := rt.pause()
	rt.kill(rt.running()[0], 3)
	failed := root.observed(web(0).Instance, api.Failed)
	goOn()
	if failed.Reason != api.ReasonExited || failed.ExitCode == nil || *failed.ExitCode != 3 {
		t.Errorf("unexpected report after the crash: %+v", failed)
	}
	root.until("it runs again", func(r wire.Report) bool {
		return len(r.Observed) == 1 && r.Observed[0].State == api.Running && r.Observed[0].Restarts == 1
	})

	root.set()
	root.until("it is gone", func(r wire.Report) bool { return len(r.Observed) == 1 && r.Observed[0].Stopped })
	if len(rt.running()) != 0 {
		t.Errorf("after the withdrawal the runtime runs %v, want nothing", rt.running())
	}
}

func TestLogsAndTheAPIReachTheRootOverStreams(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	alice := func(q wire.StreamRequest) wire.StreamRequest {
		return root.as(q, "acme/alice", "acme", rights.ApplicationProvider)
	}
	logs := wire.StreamRequest{Kind: "logs", Instance: web(0).Instance, Tail: 5}
	text, err := root.ask(t.Context(), alice(logs))
	if err != nil || string(text) != "tail 5 of acme/shop.prod.web.v1#0\n" {
		t.Errorf("logs %q, %v", text, err)
	}
	if _, err := root.ask(t.Context(), root.as(logs, "evil/eve", "evil", rights.ApplicationProvider)); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("logs of another tenant: %v, want not found", err)
	}
	logs.Instance = web(1).Instance
	if _, err := root.ask(t.Context(), alice(logs)); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("logs of an instance that does not exist: %v, want not found", err)
	}

	get := wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/nodes"}
	text, err = root.ask(t.Context(), root.as(get, "acme/otto", "acme", rights.InfrastructureProvider))
	check(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
	check(t, err)
	var page api.Page[api.Node]
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || resp.StatusCode != 200 || len(page.Items) != 1 {
		t.Errorf("nodes through the root: status %d, %+v, %v", resp.StatusCode, page, err)
	}
	_ = resp.Body.Close()
	text, err = root.ask(t.Context(), alice(get))
	if err != nil || !bytes.HasPrefix(text, []byte("HTTP/1.1 403 ")) {
		t.Errorf("nodes for a developer: %.40q, %v; want them refused", text, err)
	}

	// A followed log ends on the node when the reader disconnects.
	req, err := http.NewRequest("GET", c.url+"/v1/instances/"+api.PathOf(web(0).Instance)+"/logs?follow=true", nil)
	check(t, err)
	req.Header.Set("Authorization", "Bearer "+root.bearer("acme/alice", "acme", rights.ApplicationProvider))
	follow, err := call.Do(c.http, req)
	check(t, err)
	line, err := bufio.NewReader(follow.Body).ReadString('\n')
	if err != nil || line != "first line\n" {
		t.Errorf("followed %q, %v", line, err)
	}
	_ = follow.Body.Close() // leaktest checks that the stream ends
}

func TestRestartsKeepWorkloads(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	n, cfg := c.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)

	n.stop()
	if len(rt.running()) != 1 {
		t.Fatal("the workload ended with the engine")
	}
	cfg.Token = "" // the credentials exist
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.until(t, "n1", api.NodeReady)

	c.stop()
	c.cfg.Token = ""
	root.mu.Lock()
	root.reports = nil
	root.mu.Unlock()
	c.run(t)
	c.until(t, "n1", api.NodeReady)
	root.observed(web(0).Instance, api.Running)
	if creates, stops := rt.counts(); creates != 1 || stops != 0 || len(rt.running()) != 1 {
		t.Errorf("%d creations and %d stops after two restarts, %d run; want 1, 0, 1", creates, stops, len(rt.running()))
	}
}

func TestClusterStartsWithoutItsRoot(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	_, cfg := c.startNode(t, "n1")
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	c.stop()
	root.CloseClientConnections()
	root.Close()
	c.run(t)
	c.until(t, "n1", api.NodeReady)
	var s struct {
		Root      bool `json:"root_connected"`
		Instances int
	}
	check(t, c.do(c.token, "GET", "/v1/status", nil, &s))
	if s.Root || s.Instances != 1 || len(cfg.Fake.(*fakeRuntime).running()) != 1 {
		t.Errorf("status %+v", s)
	}
	// The operator scales while the root is down.
	check(t, c.do(c.token, "POST", "/v1/services/"+api.PathOf(web(0).Instance.Service())+"/scale", api.Replicas{Replicas: 2}, nil))
	for deadline := time.Now().Add(patience); len(cfg.Fake.(*fakeRuntime).running()) != 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second instance did not start")
		}
	}
}

func TestWhoMayJoin(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	tok := c.nodeToken(api.TokenRequest{})
	cfg := c.nodeConfig(t, "n1", tok)
	id, err := node.Join(t.Context(), cfg, quiet(t))
	if err != nil || id != "n1" {
		t.Fatal(id, err)
	}
	if again, err := node.Join(t.Context(), cfg, quiet(t)); err != nil || again != "n1" {
		t.Errorf("a joined node joined again as %s, %v; want the same name", again, err)
	}
	refused := func(what string, cfg node.Config, kind error) {
		t.Helper()
		if id, err := node.Join(t.Context(), cfg, quiet(t)); !errors.Is(err, kind) {
			t.Errorf("%s: %q, %v; want %v", what, id, err, kind)
		}
	}
	refused("a token that is used up", c.nodeConfig(t, "n2", tok), api.ErrUnauthenticated)
	refused("another's name", c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{})), api.ErrConflict)
	refused("the cluster's name", c.nodeConfig(t, "cluster", c.nodeToken(api.TokenRequest{})), api.ErrInvalid)

	short := c.nodeToken(api.TokenRequest{TTL: 1})
	time.Sleep(1100 * time.Millisecond) // the expiry uses the wall clock
	refused("an expired token", c.nodeConfig(t, "n3", short), api.ErrUnauthenticated)

	other := newRoot(t)
	elsewhere := startCluster(t, other)
	foreign := elsewhere.nodeToken(api.TokenRequest{})
	refused("a node that has joined, with another installation's token of the same cluster's name", c.nodeConfig(t, "n4", strings.Replace(foreign, ".", ".x", 1)), api.ErrInvalid)
	refused("a token for a cluster", c.nodeConfig(t, "n5", root.token()), api.ErrInvalid)

	// A token of another cluster.
	err = call.JSON(t.Context(), c.http, c.url+"/v1/join/node", wire.JoinNode{Token: foreign, CSR: request(t)}, nil)
	if !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("join with another cluster's token: %v, want it refused", err)
	}
	if anon, err := node.Join(t.Context(), c.nodeConfig(t, "", c.nodeToken(api.TokenRequest{})), quiet(t)); err != nil || anon == "" {
		t.Errorf("join without a name: %q, %v", anon, err)
	}
}

func request(t *testing.T) string {
	_, csr, err := ca.NewRequest()
	check(t, err)
	return enrol.EncodeRequest(csr)
}

func TestNodeSpeaksForItselfOnly(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
	_, err := node.Join(t.Context(), cfg, quiet(t))
	check(t, err)
	creds, k := credentialsOfNode(t, cfg.Data)
	v := trust.New(creds.Pair.Root())
	conf := v.Client(identity.OfCluster("munich"), k.GetClientCertificate)
	conf.NextProtos = []string{"mqtt"}
	dial := func(id string) *mqtt.Client {
		b, err := mqtt.Dial(mqtt.Options{Addr: strings.TrimPrefix(c.url, "https://"), ClientID: id, TLS: conf, Log: quiet(t)})
		check(t, err)
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	b := dial("n1")
	for up := range b.Up() {
		if up {
			break
		}
	}
	// n1 can neither report about n2 nor read about n2.
	if err := b.Subscribe(t.Context(), topic.Desired.Of("n2"), 1, nil); err == nil {
		t.Error("n1 received n2's desired set")
	}

	// Without a certificate MQTT is refused.
	bare := v.Client(identity.OfCluster("munich"), nil)
	bare.NextProtos = []string{"mqtt"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(c.url, "https://"), bare)
	if err == nil {
		if greeted(conn, "n1") {
			t.Error("the broker accepted a client without a certificate")
		}
		_ = conn.Close()
	}

	// A removed node is refused everywhere.
	check(t, c.do(c.token, "DELETE", "/v1/nodes/n1", nil, nil))
	cluster := clusterlink.NewCluster(v, creds, k.GetClientCertificate)
	defer cluster.HTTP.CloseIdleConnections()
	if _, err := cluster.Renew(t.Context(), nil); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("renewal by a removed node: %v, want it refused", err)
	}
	for up := range b.Up() {
		if !up {
			break
		}
	}
}

// greeted sends CONNECT to a broker and reports whether it accepts the client.
func greeted(conn *tls.Conn, client string) bool {
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = conn.Write(append([]byte{0x10, byte(12 + len(client)), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 60, 0, byte(len(client))}, client...))
	answer := make([]byte, 4)
	_, err := io.ReadFull(conn, answer)
	return errors.Is(err, os.ErrDeadlineExceeded) || err == nil && answer[3] == 0
}

func TestWhoMayOperate(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	for who, want := range map[string]error{
		"": api.ErrUnauthenticated, "nonsense": api.ErrUnauthenticated, c.token: nil,
		root.bearer("admin", "", rights.Admin):                          nil,
		root.bearer("acme/otto", "acme", rights.InfrastructureProvider): nil,
		root.bearer("acme/alice", "acme", rights.ApplicationProvider):   api.ErrForbidden,
		root.bearer("evil/eve", "evil", rights.InfrastructureProvider):  api.ErrNotFound,
		newRoot(t).bearer("admin", "", rights.Admin):                    api.ErrUnauthenticated,
	} {
		for _, route := range [][2]string{{"GET", "/v1/nodes"}, {"POST", "/v1/nodes/n1/cordon"}, {"POST", "/v1/nodes/n1/uncordon"}, {"GET", "/v1/tokens"}} {
			err := c.do(who, route[0], route[1], nil, nil)
			if want == nil && err != nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s %s as %.12q: %v, want %v", route[0], route[1], who, err, want)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz?verbose", "/metrics", "/version", "/v1/openapi.json", "/v1/docs", "/docs/", "/docs/how-to/operator", "/ui/"} {
		resp, err := c.http.Get(c.url + path)
		check(t, err)
		text, err := io.ReadAll(resp.Body)
		check(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || len(text) == 0 {
			t.Errorf("%s: %d %q", path, resp.StatusCode, text)
		}
	}
}
