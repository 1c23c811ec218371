package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Kind is a kind of object that can be watched: its path.
type Kind string

// The kinds.
const (
	Apps      Kind = "/v1/apps"
	Services  Kind = "/v1/services"
	Instances Kind = "/v1/instances"
	Clusters  Kind = "/v1/clusters"
	Events    Kind = "/v1/events"
)

// WatchOptions narrow a watch.
type WatchOptions struct {
	Since  api.Revision // what a list said; 0, as a new root's says, is from the first change
	Tenant api.Tenant
	Under  string // an application's or a service's id
}

// Change is one change of one object. Object is nil when it is gone.
type Change[T any] struct {
	ID       string
	Revision api.Revision
	Object   *T
}

// The pauses of a watch that lost its server, and the silence after which it
// gives a connection up: three bookmarks.
const (
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
	silence  = 45 * time.Second
)

// Watch yields changes as they come, and resumes by itself where it was when
// the connection breaks or ends. It ends with ctx, without an error, or with one
// that waiting does not mend: ErrGone says that changes were missed, so list
// again and watch from there.
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
					return false, fmt.Errorf("read a change: %w: %w", err, api.ErrInvalid)
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

// passing reports whether waiting may mend the error.
func passing(err error) bool {
	var p *api.Problem
	return errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrTimeout) || errors.As(err, &p) && (p.Retryable || p.Status == http.StatusTooManyRequests)
}

type watcher struct {
	client *Client
	kind   Kind
	opt    WatchOptions
	at     string // the last id seen
}

// connect streams from where the watch is until the stream breaks.
func (w *watcher) connect(ctx context.Context, fn func(event string, data []byte) (bool, error), more *bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := url.Values{"watch": {"true"}}
	if w.opt.Tenant != "" {
		q.Set("tenant", string(w.opt.Tenant))
	}
	if w.opt.Under != "" {
		q.Set("under", w.opt.Under)
	}
	h := http.Header{"Accept": {"text/event-stream"}, "Last-Event-ID": {w.at}}
	resp, err := w.client.send(ctx, Request{Method: http.MethodGet, Path: string(w.kind), Query: q, Header: h})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	quiet := time.AfterFunc(silence, cancel) // a dead connection looks like a quiet one
	defer quiet.Stop()
	err = readEvents(resp.Body, func(e event) error {
		quiet.Reset(silence)
		if e.name == "gone" {
			var p api.Problem
			if json.Unmarshal(e.data, &p) == nil && p.Status != 0 {
				return &p
			}
			return fmt.Errorf("watch %s: %w", w.kind, api.ErrGone)
		}
		ok, err := fn(e.name, e.data)
		if err != nil {
			return err
		}
		if !ok {
			*more = false
			return io.EOF
		}
		if e.id != "" {
			w.at = e.id
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type event struct {
	name, id string
	data     []byte
}

// readEvents reads server-sent events until fn or the stream ends.
func readEvents(r io.Reader, fn func(event) error) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var e event
	for {
		line, err := br.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				return io.EOF
			}
			return fmt.Errorf("the stream broke: %w: %w", err, api.ErrUnavailable)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if e.data != nil {
				if err := fn(e); err != nil {
					return err
				}
			}
			e = event{}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.name = string(value)
		case "id":
			e.id = string(value)
		case "data":
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
		}
	}
}
