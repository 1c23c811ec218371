package wiring_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

const password = "correct horse battery"

// daemon is a running root orchestrator with real TLS and a real store.
type daemon struct {
	t    *testing.T
	cfg  wiring.Config
	addr string
	stop func()
}

func start(t *testing.T, dir string) *daemon {
	t.Helper()
	cfg := wiring.Defaults()
	cfg.Data, cfg.Listen = dir, "127.0.0.1:0"
	return startWith(t, cfg)
}

func startWith(t *testing.T, cfg wiring.Config) *daemon {
	t.Helper()
	dir := cfg.Data
	check(t, cfg.Validate())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- wiring.Run(ctx, cfg, slog.New(slog.DiscardHandler)) }()
	d := &daemon{t: t, cfg: cfg}
	ended := false
	d.stop = func() {
		if !ended {
			ended = true
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the root ended: %v", err)
			}
		}
	}
	t.Cleanup(d.stop)
	for d.addr == "" {
		select {
		case err := <-done:
			ended = true
			t.Fatalf("the root did not start: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		if b, err := os.ReadFile(filepath.Join(dir, wiring.AddressFile)); err == nil {
			d.addr = strings.TrimSpace(string(b))
		}
	}
	return d
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *daemon) url() string { return "https://" + d.addr }

func (d *daemon) client(tokens client.Tokens) *client.Client {
	d.t.Helper()
	pem, err := os.ReadFile(filepath.Join(d.cfg.Data, wiring.CAFile))
	check(d.t, err)
	c, err := client.New(client.Options{URL: d.url(), CA: pem, Tokens: tokens})
	check(d.t, err)
	d.t.Cleanup(c.Close)
	return c
}

// admin redeems the first sign-in.
func (d *daemon) admin() *client.Client {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.cfg.Data, wiring.SignInFile))
	check(d.t, err)
	user, code, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	s, err := d.client(nil).Redeem(d.t.Context(), api.Redeem{User: user, Code: code, Password: password})
	check(d.t, err)
	return d.client(client.Static(s.Access))
}

// cluster is a simulated cluster orchestrator: its keys, and requests with its certificate.
type cluster struct {
	t    *testing.T
	d    *daemon
	id   api.ClusterID
	key  crypto.Signer
	pair ca.Pair // of the authority
	http *http.Client
}

func (d *daemon) join(line string, id api.ClusterID) (*cluster, error) {
	d.t.Helper()
	key, csr, err := ca.NewRequest()
	check(d.t, err)
	return d.joinAs(line, id, key, csr)
}

func (d *daemon) joinAs(line string, id api.ClusterID, key crypto.Signer, csr []byte) (*cluster, error) {
	d.t.Helper()
	tok, err := jointoken.Parse(line)
	check(d.t, err)
	var joined wire.ClusterJoined
	err = call.JSON(d.t.Context(), tok.HTTPClient(), tok.URL+"/v1/join/cluster", wire.JoinCluster{
		Token: line, CSR: csrText(csr), Info: api.ClusterInfo{ID: id, Location: "a test"},
	}, &joined)
	if err != nil {
		return nil, err
	}
	if joined.Info.ID != id || len(joined.JWTKeys) == 0 {
		d.t.Errorf("joined as %+v with %d keys", joined.Info, len(joined.JWTKeys))
	}
	chain, err := ca.DecodeChain([]byte(joined.Chain))
	check(d.t, err)
	c := &cluster{t: d.t, d: d, id: id, key: key, pair: ca.Pair{Chain: chain, Key: key}}
	authority, err := ca.New(c.pair)
	check(d.t, err)
	leafKey, leafCSR, err := ca.NewRequest()
	check(d.t, err)
	leaf, err := authority.SignOwn(time.Now(), leafCSR)
	check(d.t, err)
	shown := ca.Pair{Chain: leaf, Key: leafKey}.TLS(false)
	tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: trust.New(authority.Root()).Client(identity.OfRoot(),
		func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil })}
	d.t.Cleanup(tr.CloseIdleConnections)
	c.http = &http.Client{Transport: tr}
	return c, nil
}

