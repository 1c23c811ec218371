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
	up, down := make(chan error, 1), make(chan error, 1)
	go func() { up <- r.pass(target, source, &r.theirs, done) }()
	go func() { down <- r.pass(source, target, &r.ours, end) }()
	var err error
	other := up
	select {
	case err = <-up:
		other = down
	case err = <-down:
		if err == nil {
			err, other = <-up, nil // after the source's last frame
		}
	}
	if other != nil {
		// A side that fails says why and closes its stream. Which one is seen first is a matter of chance.
		if err != nil && !errors.Is(err, errTold) && !errors.Is(err, api.ErrInvalid) {
			select {
			case second := <-other:
				if errors.Is(second, errTold) {
					err = second
				}
				other <- nil
			case <-time.After(reasonTime):
			}
		}
		_, _ = source.Close(), target.Close()
		<-other
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

// reasonTime is how long the reason of a failure may follow it.
const reasonTime = time.Second

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
