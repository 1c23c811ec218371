package clusterlink

import (
	"context"
	"fmt"
	"io"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// stream dials out the stream that the cluster asks for.
func (l *Link) stream(ctx context.Context, m bus.Message) {
	var req wire.StreamRequest
	if !l.decode(m, &req) {
		return
	}
	ctx, release, refused, ok := l.streams.Take(ctx, req)
	if !ok {
		l.opt.Log.Warn("stream refused without an answer: too many at once", "instance", req.Instance)
		return
	}
	began := l.begin(func() {
		defer release()
		err := streams.Dial(ctx, l.opt.Client, l.opt.URL+"/v1/node/streams", req.ID, func(ctx context.Context) (io.ReadCloser, error) {
			if refused != nil {
				return nil, fmt.Errorf("node: %w", refused)
			}
			return l.open(ctx, req)
		})
		if err != nil && ctx.Err() == nil {
			l.opt.Log.Debug("stream ended early", "instance", req.Instance, "kind", req.Kind, "err", err)
		}
	})
	if !began {
		release()
	}
}

// begin runs a function beside the handling of messages; false: the link has ended.
func (l *Link) begin(run func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.wg.Go(run)
	return true
}

func (l *Link) open(ctx context.Context, req wire.StreamRequest) (io.ReadCloser, error) {
	switch {
	case req.Kind == "logs":
		return l.opt.Logs(ctx, wire.Key{Instance: req.Instance, Epoch: req.Epoch}, req.Tail, req.Follow)
	case req.Kind == "net" && l.opt.Net != nil:
		return l.opt.Net.Open(ctx, req.Path)
	case req.Kind == "net":
		return nil, fmt.Errorf("this node has no overlay network: %w", api.ErrUnavailable)
	}
	return nil, fmt.Errorf("stream of kind %q: this node engine knows logs and net: %w", req.Kind, api.ErrInvalid)
}
