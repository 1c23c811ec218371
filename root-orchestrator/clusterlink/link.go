// Package clusterlink serves the connections that clusters open to the root: joining, renewing
// certificates, the stream of desired state to a cluster, reports from it, and streams (logs,
// requests) that the root requests from it. A cluster is identified by its certificate.
//
// The package only transports messages. The core (package root) decides what a cluster should have
// and whether a message is stale. Delivery is not guaranteed: if the queue of a stream is full, the
// stream is closed, and the cluster resumes it.
//
//	link := clusterlink.New(clusterlink.Options{Core: core, Owner: loop, …})
//	mux.Handle("/v1/cluster/", link.Handler())
//	link.Send(envelope)                          // from the loop's send function
//	logs, err := link.Ask(ctx, "munich", wire.StreamRequest{Kind: "logs", …})
package clusterlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/revoke"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/refusals"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// Limits and timeouts of a link.
const (
	streamBuffer = 64               // queued messages per cluster
	keepAlive    = 15 * time.Second // interval of comments on a stream
	readTime     = 30 * time.Second // to read a request's body
	askTime      = 10 * time.Second // for a cluster to dial a stream out
)

// maxReport limits a report. An object in it takes up to 312 bytes of memory when decoded.
var maxReport = jsonsize.Limit{Bytes: 16 << 20, Objects: 1 << 18, Values: 3 << 19}

// Reports of at most smallReport bytes are decoded without a turn. Most reports are that small, and
// a queue would keep the core from saving many of them in one write.
const smallReport = 64 << 10

var (
	reportPlaces = fairshare.Declare(fairshare.Bound{
		Resource: "reports of clusters that are being received", Total: 1024, Share: []int{2}, Per: "cluster",
		Beyond: "429; 413 beyond 16 MiB, 262,144 objects or 1,572,864 values",
		Attack: "TestReportsOfOneClusterLeaveRoomForOthers",
	})
	reportTurns = fairshare.Declare(fairshare.Bound{
		Resource: "reports of clusters of more than 64 KiB that wait to be decoded", Total: 1024, Share: []int{2}, Per: "cluster",
		Beyond: "2 are decoded at once, 1 of one cluster, and clusters take turns",
		Attack: "TestReportsOfOneClusterLeaveRoomForOthers",
	})
)

// Owner runs functions on the goroutine that owns the core (package loop).
type Owner interface {
	Do(ctx context.Context, in root.Input, after func()) error
	Read(ctx context.Context, fn func()) error
}

// Options configures a Link.
type Options struct {
	Core      *root.Core // read on the owner's goroutine only
	Owner     Owner
	Authority func() *ca.Authority
	Verifier  *trust.Verifier
	Issued    *Issued
	Tokens    *jointoken.Store
	Keys      func() jwt.PublicKeys // keys that verify users' tokens
	Replicas  func() []string       // URLs of all replicas of the root; nil: there are none
	// Open decrypts the values of a config or secret (seal.Sealer.Open).
	Open    func(label string, sealed []byte) (wire.Value, error)
	Revoked *revoke.Log      // revocations of delegated tokens; nil: an empty log
	Now     func() time.Time // time.Now
	Log     *slog.Logger     // slog.Default
}

// Link serves the clusters. It is safe for concurrent use.
type Link struct {
	opt     Options
	streams streams.Registry
	shares  *apishare.Shares
	refused *refusals.Log // refused joins
	reports *fairshare.Pool
	turns   *fairshare.Turns // to decode reports
	mux     *http.ServeMux

	mu    sync.Mutex // guards all below
	conns map[api.ClusterID]*conn
	acks  map[ackKey]chan wire.ReportAck
}

type ackKey struct {
	cluster   api.ClusterID
	boot, seq uint64
}

