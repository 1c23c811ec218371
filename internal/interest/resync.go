package interest

import (
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
)

// Resync is the progress of sending a subscriber its complete set in parts (see wire.Span),
// because the digests differ. The pause before the next resync doubles while they still differ.
// The zero Resync is off.
type Resync struct {
	Due  bool      // the digests differ
	Part wire.Span // the last one that was sent

	on       bool
	began    time.Time
	attempts int // resyncs since the digests last agreed
}

const (
	resyncPause    = time.Second
	maxResyncPause = time.Minute
)

// On reports whether a resync is under way: parts are left to send or to acknowledge.
func (r *Resync) On() bool { return r.on }

// Incomplete reports whether parts are left to send.
func (r *Resync) Incomplete() bool { return r.on && !r.Part.Last() }

// Settled records that the digests agree.
func (r *Resync) Settled() { r.Due, r.attempts = false, 0 }

// Stop ends a resync because the subscriber lost everything that was sent to it.
func (r *Resync) Stop() { r.on, r.Part = false, wire.Span{} }

// Next returns when the next resync may begin.
func (r *Resync) Next() time.Time {
	if r.attempts == 0 {
		return r.began
	}
	return r.began.Add(min(resyncPause<<min(r.attempts-1, 6), maxResyncPause))
}

// Advance moves r to the next part, or keeps the last part if that was lost. It begins a resync
// that is due, if mayBegin. It reports whether there is a part to send, the one after
// r.Part.After; Sent must follow. r.Part is zero if the resync has just begun.
func (b *Subscriptions[S]) Advance(s S, r *Resync, now time.Time, lost, mayBegin bool) bool {
	switch {
	case r.on && lost:
	case r.Incomplete():
		r.Part = wire.Span{After: r.Part.To}
	case r.on:
		r.on = false
		b.EndResync(s)
	}
	if r.on {
		return true
	}
	if !r.Due || !mayBegin || now.Before(r.Next()) {
		return false
	}
	*r = Resync{on: true, began: now, attempts: r.attempts + 1}
	b.BeginResync(s)
	return true
}

// Sent records the span of the part that was sent, and reports whether it is the only one.
func (b *Subscriptions[S]) Sent(s S, r *Resync, of wire.Span) (only bool) {
	r.Part = of
	if r.on = of != (wire.Span{}); !r.on {
		b.EndResync(s)
	}
	return !r.on
}
