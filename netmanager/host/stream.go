package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxEvents bounds the events that wait for a slow node engine.
const maxEvents = 256

// Stream carries events to the node engine while it reads them: the core's messages to the cluster,
// which workloads are ready for flows, and whether workloads can be attached. The core numbers its
// messages, and the cluster requests a missing one.
type Stream struct {
	log *slog.Logger

	mu     sync.Mutex // guards the fields below
	reader *reader
	kernel error // why the kernel is not in sync with the core
	leased bool  // the core has a lease
	ready  wire.NetReady
}

type reader struct {
	queue  []any // wire.NetUp, wire.NetReady or wire.Key
	filled chan struct{}
	end    context.CancelCauseFunc
}

var (
	errStarting = errors.New("the netmanager is starting")
	errNoLease  = errors.New("the cluster has not leased a subnet to this node yet")
)

// NewStream returns a stream without a reader, not ready.
func NewStream(log *slog.Logger) *Stream {
	return &Stream{log: log, kernel: errStarting, ready: wire.NetReady{Error: errStarting.Error()}}
}

func (r *reader) put(e any) {
	r.queue = append(r.queue, e)
	signal(r.filled)
}

func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Send sends a message of the core to the cluster. Without a reader the message is lost: the core
// then gets Link{Up: false}, and repeats everything when the link is up.
func (s *Stream) Send(m wire.NetUp) { s.send(m) }

// Serves reports that a workload is ready for flows. A node engine that does not read finds this in
// the list of attachments later.
func (s *Stream) Serves(k wire.Key) { s.send(k) }

func (s *Stream) send(e any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.reader == nil:
	case len(s.reader.queue) >= maxEvents:
		s.reader.end(fmt.Errorf("the node engine reads too slowly, %d events wait: %w", maxEvents, api.ErrUnavailable))
	default:
		s.reader.put(e)
	}
}

// SetKernel sets why the kernel is not in sync with the core; nil means that it is.
func (s *Stream) SetKernel(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel = err
	s.settle()
}

// SetLeased sets whether the core has a lease, and reports whether that has changed.
func (s *Stream) SetLeased(leased bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.leased != leased
	s.leased = leased
	if changed {
		s.settle()
	}
	return changed
}

// settle updates ready. s.mu is held.
func (s *Stream) settle() {
	err := s.kernel
	if !s.leased {
		err = cmp.Or(err, errNoLease)
	}
	now := wire.NetReady{Ready: err == nil}
	if err != nil {
		now.Error = err.Error()
	}
	if now == s.ready {
		return
	}
	s.ready = now
	s.log.Info("readiness changed", "ready", now.Ready, "why", now.Error)
	if s.reader != nil {
		s.reader.put(now)
	}
}

// Ready returns whether workloads can be attached.
func (s *Stream) Ready() wire.NetReady {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// Read writes events until ctx ends, write fails, or another reader begins. If no other reader has
// replaced it, Read calls gone at its end. gone must not block. It is called before another Read can
// begin, so that a later reader's report of the link comes after it.
func (s *Stream) Read(ctx context.Context, write func(wire.NetEvent) error, gone func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &reader{filled: make(chan struct{}, 1), end: cancel}
	s.mu.Lock()
	if s.reader != nil {
		s.reader.end(fmt.Errorf("another node engine reads now: %w", api.ErrConflict))
	}
	s.reader = r
	r.put(s.ready)
	s.mu.Unlock()
	err := s.serve(ctx, r, write)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == r {
		s.reader = nil
		gone()
	}
	return err
}

func (s *Stream) serve(ctx context.Context, r *reader, write func(wire.NetEvent) error) error {
	for {
		select {
		case <-r.filled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.mu.Lock()
		all := r.queue
		r.queue = nil
		s.mu.Unlock()
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

func event(m any) (wire.NetEvent, error) {
	switch m := m.(type) {
	case wire.NetReady:
		return wire.NetEvent{Ready: &m}, nil
	case wire.Key:
		return wire.NetEvent{Serves: &m}, nil
	}
	text, err := json.Marshal(m)
	return wire.NetEvent{Up: text}, err
}
