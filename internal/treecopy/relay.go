package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
)

// Relay connects a Send with a Receive until the copy is complete or one of them fails, and closes both streams. It
// trusts neither: it fails with ErrInvalid if their sums differ, and with ErrTimeout if no frame comes for the time idle.
// progress, if not nil, is called with the number of bytes of blocks so far.
func Relay(ctx context.Context, source, target io.ReadWriteCloser, idle time.Duration, progress func(int64)) (Sum, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(idle, func() { cancel(fmt.Errorf("nothing was copied for %s: %w", idle, api.ErrTimeout)) })
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { _, _ = source.Close(), target.Close() })
	defer stop()
	defer source.Close()
	defer target.Close()

	r := relay{timer: timer, idle: idle, progress: progress}
	up := make(chan error, 1)
	go func() { up <- r.pass(target, source, &r.theirs, done) }()
	down := make(chan error, 1)
	go func() { down <- r.pass(source, target, &r.ours, end) }()
	var err error
	select {
	case err = <-up:
		if err != nil { // the source may know better
			cancel(err)
		}
		_, _ = source.Close(), target.Close()
		<-down
	case err = <-down:
		if err != nil {
			cancel(err)
			_, _ = source.Close(), target.Close()
			<-up
		} else {
			err = <-up // after the source's last frame
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	switch {
	case err != nil:
		return Sum{}, err
	case !r.ours.Same(r.theirs):
		return Sum{}, fmt.Errorf("the target has the sum %.64q, want that of the source, %.64q: %w", r.theirs.Digest, r.ours.Digest, api.ErrInvalid)
	}
	r.ours.Sent = r.sent
	return r.ours, nil
}

type relay struct {
	timer    *time.Timer
	idle     time.Duration
	progress func(int64)
	ours     Sum // of the source
	theirs   Sum
	sent     int64 // of the source's direction
}

// pass passes frames on. It returns nil after last, whose sum it stores. From the source, blocks may follow.
func (r *relay) pass(from io.Reader, to io.Writer, sum *Sum, last frames.Kind) error {
	in, out := frames.NewReader(from), frames.NewWriter(to)
	ended := false
	for {
		k, payload, err := in.Next()
		switch {
		case err != nil && ended && errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return cut(err)
		case k == failed:
			_ = out.Write(k, payload)
			return failure(payload)
		case k >= need != (last == done):
			return unexpected(k, payload)
		}
		r.timer.Reset(r.idle)
		if k == last {
			if err := readJSON(payload, sum); err != nil {
				return err
			}
			ended = true
		}
		if k == block {
			if r.sent += int64(len(payload)); r.progress != nil {
				r.progress(r.sent)
			}
		}
		if err := out.Write(k, payload); err != nil {
			return cut(err)
		}
		if ended && last == done {
			return nil
		}
	}
}
