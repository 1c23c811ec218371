package httpapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// accessible returns a rig in which the instance runs on a node, and its TLS server.
func accessible(t *testing.T) (*rig, *httptest.Server) {
	t.Helper()
	r := newRig(t)
	r.join("n1")
	r.want(1, instance(followed, 64))
	var i api.Instance

	r.ask("admin", "GET", "/v1/instances/"+api.PathOf(followed), nil, 200, &i)
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{
		Node: "n1", Boot: 1, Seq: 2, Observed: []api.Observed{{Instance: followed, Epoch: i.Epoch, State: api.Running, Node: "n1"}},
	}})
	srv := httptest.NewTLSServer(r.web.Handler())
	t.Cleanup(srv.Close)
	return r, srv
}

func dial(t *testing.T, srv *httptest.Server, who string) (net.Conn, error) {
	t.Helper()
	return dialTo(t, srv, who, client.AccessPath(client.Instances, followed, "exec"), client.ExecQuery(api.Exec{Args: []string{"env"}}))
}

func dialTo(t *testing.T, srv *httptest.Server, who, path string, query url.Values) (net.Conn, error) {
	t.Helper()
	c, err := client.New(client.Options{URL: srv.URL, HTTP: srv.Client(), Tokens: client.Static(who)})
	check(t, err)
	var socket *websocket.Conn
	_, err = c.Upgrade(t.Context(), path, query, func(hc *http.Client, target string, h http.Header) (*http.Response, error) {
		s, resp, err := websocket.Dial(t.Context(), target, &websocket.DialOptions{HTTPClient: hc, HTTPHeader: h})
		socket = s
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = socket.CloseNow() })
	return websocket.NetConn(t.Context(), socket, websocket.MessageBinary), nil
}

// records waits until there is a record about an object for each pattern.
func (r *rig) records(who, object string, patterns ...string) {
	r.t.Helper()
	var all api.Page[api.Event]
	missing := ""
	for range 500 { // the end is recorded after the stream
		r.ask(who, "GET", "/v1/events", nil, 200, &all)
		missing = ""
		for _, p := range patterns {
			if !slices.ContainsFunc(all.Items, func(e api.Event) bool {
				return regexp.MustCompile(p).MatchString(e.Detail) && e.Object == object && e.Reason == api.ReasonAccess
			}) {
				missing = p
			}
		}
		if missing == "" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Errorf("no record %s about %s in %+v", missing, object, all.Items)
}

func TestAccessAtTheClustersOwnPort(t *testing.T) {
	r, srv := accessible(t)
	for who, want := range map[string]error{"rival": api.ErrNotFound, "otto": api.ErrForbidden, "nobody": api.ErrUnauthenticated} {
		if _, err := dial(t, srv, who); !errors.Is(err, want) {
			t.Errorf("exec by %s: got %v, want %v", who, err, want)
		}
	}
	node, far := net.Pipe()
	r.both = node
	conn, err := dial(t, srv, "alice")
	check(t, err)
	go func() {
		defer far.Close()
		_ = frames.NewWriter(far).Exit(7)
	}()
	k, p, err := frames.NewReader(conn).Next()
	if code, _ := frames.Code(p); k != frames.Exit || code != 7 || err != nil {
		t.Errorf("got frame %d %q, %v, want exit code 7", k, p, err)
	}
	if r.asked.Kind != "exec" || r.asked.Exec == nil || r.asked.Exec.Args[0] != "env" || r.asked.Epoch == 0 || r.asked.Token != "" {
		t.Errorf("the node was asked for %+v", r.asked)
	}
	_ = conn.Close()
	// The right ends in the middle.
	node, far = net.Pipe()
	r.both = node
	conn, err = dial(t, srv, "alice")
	check(t, err)
	r.mu.Lock()
	r.revoked = append(r.revoked, "alice")
	r.mu.Unlock()
	r.web.Recheck()
	if _, err := conn.Read(make([]byte, 1)); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("after the revocation: %v, want a close with status %d", err, websocket.StatusPolicyViolation)
	}
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("the node's end is open after the revocation")
	}
	want := []string{"^exec env by .*alice$", "^exec env by .*alice ended after .* with exit code 7$", "^exec env by .*alice$", "^exec env by .*alice ended after .*authorization"}
	var all api.Page[api.Event]
	for range 500 { // the end is recorded after the stream
		if r.ask("admin", "GET", "/v1/events", nil, 200, &all); len(all.Items) == len(want) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, w := range want {
		if !slices.ContainsFunc(all.Items, func(e api.Event) bool {
			return regexp.MustCompile(w).MatchString(e.Detail) && e.Instance == followed && e.Reason == api.ReasonAccess && strings.HasSuffix(e.By, "alice")
		}) {
			t.Errorf("no record %s in %+v", w, all.Items)
		}
	}
	if len(all.Items) != len(want) {
		t.Errorf("%d records, want %d, none of those who were refused", len(all.Items), len(want))
	}
	if r.ask("rival", "GET", "/v1/events", nil, 200, &all); len(all.Items) > 0 {
		t.Errorf("another tenant sees %+v, want nothing", all.Items)
	}
	r.ask("nobody", "GET", "/v1/events", nil, 401, nil)
}

