package tiers

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/revoke"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// fakeRoot implements the root's side of the protocol without decisions.
type fakeRoot struct {
	*httptest.Server
	t       *testing.T
	ca      *ca.Authority
	desk    *jointoken.Store
	signer  jwt.Signer
	ring    *jwt.Ring
	revoked *revoke.Log
	streams streams.Registry

	mu      sync.Mutex
	gen     api.Generation
	want    []wire.Assignment
	digest  api.Digest
	streamC chan any // wire.Desired, wire.StreamRequest or wire.Revocations for the open stream
	reports []wire.Report
	changed chan struct{}

	opened, renewals, keyAsks int
	generation                identity.Generation // of the cluster's authority; no request is checked
}

func newRoot(t *testing.T) *fakeRoot {
	t.Helper()
	authority, err := ca.NewRoot(time.Now())
	check(t, err)
	ring := jwt.NewRing(time.Now())
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := authority.SignOwn(time.Now(), csr, "127.0.0.1")
	check(t, err)
	pair := ca.Pair{Chain: chain, Key: key}
	r := &fakeRoot{
		t: t, ca: authority, ring: ring, signer: jwt.Signer{Ring: ring, Issuer: api.TokenIssuer},
		changed: make(chan struct{}, 1), revoked: revoke.NewLog(time.Now),
	}
	v := trust.New(authority.Root())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/join/cluster", r.join)
	mux.HandleFunc("GET /v1/cluster/desired", r.desired)
	mux.HandleFunc("POST /v1/cluster/report", r.report)
	mux.HandleFunc("POST /v1/cluster/renew", r.renew)
	mux.HandleFunc("GET /v1/cluster/keys", r.keys)
	mux.HandleFunc("POST /v1/cluster/streams/{id}", r.deliver)
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v1/join/cluster" {
			if _, err := v.Peer(*req.TLS); err != nil {
				call.Write(w, err)
				return
			}
		}
		mux.ServeHTTP(w, req)
	}))
	r.Server.TLS = v.Server(nil, false)
	r.Server.TLS.Certificates = []tls.Certificate{*pair.TLS(true)} // otherwise httptest uses its own
	r.Server.EnableHTTP2 = true
	r.Server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.Server.StartTLS()
	t.Cleanup(r.Server.Close)
	r.desk, err = jointoken.NewStore(mem.New(), nil, r.URL, authority.Hash, time.Now)
	check(t, err)
	return r
}

func (r *fakeRoot) token() string {
	t, _, err := r.desk.Create(context.Background(), jointoken.Order{Scope: jointoken.ForCluster, Tenant: "acme"})
	check(r.t, err)
	return t.Line()
}

// bearer returns a user's token that the root exchanged for the cluster.
func (r *fakeRoot) bearer(user string, tenant api.Tenant, roles ...rights.Role) string {
	return r.sign(jwt.Claims{Subject: user, Tenant: tenant, Roles: roles}, api.ClusterAudience("munich"))
}

func (r *fakeRoot) sign(c jwt.Claims, audience string) string {
	c.Mark = r.revoked.Mark()
	text, _, err := r.signer.Sign(c, []string{audience}, time.Minute)
	check(r.t, err)
	return text
}

// as returns the request on behalf of the user, with a token that is delegated for it.
func (r *fakeRoot) as(q wire.StreamRequest, user string, tenant api.Tenant, roles ...rights.Role) wire.StreamRequest {
	q.Token = r.sign(jwt.Claims{
		Subject: user, Tenant: tenant, Roles: roles, Use: jwt.UseCall, Object: q.CallObject(),
	}, api.ClusterAudience("munich"))
	return q
}

// revoke sends the revocation of the user's tokens to the cluster.
func (r *fakeRoot) revoke(user string) {
	r.revoked.User(user)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streamC <- r.revoked.Since(0)
}

func (r *fakeRoot) join(w http.ResponseWriter, req *http.Request) {
	var in wire.JoinCluster
	_ = json.NewDecoder(req.Body).Decode(&in)
	t, err := jointoken.Parse(in.Token)
	if err != nil {
		call.Write(w, err)
		return
	}
	b, _ := pem.Decode([]byte(in.CSR))
	key, err := ca.Fingerprint(b.Bytes)
	if err == nil {
		_, _, err = r.desk.Redeem(req.Context(), jointoken.Claim{Secret: t.Secret, Scope: jointoken.ForCluster, Cluster: in.Info.ID, Key: key, Name: string(in.Info.ID)})
	}
	var chain []*x509.Certificate
	if err == nil {
		chain, err = r.ca.SignCluster(time.Now(), b.Bytes, in.Info.ID)
	}
	if err != nil {
		call.Write(w, err)
		return
	}
	out := wire.ClusterJoined{Chain: string(ca.EncodeChain(chain)), Info: in.Info, JWTKeys: r.tokenKeys()}
	out.Info.Tenant = "acme"
	_ = json.NewEncoder(w).Encode(out)
}