func New(o Options) *Link {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Revoked == nil {
		o.Revoked = revoke.NewLog(o.Now)
	}
	if o.Replicas == nil {
		o.Replicas = func() []string { return nil }
	}
	l := &Link{
		opt: o, mux: http.NewServeMux(), shares: apishare.New(apishare.Options{Now: o.Now}), refused: refusals.New(o.Log, "join of a cluster refused"),
		reports: fairshare.NewPool(reportPlaces, fairshare.Policy{Fixed: true}), turns: fairshare.NewTurns(reportTurns, 2, 1),
		conns: map[api.ClusterID]*conn{}, acks: map[ackKey]chan wire.ReportAck{},
	}
	o.Revoked.Subscribe(l.sendRevocations)
	l.mux.Handle("POST /v1/join/cluster", l.joinServer())
	l.mux.HandleFunc("GET /v1/cluster/desired", l.asCluster(l.desired))
	l.mux.HandleFunc("POST /v1/cluster/report", l.asCluster(l.report))
	l.mux.HandleFunc("POST /v1/cluster/renew", l.asCluster(l.renew))
	l.mux.HandleFunc("POST /v1/cluster/value", l.asCluster(l.value))
	l.mux.HandleFunc("GET /v1/cluster/keys", l.asCluster(l.keys))
	l.mux.HandleFunc("POST /v1/cluster/streams/{id}", l.asCluster(l.deliver))
	l.mux.HandleFunc("GET /v1/cluster/streams/{id}", l.asCluster(l.deliverDown))
	return l
}

// Handler serves /v1/join/cluster and /v1/cluster/.
func (l *Link) Handler() http.Handler { return l.mux }

// Connected returns the number of clusters with an open stream.
func (l *Link) Connected() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// Send sends a message of the core to a cluster. It does not block. Without an open stream it drops
// the message; the cluster gets the state when it reconnects.
func (l *Link) Send(e wire.Envelope) {
	if id, ok := strings.CutPrefix(string(e.To), "cluster/"); ok {
		e.Msg.(wire.RootToCluster).DeliverToCluster(outgoing{l, api.ClusterID(id)})
	}
}

// outgoing implements wire.RootToClusterHandler for messages to one cluster.
type outgoing struct {
	link *Link
	to   api.ClusterID
}

// Desired queues the message on the cluster's stream.
func (o outgoing) Desired(m wire.Desired) {
	o.push(message{event: "desired", id: strconv.FormatUint(uint64(m.Gen), 10), data: m})
}

// RootNet queues the message on the cluster's stream.
func (o outgoing) RootNet(m wire.RootNet) { o.push(message{event: "net", data: m}) }

func (o outgoing) push(m message) {
	if conn := o.link.conn(o.to); conn != nil {
		conn.push(m)
	}
}

// ReportAck answers the request that carried the report.
func (o outgoing) ReportAck(m wire.ReportAck) {
	l := o.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch := l.acks[ackKey{o.to, m.Boot, m.Seq}]; ch != nil {
		select {
		case ch <- m:
		default: // already answered
		}
	}
}

func (l *Link) conn(c api.ClusterID) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[c]
}

// asCluster serves requests with a cluster's certificate. It checks the certificate on each
// request, because it may be revoked while the connection is open.
func (l *Link) asCluster(serve func(http.ResponseWriter, *http.Request, api.ClusterID) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := apishare.DoPeer(l.shares, r, l.peer, func(r *http.Request, id api.ClusterID) error { return serve(w, r, id) })
		if err != nil {
			l.fail(w, r, err)
		}
	}
}

func (l *Link) peer(r *http.Request) (api.ClusterID, error) {
	if r.TLS == nil {
		return "", fmt.Errorf("the request has no certificate of a cluster: %w", api.ErrUnauthenticated)
	}
	id, err := l.opt.Verifier.Peer(*r.TLS)
	if err != nil {
		return "", err
	}
	if id.Kind != identity.Cluster {
		return "", fmt.Errorf("the certificate is of %s, not of a cluster: %w", id, api.ErrForbidden)
	}
	return id.Cluster, nil
}

func (l *Link) fail(w http.ResponseWriter, r *http.Request, err error) {
	if status, _ := api.HTTPStatus(err); status == http.StatusInternalServerError {
		l.opt.Log.Error("request of a cluster failed", "path", r.URL.Path, "err", err)
		err = errors.New("internal error; see the root's log")
	} else {
		l.opt.Log.Debug("request of a cluster refused", "path", r.URL.Path, "err", err)
	}
	call.Write(w, err)
}

func readBody(w http.ResponseWriter, r *http.Request, limit jsonsize.Limit) ([]byte, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime))
	return call.ReadBody(r, limit)
}

