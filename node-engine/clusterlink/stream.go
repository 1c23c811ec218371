package clusterlink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxProbes is the number of concurrent probes, most of which the pinger refuses. Further orders are
// dropped.
const maxProbes = 16

func (l *Link) probe(ctx context.Context, order wire.ProbeOrder) {
	select {
	case l.probes <- struct{}{}:
	default:
		return
	}
	began := l.begin(func() {
		defer func() { <-l.probes }()
		b, err := json.Marshal(l.opt.Probe(ctx, order))
		l.publishOne(ctx, topic.Probed, b, err)
	})
	if !began {
		<-l.probes
	}
}

func (l *Link) stream(ctx context.Context, req wire.StreamRequest) {
	ctx, release, refused, ok := l.streams.Take(ctx, req)
	if !ok {
		l.opt.Log.Warn("stream request dropped: too many concurrent streams", "instance", req.Instance)
		return
	}
	began := l.begin(func() {
		defer release()
		err := l.dial(ctx, req, refused)
		if err != nil && ctx.Err() == nil {
			l.opt.Log.Debug("stream ended early", "instance", req.Instance, "kind", req.Kind, "err", err)
		}
	})
	if !began {
		release()
	}
}

// dial opens the stream and sends it, or the error, to the cluster.
func (l *Link) dial(ctx context.Context, req wire.StreamRequest, refused error) error {
	if refused != nil {
		refused = fmt.Errorf("node: %w", refused)
	}
	if req.Replica != "" { // a stream cannot be sent again to another one
		l.opt.Cluster.prefer(req.Replica)
	}
	base := l.opt.Cluster.URL + "/v1/node/streams"
	if req.Duplex() && l.opt.Access != nil {
		return streams.DialDuplex(ctx, l.opt.Cluster.HTTP, base, req.ID, func(ctx context.Context) (streams.Serve, error) {
			if refused != nil {
				return nil, refused
			}
			return l.opt.Access(ctx, req)
		})
	}
	return streams.Dial(ctx, l.opt.Cluster.HTTP, base, req.ID, func(ctx context.Context) (io.ReadCloser, error) {
		if refused != nil {
			return nil, refused
		}
		return l.open(ctx, req)
	})
}

// begin runs a function concurrently. It returns false if the link has ended.
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
	case req.Kind == "loglines" && req.Lines != nil && l.opt.LogLines != nil:
		return l.opt.LogLines(ctx, req)
	case req.Kind == "metrics" && l.opt.Metrics != nil:
		return l.opt.Metrics(ctx)
	case req.Kind == wire.StreamUsage && l.opt.Usage != nil:
		return l.openUsage(ctx)
	case req.Kind == wire.StreamRenew && l.opt.Renew != nil:
		return http.NoBody, l.opt.Renew(ctx)
	case req.Kind == "net" && l.opt.Net != nil:
		return l.opt.Net.Open(ctx, req.Path)
	case req.Kind == "net":
		return nil, fmt.Errorf("this node has no overlay network: %w", api.ErrUnavailable)
	case req.Kind == "volume" && req.Method == http.MethodDelete:
		return http.NoBody, l.deleteVolume(ctx, req.Path)
	case req.Kind == wire.StreamDiscardVolume && l.opt.DiscardVolume != nil:
		return http.NoBody, l.opt.DiscardVolume(ctx, req)
	}
	return nil, fmt.Errorf("stream of kind %q: this node serves logs, net, metrics, usage, volume, exec, attach, portforward, snapshot and restore: %w", req.Kind, api.ErrInvalid)
}

func (l *Link) deleteVolume(ctx context.Context, name string) error {
	id, err := api.ParseVolumeID(name)
	if err != nil || l.opt.DeleteVolume == nil {
		return err
	}
	return l.opt.DeleteVolume(ctx, id)
}

func (l *Link) openUsage(ctx context.Context) (io.ReadCloser, error) {
	s, err := l.opt.Usage(ctx)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(s)
	return io.NopCloser(bytes.NewReader(b)), err
}
