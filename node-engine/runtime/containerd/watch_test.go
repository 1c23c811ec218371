package containerd

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/events"
)

// late is a containerd that begins a subscription after a number of events.
type late struct {
	after     int
	published int
	received  chan *events.Envelope
}

func (l *late) Publish(_ context.Context, topic string, _ events.Event) error {
	if l.published++; l.published > l.after {
		l.received <- &events.Envelope{Topic: topic}
	}
	return nil
}

func TestAwaitSubscriptionPublishesUntilItReceives(t *testing.T) {
	l := &late{after: 2, received: make(chan *events.Envelope, 1)}
	if err := awaitSubscription(t.Context(), l, l.received, nil); err != nil || l.published != 3 {
		t.Errorf("published events: got %d, %v, want 3", l.published, err)
	}
	broken := errors.New("broken")
	errs := make(chan error, 1)
	errs <- broken
	if err := awaitSubscription(t.Context(), &late{after: 2}, nil, errs); !errors.Is(err, broken) {
		t.Errorf("broken subscription: got %v, want its error", err)
	}
}
