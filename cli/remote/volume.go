package remote

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/frames"
)

// Snapshot writes the files of a local volume to w. What it wrote is complete only if it returns nil.
func Snapshot(ctx context.Context, a *client.Client, id api.VolumeID, w io.Writer) error {
	conn, err := dial(ctx, a, client.AccessPath(client.Volumes, id, "snapshot"), nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	return copied(Output(conn, w, io.Discard))
}

// Restore replaces the files of a local volume by those of the snapshot that r reads. The volume keeps
// its files if Restore fails.
func Restore(ctx context.Context, a *client.Client, id api.VolumeID, r io.Reader) error {
	conn, err := dial(ctx, a, client.AccessPath(client.Volumes, id, "restore"), nil)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		to := frames.NewWriter(conn)
		from := &noted{from: r}
		_, err := io.CopyBuffer(to.Stream(frames.Stdin), from, make([]byte, frames.Max))
		switch {
		case from.err != nil:
			sent <- from.err
			_ = conn.Close() // without the end of the input, so that the node does not regard it as complete
		case err == nil:
			_ = to.Write(frames.EOF, nil)
		} // otherwise the answer says why the node does not read
	}()
	defer conn.Close()
	err = copied(Output(conn, io.Discard, io.Discard))
	select {
	case serr := <-sent:
		return fmt.Errorf("read the snapshot: %w", serr)
	default: // r may still be blocked
		return err
	}
}

// noted notes the error of a reader.
type noted struct {
	from io.Reader
	err  error
}

// Read implements io.Reader.
func (n *noted) Read(p []byte) (int, error) {
	c, err := n.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.err = err
	}
	return c, err
}

// copied returns the error for the end of a copy.
func copied(code int, err error) error {
	if err == nil && code != 0 {
		err = fmt.Errorf("the node ended it with code %d: %w", code, api.ErrUnavailable)
	}
	return err
}