func csrText(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// open opens the stream of desired state. The channel gets its messages as "event data".
func (c *cluster) open(since api.Generation) (<-chan string, func()) {
	c.t.Helper()
	resp, err := c.http.Get(fmt.Sprintf("%s/v1/cluster/desired?since=%d&digest=0", c.d.url(), since))
	check(c.t, err)
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		c.t.Fatalf("stream: %s %s, want status 200, ProtoMajor 2", resp.Proto, resp.Status)
	}
	out := make(chan string, 100)
	go func() {
		defer close(out)
		event := ""
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if e, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				event = e
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				out <- event + " " + data
			}
		}
	}()
	return out, func() {
		resp.Body.Close()
		for range out {
		}
	}
}

// next returns the next message of the event, decoded.
func next[T any](t *testing.T, messages <-chan string, event string) (v T) {
	t.Helper()
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended before a %s", event)
			}
			if data, ok := strings.CutPrefix(m, event+" "); ok {
				check(t, json.Unmarshal([]byte(data), &v))
				return v
			}
		case <-time.After(time.Minute):
			t.Fatalf("no %s", event)
		}
	}
}

func (c *cluster) report(seq uint64, observed ...api.Observed) (wire.ReportAck, error) {
	room := api.Resources{MilliCPU: 4000, MemoryMB: 4096}
	var ack wire.ReportAck
	err := call.JSON(c.t.Context(), c.http, c.d.url()+"/v1/cluster/report", wire.Report{
		Cluster: c.id, Boot: 1, Seq: seq, Observed: observed,
		Aggregate: api.Aggregate{
			Nodes: 1, Capacity: room, Free: room, Mean: room, Largest: room,
			Slots: []api.Slot{{Runtime: "container", Arch: "amd64", Network: true, Nodes: 1, Free: room, Largest: room}},
		},
	}, &ack)
	return ack, err
}

const sla = `{"sla_version":"v2.0","applications":[{"application_name":"shop","application_namespace":"prod","microservices":[
	{"microservice_name":"web","microservice_namespace":"v1","virtualization":"container","code":"example.org/web:1","memory":64,"vcpus":0.5}]}]}`

func clusterToken(t *testing.T, c *client.Client, r api.TokenRequest) string {
	t.Helper()
	r.Kind = "cluster"
	tok, err := c.CreateJoinToken(t.Context(), r)
	check(t, err)
	return tok.Token
}