// report passes a report to the core and answers with the core's acknowledgement.
func (l *Link) report(w http.ResponseWriter, r *http.Request, c api.ClusterID) error {
	place, err := l.reports.Take(time.Now(), []string{string(c)}, nil)
	if err != nil {
		return err
	}
	defer place.Release()
	text, err := readBody(w, r, maxReport)
	if err != nil {
		return err
	}
	if len(text) > smallReport {
		leave, err := l.turns.Enter(r.Context(), time.Now(), []string{string(c)}, false)
		if err != nil {
			return fmt.Errorf("wait to decode a report of cluster %s: %w", c, err)
		}
		defer leave() // the decoded report needs memory until the core has handled it
	}
	var rep wire.Report
	if err := call.Decode(r, text, &rep); err != nil {
		return err
	}
	if rep.Cluster != c {
		return fmt.Errorf("cluster %s sent a report of cluster %s: %w", c, rep.Cluster, api.ErrForbidden)
	}
	key := ackKey{c, rep.Boot, rep.Seq}
	ch := make(chan wire.ReportAck, 1)
	l.mu.Lock()
	l.acks[key] = ch
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.acks[key] == ch {
			delete(l.acks, key)
		}
	}()
	if err := l.opt.Owner.Do(r.Context(), root.Report{Report: rep}, nil); err != nil {
		return err
	}
	// Do returns after the loop has sent the step's messages, so the acknowledgement is here or
	// does not exist.
	select {
	case ack := <-ch:
		call.WriteJSON(w, ack)
		return nil
	default:
		return fmt.Errorf("report %d.%d of cluster %s was not acknowledged: %w", rep.Boot, rep.Seq, c, api.ErrUnavailable)
	}
}

// deliver connects the body of a cluster's request to the caller of Ask. If the body is a problem
// document, it is the error of Ask.
func (l *Link) deliver(w http.ResponseWriter, r *http.Request, c api.ClusterID) error {
	id, from := r.PathValue("id"), string(c.Addr())
	if r.Header.Get("Content-Type") == "application/problem+json" {
		var p api.Problem
		if err := call.ReadJSON(w, r, &p); err != nil {
			return err
		}
		if err := l.streams.Fail(id, from, &p); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	end := streams.NewEnd(w, r)
	err := l.streams.Deliver(r.Context(), id, from, end)
	if end.Finish(err) {
		return nil
	}
	return err
}

// deliverDown lets the caller of Connect write to the cluster.
func (l *Link) deliverDown(w http.ResponseWriter, r *http.Request, c api.ClusterID) error {
	end := streams.NewEnd(w, r)
	err := l.streams.DeliverDown(r.Context(), r.PathValue("id"), string(c.Addr()), end)
	if end.Finish(err) {
		return nil
	}
	return err
}

// Ask makes the cluster dial a stream to the root, and returns the stream. The caller closes it,
// from any goroutine. Errors: ErrUnavailable (the cluster is not connected), ErrTimeout (it did not
// dial in time).
func (l *Link) Ask(ctx context.Context, c api.ClusterID, r wire.StreamRequest) (io.ReadCloser, error) {
	return ask(l, c, r, func(w *streams.Wait) (io.ReadCloser, error) { return w.Stream(ctx, askTime) })
}

// Connect is Ask for a stream that carries bytes in both directions.
func (l *Link) Connect(ctx context.Context, c api.ClusterID, r wire.StreamRequest) (io.ReadWriteCloser, error) {
	return ask(l, c, r, func(w *streams.Wait) (io.ReadWriteCloser, error) { return w.Duplex(ctx, askTime) })
}

func ask[S any](l *Link, c api.ClusterID, r wire.StreamRequest, open func(*streams.Wait) (S, error)) (stream S, err error) {
	conn := l.conn(c)
	if conn == nil {
		return stream, fmt.Errorf("cluster %s is not connected: %w", c, api.ErrUnavailable)
	}
	wait, err := l.streams.Expect(string(c.Addr()), r)
	if err != nil {
		return stream, err
	}
	r.ID = wait.ID()
	if !conn.push(message{event: "stream", data: r}) {
		wait.Close()
		return stream, fmt.Errorf("cluster %s is reconnecting, try again: %w", c, api.ErrUnavailable)
	}
	if stream, err = open(wait); err != nil {
		return stream, fmt.Errorf("ask cluster %s: %w", c, err)
	}
	return stream, nil
}
