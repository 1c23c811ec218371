package httpapi_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

const web = api.InstanceID("acme/shop.prod.web.v1#0")

// runs makes the instance web run on the cluster munich.
func (r *rig) runs() {
	r.t.Helper()
	r.join("munich", "")
	r.apply("acme", "shop", 1)
	var i api.Instance
	check(r.t, r.loop.Read(r.t.Context(), func() { i, _ = r.core.Instance(web) }))
	check(r.t, r.loop.Do(r.t.Context(), root.Report{Report: wire.Report{
		Cluster: "munich", Boot: 1, Seq: 2,
		Observed: []api.Observed{{Instance: web, Epoch: i.Epoch, State: api.Running}},
	}}, nil))
}

// dial opens a stream to the instance web.
func (r *rig) dial(c *client.Client, kind, query string, header ...string) (io.ReadWriteCloser, *websocket.Conn, error) {
	r.t.Helper()
	var socket *websocket.Conn
	right, err := c.Upgrade(r.t.Context(), client.AccessPath(client.Instances, web, kind), nil, func(hc *http.Client, url string, h http.Header) (*http.Response, error) {
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		s, resp, err := websocket.Dial(r.t.Context(), url+query, &websocket.DialOptions{HTTPClient: hc, HTTPHeader: h, Subprotocols: []string{"treeline.v1"}})
		socket = s
		return resp, err
	})
	if err != nil {
		return nil, nil, err
	}
	r.t.Cleanup(func() { right.Close(); _ = socket.CloseNow() })
	return websocket.NetConn(r.t.Context(), socket, websocket.MessageBinary), socket, nil
}

// records returns the access records, which only the core has to see.
func (r *rig) records() (all []string) {
	r.t.Helper()
	var found []api.Event
	check(r.t, r.loop.Read(r.t.Context(), func() { found = r.core.Events(eventlog.Filter{}) }))
	for _, e := range found {
		if e.Reason == api.ReasonAccess {
			if e.Instance != web || e.Tenant != "acme" || e.Time.IsZero() {
				r.t.Errorf("record %+v, want the instance, its tenant and the time", e)
			}
			all = append(all, e.Detail)
		}
	}
	return all
}

// eventually polls until ok returns true: the record of an end follows the end.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the record did not appear")
		}
	}
}

func TestAccessIsSplicedAndRecorded(t *testing.T) {
	r := newRig(t)
	r.runs()
	node, far := net.Pipe()
	r.clusters.connected = node
	conn, _, err := r.dial(r.client(r.user("acme/dora", rights.ApplicationProvider)), "exec", "?arg=sh&arg=-c&arg=echo%20hello&stdin=true")
	check(t, err)
	go func() {
		defer far.Close()
		k, p, err := frames.NewReader(far).Next()
		if k != frames.Stdin || string(p) != "input" || err != nil {
			t.Errorf("the node got frame %d %q, %v", k, p, err)
		}
		w := frames.NewWriter(far)
		_ = w.Write(frames.Stdout, []byte("hello"))
		_ = w.Exit(7)
	}()
	check(t, frames.NewWriter(conn).Write(frames.Stdin, []byte("input")))
	in := frames.NewReader(conn)
	if k, p, err := in.Next(); k != frames.Stdout || string(p) != "hello" || err != nil {
		t.Errorf("the user got frame %d %q, %v", k, p, err)
	}
	if k, _, err := in.Next(); k != frames.Exit || err != nil {
		t.Errorf("the user got frame %d, %v, want the exit code", k, err)
	}
	if _, _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit code: %v, want the end", err)
	}
	q := r.clusters.request
	if q.Kind != "exec" || q.Instance != web || q.Exec == nil || strings.Join(q.Exec.Args, "|") != "sh|-c|echo hello" || !q.Exec.Stdin || q.Exec.TTY || q.Token == "" || q.For == "" {
		t.Errorf("the cluster was asked for %+v", q)
	}
	eventually(t, func() bool { return len(r.records()) == 2 })
	all := r.records()
	if all[0] != `exec sh -c "echo hello" by acme/dora` || !strings.HasPrefix(all[1], all[0]+" ended after ") || !strings.HasSuffix(all[1], " with exit code 7") {
		t.Errorf("records %q, want the begin and the result", all)
	}
}

