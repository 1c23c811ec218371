// Package clusterlink is the root's end of the links that clusters dial: joining
// and renewing, the stream of desired state down, reports up, and the bulk
// streams that the root asks for. A cluster is who its certificate says.
//
// It carries and decides nothing: what a cluster should have, and whether a
// message is stale, the core knows (package root). Nothing here is a promise: a
// stream that overflows is closed, and the cluster resumes it.
//
//	link := clusterlink.New(clusterlink.Options{Core: core, Owner: loop, …})
//	mux.Handle("/v1/cluster/", link.Handler())
//	link.Send(envelope)                          // from the loop's send function
//	logs, err := link.Ask(ctx, "munich", api.StreamRequest{Kind: "logs", …})
package clusterlink

import (
	"context"
	"encoding/json"
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
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// Bounds and times of a link.
const (
	streamBuffer = 64               // messages that may wait for a cluster to read them
	keepAlive    = 15 * time.Second // between two signs of life on a quiet stream
	writeWait    = 30 * time.Second // for reading a request's body
	askWait      = 10 * time.Second // for a cluster to dial a stream out
	maxJoin      = 64 << 10
)

// maxReport bounds a report: each object in it takes up to 312 bytes once decoded.
var maxReport = jsonsize.Limit{Bytes: 16 << 20, Objects: 1 << 18, Values: 3 << 19}

// Reports of at most smallReport bytes are decoded without a turn. Most reports are
// that small, and the core saves many of them in one write.
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

// Owner is the goroutine that owns the core (package loop).
type Owner interface {
	Do(ctx context.Context, in root.Input, after func()) error
	Read(ctx context.Context, fn func()) error
}

// Core is what is read of the core, on its owner's goroutine.
type Core interface {
	Cluster(api.ClusterID) (api.Cluster, bool)
}

// Options are what the link needs.
type Options struct {
	Core      Core
	Owner     Owner
	Authority *ca.Authority
	Verifier  *trust.Verifier
	Issued    *Issued
	Desk      *jointoken.Desk
	Keys      func() jwt.PublicKeys // with which people's tokens are checked
	Revoked   *revoke.Log           // revocations of delegated tokens; nil: an empty log
	Now       func() time.Time      // time.Now
	Log       *slog.Logger          // slog.Default
}

// Link serves the clusters. It is safe for concurrent use.
type Link struct {
	opt     Options
	streams streams.Registry
	shares  *apishare.Shares
	refused *refusals.Log // joins
	reports *fairshare.Pool
	turns   *fairshare.Turns // to decode reports
	mux     *http.ServeMux

	mu    sync.Mutex // guards all below
	conns map[api.ClusterID]*conn
	acks  map[ackKey]chan api.ReportAck
}

type ackKey struct {
	cluster   api.ClusterID
	boot, seq uint64
}

// New is a link without clusters.
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
	l := &Link{
		opt: o, mux: http.NewServeMux(), shares: apishare.New(apishare.Options{Now: o.Now}), refused: refusals.New(o.Log, "cluster not let in"),
		reports: fairshare.NewPool(reportPlaces, fairshare.Policy{Fixed: true}), turns: fairshare.NewTurns(reportTurns, 2, 1),
		conns: map[api.ClusterID]*conn{}, acks: map[ackKey]chan api.ReportAck{},
	}
	o.Revoked.Subscribe(l.tellRevoked)
	l.mux.HandleFunc("POST /v1/join/cluster", l.join)
	l.mux.HandleFunc("GET /v1/cluster/desired", l.asCluster(l.desired))
	l.mux.HandleFunc("POST /v1/cluster/report", l.asCluster(l.report))
	l.mux.HandleFunc("POST /v1/cluster/renew", l.asCluster(l.renew))
	l.mux.HandleFunc("GET /v1/cluster/keys", l.asCluster(l.keys))
	l.mux.HandleFunc("POST /v1/cluster/streams/{id}", l.asCluster(l.deliver))
	return l
}

// Handler serves /v1/join/cluster and /v1/cluster/.
func (l *Link) Handler() http.Handler { return l.mux }

// Connected counts the clusters whose stream is open.
func (l *Link) Connected() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// Send carries one envelope of the core to a cluster. It does not block; what
// finds no open stream is dropped, for the cluster will ask.
func (l *Link) Send(e api.Envelope) {
	id, ok := strings.CutPrefix(string(e.To), "cluster/")
	if !ok {
		return
	}
	c := api.ClusterID(id)
	switch m := e.Msg.(type) {
	case api.Desired:
		if conn := l.conn(c); conn != nil {
			conn.push(message{event: "desired", id: strconv.FormatUint(uint64(m.Gen), 10), data: m})
		}
	case api.RootNet:
		if conn := l.conn(c); conn != nil {
			conn.push(message{event: "net", data: m})
		}
	case api.ReportAck:
		l.mu.Lock()
		defer l.mu.Unlock()
		if ch := l.acks[ackKey{c, m.Boot, m.Seq}]; ch != nil {
			select {
			case ch <- m:
			default: // answered already
			}
		}
	}
}

func (l *Link) conn(c api.ClusterID) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[c]
}

