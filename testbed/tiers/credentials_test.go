package tiers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// hostile is a cluster that has joined and records every byte that it receives.
type hostile struct {
	t    *testing.T
	dir  string // its credentials
	url  string
	http *http.Client

	mu   sync.Mutex // guards seen
	seen bytes.Buffer
}

func joinHostile(t *testing.T, line string, name api.ClusterID) *hostile {
	t.Helper()
	h := &hostile{t: t, dir: t.TempDir()}
	dir, err := os.OpenRoot(h.dir)
	check(t, err)
	defer dir.Close()
	creds, err := rootlink.Join(t.Context(), dir, line, api.ClusterInfo{ID: name, Location: "a test"})
	check(t, err)
	h.url = creds.URL
	authority, err := ca.New(creds.Pair)
	check(t, err)
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := authority.SignOwn(time.Now(), csr)
	check(t, err)
	k, err := keeper.New(keeper.Options{Pair: ca.Pair{Chain: chain, Key: key}})
	check(t, err)
	tr := &http.Transport{TLSClientConfig: trust.New(creds.Pair.Root()).Client(identity.OfRoot(), k.GetClientCertificate), ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	h.http = &http.Client{Transport: tr}
	return h
}

// serve records the root's stream, answers requests, and claims capacity, until the returned
// function is called.
func (h *hostile) serve(name api.ClusterID) (stop func()) {
	h.t.Helper()
	resp, err := h.http.Get(h.url + "/v1/cluster/desired?since=0&digest=0")
	check(h.t, err)
	room := api.Resources{MilliCPU: 64000, MemoryMB: 65536, StorageMB: 65536}
	check(h.t, call.JSON(h.t.Context(), h.http, h.url+"/v1/cluster/report", wire.Report{Cluster: name, Boot: 1, Seq: 1, Aggregate: api.Aggregate{
		Nodes: 1, Capacity: room, Free: room, Mean: room, Largest: room,
		Slots: []api.Slot{{Runtime: "container", Arch: "amd64", Network: true, Nodes: 1, Free: room, Largest: room}},
	}}, nil))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var wg sync.WaitGroup
		defer wg.Wait()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			h.mu.Lock()
			h.seen.Write(lines.Bytes())
			h.seen.WriteByte('\n')
			h.mu.Unlock()
			var r wire.StreamRequest
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(data), &r) == nil && r.ID != "" {
				wg.Go(func() { h.answer(r) })
			}
		}
	}()
	return func() {
		_ = resp.Body.Close()
		<-ended
	}
}

// answer sends an empty object, and records the root's response.
func (h *hostile) answer(r wire.StreamRequest) {
	body := "a line\n"
	if r.Kind == "api" {
		body = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"items\":[]}"
	}
	resp, err := h.http.Post(h.url+"/v1/cluster/streams/"+r.ID, "application/octet-stream", strings.NewReader(body))
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen.Write(text)
	_ = resp.Header.Write(&h.seen)
}

var jwtRE = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

func (h *hostile) recorded() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen.String()
}

// routes returns the operations of an OpenAPI document, with a value for each parameter.
func routes(t *testing.T, document string) (all [][2]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", document))
	check(t, err)
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	check(t, json.Unmarshal(text, &doc))
	for path, ops := range doc.Paths {
		path = strings.NewReplacer("{node}", "n1", "{token}", "x", "/clusters/{id}", "/clusters/munich", "/nodes/{id}", "/nodes/n1",
			"/instances/{id}", "/instances/acme~shop.prod.web.v1~0", "{id}", "acme~shop.prod").Replace(path)
		for method := range ops {
			all = append(all, [2]string{strings.ToUpper(method), path})
		}
	}
	slices.SortFunc(all, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	if len(all) < 10 {
		t.Fatalf("%s has only %d operations", document, len(all))
	}
	return all
}

// elsewhere returns the client with an unused source address, because refused tokens are
// rate-limited by address.
func elsewhere(t *testing.T, c *http.Client) *http.Client {
	n := addresses.Add(1)
	tr := c.Transport.(*http.Transport).Clone()
	tr.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 3, byte(n>>8), byte(n))}}).DialContext
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

var addresses atomic.Uint32

