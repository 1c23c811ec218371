package rootlink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/sse"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (l *Link) take(ctx context.Context, e sse.Event) {
	var err error
	switch e.Name {
	case "desired":
		var d wire.Desired
		if err = json.Unmarshal(e.Data, &d); err == nil {
			l.opt.Post(cluster.Desired{Desired: l.opt.Traces.Received(d, tracing.OfPlacement)})
		}
	case "net":
		var n wire.RootNet
		if err = json.Unmarshal(e.Data, &n); err == nil {
			l.opt.Post(cluster.RootNet{RootNet: n})
		}
	case "revoked":
		var r wire.Revocations
		if err = json.Unmarshal(e.Data, &r); err == nil {
			l.opt.Revoked(r)
		}
	case "replicas":
		var r wire.Replicas
		if err = json.Unmarshal(e.Data, &r); err == nil {
			l.opt.Learned(r.URLs)
		}
	case "authority":
		var k wire.RootKeys
		if err = json.Unmarshal(e.Data, &k); err == nil && l.opt.RootKeys != nil {
			l.opt.RootKeys(k)
		}
	case "stream":
		var r wire.StreamRequest
		if err = json.Unmarshal(e.Data, &r); err == nil {
			l.stream(ctx, r)
		}
	}
	if err != nil {
		l.opt.Log.Warn("cannot decode a message of the root", "event", e.Name, "bytes", len(e.Data), "err", err)
	}
}

func (l *Link) stream(ctx context.Context, r wire.StreamRequest) {
	ctx, release, refused, ok := l.streams.Take(ctx, r)
	if !ok {
		l.opt.Log.Warn("stream refused without an answer: too many at once", "kind", r.Kind, "instance", r.Instance)
		return
	}
	l.wg.Go(func() {
		defer release()
		err := l.dial(ctx, r, refused)
		if err != nil && ctx.Err() == nil {
			l.opt.Log.Debug("stream ended early", "kind", r.Kind, "instance", r.Instance, "err", err)
		}
	})
}

// dial opens the stream and sends it, or the error, to the root.
func (l *Link) dial(ctx context.Context, r wire.StreamRequest, refused error) error {
	if refused != nil {
		refused = fmt.Errorf("cluster: %w", refused)
	}
	base := l.opt.Roots.Current() + "/v1/cluster/streams"
	if r.Duplex() {
		return streams.DialDuplex(ctx, l.opt.Client, base, r.ID, func(ctx context.Context) (streams.Serve, error) {
			if refused != nil {
				return nil, refused
			}
			return l.opt.Access(ctx, r)
		})
	}
	return streams.Dial(ctx, l.opt.Client, base, r.ID, func(ctx context.Context) (io.ReadCloser, error) {
		switch {
		case refused != nil:
			return nil, refused
		case r.Kind == "logs", r.Kind == "loglines":
			return l.opt.Logs(ctx, r)
		case r.Kind == "api":
			return ask(ctx, l.opt.API(r), r)
		case r.Kind == wire.StreamRootKeys && l.opt.RootKeysReport != nil:
			text, err := json.Marshal(l.opt.RootKeysReport())
			return io.NopCloser(bytes.NewReader(text)), err
		}
		return nil, fmt.Errorf("stream of kind %q: this cluster supports logs, api, exec, attach, portforward, snapshot and restore: %w", r.Kind, api.ErrInvalid)
	})
}

// ask runs a request on the cluster's own API, which checks the token and the rights of its
// holder. It returns the response in HTTP/1.1 format.
func ask(ctx context.Context, h http.Handler, r wire.StreamRequest) (io.ReadCloser, error) {
	if !strings.HasPrefix(r.Path, "/v1/") || strings.HasPrefix(r.Path, "/v1/node/") || strings.HasPrefix(r.Path, "/v1/join/") {
		return nil, fmt.Errorf("path %q is not part of the API for people: %w", r.Path, api.ErrForbidden)
	}
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, r.Method, "http://cluster"+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("request %s %s: %w: %w", r.Method, r.Path, err, api.ErrInvalid)
	}
	req.RequestURI = r.Path
	req.RemoteAddr = "root"
	if len(r.Body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	pr, pw := io.Pipe()
	w := &answer{header: http.Header{}, began: make(chan struct{})}
	w.body, w.write = io.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer w.write.Close()
		defer func() {
			// As in net/http's server, a panic aborts the response.
			if p := recover(); p != nil {
				_ = w.write.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		h.ServeHTTP(w, req)
		w.WriteHeader(http.StatusOK)
	}()
	written := make(chan struct{})
	go func() {
		defer close(written)
		select {
		case <-w.began:
		case <-served:
			w.WriteHeader(http.StatusInternalServerError)
		}
		resp := http.Response{
			StatusCode: w.status, ProtoMajor: 1, ProtoMinor: 1, Header: w.sent,
			Body: w.body, ContentLength: -1, Request: req,
		}
		_ = pw.CloseWithError(resp.Write(pw))
	}()
	return &answered{pr, func() {
		cancel()
		_ = w.body.Close() // the handler's writes fail from now on
		_ = pr.Close()
		<-served
		<-written
	}}, nil
}

// answer is a ResponseWriter that writes into a pipe.
type answer struct {
	header http.Header
	sent   http.Header // copy of header at WriteHeader
	status int
	began  chan struct{} // closed by WriteHeader
	body   *io.PipeReader
	write  *io.PipeWriter
}

func (w *answer) Header() http.Header { return w.header }

func (w *answer) WriteHeader(status int) {
	if w.status == 0 {
		w.status, w.sent = status, w.header.Clone()
		close(w.began)
	}
}

func (w *answer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.write.Write(b)
}

// Flush implements http.Flusher. Writes are not buffered.
func (w *answer) Flush() { w.WriteHeader(http.StatusOK) }

// answered reads a response. Close waits until the handler returns.
type answered struct {
	io.Reader
	end func()
}

func (a *answered) Close() error {
	a.end()
	return nil
}
