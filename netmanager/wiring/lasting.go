package wiring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// While nothing can be saved the core goes on with what it need not save to be right
// again after a restart, for others say it once more: what the cluster, peers and the
// kernel say. So flows to new addresses, and from them, begin on a full disk, too.

// whenFull is the loop's: all goes on but what is durable by its answer.
func whenFull(in overlay.Input) bool {
	switch in.(type) {
	case overlay.Start, overlay.Attach, overlay.Detach:
		return false
	}
	return true
}

// lasting keeps, while the core takes no inputs because too many wait, or too much to be saved,
// the last of each input that nobody repeats. What is not kept comes again by itself: a
// packet, a question, a peer's handshake, a measurement.
type lasting struct {
	mu   sync.Mutex // guards kept, and the order of what is posted
	kept map[any]overlay.Input
}

// lastingKey is what an input is the last word on; nil: it need not last.
func lastingKey(in overlay.Input) any {
	switch in := in.(type) {
	case overlay.Link:
		return "link"
	case overlay.Self:
		return "self"
	case overlay.Path:
		return in.Key
	case overlay.Ready: // of each of them there is one
		return in
	case overlay.Exited:
		return in
	}
	return nil
}

// post hands an input to the core, and never blocks.
func (m *manager) post(in overlay.Input) { m.offer(in) }

// offer is post, and reports whether the core will hear of it, now or once it takes
// inputs again.
func (m *manager) offer(in overlay.Input) bool {
	key := lastingKey(in)
	if key == nil {
		return m.loop.Offer(in)
	}
	m.lasting.mu.Lock()
	defer m.lasting.mu.Unlock()
	if m.repostLocked() && m.loop.Offer(in) {
		return true
	}
	if m.lasting.kept == nil {
		m.lasting.kept = map[any]overlay.Input{}
	}
	m.lasting.kept[key] = in
	return true
}

// repost posts what was kept, and reports whether nothing is kept any more.
func (m *manager) repost() bool {
	m.lasting.mu.Lock()
	defer m.lasting.mu.Unlock()
	return m.repostLocked()
}

func (m *manager) repostLocked() bool {
	for key, in := range m.lasting.kept {
		if !m.loop.Offer(in) {
			return false
		}
		delete(m.lasting.kept, key)
	}
	return true
}

// learn hands in what the core goes on with while nothing can be saved, and returns when
// it has gone on, or will by itself.
func (m *manager) learn(ctx context.Context, in overlay.Input) error {
	err := m.loop.Do(ctx, in, nil)
	if unsaved(err) && m.offer(in) { // it may have been stepped before: twice is harmless
		err = m.loop.Read(ctx, func() {})
	}
	return err
}

// unsaved reports whether an input was refused, or not answered, because nothing can be saved.
func unsaved(err error) bool {
	return errors.Is(err, api.ErrFull) || errors.Is(err, api.ErrUnavailable)
}

// behind is why the core takes no inputs.
func (m *manager) behind() error {
	return cmp.Or(m.loop.Stalled(), fmt.Errorf("the core has not heard what was said before: %w", api.ErrUnavailable))
}