func TestFromTheFirstSignInToARunningInstance(t *testing.T) {
	d := start(t, t.TempDir())
	ctx := t.Context()
	admin := d.admin()
	check(t, admin.CreateTenant(ctx, "acme", "Acme"))
	munich, err := d.join(clusterToken(t, admin, api.TokenRequest{}), "munich")
	check(t, err)
	messages, end := munich.open(0)
	defer end()
	next[wire.Desired](t, messages, "desired") // the empty set
	if ack, err := munich.report(1); err != nil || ack.Seq != 1 || ack.Boot != 1 {
		t.Errorf("ack %+v %v, want no error, Seq 1, Boot 1", ack, err)
	}
	_, err = admin.Apply(ctx, []byte(sla), client.ApplyOptions{Tenant: "acme"})
	check(t, err)
	desired := next[wire.Desired](t, messages, "desired")
	if len(desired.Put) != 1 || desired.Put[0].Instance != "acme/shop.prod.web.v1#0" {
		t.Fatalf("desired %+v", desired)
	}
	_, err = munich.report(2, api.Observed{Instance: desired.Put[0].Instance, Epoch: desired.Put[0].Epoch, State: api.Running})
	check(t, err)
	i, err := admin.Instance(ctx, desired.Put[0].Instance)
	if err != nil || i.State != api.Running || i.Cluster != "munich" {
		t.Errorf("instance %+v %v, want no error, State api.Running, Cluster 'munich'", i, err)
	}

	// Logs and forwarded requests use streams that the cluster dials.
	go func() {
		for m := range messages {
			data, ok := strings.CutPrefix(m, "stream ")
			var r wire.StreamRequest
			if !ok || json.Unmarshal([]byte(data), &r) != nil {
				continue
			}
			body := "line 1\nline 2\n"
			if r.Kind == "api" {
				page := `{"items":[{"id":"n1"}],"revision":0}`
				body = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(page), page)
			}
			if resp, err := munich.http.Post(d.url()+"/v1/cluster/streams/"+r.ID, "application/octet-stream", strings.NewReader(body)); err == nil {
				resp.Body.Close()
			}
		}
	}()
	logs, err := admin.Logs(ctx, i.ID, false, -1)
	check(t, err)
	text, err := io.ReadAll(logs)
	logs.Close()
	if err != nil || string(text) != "line 1\nline 2\n" {
		t.Errorf("logs %q %v", text, err)
	}
	nodes, err := admin.NodesOf("munich").List(ctx)
	if err != nil || len(nodes) != 1 || nodes[0].ID != "n1" {
		t.Errorf("nodes %+v %v", nodes, err)
	}
	for _, path := range []string{"/livez", "/readyz", "/version"} {
		if _, err := admin.Do(ctx, client.Request{Method: http.MethodGet, Path: path}, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if text := metrics(t, admin); !strings.Contains(text, `treeline_instances{state="running"} 1`) || !strings.Contains(text, "treeline_cluster_streams 1") {
		t.Errorf("metrics: %s", text)
	}
}

func TestAStreamEndsWhenItsReaderLeaves(t *testing.T) {
	d := start(t, t.TempDir())
	admin := d.admin()
	check(t, admin.CreateTenant(t.Context(), "acme", ""))
	munich, err := d.join(clusterToken(t, admin, api.TokenRequest{}), "munich")
	check(t, err)
	messages, end := munich.open(0)
	defer end()
	_, err = munich.report(1)
	check(t, err)
	_, err = admin.Apply(t.Context(), []byte(sla), client.ApplyOptions{Tenant: "acme"})
	check(t, err)

	ended := make(chan error, 2)
	go func() {
		r := next[wire.StreamRequest](t, messages, "stream")
		if r.Kind != "logs" || !r.Follow || r.Tail != 3 {
			t.Errorf("asked for %+v", r)
		}
		body, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, "line 1\n") }() // then the workload writes nothing
		resp, err := munich.http.Post(d.url()+"/v1/cluster/streams/"+r.ID, "application/octet-stream", body)
		if err == nil {
			resp.Body.Close()
		}
		_ = body.Close()
		ended <- err
	}()
	logs, err := admin.Logs(t.Context(), "acme/shop.prod.web.v1#0", true, 3)
	check(t, err)
	line := make([]byte, 7)
	if _, err := io.ReadFull(logs, line); err != nil || string(line) != "line 1\n" {
		t.Errorf("read %q %v", line, err)
	}
	logs.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the cluster's stream goes on")
	}

	// A cluster that has nothing to stream answers with the reason.
	go func() {
		r := next[wire.StreamRequest](t, messages, "stream")
		req, err := http.NewRequest(http.MethodPost, d.url()+"/v1/cluster/streams/"+r.ID, strings.NewReader(`{"status":404,"code":"not_found","detail":"its node is away"}`))
		if err == nil {
			req.Header.Set("Content-Type", "application/problem+json")
			var resp *http.Response
			if resp, err = munich.http.Do(req); err == nil {
				resp.Body.Close()
			}
		}
		ended <- err
	}()
	if _, err := admin.Logs(t.Context(), "acme/shop.prod.web.v1#0", true, -1); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "its node is away") {
		t.Errorf("no logs: %v, want ErrNotFound, a text with 'its node is away'", err)
	}
	check(t, <-ended)
}