func (r *fakeRoot) tokenKeys() map[string]string {
	keys := map[string]string{}
	for kid, pub := range r.ring.Public() {
		keys[kid] = base64.RawURLEncoding.EncodeToString(ed25519.PublicKey(pub))
	}
	return keys
}

func (r *fakeRoot) keys(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keyAsks++
	_ = json.NewEncoder(w).Encode(wire.ClusterKeys{JWTKeys: r.tokenKeys()})
}

func (r *fakeRoot) renew(w http.ResponseWriter, req *http.Request) {
	var in wire.Renew
	_ = json.NewDecoder(req.Body).Decode(&in)
	b, _ := pem.Decode([]byte(in.CSR))
	id, err := identity.Of(req.TLS.PeerCertificates[0])
	var chain []*x509.Certificate
	if err == nil {
		r.mu.Lock()
		if len(in.Proof) > 0 {
			r.generation.Key++
		}
		if in.Retire {
			r.generation.Oldest = r.generation.Key
		}
		g := r.generation
		r.mu.Unlock()
		chain, err = r.ca.SignGeneration(time.Now(), b.Bytes, id.Cluster, g)
	}
	if err != nil {
		call.Write(w, err)
		return
	}
	r.mu.Lock()
	r.renewals++
	r.mu.Unlock()
	_ = json.NewEncoder(w).Encode(wire.ClusterJoined{
		Chain: string(ca.EncodeChain(chain)), Info: api.ClusterInfo{ID: id.Cluster, Tenant: "acme"}, JWTKeys: r.tokenKeys(),
	})
}

func (r *fakeRoot) desired(w http.ResponseWriter, req *http.Request) {
	c := make(chan any, 16)
	r.mu.Lock()
	r.streamC = c
	r.opened++
	c <- r.revoked.Since(0)
	if req.URL.Query().Get("digest") != fmt.Sprint(uint64(r.digest)) {
		c <- wire.Desired{Gen: r.gen, Put: r.want, Digest: r.digest}
	}
	r.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, ": hello\n\n")
	w.(http.Flusher).Flush()
	for {
		select {
		case m := <-c:
			name := "desired"
			switch m.(type) {
			case wire.StreamRequest:
				name = "stream"
			case wire.Revocations:
				name = "revoked"
			}
			b, _ := json.Marshal(m)
			_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, b)
			w.(http.Flusher).Flush()
		case <-req.Context().Done():
			return
		}
	}
}

func (r *fakeRoot) report(w http.ResponseWriter, req *http.Request) {
	var rep wire.Report
	_ = json.NewDecoder(req.Body).Decode(&rep)
	r.mu.Lock()
	r.reports = append(r.reports, rep)
	ack := wire.ReportAck{Boot: rep.Boot, Seq: rep.Seq, Gen: r.gen}
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
	_ = json.NewEncoder(w).Encode(ack)
}

func (r *fakeRoot) deliver(w http.ResponseWriter, req *http.Request) {
	if req.Header.Get("Content-Type") == "application/problem+json" {
		text, _ := io.ReadAll(req.Body)
		_ = r.streams.Fail(req.PathValue("id"), "c", call.ParseProblem("application/problem+json", 500, text))
		return
	}
	if err := r.streams.Deliver(req.Context(), req.PathValue("id"), "c", req.Body); err != nil {
		call.Write(w, err)
	}
}

// set changes the cluster's desired set.
func (r *fakeRoot) set(want ...wire.Assignment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gen++
	r.want, r.digest = want, 0
	for _, a := range want {
		r.digest = r.digest.Toggle(a.Digest())
	}
	if r.streamC != nil {
		r.streamC <- wire.Desired{Gen: r.gen, Put: want, Digest: r.digest}
	}
}

// ask makes the cluster dial a stream.
func (r *fakeRoot) ask(ctx context.Context, q wire.StreamRequest) ([]byte, error) {
	w, err := r.streams.Expect("c", wire.StreamRequest{})
	check(r.t, err)
	defer w.Close()
	q.ID = w.ID()
	r.mu.Lock()
	r.streamC <- q
	r.mu.Unlock()
	body, err := w.Body(ctx)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(body)
}

// until waits for a report for which ok returns true.
func (r *fakeRoot) until(what string, ok func(wire.Report) bool) wire.Report {
	r.t.Helper()
	deadline := time.After(patience)
	seen := 0
	for {
		r.mu.Lock()
		fresh := r.reports[seen:]
		seen = len(r.reports)
		r.mu.Unlock()
		for _, rep := range fresh {
			if ok(rep) {
				return rep
			}
		}
		select {
		case <-r.changed:
		case <-deadline:
			r.t.Fatalf("no report in time with: %s; the last report is %+v", what, fresh)
		}
	}
}

// observed waits until the cluster reports the instance in the state.
func (r *fakeRoot) observed(id api.InstanceID, s api.State) api.Observed {
	r.t.Helper()
	var got api.Observed
	r.until(fmt.Sprintf("%s is %s", id, s), func(rep wire.Report) bool {
		for _, o := range rep.Observed {
			if o.Instance == id && o.State == s {
				got = o
				return true
			}
		}
		return false
	})
	return got
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
