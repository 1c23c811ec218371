package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/sse"
)

// Kind is the path of a kind of objects.
type Kind string

const (
	Apps      Kind = "/v1/apps"
	Services  Kind = "/v1/services"
	Instances Kind = "/v1/instances"
	Clusters  Kind = "/v1/clusters"
	Volumes   Kind = "/v1/volumes"   // not watched
	Snapshots Kind = "/v1/snapshots" // not watched
	Events    Kind = "/v1/events"
)

type WatchOptions struct {
	Since  api.Revision // the revision that a list returned; 0: from the first change
	Tenant api.Tenant   // objects of this tenant and of those below it
	Under  string       // objects of this application or service id
}

// Change is a change of one object. Object is nil if the object was deleted.
type Change[T any] struct {
	ID       string
	Revision api.Revision
	Object   *T
}

const (
	minPause = 200 * time.Millisecond // first pause before a watch reconnects; doubles up to maxPause
	maxPause = 5 * time.Second
	silence  = 45 * time.Second // of a connection before it is dropped: three bookmark intervals
)

// Watch yields changes as they happen. If the connection breaks, it reconnects after pauses that
// grow up to 5 s, and resumes without a gap. It ends without an error when ctx is done, and with an
// error that is not temporary. ErrGone: the server no longer keeps the changes since the last one;
// list the objects again and watch from there.
func Watch[T any](ctx context.Context, c *Client, kind Kind, o WatchOptions) iter.Seq2[Change[T], error] {
	return func(yield func(Change[T], error) bool) {
		w := watcher{client: c, kind: kind, opt: o, at: strconv.FormatUint(uint64(o.Since), 10)}
		pause := minPause
		for {
			more := true
			err := w.connect(ctx, func(event string, data []byte) (bool, error) {
				pause = minPause
				if event != "change" {
					return true, nil
				}
				var wire struct {
					ID       string       `json:"id"`
					Revision api.Revision `json:"revision"`
					Object   *T           `json:"object"`
				}
				if err := json.Unmarshal(data, &wire); err != nil {
					return false, fmt.Errorf("decode a change of %s: %w: %w", kind, err, api.ErrInvalid)
				}
				return yield(Change[T]{wire.ID, wire.Revision, wire.Object}, nil), nil
			}, &more)
			switch {
			case !more || ctx.Err() != nil:
				return
			case err != nil && !passing(err):
				yield(Change[T]{}, err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				pause = min(2*pause, maxPause)
			}
		}
	}
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	var p *api.Problem
	return errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrTimeout) || errors.As(err, &p) && (p.Retryable || p.Status == http.StatusTooManyRequests)
}

type watcher struct {
	client *Client
	kind   Kind
	opt    WatchOptions
	at     string // id of the last event
}

// connect reads one stream from the last event on until it breaks or fn returns false. If fn
// returns false, it clears more.
func (w *watcher) connect(ctx context.Context, fn func(event string, data []byte) (bool, error), more *bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := ListOptions{Tenant: w.opt.Tenant, Under: w.opt.Under}.query()
	q.Set("watch", "true")
	h := http.Header{"Accept": {"text/event-stream"}, "Last-Event-ID": {w.at}}
	resp, err := w.client.Raw(ctx, Request{Method: http.MethodGet, Path: string(w.kind), Query: q, Header: h})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	err = sse.Read(resp.Body, func() { quiet.Reset(silence) }, func(e sse.Event) error {
		if e.Data == nil {
			return nil
		}
		if e.Name == "gone" {
			var p api.Problem
			if json.Unmarshal(e.Data, &p) == nil && p.Status != 0 {
				return &p
			}
			return fmt.Errorf("watch %s: %w", w.kind, api.ErrGone)
		}
		ok, err := fn(e.Name, e.Data)
		if err != nil {
			return err
		}
		if !ok {
			*more = false
			return io.EOF
		}
		if e.ID != "" {
			w.at = e.ID
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
