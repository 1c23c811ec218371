package tracing

import (
	"context"
	"log/slog"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Logger returns a logger that adds trace_id to each line about a placement or an application whose trace is followed.
// The line names it with the keys instance and epoch, or app.
func (r *Relay) Logger(log *slog.Logger) *slog.Logger {
	return slog.New(logHandler{Handler: log.Handler(), relay: r})
}

type logHandler struct {
	slog.Handler
	relay *Relay
	about subject // of the attributes that all lines have
}

// subject is what a line is about.
type subject struct {
	app      api.AppID
	instance api.InstanceID
	epoch    api.Epoch
}

func (s *subject) note(a slog.Attr) {
	switch v := a.Value.Any().(type) {
	case api.AppID:
		s.app = v
	case api.InstanceID:
		s.instance = v
	case api.Epoch:
		s.epoch = v
	}
}

// Handle implements slog.Handler.
func (h logHandler) Handle(ctx context.Context, line slog.Record) error {
	if !h.relay.empty() {
		about := h.about
		line.Attrs(func(a slog.Attr) bool {
			about.note(a)
			return true
		})
		if c := h.relay.about(about); !c.IsZero() {
			line = line.Clone()
			line.AddAttrs(slog.String("trace_id", c.Trace()))
		}
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler.
func (h logHandler) WithAttrs(all []slog.Attr) slog.Handler {
	for _, a := range all {
		h.about.note(a)
	}
	h.Handler = h.Handler.WithAttrs(all)
	return h
}

// WithGroup implements slog.Handler.
func (h logHandler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}

// about returns the trace of a subject, by the keys of this tier.
func (r *Relay) about(s subject) Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := []string{string(s.app)}
	if s.instance != "" {
		a := wire.Assignment{Instance: s.instance, Epoch: s.epoch}
		keys = append(keys, OfPlacementHere(a), OfPlacement(a))
	}
	for _, k := range keys {
		if t := r.find(k); t != nil {
			return t.context
		}
	}
	return Context{}
}
