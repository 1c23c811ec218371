package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Volumes are the local volumes of the node.
type Volumes interface {
	// Snapshot writes the files of a volume to w. What it writes is complete if it returns nil.
	Snapshot(ctx context.Context, id api.VolumeID, w io.Writer) error
	// Restore replaces the files of a volume by those of a snapshot, or does nothing and returns an error.
	Restore(ctx context.Context, id api.VolumeID, r io.Reader) error
}

// stallTime is how long the user's end may send or accept nothing. A copy takes space on the node's disk.
// An upload in parts accepts nothing while it sends one.
const stallTime = 10 * time.Minute

var errStalled = fmt.Errorf("nothing was sent or received for %s: %w", stallTime, api.ErrTimeout)

// openVolume returns the function that serves a snapshot or a restore.
func (a *Access) openVolume(r wire.StreamRequest) (streams.Serve, error) {
	id, err := api.ParseVolumeID(r.Path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Kind, err)
	}
	if a.opt.Volumes == nil {
		return nil, fmt.Errorf("%s: this node has no volumes on its disk: %w", r.Kind, api.ErrUnavailable)
	}
	if r.Kind == "restore" {
		return func(ctx context.Context, conn *streams.Conn) error { return a.restore(ctx, id, conn) }, nil
	}
	return func(ctx context.Context, conn *streams.Conn) error { return a.snapshot(ctx, id, conn) }, nil
}

// snapshot sends the files of a volume as output, and the exit code 0 after them.
func (a *Access) snapshot(ctx context.Context, id api.VolumeID, conn *streams.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, conn) // the user sends nothing
		cancel(errLeft)
	}()
	out := frames.NewWriter(conn)
	err := a.opt.Volumes.Snapshot(ctx, id, progress{a.stall, conn, out.Stream(frames.Stdout), nil})
	a.opt.Log.Info("snapshot of a volume", "volume", id, "err", err)
	return result(ctx, out, err)
}

// restore replaces the files of a volume by those that the user sends, and answers with the exit code 0.
func (a *Access) restore(ctx context.Context, id api.VolumeID, conn *streams.Conn) error {
	out := frames.NewWriter(conn)
	err := a.opt.Volumes.Restore(ctx, id, progress{a.stall, conn, nil, &sent{from: frames.NewReader(conn)}})
	a.opt.Log.Info("restore of a volume", "volume", id, "err", err)
	return result(ctx, out, err)
}

// result sends how a copy ended.
func result(ctx context.Context, out *frames.Writer, err error) error {
	switch {
	case err == nil:
		return out.Exit(0)
	case ctx.Err() != nil: // nobody reads the stream any more
		return err
	}
	return out.Fail(err)
}

// sent is what the user sends: the payloads of its input, until the end of the input.
type sent struct {
	from *frames.Reader
	left []byte
	over bool
}

// Read implements io.Reader. A stream that ends without the end of the input is io.ErrUnexpectedEOF.
func (s *sent) Read(p []byte) (int, error) {
	for len(s.left) == 0 {
		if s.over {
			return 0, io.EOF
		}
		kind, payload, err := s.from.Next()
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		case kind == frames.Stdin:
			s.left = payload
		case kind == frames.EOF:
			s.over = true
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// progress breaks a stream when one write or read takes longer than limit.
type progress struct {
	limit time.Duration
	conn  *streams.Conn
	to    io.Writer
	from  io.Reader
}

// Write implements io.Writer.
func (p progress) Write(b []byte) (int, error) { return p.watched(b, p.to.Write) }

// Read implements io.Reader.
func (p progress) Read(b []byte) (int, error) { return p.watched(b, p.from.Read) }

func (p progress) watched(b []byte, do func([]byte) (int, error)) (int, error) {
	timer := time.AfterFunc(p.limit, func() { p.conn.Abort(errStalled) })
	n, err := do(b)
	if !timer.Stop() {
		err = errStalled
	}
	return n, err
}
