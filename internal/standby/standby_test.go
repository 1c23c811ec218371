package standby_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/standby"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/internal/store/shared/sharedtest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// own is a function that returns a certificate which the authority signs for itself.
func own(a *ca.Authority) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	k := must(keeper.Own(keeper.Options{}, func(csr []byte) ([]*x509.Certificate, error) { return a.SignOwn(time.Now(), csr, "127.0.0.1") }))
	return k.GetClientCertificate
}

// rig is an active replica that answers with what it knows of the client, and a standby before it.
type rig struct {
	authority       *ca.Authority
	verifier        *trust.Verifier
	active, standby *httptest.Server

	mu       sync.Mutex // guards executed
	executed []string   // methods of forwarded requests
}

func newRig(t *testing.T) *rig {
	r := &rig{authority: must(ca.NewRoot(time.Now()))}
	r.verifier = trust.New(r.authority.Root())
	serve := func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		cert := own(r.authority)
		s.TLS = r.verifier.Server(nil, false)
		s.TLS.Certificates = []tls.Certificate{*must(cert(nil))}
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	r.active = serve(standby.Accept(r.verifier, identity.OfRoot(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") != "" {
			c, err := websocket.Accept(w, req, nil)
			if err == nil {
				_, _, _ = c.Read(req.Context()) // until the client ends
				_ = c.CloseNow()
			}
			return
		}
		text, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %s %s from %s as %q with %q, peer %t, %v", req.Method, req.URL.Path, text, req.RemoteAddr,
			req.Header.Get("Treeline-Forwarded-For"), req.Header.Get("Authorization"), req.TLS != nil && len(req.TLS.PeerCertificates) > 0, req.TLS == nil)
	})))
	r.standby = serve(standby.Forward(standby.ForwardOptions{
		Self: identity.OfRoot(), Verifier: r.verifier, Own: own(r.authority), Replicas: replicas.New(r.active.URL), Log: slog.New(slog.DiscardHandler),
		Active: func() (string, bool) { return "the active one is " + r.active.URL, true },
		Executed: func(req *http.Request, status int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.executed = append(r.executed, fmt.Sprint(req.Method, " ", status))
		},
	}))
	return r
}

