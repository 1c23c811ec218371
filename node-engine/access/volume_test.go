package access

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/wire"
)

const pages = api.VolumeID("acme/shop.prod.db.v1#0:pages")

// volumes has one volume.
type volumes struct {
	snapshot func(ctx context.Context, w io.Writer) error
	restored chan string // what a restore read, and then its error
}

func (v *volumes) Snapshot(ctx context.Context, _ api.VolumeID, w io.Writer) error {
	return v.snapshot(ctx, w)
}

func (v *volumes) Restore(_ context.Context, _ api.VolumeID, r io.Reader) error {
	text, err := io.ReadAll(r)
	if v.restored <- string(text); err != nil {
		v.restored <- err.Error()
		return err
	}
	return nil
}

func ofVolume(kind string) wire.StreamRequest {
	return wire.StreamRequest{Kind: kind, Instance: pages.Instance(), Path: string(pages)}
}

// answers returns the output of a stream and its last frame.
func answers(t *testing.T, from io.Reader) (output []byte, last frames.Kind, payload []byte) {
	t.Helper()
	in := frames.NewReader(from)
	for {
		k, p, err := in.Next()
		switch {
		case err != nil:
			return output, 0, nil
		case k == frames.Stdout:
			output = append(output, p...)
		default:
			return output, k, bytes.Clone(p)
		}
	}
}

func TestSnapshotEndsWithAnExitCodeOnlyIfItIsComplete(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		last frames.Kind
	}{"complete": {nil, frames.Exit}, "broken": {api.ErrFull, frames.Error}} {
		a := New(Options{Volumes: &volumes{snapshot: func(_ context.Context, w io.Writer) error {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 2*frames.Max+1))
			return c.err
		}}})
		u, done := begin(t, a, ofVolume("snapshot"))
		output, last, payload := answers(t, u)
		if len(output) != 2*frames.Max+1 || last != c.last {
			t.Errorf("%s: got %d bytes and then a frame of kind %d, want %d", name, len(output), last, c.last)
		}
		if c.err != nil && !errors.Is(frames.Problem(payload), c.err) {
			t.Errorf("%s: got %v, want %v", name, frames.Problem(payload), c.err)
		}
		_ = u.Close()
		<-done
	}
}

func TestSnapshotEndsWhenItsUserLeaves(t *testing.T) {
	ended := make(chan error, 1)
	a := New(Options{Volumes: &volumes{snapshot: func(ctx context.Context, _ io.Writer) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}}})
	u, done := begin(t, a, ofVolume("snapshot"))
	_ = u.Close()
	if err := <-ended; err == nil {
		t.Error("the snapshot did not end")
	}
	<-done
}

// TestCopyWithoutProgressEnds: a user that neither reads nor sends keeps a copy of a volume on the disk.
func TestCopyWithoutProgressEnds(t *testing.T) {
	v := &volumes{restored: make(chan string, 2), snapshot: func(_ context.Context, w io.Writer) error { return endless(w) }}
	for _, kind := range []string{"snapshot", "restore"} {
		a := New(Options{Volumes: v})
		a.stall = 20 * time.Millisecond
		u, done := begin(t, a, ofVolume(kind))
		<-done
		_ = u.Close()
	}
	if text := <-v.restored; text != "" {
		t.Errorf("restored %q, want nothing", text)
	}
	if err := <-v.restored; err == "" {
		t.Error("the restore ended as if it were complete")
	}
}

func endless(w io.Writer) error {
	for {
		if _, err := w.Write(make([]byte, frames.Max)); err != nil {
			return err
		}
	}
}

func TestRestoreIsCompleteWithTheEndOfTheInputOnly(t *testing.T) {
	v := &volumes{restored: make(chan string, 2)}
	u, done := begin(t, New(Options{Volumes: v}), ofVolume("restore"))
	to := frames.NewWriter(u)
	for _, part := range []string{"one ", "two"} {
		if err := to.Write(frames.Stdin, []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Write(frames.EOF, nil); err != nil {
		t.Fatal(err)
	}
	if _, last, _ := answers(t, u); last != frames.Exit {
		t.Errorf("got a frame of kind %d, want the exit code", last)
	}
	if text := <-v.restored; text != "one two" {
		t.Errorf("restored %q", text)
	}
	_ = u.Close()
	<-done

	u, done = begin(t, New(Options{Volumes: v}), ofVolume("restore"))
	if err := frames.NewWriter(u).Write(frames.Stdin, []byte("one ")); err != nil {
		t.Fatal(err)
	}
	_ = u.Close() // the stream is cut
	<-done
	if text, err := <-v.restored, <-v.restored; text != "one " || err != io.ErrUnexpectedEOF.Error() && err != io.ErrClosedPipe.Error() {
		t.Errorf("restored %q, and then %q, want that the end is unexpected", text, err)
	}
}

func TestCopyOfAVolumeIsRefused(t *testing.T) {
	for _, kind := range []string{"snapshot", "restore"} {
		if _, err := New(Options{}).Open(t.Context(), ofVolume(kind)); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s on a node without volumes: got %v, want unavailable", kind, err)
		}
		r := ofVolume(kind)
		r.Path = "../etc"
		if _, err := New(Options{Volumes: &volumes{}}).Open(t.Context(), r); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s of %s: got %v, want that it is invalid", kind, r.Path, err)
		}
	}
}
