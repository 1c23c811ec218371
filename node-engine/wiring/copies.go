package wiring

import (
	"context"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/files"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// volumeStreams serves the streams of moving volumes, and passes other requests to next.
func (e *engine) volumeStreams(rt runtime.Runtime, provided *files.Files, next func(context.Context, wire.StreamRequest) (streams.Serve, error)) func(context.Context, wire.StreamRequest) (streams.Serve, error) {
	return func(ctx context.Context, r wire.StreamRequest) (streams.Serve, error) {
		if r.Kind != wire.StreamSendVolume && r.Kind != wire.StreamReceiveVolume {
			return next(ctx, r)
		}
		k, name, err := e.movingVolume(r)
		if err != nil {
			return nil, err
		}
		c := r.Copy
		if c == nil || r.Kind == wire.StreamReceiveVolume && (c.SizeMB < api.MinDiskVolumeMB || c.SizeMB > api.MaxVolumeMB) {
			return nil, fmt.Errorf("copy of volume %s: the size is missing or out of range: %w", r.Path, api.ErrInvalid)
		}
		// The other end gets errors within the stream.
		if r.Kind == wire.StreamSendVolume {
			return func(ctx context.Context, conn *streams.Conn) error {
				if sum, err := e.volumes.Send(ctx, k, name, c.Final, conn, conn.Abort); err != nil {
					e.log.Warn("volume not sent", "volume", r.Path, "final", c.Final, "err", err)
				} else {
					e.log.Info("volume sent", "volume", r.Path, "final", c.Final, "bytes", sum.Sent)
				}
				return nil
			}, nil
		}
		return func(ctx context.Context, conn *streams.Conn) error {
			sum, err := e.volumes.Receive(ctx, k, name, c.SizeMB, c.Final, conn, func(ctx context.Context) error {
				e.fetchAhead(ctx, rt, provided, k, c)
				return nil
			})
			if err != nil {
				e.log.Warn("volume not received", "volume", r.Path, "final", c.Final, "err", err)
				return nil
			}
			e.log.Info("volume received", "volume", r.Path, "final", c.Final, "bytes", sum.Sent)
			if c.Final {
				return e.reportVolumes(ctx)
			}
			return nil
		}, nil
	}
}

// movingVolume returns the placement and the name of the volume of a request.
func (e *engine) movingVolume(r wire.StreamRequest) (k wire.Key, name string, err error) {
	id, err := api.ParseVolumeID(r.Path)
	switch {
	case err != nil:
		return k, "", err
	case e.volumes == nil:
		return k, "", fmt.Errorf("this node does not support volumes: %w", api.ErrUnavailable)
	case id.Instance() != r.Instance || r.Epoch == 0:
		return k, "", fmt.Errorf("volume %s is not one of the placement %s of %s: %w", id, r.Epoch, r.Instance, api.ErrInvalid)
	}
	return wire.Key{Instance: r.Instance, Epoch: r.Epoch}, id.Label(), nil
}

// fetchAhead fetches the image of the instance that comes with the volume. If that fails, its start does so.
func (e *engine) fetchAhead(ctx context.Context, rt runtime.Runtime, provided *files.Files, k wire.Key, c *wire.VolumeCopy) {
	f, ok := rt.(runtime.Fetcher)
	if !ok || c.Code == "" {
		return
	}
	w := runtime.Workload{Key: k, Spec: api.Microservice{Virtualization: "container", Code: c.Code, Platform: c.Platform}}
	var err error
	if provided != nil {
		_, w.Login, err = provided.Prepare(ctx, k, &w.Spec, c.Values)
	}
	if err == nil {
		err = f.Fetch(ctx, w)
	}
	if err != nil {
		e.log.Warn("image of a moving instance not fetched", "instance", k.Instance, "err", err)
	}
}

// discardVolume deletes what a move has left of a volume.
func (e *engine) discardVolume(ctx context.Context, r wire.StreamRequest) error {
	k, name, err := e.movingVolume(r)
	if err != nil {
		return err
	}
	changed, err := e.volumes.Discard(k, name)
	if err != nil || !changed {
		return err
	}
	e.log.Info("copy of a volume deleted", "volume", r.Path)
	return e.reportVolumes(ctx)
}

func (e *engine) reportVolumes(ctx context.Context) error {
	return e.loop.Do(ctx, node.Volumes{Volumes: e.volumes.List()}, nil)
}
