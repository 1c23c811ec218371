package clusterlink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/call"
)

// maxStreams is how many streams a node dials out at once.
const maxStreams = 32

// stream dials out the stream that the cluster asks for.
func (l *Link) stream(ctx context.Context, m bus.Message) {
	var req api.StreamRequest
	if !l.decode(m, &req) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	select {
	case l.streams <- struct{}{}:
	default:
		l.opt.Log.Warn("too many streams at once, one more is refused", "instance", req.Instance)
		return
	}
	l.wg.Go(func() {
		defer func() { <-l.streams }()
		if err := l.dial(ctx, req); err != nil && ctx.Err() == nil {
			l.opt.Log.Debug("stream ended early", "instance", req.Instance, "kind", req.Kind, "err", err)
		}
	})
}

func (l *Link) dial(ctx context.Context, req api.StreamRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	contentType, body := "application/octet-stream", io.ReadCloser(nil)
	logs, err := l.open(ctx, req)
	if err == nil {
		body = logs
	} else {
		text, _ := json.Marshal(call.Problem(err)) // strings and numbers
		contentType, body = "application/problem+json", io.NopCloser(bytes.NewReader(text))
	}
	defer body.Close()
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, l.opt.URL+"/v1/node/streams/"+url.PathEscape(req.ID), body)
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", contentType)
	resp, err := call.Do(l.opt.Client, post)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (l *Link) open(ctx context.Context, req api.StreamRequest) (io.ReadCloser, error) {
	if req.Kind != "logs" {
		return nil, fmt.Errorf("stream of kind %q: this node engine knows only logs: %w", req.Kind, api.ErrInvalid)
	}
	return l.opt.Logs(ctx, api.Key{Instance: req.Instance, Epoch: req.Epoch}, req.Tail, req.Follow)
}
