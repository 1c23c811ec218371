package wiring

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/treeline-edge/treeline/api"
)

// mostSaid bounds the messages that wait for a node engine that is slow.
const mostSaid = 256

// uplink carries what the core says to its cluster to the node engine, while one
// reads. Messages have numbers; one that is missing is asked for.
type uplink struct {
	log *slog.Logger

	mu     sync.Mutex // guards the fields below
	reader *reader
	ready  api.NetReady
}

// reader is a node engine that listens.
type reader struct {
	queue  []any // api.NetUp, api.NetReady or api.Key
	filled chan struct{}
	end    context.CancelCauseFunc
}

func (r *reader) put(e any) {
	r.queue = append(r.queue, e)
	select {
	case r.filled <- struct{}{}:
	default:
	}
}

// send takes a message of the core, which nobody changes any more.
func (u *uplink) send(m api.NetUp) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reader == nil {
		return // the core hears that the link is down, and says it all when it is up
	}
	u.add(m)
}

// add is called with mu held, while somebody reads.
func (u *uplink) add(e any) {
	if len(u.reader.queue) >= mostSaid {
		u.reader.end(fmt.Errorf("the node engine does not read: %w", api.ErrUnavailable))
		return
	}
	u.reader.put(e)
}

// serves says that a workload takes flows. A node engine that does not read, or
// ceases to because it is slow, finds it in the list when it is back.
func (u *uplink) serves(k api.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reader != nil {
		u.add(k)
	}
}

// setReady says whether workloads can be attached; a nil error says so.
func (u *uplink) setReady(err error) {
	now := api.NetReady{Ready: err == nil}
	if err != nil {
		now.Error = err.Error()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if now == u.ready {
		return
	}
	u.ready = now
	u.log.Info("readiness changed", "ready", now.Ready, "why", now.Error)
	if u.reader != nil {
		u.reader.put(now)
	}
}

func (u *uplink) isReady() api.NetReady {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ready
}

// read is one node engine's reading. It ends an earlier one's. gone, which must not
// block, is called when it ends and nobody else reads, before anybody else does: what
// the next one says of the link comes after it.
func (u *uplink) read(ctx context.Context, write func(api.NetEvent) error, gone func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &reader{filled: make(chan struct{}, 1), end: cancel}
	u.mu.Lock()
	if u.reader != nil {
		u.reader.end(fmt.Errorf("another node engine reads now: %w", api.ErrConflict))
	}
	u.reader = r
	r.put(u.ready)
	u.mu.Unlock()
	err := u.serve(ctx, r, write)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reader == r {
		u.reader = nil
		gone()
	}
	return err
}

func (u *uplink) serve(ctx context.Context, r *reader, write func(api.NetEvent) error) error {
	for {
		select {
		case <-r.filled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		u.mu.Lock()
		all := r.queue
		r.queue = nil
		u.mu.Unlock()
		for _, m := range all {
			e, err := event(m)
			if err == nil {
				err = write(e)
			}
			if err != nil {
				return err
			}
		}
	}
}

func event(m any) (api.NetEvent, error) {
	switch m := m.(type) {
	case api.NetReady:
		return api.NetEvent{Ready: &m}, nil
	case api.Key:
		return api.NetEvent{Serves: &m}, nil
	}
	text, err := json.Marshal(m)
	return api.NetEvent{Up: text}, err
}