// unusableAt sends the token to every route and requires that each refuses it.
func unusableAt(t *testing.T, what, token string, c *http.Client, url, document string) {
	t.Helper()
	for i, r := range routes(t, document) {
		if i%30 == 0 {
			c = elsewhere(t, c)
		}
		req, err := http.NewRequestWithContext(t.Context(), r[0], url+r[1], strings.NewReader("{}"))
		check(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("If-Match", "*")
		resp, err := c.Do(req)
		check(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s %s answered %s, want 401 or 403", what, r[0], r[1], resp.Status)
		}
	}
}

// A hostile cluster records everything that it gets from the root while an admin uses every
// operation that reaches it. Replayed against every API, all of it is refused.
func TestAHostileClusterGetsNoCredentialOfUse(t *testing.T) {
	r := startRoot(t, func(*root.Config) {})
	ctx := t.Context()
	check(t, r.admin.CreateTenant(ctx, "acme", ""))
	line := func() string {
		tok, err := r.admin.CreateJoinToken(ctx, api.TokenRequest{Kind: "cluster"})
		check(t, err)
		return tok.Token
	}
	var pat struct{ Token string }
	_, err := r.admin.Do(ctx, client.Request{Method: http.MethodPost, Path: "/v1/auth/tokens", Body: map[string]any{"name": "ci", "ttl_seconds": 3600}}, &pat)
	check(t, err)
	robot, err := client.New(client.Options{URL: r.admin.URL(), CA: []byte(wait(t, filepath.Join(r.cfg.Data, root.CAFile))), Tokens: client.Static(pat.Token)})
	check(t, err)
	t.Cleanup(robot.Close)

	evil := joinHostile(t, line(), "evil")
	stop := evil.serve("evil")
	_, err = r.admin.Apply(ctx, []byte(shop), client.ApplyOptions{Tenant: "acme"})
	check(t, err)
	web := api.ServiceID("acme/shop.prod.web.v1").Instance(0)
	eventually(t, "the instance is given to the hostile cluster", func() bool {
		i, err := r.admin.Instance(ctx, web)
		return err == nil && i.Cluster == "evil"
	})
	for _, who := range []*client.Client{r.admin, robot} {
		for _, q := range []client.Request{
			{Method: "GET", Path: "/v1/clusters/evil/nodes"},
			{Method: "GET", Path: "/v1/clusters/evil/nodes/n1"},
			{Method: "POST", Path: "/v1/clusters/evil/nodes/n1/cordon"},
			{Method: "POST", Path: "/v1/clusters/evil/nodes/n1/uncordon"},
			{Method: "PUT", Path: "/v1/clusters/evil/nodes/n1/caps", Body: api.Caps{MemoryMB: 64}},
			{Method: "POST", Path: "/v1/clusters/evil/nodes/n1/drain"},
			{Method: "DELETE", Path: "/v1/clusters/evil/nodes/n1"},
			{Method: "GET", Path: "/v1/clusters/evil/nodes/n1/net"},
			{Method: "GET", Path: "/v1/clusters/evil/nodes/n1/net/routes"},
			{Method: "GET", Path: "/v1/clusters/evil/nodes/n1/net/peers"},
			{Method: "GET", Path: "/v1/clusters/evil/tokens"},
			{Method: "DELETE", Path: "/v1/clusters/evil/tokens/x"},
			{Method: "POST", Path: "/v1/tokens", Body: api.TokenRequest{Kind: "node", Cluster: "evil"}},
			{Method: "GET", Path: "/v1/instances/" + api.PathOf(web) + "/why"},
			{Method: "GET", Path: "/v1/instances/" + api.PathOf(web) + "/logs"},
			{Method: "GET", Path: "/v1/instances/" + api.PathOf(web) + "/trace?to=back"},
			{Method: "GET", Path: "/v1/instances/" + api.PathOf(web) + "/capture"},
			{Method: "POST", Path: "/v1/apps:plan?tenant=acme", Body: []byte(strings.Replace(shop, `"shop"`, `"other"`, 1)), ContentType: "application/json"},
		} {
			resp, err := who.Raw(ctx, q)
			if err != nil {
				t.Logf("%s %s: %v", q.Method, q.Path, err) // the answer does not matter
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	var direct api.ClusterAccess
	_, err = r.admin.Do(ctx, client.Request{Method: "POST", Path: "/v1/clusters/evil/access"}, &direct)
	check(t, err)
	stop()

	recorded := evil.recorded()
	access := r.token
	for what, secret := range map[string]string{"the admin's access token": access, "a personal token": pat.Token} {
		if strings.Contains(recorded, secret) {
			t.Errorf("the hostile cluster received %s", what)
		}
	}
	tokens := jwtRE.FindAllString(recorded, -1)
	if len(tokens) < 2*18 {
		t.Fatalf("the hostile cluster recorded %d tokens, want at least %d: the test records too little", len(tokens), 2*18)
	}
	tokens = []string{tokens[0], tokens[len(tokens)/2], tokens[len(tokens)-1], direct.Token} // the others differ only in their object

	// At the root, at another cluster, and at the cluster itself with a real orchestrator.
	c := newCluster(t, r.anchor(t), line())
	c.run(t)
	own := newCluster(t, r.anchor(t), "")
	own.cfg.Name, own.cfg.Data = "evil", evil.dir
	own.run(t)
	tr := &http.Transport{TLSClientConfig: trust.New(own.ca).Client(identity.OfCluster("evil"), nil), ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	own.http = &http.Client{Transport: tr}
	people := &http.Transport{TLSClientConfig: trust.New(own.ca).Client(identity.OfRoot(), nil), ForceAttemptHTTP2: true}
	t.Cleanup(people.CloseIdleConnections)
	for _, token := range append(tokens, access, pat.Token) {
		if token != access && token != pat.Token {
			unusableAt(t, "replayed at the root", token, &http.Client{Transport: people}, r.admin.URL(), "openapi.json")
		}
		unusableAt(t, "replayed at another cluster", token, c.http, c.url, "cluster-openapi.json")
		if token != direct.Token {
			unusableAt(t, "replayed at the cluster itself", token, own.http, own.url, "cluster-openapi.json")
		}
	}
	// The exchanged token is valid at its cluster.
	eventually(t, "the exchanged token counts at its own cluster", func() bool { return own.do(direct.Token, "GET", "/v1/nodes", nil, nil) == nil })
}

// A personal token is refused at a cluster, and after its revocation the token that was exchanged
// for it, too.
func TestARevokedPersonalTokenEndsAtTheCluster(t *testing.T) {
	r := startRoot(t, func(*root.Config) {})
	ctx := t.Context()
	tok, err := r.admin.CreateJoinToken(ctx, api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, r.anchor(t), tok.Token)
	c.run(t)
	var pat struct{ ID, Token string }
	_, err = r.admin.Do(ctx, client.Request{Method: http.MethodPost, Path: "/v1/auth/tokens", Body: map[string]any{"name": "ci", "ttl_seconds": 3600}}, &pat)
	check(t, err)
	robot, err := client.New(client.Options{URL: r.admin.URL(), CA: []byte(wait(t, filepath.Join(r.cfg.Data, root.CAFile))), Tokens: client.Static(pat.Token)})
	check(t, err)
	t.Cleanup(robot.Close)
	var direct api.ClusterAccess
	_, err = robot.Do(ctx, client.Request{Method: http.MethodPost, Path: "/v1/clusters/munich/access"}, &direct)
	check(t, err)
	if life := time.Until(direct.Expires); life > jwt.DelegatedLife {
		t.Errorf("the exchanged token is valid for %s", life)
	}
	if err := c.do(pat.Token, "GET", "/v1/nodes", nil, nil); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a personal token at a cluster: %v, want it refused", err)
	}
	eventually(t, "the exchanged token counts", func() bool { return c.do(direct.Token, "GET", "/v1/nodes", nil, nil) == nil })
	_, err = r.admin.Do(ctx, client.Request{Method: http.MethodDelete, Path: "/v1/auth/tokens/" + pat.ID}, nil)
	check(t, err)
	began := time.Now()
	eventually(t, "it counts no more", func() bool {
		return errors.Is(c.do(direct.Token, "GET", "/v1/nodes", nil, nil), api.ErrUnauthenticated)
	})
	t.Logf("refused %s after the revocation", time.Since(began))
}

// A token that the root delegates is valid for one request, once, at one cluster.
func TestADelegatedTokenCountsForOneRequest(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	status := func(q wire.StreamRequest) int {
		t.Helper()
		text, err := root.ask(t.Context(), q)
		if err != nil {
			status, _ := api.HTTPStatus(err)
			return status
		}
		if q.Kind == "logs" {
			return http.StatusOK
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
		check(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	nodes := root.as(wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/nodes"}, "admin", "", rights.Admin)
	logs := root.as(wire.StreamRequest{Kind: "logs", Instance: web(0).Instance, Tail: 1}, "admin", "", rights.Admin)
	with := func(q wire.StreamRequest, change func(*wire.StreamRequest)) wire.StreamRequest { change(&q); return q }
	fresh := func() string {
		return root.as(wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/nodes"}, "admin", "", rights.Admin).Token
	}
	elsewhere := root.sign(jwt.Claims{Subject: "admin", Roles: []rights.Role{rights.Admin}, Use: jwt.UseCall, Object: nodes.CallObject()}, api.ClusterAudience("oslo"))
	access := root.sign(jwt.Claims{Subject: "admin", Roles: []rights.Role{rights.Admin}}, api.TokenAudience)
	exchanged := root.bearer("admin", "", rights.Admin)
	for _, v := range []struct {
		what string
		q    wire.StreamRequest
		want int
	}{
		{"another path", wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/tokens", Token: fresh()}, 403},
		{"another method", wire.StreamRequest{Kind: "api", Method: "POST", Path: "/v1/nodes", Token: fresh()}, 403},
		{"another body", wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/nodes", Body: []byte("{}"), Token: fresh()}, 403},
		{"another kind", wire.StreamRequest{Kind: "logs", Instance: web(0).Instance, Token: fresh()}, 403},
		{"another instance", with(logs, func(q *wire.StreamRequest) { q.Instance = web(1).Instance }), 403},
		{"another cluster", with(nodes, func(q *wire.StreamRequest) { q.Token = elsewhere }), 401},
		{"an access token", with(nodes, func(q *wire.StreamRequest) { q.Token = access }), 401},
		{"an exchanged token", with(nodes, func(q *wire.StreamRequest) { q.Token = exchanged }), 403},
		{"the operator's token", with(nodes, func(q *wire.StreamRequest) { q.Token = c.token }), 401},
		{"no token", with(nodes, func(q *wire.StreamRequest) { q.Token = "" }), 401},
		{"its request", nodes, 200},
		{"its request again", nodes, 401},
		{"logs after a request for another instance", logs, 401}, // used up by the attempt
	} {
		if got := status(v.q); got != v.want {
			t.Errorf("%s: status %d, want %d", v.what, got, v.want)
		}
	}
	if err := c.do(root.as(nodes, "admin", "", rights.Admin).Token, "GET", "/v1/nodes", nil, nil); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("the delegated token at the cluster's own port: %v, want it refused", err)
	}
}

// A revocation at the root takes effect at the cluster at once and ends the streams that the token
// has opened there. While the root is down, delegated tokens end at their expiry.
func TestRevocationsReachTheCluster(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	alice := root.bearer("acme/alice", "acme", rights.ApplicationProvider)
	bob := root.bearer("acme/bob", "acme", rights.ApplicationProvider)
	follow := func(token string) (*http.Response, error) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", c.url+"/v1/instances/"+api.PathOf(web(0).Instance)+"/logs?follow=true", nil)
		check(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := call.Do(c.http, req)
		if err != nil {
			return nil, err
		}
		line := make([]byte, len("first line\n"))
		if _, err := io.ReadFull(resp.Body, line); err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		return resp, nil
	}
	hers, err := follow(alice)
	check(t, err)
	his, err := follow(bob)
	check(t, err)
	// A token that expires while the log is followed. On a busy machine opening the log may take
	// longer than the token is valid, from which up to a second is rounded off. The next token is
	// then valid for longer.
	var short string
	var expires *http.Response
	for life := 2 * time.Second; expires == nil; life *= 2 {
		short, _, err = root.signer.Sign(jwt.Claims{
			Subject: "acme/carol", Tenant: "acme", Roles: []rights.Role{rights.ApplicationProvider}, Mark: root.revoked.Mark(),
		}, []string{api.ClusterAudience("munich")}, life)
		check(t, err)
		signed := time.Now()
		if expires, err = follow(short); err != nil && (time.Since(signed) < life-time.Second || life > time.Minute) {
			t.Fatalf("follow a log with a token that lives %s: %v", life, err)
		}
	}
	defer hers.Body.Close()
	defer his.Body.Close()
	defer expires.Body.Close()
	// The same through the root: the stream that it opened on behalf of the user ends, too.
	overRoot := make(chan error, 1)
	go func() {
		_, err := root.ask(t.Context(), root.as(wire.StreamRequest{Kind: "logs", Instance: web(0).Instance, Follow: true}, "acme/alice", "acme", rights.ApplicationProvider))
		overRoot <- err
	}()
	eventually(t, "the log is followed four times", func() bool { return root.streams.Open() == 1 })

	if _, err := io.ReadAll(expires.Body); err == nil {
		t.Error("a followed log whose token expired ended with EOF, want an error")
	}
	began := time.Now()
	root.revoke("acme/alice")
	if _, err := io.ReadAll(hers.Body); err == nil {
		t.Error("a followed log whose right was revoked ended with EOF, want an error")
	}
	if err := <-overRoot; err == nil {
		t.Error("a log through the root whose right was revoked ended with EOF, want an error")
	}
	t.Logf("ended %s after the revocation", time.Since(began))
	for token, want := range map[string]error{alice: api.ErrUnauthenticated, short: api.ErrUnauthenticated, bob: nil, root.bearer("acme/alice", "acme"): nil} {
		if err := c.do(token, "GET", "/v1/instances", nil, nil); !errors.Is(err, want) {
			t.Errorf("after the revocation: %v, want %v", err, want)
		}
	}
	his.Body.Close()
	root.CloseClientConnections()
	root.Server.Close() // down; delegated tokens still end at their expiry
	if err := c.do(short, "GET", "/v1/instances", nil, nil); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("an expired token while the root is down: %v, want it refused", err)
	}
	if err := c.do(bob, "GET", "/v1/instances", nil, nil); err != nil {
		t.Errorf("a valid token while the root is down: %v, want it accepted", err)
	}
}

// TestANodeGetsNoCredential: a request for a stream to a node contains neither a token nor the
// user.
func TestANodeGetsNoCredential(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	l, cfg := c.startNode(t, "n1")
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	l.stop()
	creds, k := credentialsOfNode(t, cfg.Data)
	conf := trust.New(creds.Pair.Root()).Client(identity.OfCluster("munich"), k.GetClientCertificate)
	conf.NextProtos = []string{"mqtt"}
	b, err := mqtt.Dial(mqtt.Options{Addr: strings.TrimPrefix(c.url, "https://"), ClientID: "n1", TLS: conf, Log: quiet(t)})
	check(t, err)
	defer b.Close()
	for up := range b.Up() {
		if up {
			break
		}
	}
	got := make(chan string, 4)
	check(t, b.Subscribe(t.Context(), topic.Stream.Of("n1"), 1, func(m bus.Message) {
		select {
		case got <- string(m.Payload):
		default:
		}
	}))
	q := root.as(wire.StreamRequest{Kind: "logs", Instance: web(0).Instance}, "acme/alice", "acme", rights.ApplicationProvider)
	go func() { _, _ = root.ask(t.Context(), q) }()
	select {
	case text := <-got:
		if jwtRE.MatchString(text) || strings.Contains(text, "alice") || !strings.Contains(text, string(web(0).Instance)) {
			t.Errorf("the node received %s, want no token and no user", text)
		}
	case <-time.After(patience):
		t.Error("the node received no request")
	}
}

// TestAClientExchangesItsTokenForACluster: with an exchanged token a client uses a cluster's own
// API, and it exchanges again when the cluster refuses the token.
func TestAClientExchangesItsTokenForACluster(t *testing.T) {
	r := startRoot(t, func(*root.Config) {})
	ctx := t.Context()
	tok, err := r.admin.CreateJoinToken(ctx, api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, r.anchor(t), tok.Token)
	c.run(t)
	tokens := r.admin.TokensFor("munich")
	direct, err := client.New(client.Options{URL: c.url, HTTP: c.http, Tokens: tokens})
	check(t, err)
	eventually(t, "the exchanged token counts", func() bool { _, err := direct.OwnNodes().List(ctx); return err == nil })
	first, err := tokens.Token(ctx, "")
	check(t, err)
	if again, err := tokens.Token(ctx, ""); again != first || err != nil {
		t.Errorf("a valid token was exchanged again (%v), want it reused", err)
	}
	if fresh, err := tokens.Token(ctx, first); fresh == first || err != nil {
		t.Errorf("a refused token was used again (%v), want it exchanged", err)
	}
	if _, err := r.admin.TokensFor("oslo").Token(ctx, ""); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("exchange for a cluster that does not exist: %v, want not found", err)
	}
}