func TestAccessIsRefused(t *testing.T) {
	r := newRig(t)
	r.runs()
	dora := r.client(r.user("acme/dora", rights.ApplicationProvider))
	for _, c := range []struct {
		name   string
		as     *client.Client
		kind   string
		query  string
		header []string
		want   error
	}{
		{"without a token", r.client(""), "exec", "?arg=a", nil, api.ErrUnauthenticated},
		{"by a role that may not", r.client(r.user("acme/otto", rights.InfrastructureProvider)), "exec", "?arg=a", nil, api.ErrForbidden},
		{"by another tenant", r.client(r.user("evil/eve", rights.ApplicationProvider)), "attach", "", nil, api.ErrNotFound},
		{"without a program", dora, "exec", "", nil, api.ErrInvalid},
		{"with an empty program", dora, "exec", "?arg=", nil, api.ErrInvalid},
		{"with too many arguments", dora, "exec", "?" + strings.Repeat("arg=a&", 257), nil, api.ErrInvalid},
	} {
		if _, _, err := r.dial(c.as, c.kind, c.query, c.header...); !errors.Is(err, c.want) {
			t.Errorf("%s %s: got %v, want %v", c.kind, c.name, err, c.want)
		}
	}
	if r.clusters.request.Kind != "" {
		t.Errorf("a refused request reached the cluster: %+v", r.clusters.request)
	}
	if status, _, text := r.raw("GET", "/v1/instances/"+api.PathOf(web)+"/attach", r.user("acme/dan", rights.ApplicationProvider), ""); status != 422 || !strings.Contains(text, "WebSocket") {
		t.Errorf("a request that is no WebSocket's: %d %s, want 422", status, text)
	}
	// Pages of other sites cannot use the connection of a browser.
	node, far := net.Pipe()
	defer far.Close()
	r.clusters.connected = node
	if _, _, err := r.dial(dora, "attach", "", "Origin", "https://evil.example"); err == nil {
		t.Error("a page of another site opened a stream")
	}
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("the stream to the node is open after the refusal")
	}
	// A cluster that cannot be reached.
	r.clusters.connected = nil
	if _, _, err := r.dial(dora, "portforward", ""); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("without the cluster: got %v, want ErrUnavailable", err)
	}
	eventually(t, func() bool {
		return strings.Contains(strings.Join(r.records(), "\n"), "port-forward by acme/dora failed: cluster munich is not connected")
	})
}

// TestAccessEndsWithTheRight: the stream is closed with a reason, and the node's end, too.
func TestAccessEndsWithTheRight(t *testing.T) {
	r := newRig(t)
	r.runs()
	token := r.user("acme/dora", rights.ApplicationProvider)
	node, far := net.Pipe()
	r.clusters.connected = node
	conn, _, err := r.dial(r.client(token), "portforward", "")
	check(t, err)
	_, err = r.accounts.UpdateUser(t.Context(), "acme/dora", func(u *account.User) error {
		u.Roles = []rights.Role{rights.InfrastructureProvider}
		return nil
	})
	check(t, err)
	_, err = conn.Read(make([]byte, 1))
	if closed := websocket.CloseStatus(err); closed != websocket.StatusPolicyViolation {
		t.Errorf("the user's end: %v, want a close with status %d", err, websocket.StatusPolicyViolation)
	}
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("the node's end is open after the user lost the right")
	}
	eventually(t, func() bool { return strings.Contains(strings.Join(r.records(), "\n"), "authorization") })
}

// TestABrokenStreamIsReported: a stream that breaks at the cluster does not look complete.
func TestABrokenStreamIsReported(t *testing.T) {
	r := newRig(t)
	r.runs()
	pr, pw := io.Pipe()
	r.clusters.connected = broken{pr}
	conn, _, err := r.dial(r.client(r.user("acme/dora", rights.ApplicationProvider)), "attach", "")
	check(t, err)
	_ = pw.CloseWithError(errors.New("the connection to the node was reset"))
	_, err = conn.Read(make([]byte, 1))
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.StatusInternalError || !strings.Contains(closed.Reason, "was reset") {
		t.Errorf("the user's end: %v, want a close with status %d and the cause", err, websocket.StatusInternalError)
	}
}

type broken struct{ *io.PipeReader }

func (broken) Write(p []byte) (int, error) { return len(p), nil }

// A browser sends its token as a subprotocol, which only a WebSocket may.
func TestAWebSocketMayHaveItsTokenAmongItsProtocols(t *testing.T) {
	r := newRig(t)
	r.runs()
	dora, eve := r.user("acme/dora", rights.ApplicationProvider), r.user("evil/eve", rights.ApplicationProvider)
	url := r.server.URL + "/v1/instances/" + api.PathOf(string(web)) + "/exec?arg=sh"
	dial := func(origin string, protocols ...string) (*websocket.Conn, int) {
		h := http.Header{"Origin": {origin}}
		s, resp, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: http1(r), HTTPHeader: h, Subprotocols: protocols})
		if resp == nil {
			t.Fatal(err)
		}
		return s, resp.StatusCode
	}
	for _, c := range []struct {
		name, origin string
		protocols    []string
		want         int
	}{
		{"no token", r.server.URL, []string{"treeline.v1"}, 401},
		{"a token that is none", r.server.URL, []string{"treeline.v1", "treeline.token.x"}, 401},
		{"another tenant's token", r.server.URL, []string{"treeline.v1", "treeline.token." + eve}, 404},
		{"a page of another site", "https://evil.example", []string{"treeline.v1", "treeline.token." + dora}, 403},
	} {
		r.clusters.connected, _ = net.Pipe()
		if _, got := dial(c.origin, c.protocols...); got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got, c.want)
		}
	}
	r.clusters.connected, _ = net.Pipe()
	s, status := dial(r.server.URL, "treeline.v1", "treeline.token."+dora)
	if status != http.StatusSwitchingProtocols || s.Subprotocol() != "treeline.v1" {
		t.Fatalf("status %d, want 101 with the protocol treeline.v1 and not the token", status)
	}
	_ = s.CloseNow()
	if status, _, _ := r.raw("GET", "/v1/auth/me", "", "", "Sec-WebSocket-Protocol", "treeline.token."+dora); status != 401 {
		t.Errorf("a request that is no WebSocket: status %d, want 401", status)
	}
}

// http1 returns a client with HTTP/1.1, which WebSockets need.
func http1(r *rig) *http.Client {
	tr := r.server.Client().Transport.(*http.Transport).Clone()
	tr.ForceAttemptHTTP2, tr.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