func metrics(t *testing.T, c *client.Client) string {
	t.Helper()
	h := new(bytes.Buffer)
	resp, err := c.Raw(t.Context(), client.Request{Method: http.MethodGet, Path: "/metrics"})
	check(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(h, resp.Body)
	check(t, err)
	return h.String()
}

func TestARestartLosesNothingAndPrintsNoCodeAgain(t *testing.T) {
	dir := t.TempDir()
	d := start(t, dir)
	admin := d.admin()
	check(t, admin.CreateTenant(t.Context(), "acme", ""))
	munich, err := d.join(clusterToken(t, admin, api.TokenRequest{}), "munich")
	check(t, err)
	_, err = admin.Apply(t.Context(), []byte(sla), client.ApplyOptions{Tenant: "acme"})
	check(t, err)
	d.stop()

	d = start(t, dir)
	if _, err := os.Stat(filepath.Join(dir, wiring.SignInFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the first sign-in is still there: %v, want ErrNotExist", err)
	}
	s, err := d.client(nil).Login(t.Context(), api.Login{User: "admin", Password: password})
	check(t, err)
	if _, err := d.client(client.Static(s.Access)).App(t.Context(), "acme/shop.prod"); err != nil {
		t.Error(err)
	}
	munich.d = d
	messages, end := munich.open(0)
	defer end()
	next[wire.Desired](t, messages, "desired")
}

// A one-use token admits one name with one key, and no removed cluster.
func TestAClusterTokenAdmitsOneNameWithOneKey(t *testing.T) {
	d := start(t, t.TempDir())
	admin := d.admin()
	line := clusterToken(t, admin, api.TokenRequest{})
	key, csr, err := ca.NewRequest()
	check(t, err)
	for _, c := range []struct {
		what string
		id   api.ClusterID
		want error
	}{
		{"the first use", "munich", nil},
		{"again, after a lost answer", "munich", nil},
		{"another name", "oslo", api.ErrForbidden},
	} {
		if _, err := d.joinAs(line, c.id, key, csr); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
	if _, err := d.join(line, "munich"); !errors.Is(err, api.ErrConflict) && !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("another key: %v", err)
	}
	if all, _, err := admin.Clusters(t.Context(), client.ListOptions{}); err != nil || len(all) != 1 {
		t.Errorf("%d clusters joined by one use (%v), want no error, 1 of all", len(all), err)
	}
	check(t, admin.RemoveCluster(t.Context(), "munich", 0))
	if _, err := d.joinAs(line, "munich", key, csr); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a cluster that was forgotten comes back by its old token: %v, want ErrUnauthenticated", err)
	}
}

// Of two clusters that request a name at the same time, one gets it.
func TestOneOfTwoConcurrentJoinsGetsAName(t *testing.T) {
	d := start(t, t.TempDir())
	admin := d.admin()
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		line := clusterToken(t, admin, api.TokenRequest{})
		wg.Go(func() {
			if _, err := d.join(line, "munich"); err == nil {
				won.Add(1)
			} else if !errors.Is(err, api.ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 8 keys got the name", won.Load())
	}
}

func TestPeersWithoutAClusterCertificateAreRefused(t *testing.T) {
	d := start(t, t.TempDir())
	admin := d.admin()
	munich, err := d.join(clusterToken(t, admin, api.TokenRequest{Cluster: "munich"}), "munich")
	check(t, err)

	// A user's token does not identify a cluster.
	if _, err := admin.Do(t.Context(), client.Request{Method: http.MethodPost, Path: "/v1/cluster/report", Body: wire.Report{}}, nil); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a person reports: %v, want ErrUnauthenticated", err)
	}
	// A cluster cannot report for another one.
	err = call.JSON(t.Context(), munich.http, d.url()+"/v1/cluster/report", wire.Report{Cluster: "dublin"}, nil)
	if !errors.Is(err, api.ErrForbidden) {
		t.Errorf("munich reports as dublin: %v, want ErrForbidden", err)
	}
	// The certificate of a cluster's node does not identify a cluster.
	authority, err := ca.New(munich.pair)
	check(t, err)
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := authority.SignNode(time.Now(), csr, "n1")
	check(t, err)
	shown := ca.Pair{Chain: chain, Key: key}.TLS(false)
	tr := &http.Transport{TLSClientConfig: trust.New(authority.Root()).Client(identity.OfRoot(),
		func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil })}
	defer tr.CloseIdleConnections()
	err = call.JSON(t.Context(), &http.Client{Transport: tr}, d.url()+"/v1/cluster/report", wire.Report{Cluster: "munich"}, nil)
	if !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a node reports: %v, want ErrForbidden", err)
	}
	// Only the authority's own key can be renewed.
	err = call.JSON(t.Context(), munich.http, d.url()+"/v1/cluster/renew", wire.Renew{CSR: csrText(csr)}, nil)
	if !errors.Is(err, api.ErrForbidden) {
		t.Errorf("renewed with another key: %v, want ErrForbidden", err)
	}
	own, err := ca.Request(munich.key)
	check(t, err)
	var joined wire.ClusterJoined
	check(t, call.JSON(t.Context(), munich.http, d.url()+"/v1/cluster/renew", wire.Renew{CSR: csrText(own)}, &joined))
	if joined.Info.ID != "munich" || joined.Chain == "" {
		t.Errorf("renewed %+v", joined)
	}
}

