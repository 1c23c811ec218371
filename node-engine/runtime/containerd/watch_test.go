package containerd

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/events"
)

// late is a containerd that begins a subscription after so many events.
type late struct {
	after int
	said  int
	told  chan *events.Envelope
}

func (l *late) Publish(_ context.Context, topic string, _ events.Event) error {
	if l.said++; l.said > l.after {
		l.told <- &events.Envelope{Topic: topic}
	}
	return nil
}

func TestASubscriptionIsOneOnceItHears(t *testing.T) {
	l := &late{after: 2, told: make(chan *events.Envelope, 1)}
	if err := subscribed(t.Context(), l, l.told, nil); err != nil || l.said != 3 {
		t.Errorf("heard after %d words, want 3: %v", l.said, err)
	}
	broken := errors.New("broken")
	errs := make(chan error, 1)
	errs <- broken
	if err := subscribed(t.Context(), &late{after: 2}, nil, errs); !errors.Is(err, broken) {
		t.Errorf("a broken one: %v", err)
	}
}
