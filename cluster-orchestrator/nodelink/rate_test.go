package nodelink

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// rig is a join server of cluster munich with real certificates.
type rig struct {
	t        *testing.T
	door     *Server
	desk     *jointoken.Store
	log      *bytes.Buffer
	admitted int
	last     cluster.JoinNode // the last one that was admitted
}

func newRig(t *testing.T) *rig {
	t.Helper()
	now := time.Now()
	root, err := ca.NewRoot(now.Add(-2 * time.Hour))
	check(t, err)
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := root.SignCluster(now.Add(-time.Hour), csr, "munich")
	check(t, err)
	munich, err := ca.New(ca.Pair{Key: key, Chain: chain})
	check(t, err)
	members, err := NewMembers(mem.New(), nil, "munich", trust.New(root.Root()))
	check(t, err)
	r := &rig{t: t, log: &bytes.Buffer{}}
	r.desk, err = jointoken.NewStore(mem.New(), nil, "https://munich.test:7444", func() [32]byte { return [32]byte{1} }, time.Now)
	check(t, err)
	r.door = NewServer(ServerOptions{
		Cluster: "munich", Authority: func() *ca.Authority { return munich }, Tokens: r.desk, Members: members, Streams: &streams.Registry{},
		Admit: func(_ context.Context, in cluster.Input) error {
			r.admitted++
			r.last = in.(cluster.JoinNode)
			return nil
		},
		Now: func() time.Time { return now }, // time stands still, so that no rate recovers
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	return r
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) csr() string {
	_, csr, err := ca.NewRequest()
	check(r.t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
}

// post sends a request with a client certificate and returns the response.
func (r *rig) post(path string, with *tls.ConnectionState, body any) *httptest.ResponseRecorder {
	text, err := json.Marshal(body)
	check(r.t, err)
	req := httptest.NewRequest("POST", path, bytes.NewReader(text))
	req.TLS = with
	w := httptest.NewRecorder()
	r.door.Handler().ServeHTTP(w, req)
	return w
}

// join joins a node. It returns the request and the node's certificate.
func (r *rig) join(id api.NodeID) (wire.JoinNode, *tls.ConnectionState) {
	r.t.Helper()
	tok, _, err := r.desk.Create(r.t.Context(), jointoken.Order{Scope: jointoken.ForNode, Cluster: "munich"})
	check(r.t, err)
	req := wire.JoinNode{Token: tok.Line(), CSR: r.csr(), Info: api.NodeInfo{ID: id, Hostname: string(id), Ports: &api.NodePorts{}}}
	w := r.post("/v1/join/node", nil, req)
	if w.Code != http.StatusOK {
		r.t.Fatalf("node %s joins: %d %s", id, w.Code, w.Body)
	}
	var joined wire.NodeJoined
	check(r.t, json.Unmarshal(w.Body.Bytes(), &joined))
	chain, err := ca.DecodeChain([]byte(joined.Chain))
	check(r.t, err)
	return req, &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: chain}
}

// TestANodeGetsFewCertificates: a node with a valid certificate requests a thousand more without
// a pause. Meanwhile another node can renew its own.
func TestANodeGetsFewCertificates(t *testing.T) {
	r := newRig(t)
	_, loud := r.join("loud")
	_, quiet := r.join("quiet")
	codes := map[int]int{}
	csr := r.csr()
	var last *httptest.ResponseRecorder
	for range 1000 {
		last = r.post("/v1/node/renew", loud, wire.Renew{CSR: csr})
		codes[last.Code]++
	}
	if codes[200] == 0 || codes[200] > 20 || codes[429] != 1000-codes[200] {
		t.Errorf("1000 renewals at once are answered %v, want at most 20 certificates and 429", codes)
	}
	if last.Header().Get("Retry-After") == "" {
		t.Errorf("a 429 has no Retry-After: %v", last.Header())
	}
	if w := r.post("/v1/node/renew", quiet, wire.Renew{CSR: r.csr()}); w.Code != 200 {
		t.Errorf("another node's renewal: %d %s", w.Code, w.Body)
	}
	if w := r.post("/v1/node/brokers", loud, struct{}{}); w.Code != 200 {
		t.Errorf("the node's other requests: %d %s", w.Code, w.Body)
	}
}

// TestRepeatedJoinsAreFew repeats a join with the same key. Each success costs a signature, a
// step of the core and a log line.
func TestRepeatedJoinsAreFew(t *testing.T) {
	r := newRig(t)
	req, _ := r.join("n1")
	codes := map[int]int{}
	for range 500 {
		codes[r.post("/v1/join/node", nil, req).Code]++
	}
	if codes[200] == 0 || codes[200] > 20 || codes[429] != 500-codes[200] {
		t.Errorf("500 repeated joins are answered %v, want at most 20 let in and 429", codes)
	}
	if n := strings.Count(r.log.String(), "node joined"); n > 20 || r.admitted > 20 {
		t.Errorf("500 repeated joins wrote %d lines and stepped the core %d times, want at most 20", n, r.admitted)
	}
	if n := strings.Count(r.log.String(), "\n"); n > 50 {
		t.Errorf("500 repeated joins wrote %d lines to the log", n)
	}
	r.join("n2")
}

// TestRequestsOfANodeAreSlowedDown floods each route with a valid certificate.
func TestRequestsOfANodeAreSlowedDown(t *testing.T) {
	r := newRig(t)
	_, loud := r.join("loud")
	_, quiet := r.join("quiet")
	for _, path := range []string{"/v1/node/brokers", "/v1/node/streams/nobody-waits"} {
		codes := map[int]int{}
		for range 2000 {
			codes[r.post(path, loud, struct{}{}).Code]++
		}
		if codes[429] != 1200 {
			t.Errorf("2000 requests of %s at once are answered %v, want 800 looked at", path, codes)
		}
		if w := r.post(path, quiet, struct{}{}); w.Code == 429 {
			t.Errorf("%s of another node: %s", path, w.Body)
		}
	}
	// Requests without a certificate do not use up the nodes' rates.
	codes := map[int]int{}
	for range 1000 {
		codes[r.post("/v1/node/renew", nil, struct{}{}).Code]++
	}
	if codes[401] != 400 || codes[429] != 600 {
		t.Errorf("1000 requests of a stranger are answered %v, want 400 times 401", codes)
	}
	if w := r.post("/v1/node/renew", quiet, wire.Renew{CSR: r.csr()}); w.Code != 200 {
		t.Error(fmt.Sprint("a node's renewal beside a stranger's flood: ", w.Code, w.Body))
	}
}