func TestJoiningRequiresAMatchingToken(t *testing.T) {
	d := start(t, t.TempDir())
	admin := d.admin()
	line := clusterToken(t, admin, api.TokenRequest{})
	key, csr, err := ca.NewRequest()
	check(t, err)
	if _, err := d.joinAs(line, "munich", key, csr); err != nil {
		t.Fatal(err)
	}
	if _, err := d.joinAs(line, "munich", key, csr); err != nil {
		t.Errorf("the same key again, as when an answer was lost: %v", err)
	}
	if _, err := d.join(line, "dublin"); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a token that is used up: %v, want ErrUnauthenticated", err)
	}
	if _, err := d.join(clusterToken(t, admin, api.TokenRequest{}), "munich"); !errors.Is(err, api.ErrConflict) {
		t.Errorf("another machine takes a name over: %v, want ErrConflict", err)
	}
	if _, err := d.join(clusterToken(t, admin, api.TokenRequest{Cluster: "osaka"}), "dublin"); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a token for another name: %v, want ErrForbidden", err)
	}
	if _, err := d.join(clusterToken(t, admin, api.TokenRequest{Cluster: "munich"}), "munich"); err != nil {
		t.Errorf("the operator sets the machine up anew: %v", err)
	}
	bad := line[:len(line)-2] + "AA"
	if _, err := d.join(bad, "dublin"); !errors.Is(err, api.ErrUnauthenticated) && !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a damaged secret: %v", err)
	}
}

func TestARemovedClusterIsRefusedUntilItJoinsAgain(t *testing.T) {
	dir := t.TempDir()
	d := start(t, dir)
	admin := d.admin()
	munich, err := d.join(clusterToken(t, admin, api.TokenRequest{}), "munich")
	check(t, err)
	messages, end := munich.open(0)
	next[wire.Desired](t, messages, "desired")
	check(t, admin.RemoveCluster(t.Context(), "munich", 0))
	for range messages { // the root ends the stream
	}
	end()
	refused := func(when string) {
		t.Helper()
		// On an open connection the request is refused, on a new one the handshake.
		if _, err := munich.report(2); err == nil {
			t.Errorf("%s the forgotten cluster reports, want an error", when)
		}
	}
	refused("at once")
	d.stop()
	d = start(t, dir)
	munich.d = d
	munich.http.CloseIdleConnections()
	refused("after a restart")
	s, err := d.client(nil).Login(t.Context(), api.Login{User: "admin", Password: password})
	check(t, err)
	anew, err := d.join(clusterToken(t, d.client(client.Static(s.Access)), api.TokenRequest{}), "munich")
	check(t, err)
	if _, err := anew.report(1); err != nil {
		t.Errorf("the one that joined anew: %v", err)
	}
	refused("beside the new one")
}

func TestANewStreamReplacesTheOld(t *testing.T) {
	d := start(t, t.TempDir())
	munich, err := d.join(clusterToken(t, d.admin(), api.TokenRequest{}), "munich")
	check(t, err)
	first, end := munich.open(0)
	defer end()
	next[wire.Desired](t, first, "desired")
	second, end2 := munich.open(0)
	defer end2()
	next[wire.Desired](t, second, "desired")
	for range first { // ends
	}
}

func TestAStartWithoutTheAuthoritysKeyFails(t *testing.T) {
	dir := t.TempDir()
	d := start(t, dir)
	d.admin()
	d.stop()
	check(t, os.Remove(filepath.Join(dir, "root-ca.pem")))
	err := wiring.Run(t.Context(), d.cfg, slog.New(slog.DiscardHandler))
	if !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "root-ca.pem") {
		t.Errorf("a store without its key: %v, want ErrNotFound, a text with 'root-ca.pem'", err)
	}
}