// asCluster serves who shows the certificate of a cluster. It is checked with
// every request, because a certificate may be revoked while a connection lasts.
func (l *Link) asCluster(serve func(http.ResponseWriter, *http.Request, api.ClusterID) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, unknown := l.peer(r)
		holder := apishare.Stranger(r.RemoteAddr)
		switch {
		case unknown != nil:
		case r.PathValue("id") != "":
			holder = apishare.Stream(string(id.Addr()), r.Pattern)
		default:
			holder = apishare.Peer(string(id.Addr()), r.Pattern)
		}
		err := l.shares.Do(r, holder, func(r *http.Request) error {
			if unknown != nil {
				return unknown
			}
			return serve(w, r, id)
		})
		if err != nil {
			l.fail(w, r, err)
		}
	}
}

func (l *Link) peer(r *http.Request) (api.ClusterID, error) {
	if r.TLS == nil {
		return "", fmt.Errorf("a cluster shows its certificate: %w", api.ErrUnauthenticated)
	}
	id, err := l.opt.Verifier.Peer(*r.TLS)
	if err != nil {
		return "", err
	}
	if id.Kind != identity.Cluster {
		return "", fmt.Errorf("%s is no cluster: %w", id, api.ErrForbidden)
	}
	return id.Cluster, nil
}

func (l *Link) fail(w http.ResponseWriter, r *http.Request, err error) {
	if status, _ := api.HTTPStatus(err); status == http.StatusInternalServerError {
		l.opt.Log.Error("request of a cluster failed", "path", r.URL.Path, "err", err)
		err = errors.New("something went wrong here; the root's log says what")
	} else {
		l.opt.Log.Debug("request of a cluster refused", "path", r.URL.Path, "err", err)
	}
	call.Write(w, err)
}

// readJSON decodes a body of at most maxJoin bytes.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	text, err := readBody(w, r, jsonsize.Limit{Bytes: maxJoin})
	if err != nil {
		return err
	}
	return decode(r, text, into)
}

func readBody(w http.ResponseWriter, r *http.Request, limit jsonsize.Limit) ([]byte, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(writeWait))
	text, err := limit.Read(r.Body)
	if err != nil && !errors.Is(err, api.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", err, api.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("read the body of %s: %w", r.URL.Path, err)
	}
	return text, nil
}

func decode(r *http.Request, text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("decode the body of %s: %w: %w", r.URL.Path, err, api.ErrInvalid)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asked is gone
}

// report hands a report to the core and answers with the core's acknowledgement.
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
		defer leave() // after the core has taken the report, which needs memory until then
	}
	var rep api.Report
	if err := decode(r, text, &rep); err != nil {
		return err
	}
	if rep.Cluster != c {
		return fmt.Errorf("cluster %s reports as %s: %w", c, rep.Cluster, api.ErrForbidden)
	}
	key := ackKey{c, rep.Boot, rep.Seq}
	ch := make(chan api.ReportAck, 1)
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
	// The loop has sent before it answered, so the ack is here or will not come.
	select {
	case ack := <-ch:
		writeJSON(w, ack)
		return nil
	default:
		return fmt.Errorf("report %d.%d of cluster %s was not acknowledged: %w", rep.Boot, rep.Seq, c, api.ErrUnavailable)
	}
}

// deliver splices the body that a cluster dialled out with to who asked for it.
// A problem instead of a stream says why there is none.
func (l *Link) deliver(w http.ResponseWriter, r *http.Request, c api.ClusterID) error {
	id, from := r.PathValue("id"), string(c.Addr())
	if r.Header.Get("Content-Type") == "application/problem+json" {
		var p api.Problem
		if err := readJSON(w, r, &p); err != nil {
			return err
		}
		if err := l.streams.Fail(id, from, &p); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	err := l.streams.Deliver(r.Context(), id, from, r.Body)
	_ = rc.SetReadDeadline(time.Unix(1, 0)) // ends a read that is under way
	if r.Context().Err() != nil {
		return nil
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// Ask has the cluster dial a stream out, and returns its bytes. A cluster that
// is not connected is ErrUnavailable, one that does not dial in time ErrTimeout.
// The caller closes the stream, from any goroutine.
func (l *Link) Ask(ctx context.Context, c api.ClusterID, r api.StreamRequest) (io.ReadCloser, error) {
	conn := l.conn(c)
	if conn == nil {
		return nil, fmt.Errorf("cluster %s is not connected now: %w", c, api.ErrUnavailable)
	}
	wait, err := l.streams.Expect(string(c.Addr()), r)
	if err != nil {
		return nil, err
	}
	r.ID = wait.ID()
	if !conn.push(message{event: "stream", data: r}) {
		wait.Close()
		return nil, fmt.Errorf("cluster %s is reconnecting, try again: %w", c, api.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	body, err := wait.Body(ctx)
	if err != nil {
		wait.Close()
		return nil, fmt.Errorf("cluster %s: %w", c, err)
	}
	return asked{body, wait}, nil
}

// asked is a stream in the hands of who asked for it.
type asked struct {
	io.Reader
	wait *streams.Wait
}

func (a asked) Close() error {
	a.wait.Close()
	return nil
}