// TestAccessForTheRoot: the token is valid for the request only, and its revocation ends the stream.
func TestAccessForTheRoot(t *testing.T) {
	r, _ := accessible(t)
	q := wire.StreamRequest{Kind: "exec", Instance: followed, Exec: &api.Exec{Args: []string{"env"}}}
	q.Token = "alice for " + q.CallObject()
	other := q
	other.Exec = &api.Exec{Args: []string{"rm", "-rf", "/"}}
	if _, err := r.web.AccessFromRoot(t.Context(), other); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a token for another program: got %v, want ErrForbidden", err)
	}
	otto := q
	otto.Token = "otto for " + q.CallObject()
	if _, err := r.web.AccessFromRoot(t.Context(), otto); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a role that may not: got %v, want ErrForbidden", err)
	}
	node, far := net.Pipe()
	r.both = node
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	serve, err := r.web.AccessFromRoot(ctx, q)
	check(t, err)
	down, out := io.Pipe()
	in, up := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, streams.NewConn(out, in)) }()
	go io.WriteString(far, "from the node")
	buf := make([]byte, 13)
	if _, err := io.ReadFull(down, buf); err != nil || string(buf) != "from the node" {
		t.Errorf("the root got %q, %v", buf, err)
	}
	go io.WriteString(up, "from the root")
	if _, err := io.ReadFull(far, buf); err != nil || string(buf) != "from the root" {
		t.Errorf("the node got %q, %v", buf, err)
	}
	r.mu.Lock()
	r.revoked = append(r.revoked, "alice")
	r.mu.Unlock()
	r.web.Recheck()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "authorization") {
		t.Errorf("after the revocation: got %v, want that the authorization has ended", err)
	}
	if _, err := down.Read(buf); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the root's end: got %v, want a broken stream", err)
	}
	if _, err := far.Read(buf); err == nil {
		t.Error("the node's end is open after the revocation")
	}
}

// TestMovesAreNotForTheRoot: only the cluster itself asks its nodes to send or take volumes.
func TestMovesAreNotForTheRoot(t *testing.T) {
	r, _ := accessible(t)
	for _, kind := range []string{wire.StreamSendVolume, wire.StreamReceiveVolume, wire.StreamDiscardVolume, "volume", ""} {
		q := wire.StreamRequest{Kind: kind, Instance: followed, Epoch: 1, Path: string(followed.Volume("data")), Copy: &wire.VolumeCopy{SizeMB: 64, Final: true}}
		q.Token = "alice for " + q.CallObject()
		node, _ := net.Pipe()
		r.both = node
		if _, err := r.web.AccessFromRoot(t.Context(), q); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("kind %q: got %v, want ErrInvalid", kind, err)
		}
	}
}
