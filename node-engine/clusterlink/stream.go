package clusterlink

import (
	"context"
	"fmt"
	"io"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/streams"
)

// maxStreams is how many streams a node dials out at once.
const maxStreams = 32

// stream dials out the stream that the cluster asks for.
func (l *Link) stream(ctx context.Context, m bus.Message) {
	var req api.StreamRequest
	if !l.decode(m, &req) {
		return
	}
	taken := l.aside(l.streams, func() {
		err := streams.Dial(ctx, l.opt.Client, l.opt.URL+"/v1/node/streams", req.ID, func(ctx context.Context) (io.ReadCloser, error) {
			return l.open(ctx, req)
		})
		if err != nil && ctx.Err() == nil {
			l.opt.Log.Debug("stream ended early", "instance", req.Instance, "kind", req.Kind, "err", err)
		}
	})
	if !taken {
		l.opt.Log.Warn("too many streams at once, one more is refused", "instance", req.Instance)
	}
}

// aside runs what must not hold messages up, while there is a slot for it, and
// reports whether there was one. When the link has ended nothing is run any more.
func (l *Link) aside(slots chan struct{}, run func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return true
	}
	select {
	case slots <- struct{}{}:
	default:
		return false
	}
	l.wg.Go(func() {
		defer func() { <-slots }()
		run()
	})
	return true
}

func (l *Link) open(ctx context.Context, req api.StreamRequest) (io.ReadCloser, error) {
	switch {
	case req.Kind == "logs":
		return l.opt.Logs(ctx, api.Key{Instance: req.Instance, Epoch: req.Epoch}, req.Tail, req.Follow)
	case req.Kind == "net" && l.opt.Net != nil:
		return l.opt.Net.Open(ctx, req.Path)
	case req.Kind == "net":
		return nil, fmt.Errorf("this node has no overlay network: %w", api.ErrUnavailable)
	}
	return nil, fmt.Errorf("stream of kind %q: this node engine knows logs and net: %w", req.Kind, api.ErrInvalid)
}
