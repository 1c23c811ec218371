// Package rootlink is a cluster's connection to its root. It joins with a token, keeps the
// stream of desired state open, sends reports, and dials out the streams that the root
// requests. Only the cluster dials. It retries an unreachable root forever.
package rootlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/api/sse"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	answerTime = 15 * time.Second // for the root to answer
	silence    = 45 * time.Second // after which the stream is dead; the root sends at least every 15 s
	minPause   = 500 * time.Millisecond
	maxPause   = 10 * time.Second
	steady     = 30 * time.Second // a stream that lasts longer resets the back-off
	reopenGap  = time.Second      // minimum time between two streams that the core requests
)

// Options configure a Link.
type Options struct {
	Roots  *replicas.Addresses // of the root's replicas
	Client *http.Client        // of Roots, with the cluster's certificate; see Client

	// Held returns the generation and digest of the core's desired set, from which the stream
	// resumes.
	Held    func(context.Context) (api.Generation, api.Digest, error)
	Post    func(cluster.Input)                        // passes an input to the core; may drop it
	Deliver func(context.Context, cluster.Input) error // passes an input to the core and waits for the result

	// Logs, Access and API serve requests that the root sends on behalf of a user, with the
	// token that it delegated for the request.
	Logs   func(context.Context, wire.StreamRequest) (io.ReadCloser, error) // of an instance
	Access func(context.Context, wire.StreamRequest) (streams.Serve, error) // to the workload of an instance
	API    func(wire.StreamRequest) http.Handler                            // the cluster's own API

	Traces  *tracing.Relay         // of placements; nil: none is followed
	Revoked func(wire.Revocations) // is called with revocations of delegated tokens
	Learned func([]string)         // is called with the URLs of the root's replicas
	// RootKeys is called with the keys that the root has, and RootKeysReport returns those that the cluster and its nodes use; nil:
	// neither is supported.
	RootKeys       func(wire.RootKeys)
	RootKeysReport func() wire.RootKeysReport
	Log            *slog.Logger // default slog.Default
}

// Link passes messages between the core and its root.
type Link struct {
	opt     Options
	reopen  chan struct{} // signals that the core requests missing changes
	streams *streams.Places
	wg      sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	report *wire.Report
	filled chan struct{}
	up     bool
}

// New returns a Link. It passes no messages before Run.
func New(o Options) *Link {
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Link{
		opt: o, reopen: make(chan struct{}, 1), streams: streams.NewPlaces(), filled: make(chan struct{}, 1),
	}
}

// Send queues a message of the core to its root. It does not block.
func (l *Link) Send(m wire.ClusterToRoot) { m.DeliverToRoot((*queue)(l)) }

// queue implements the core's messages to the root.
type queue Link

// Hello reopens the stream of desired state.
func (q *queue) Hello(wire.Hello) { signal(q.reopen) }

// Report replaces a queued report. The newer one contains it.
func (q *queue) Report(m wire.Report) {
	q.mu.Lock()
	q.report = &m
	q.mu.Unlock()
	signal(q.filled)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Up returns nil if the stream is open, otherwise ErrUnavailable.
func (l *Link) Up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.up {
		return fmt.Errorf("no connection to the root at %s: %w", l.opt.Roots.Current(), api.ErrUnavailable)
	}
	return nil
}

// Run passes messages until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	defer l.wg.Wait()
	l.wg.Go(func() { l.reportAll(ctx) })
	pause := minPause
	var last time.Time // when the last stream opened
	for ctx.Err() == nil {
		opened, again, err := l.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		var wait time.Duration
		if again {
			// Not a failure: the core requests missing changes.
			wait = max(0, reopenGap-opened.Sub(last))
			last = opened
		} else {
			l.setUp(ctx, false)
			if !opened.IsZero() && time.Since(opened) > steady {
				pause = minPause
			}
			wait = pause/2 + rand.N(pause)
			pause = min(2*pause, maxPause)
			l.opt.Log.Warn("no connection to the root, retrying", "root", l.opt.Roots.Current(), "retry_in", wait.Round(time.Millisecond), "err", err)
		}
		if wait == 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}

func (l *Link) setUp(ctx context.Context, up bool) {
	l.mu.Lock()
	changed := l.up != up
	l.up = up
	l.mu.Unlock()
	if !changed {
		return
	}
	if up {
		l.opt.Log.Info("connected to the root", "root", l.opt.Roots.Current())
	}
	for l.opt.Deliver(ctx, cluster.RootLink{Up: up}) != nil {
		// Repeat until the core has it, even if the store is full or slow.
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// follow opens the stream and handles it until it ends. opened is the time when it opened.
// again reports that the core requested a new stream.
func (l *Link) follow(parent context.Context) (opened time.Time, again bool, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	select {
	case <-l.reopen: // the request below resumes from the core's state
	default:
	}
	gen, digest, err := l.opt.Held(ctx)
	if err != nil {
		return time.Time{}, false, err
	}
	quiet := time.AfterFunc(answerTime, func() { cancel(errSilent) })
	defer quiet.Stop()
	url := fmt.Sprintf("%s/v1/cluster/desired?since=%d&digest=%d", l.opt.Roots.Current(), gen, uint64(digest))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return time.Time{}, false, err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := call.Do(l.opt.Client, req)
	if err != nil {
		return time.Time{}, false, because(ctx, err)
	}
	defer resp.Body.Close()
	opened = time.Now()
	quiet.Reset(silence)
	l.setUp(parent, true)
	stop := make(chan struct{})
	defer close(stop)
	l.wg.Go(func() {
		select {
		case <-l.reopen:
			cancel(errReopen)
		case <-stop:
		}
	})
	err = sse.Read(resp.Body, func() { quiet.Reset(silence) }, func(e sse.Event) error { l.take(parent, e); return nil })
	err = because(ctx, err)
	return opened, errors.Is(err, errReopen), err
}

var (
	errSilent = fmt.Errorf("the root is silent: %w", api.ErrTimeout)
	errReopen = errors.New("the core requests the changes that it misses")
)

// because returns the cause if this side ended the stream, otherwise err or
// io.ErrUnexpectedEOF.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// reportAll posts reports one at a time. Later changes are in the core's next report.
func (l *Link) reportAll(ctx context.Context) {
	for {
		select {
		case <-l.filled:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		r, up := l.report, l.up
		l.report = nil
		l.mu.Unlock()
		if r == nil || !up {
			continue // the core reports again once it is connected
		}
		if err := l.post(ctx, *r); err != nil && ctx.Err() == nil {
			l.opt.Log.Debug("report not taken by the root; it will be repeated", "seq", r.Seq, "err", err)
		}
	}
}

func (l *Link) post(ctx context.Context, r wire.Report) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var ack wire.ReportAck
	if err := call.JSON(ctx, l.opt.Client, l.opt.Roots.Current()+"/v1/cluster/report", r, &ack); err != nil {
		return err
	}
	l.opt.Post(cluster.Ack{ReportAck: ack})
	return nil
}