// client has the certificate of cert; nil: none.
func (r *rig) client(t *testing.T, cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) *http.Client {
	c := keeper.Client(r.verifier, identity.OfRoot(), cert, time.Minute, nil)
	if cert == nil {
		c.Transport = &http.Transport{TLSClientConfig: r.verifier.Client(identity.OfRoot(), nil)}
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func ask(t *testing.T, c *http.Client, method, url string, header ...string) (status int, text string, h http.Header) {
	t.Helper()
	req := must(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("body")))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, string(must(io.ReadAll(resp.Body))), resp.Header
}

func TestRequestsOfPeopleAreForwardedWithTheirAddress(t *testing.T) {
	r := newRig(t)
	_, text, _ := ask(t, r.client(t, nil), "PUT", r.standby.URL+"/v1/apps/x", "Authorization", "Bearer tok", "Treeline-Forwarded-For", "10.9.9.9:1")
	if !strings.HasPrefix(text, "PUT /v1/apps/x body from 127.0.0.1:") || !strings.HasSuffix(text, `as "" with "Bearer tok", peer false, true`) {
		t.Errorf("the active replica got %q, want the request with the token and the address of the client", text)
	}
}

// A client that has the answer to a write reads what it wrote.
func TestACopyLearnsOfAnExecutedRequestBeforeItsClient(t *testing.T) {
	r := newRig(t)
	for _, method := range []string{"PUT", "GET", "DELETE"} {
		ask(t, r.client(t, nil), method, r.standby.URL+"/v1/apps/x")
		r.mu.Lock()
		if n := len(r.executed); n == 0 || r.executed[n-1] != method+" 200" {
			t.Errorf("after a %s, the copy knows of %v", method, r.executed)
		}
		r.mu.Unlock()
	}
}

// reads is a copy that answers as it is told.
type reads struct {
	shared.Copy
	may, can bool
}

func (r reads) Reads(*http.Request) bool { return r.may }

func (r reads) Forwarded(string) {}

func (r reads) Answer(w http.ResponseWriter, _ *http.Request) bool {
	if r.can {
		w.WriteHeader(http.StatusOK)
	}
	return r.can
}

func TestWhatACopyDoesNotAnswerIsForwarded(t *testing.T) {
	forward := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for _, r := range []reads{{}, {can: true}, {may: true}, {may: true, can: true}} {
		f := shared.New(sharedtest.NewEngine().Open(), sharedtest.NewEngine().Open(), shared.Options{}).NewFollower(r)
		w := httptest.NewRecorder()
		standby.ReadFirst(r, f, forward).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
		if answered := w.Code == http.StatusOK; answered != (r.may && r.can) {
			t.Errorf("%+v: answered with %d", r, w.Code)
		}
	}
}

// watched says if a log was read.
type watched struct {
	shared.Log
	read atomic.Bool
}

func (l *watched) Entries(ctx context.Context, fn func(shared.Entry) error) error {
	l.read.Store(true)
	return l.Log.Entries(ctx, fn)
}

// Only the active replica can say that a token is valid before there is a copy. A stranger with any token, and a write, are no reason to
// read the log.
func TestOnlyAReadThatIsAllowedMakesAStandbyFollow(t *testing.T) {
	for _, try := range []struct {
		r       reads
		method  string
		status  int
		follows bool
	}{
		{reads{may: true}, http.MethodGet, http.StatusOK, true},
		{reads{may: true}, http.MethodGet, http.StatusNotModified, true},
		{reads{may: true}, http.MethodGet, http.StatusUnauthorized, false},
		{reads{may: true}, http.MethodGet, http.StatusForbidden, false},
		{reads{may: true}, http.MethodGet, http.StatusNotFound, false},
		{reads{may: true}, http.MethodGet, http.StatusTooManyRequests, false},
		{reads{may: true}, http.MethodGet, 0, false},
		{reads{}, http.MethodGet, http.StatusOK, false}, // open to strangers, or not from the copy
		{reads{}, http.MethodPost, http.StatusOK, false},
		{reads{}, http.MethodPost, 0, false},
		{reads{may: true, can: true}, "", 0, true}, // answered by the copy
	} {
		synctest.Test(t, func(t *testing.T) {
			leases := &watched{Log: sharedtest.NewEngine().Open()}
			f := shared.New(sharedtest.NewEngine().Open(), leases, shared.Options{}).NewFollower(try.r)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- f.Run(ctx) }()
			request := func(method string) *http.Request {
				return httptest.NewRequestWithContext(ctx, method, "/", http.NoBody)
			}
			if try.method != "" {
				standby.Executed(try.r, f)(request(try.method), try.status)
			}
			standby.ReadFirst(try.r, f, http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), request(http.MethodGet))
			time.Sleep(time.Second)
			if follows := leases.read.Load(); follows != try.follows {
				t.Errorf("%+v: follows %t", try, follows)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// The address in the header decides over rates and what the audit log has.
func TestOnlyAReplicaNamesTheClient(t *testing.T) {
	r := newRig(t)
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	munich := must(ca.New(ca.Pair{Chain: must(r.authority.SignCluster(time.Now(), csr, "munich")), Key: key}))
	const forged = "10.9.9.9:1"
	for who, c := range map[string]*http.Client{"a stranger": r.client(t, nil), "a cluster": r.client(t, own(munich))} {
		_, text, _ := ask(t, c, "GET", r.active.URL+"/v1/apps", "Treeline-Forwarded-For", forged)
		if !strings.Contains(text, "from 127.0.0.1:") || !strings.Contains(text, `as ""`) {
			t.Errorf("%s names another client: the API got %q", who, text)
		}
	}
	other := r.client(t, own(must(ca.NewRoot(time.Now()))))
	if resp, err := other.Get(r.active.URL); err == nil {
		_ = resp.Body.Close()
		t.Error("the root of another installation is accepted as a replica")
	}
	replica := r.client(t, own(r.authority))
	if _, text, _ := ask(t, replica, "GET", r.active.URL+"/v1/apps", "Treeline-Forwarded-For", forged); !strings.Contains(text, "from "+forged) || !strings.HasSuffix(text, "peer false, true") {
		t.Errorf("a replica names the client: the API got %q", text)
	}
	for what, try := range map[string]struct {
		header, path string
		status       int
	}{
		"no client":                            {"", "/v1/apps", http.StatusBadRequest},
		"not a client":                         {"x", "/v1/apps", http.StatusBadRequest},
		"metrics, which this machine may read": {forged, "/metrics", http.StatusForbidden},
	} {
		if status, text, _ := ask(t, replica, "GET", r.active.URL+try.path, "Treeline-Forwarded-For", try.header); status != try.status {
			t.Errorf("a replica that forwards with %s: %d %s, want %d", what, status, text, try.status)
		}
	}
	if status, text, _ := ask(t, replica, "HEAD", r.active.URL+"/metrics", "Treeline-Forwarded-For", forged); status != http.StatusOK || text != "" {
		t.Errorf("a replica asks for the right to the metrics: %d %q, want %d without a body", status, text, http.StatusOK)
	}
}

// All clusters of an installation have certificates of the same root.
func TestOnlyAReplicaOfTheSameClusterNamesTheClient(t *testing.T) {
	root := must(ca.NewRoot(time.Now()))
	cluster := func(id api.ClusterID) *ca.Authority {
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		return must(ca.New(ca.Pair{Chain: must(root.SignCluster(time.Now(), csr, id)), Key: key}))
	}
	munich, verifier := cluster("munich"), trust.New(root.Root())
	self := identity.OfCluster("munich")
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	node := &tls.Certificate{PrivateKey: key}
	for _, c := range must(munich.SignNode(time.Now(), csr, "n1")) {
		node.Certificate = append(node.Certificate, c.Raw)
	}
	s := httptest.NewUnstartedServer(standby.Accept(verifier, self, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprint(w, req.RemoteAddr)
	})))
	s.TLS = verifier.Server(nil, false)
	s.TLS.Certificates = []tls.Certificate{*must(own(munich)(nil))}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	for who, try := range map[string]struct {
		cert    func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
		replica bool
	}{
		"a replica":                  {own(munich), true},
		"another cluster":            {own(cluster("berlin")), false},
		"a node of the cluster":      {func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return node, nil }, false},
		"the root":                   {own(root), false},
		"a client without a machine": {nil, false},
	} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: verifier.Client(self, try.cert), DisableKeepAlives: true}}
		_, text, _ := ask(t, c, "GET", s.URL+"/v1/nodes", "Treeline-Forwarded-For", "10.9.9.9:1")
		if named := text == "10.9.9.9:1"; named != try.replica {
			t.Errorf("%s names the client: the API got %q", who, text)
		}
	}
}