// The root does not start with a store without its keys, with keys without their store, or with a
// store and keys of different installations. The error says what to do.
func TestTheStoreBelongsToTheKeys(t *testing.T) {
	ours, others := t.TempDir(), t.TempDir()
	run := func(cfg wiring.Config) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return wiring.Run(ctx, cfg, slog.New(slog.DiscardHandler))
	}
	d, other := start(t, ours), start(t, others)
	d.stop()
	other.stop()
	db := filepath.Join(ours, "root.db")
	kept, err := os.ReadFile(db)
	check(t, err)
	foreign, err := os.ReadFile(filepath.Join(others, "root.db"))
	check(t, err)

	check(t, os.WriteFile(db, foreign, 0o600))
	if err := run(d.cfg); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "one backup") {
		t.Errorf("the store of another installation: %v, want ErrConflict, a text with 'one backup'", err)
	}
	check(t, os.Remove(db))
	if err := run(d.cfg); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "--new-store") {
		t.Errorf("an empty store: %v, want ErrNotFound, a text with '--new-store'", err)
	}
	check(t, os.WriteFile(db, kept, 0o600))
	start(t, ours).admin()
}

func TestASecondRootOnOneDataDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	d := start(t, dir)
	err := wiring.Run(t.Context(), d.cfg, slog.New(slog.DiscardHandler))
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), filepath.Join(dir, "root.db")) {
		t.Errorf("got %v, want ErrInUse with the name of the file", err)
	}
	// The refused process leaves the address of the running one.
	if text, err := os.ReadFile(filepath.Join(dir, wiring.AddressFile)); err != nil || strings.TrimSpace(string(text)) != d.addr {
		t.Errorf("the address file has %q, %v, want %s", text, err, d.addr)
	}
	d.admin()
}

func TestTheCAIsFetchedByItsPin(t *testing.T) {
	d := start(t, t.TempDir())
	line := clusterToken(t, d.admin(), api.TokenRequest{})
	tok, err := jointoken.Parse(line)
	check(t, err)
	pem, err := client.FetchCA(t.Context(), d.url(), fmt.Sprintf("sha256:%x", tok.CA))
	check(t, err)
	want, err := os.ReadFile(filepath.Join(d.cfg.Data, wiring.CAFile))
	check(t, err)
	if !bytes.Equal(pem, want) {
		t.Error("another certificate")
	}
	if _, err := client.FetchCA(t.Context(), d.url(), strings.Repeat("00", 32)); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a wrong pin: %v, want ErrUnauthenticated", err)
	}
	other, err := ca.NewRoot(time.Now())
	check(t, err)
	c, err := client.New(client.Options{URL: d.url(), CA: ca.EncodeChain(other.Pair().Chain)})
	check(t, err)
	if _, err := c.Login(t.Context(), api.Login{}); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a server below another CA: %v, want ErrUnauthenticated", err)
	}
	c, err = client.New(client.Options{URL: d.url(), CA: want, Expect: "treeline://cluster/munich"})
	check(t, err)
	if _, err := c.Login(t.Context(), api.Login{}); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a server that is somebody else: %v, want ErrUnauthenticated", err)
	}
}

func TestConfigFaults(t *testing.T) {
	for name, set := range map[string]func(*wiring.Config){
		"data":          func(c *wiring.Config) { c.Data = "" },
		"listen":        func(c *wiring.Config) { c.Listen = "7443" },
		"url":           func(c *wiring.Config) { c.URL = "http://root" },
		"store":         func(c *wiring.Config) { c.Store = "postgres://x" },
		"dead":          func(c *wiring.Config) { c.Dead = -1 },
		"replica":       func(c *wiring.Config) { c.Replica = true },
		"gossip_listen": func(c *wiring.Config) { c.Replica, c.Store, c.GossipListen = true, "mongodb://db", "7446" },
		"standby_reads": func(c *wiring.Config) { c.StandbyReads = true },
		"replica_lease": func(c *wiring.Config) { c.Replica, c.Store, c.ReplicaLease = true, "mongodb://db", time.Millisecond },
	} {
		cfg := wiring.Defaults()
		set(&cfg)
		if err := cfg.Validate(); !errors.Is(err, api.ErrInvalid) || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
