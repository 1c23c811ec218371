package nodelink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestOnlyAMemberOfThisJoinIsPurged sends requests with each kind of certificate that a node may
// have.
func TestOnlyAMemberOfThisJoinIsPurged(t *testing.T) {
	now := time.Now()
	must := func(c []*x509.Certificate, err error) []*x509.Certificate {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return c
	}
	request := func() (ca.Pair, []byte) {
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		return ca.Pair{Key: key}, csr
	}
	root, err := ca.NewRoot(now.Add(-2 * time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cluster := func(id api.ClusterID) *ca.Authority {
		p, csr := request()
		p.Chain = must(root.SignCluster(now.Add(-time.Hour), csr, id))
		a, err := ca.New(p)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	munich, rome := cluster("munich"), cluster("rome")
	node := func(a *ca.Authority, id api.NodeID, at time.Time) *tls.ConnectionState {
		_, csr := request()
		return &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: must(a.SignNode(at, csr, id))}
	}
	members, err := NewMembers(mem.New(), nil, "munich", trust.New(root.Root()))
	if err != nil {
		t.Fatal(err)
	}
	if err := members.admit(t.Context(), "n1", "key", now); err != nil {
		t.Fatal(err)
	}
	if err := members.admit(t.Context(), "n2", "other", now); err != nil {
		t.Fatal(err)
	}
	var left []api.NodeID
	door := NewServer(ServerOptions{
		Cluster: "munich", Members: members, Log: slog.New(slog.DiscardHandler),
		Purging: func(_ context.Context, n api.NodeID, _ wire.NodePurging) (bool, error) { return n == "n1", nil },
		Left:    func(_ context.Context, n api.NodeID) error { left = append(left, n); return nil },
	})
	for _, c := range []struct {
		name    string
		tls     *tls.ConnectionState
		status  int
		ordered bool
	}{
		{"the node of this join", node(munich, "n1", now), 200, true},
		{"another node", node(munich, "n2", now), 200, false},
		{"the node of an earlier join", node(munich, "n1", now.Add(-time.Minute)), 403, false},
		{"a node that was removed", node(munich, "n3", now), 403, false},
		{"a node of that name of another cluster", node(rome, "n1", now), 403, false},
		{"nobody", nil, 401, false},
	} {
		for _, path := range []string{"/v1/node/purge", "/v1/node/left"} {
			left = nil
			req := httptest.NewRequest("POST", path, strings.NewReader("{}"))
			req.TLS = c.tls
			w := httptest.NewRecorder()
			door.Handler().ServeHTTP(w, req)
			want := c.status
			if path == "/v1/node/left" && want == http.StatusOK {
				want = http.StatusNoContent
			}
			if w.Code != want {
				t.Errorf("%s of %s: %d %s, want %d", path, c.name, w.Code, w.Body, want)
			}
			if path == "/v1/node/purge" && strings.Contains(w.Body.String(), `"purge":true`) != c.ordered {
				t.Errorf("%s is told %s", c.name, w.Body)
			}
			if path == "/v1/node/left" && (len(left) > 0) != (want == http.StatusNoContent) {
				t.Errorf("%s removes %v", c.name, left)
			}
		}
	}
}

// A join request that is repeated because its answer was lost has the same token. A join with
// another token ends an order to purge the node.
func TestJoinNamesItsToken(t *testing.T) {
	r := newRig(t)
	req, _ := r.join("n1")
	first := r.last.Token
	again := func() string {
		t.Helper()
		if w := r.post("/v1/join/node", nil, req); w.Code != http.StatusOK {
			t.Fatalf("join again: %d %s", w.Code, w.Body)
		}
		return r.last.Token
	}
	if got := again(); got != first || first == "" {
		t.Errorf("the repeated request names token %q, the first %q", got, first)
	}
	tok, _, err := r.desk.Create(t.Context(), jointoken.Order{Scope: jointoken.ForNode, Cluster: "munich"})
	check(t, err)
	req.Token = tok.Line()
	if got := again(); got != tok.ID() || got == first {
		t.Errorf("a join with token %s names %q", tok.ID(), got)
	}
}