func TestAStandbyForwardsNeitherClustersNorReplicas(t *testing.T) {
	r := newRig(t)
	for what, try := range map[string]struct {
		cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
		path string
	}{
		"a path of clusters":               {nil, "/v1/cluster/desired"},
		"a request that another forwarded": {own(r.authority), "/v1/apps"},
	} {
		status, text, h := ask(t, r.client(t, try.cert), "POST", r.standby.URL+try.path)
		if status != http.StatusServiceUnavailable || h.Get(replicas.Standby) == "" || !strings.Contains(text, r.active.URL) {
			t.Errorf("%s: %d %s, want 503 with the mark and the URL of the active replica", what, status, text)
		}
	}
}

// A request is marked as not executed only if it was not sent.
func TestALostAnswerIsNotMarked(t *testing.T) {
	r := newRig(t)
	r.active.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	status, text, h := ask(t, r.client(t, nil), "POST", r.standby.URL+"/v1/apps")
	r.mu.Lock()
	if fmt.Sprint(r.executed) != "[POST 0]" {
		t.Errorf("a copy learns that %v may have been executed, want the POST", r.executed)
	}
	r.mu.Unlock()
	if status != http.StatusServiceUnavailable || h.Get(replicas.Standby) != "" || !strings.Contains(text, "may have executed") {
		t.Errorf("an active replica that broke off: %d %q %s, want 503 without the mark", status, h.Get(replicas.Standby), text)
	}
	r.active.CloseClientConnections()
	r.active.Listener.Close()
	r.active.Config.Close()
	status, text, h = ask(t, r.client(t, nil), "POST", r.standby.URL+"/v1/apps")
	if status != http.StatusServiceUnavailable || h.Get(replicas.Standby) == "" || !strings.Contains(text, "cannot reach") {
		t.Errorf("an active replica that is gone: %d %q %s, want 503 with the mark", status, h.Get(replicas.Standby), text)
	}
}

func TestForwardedWebSocketsAreBounded(t *testing.T) {
	r := newRig(t)
	c := r.client(t, nil)
	var open []*websocket.Conn
	defer func() {
		for _, s := range open {
			_ = s.CloseNow()
		}
	}()
	for i := range 9 {
		s, resp, err := websocket.Dial(t.Context(), r.standby.URL+"/v1/instances/x/exec", &websocket.DialOptions{HTTPClient: c})
		if i < 8 {
			if err != nil {
				t.Fatalf("WebSocket %d: %v", i, err)
			}
			open = append(open, s)
			continue
		}
		if err == nil || resp == nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(replicas.Standby) == "" {
			t.Errorf("WebSocket %d of one address: %v, want 503 with the mark", i, err)
		}
	}
}
