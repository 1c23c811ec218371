package wiring

import (
	"sync"

	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// lasting keeps, while the core takes no inputs because its store takes no saves, the
// last of each input that nobody repeats. What is not kept comes again by itself: a
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
	}
	return nil
}

// whenFull is the loop's: what waits already when the store ceases to take saves.
func whenFull(in overlay.Input) bool { return lastingKey(in) != nil }

// post hands an input to the core, and never blocks.
func (m *manager) post(in overlay.Input) {
	key := lastingKey(in)
	if key == nil {
		m.loop.Post(in)
		return
	}
	m.lasting.mu.Lock()
	defer m.lasting.mu.Unlock()
	stalled := m.repostLocked() != nil || m.loop.Stalled() != nil
	if !stalled {
		m.loop.Post(in)
	}
	if stalled || m.loop.Stalled() != nil {
		if m.lasting.kept == nil {
			m.lasting.kept = map[any]overlay.Input{}
		}
		m.lasting.kept[key] = in
	}
}

// repost posts what was kept, or says why it is kept still.
func (m *manager) repost() error {
	m.lasting.mu.Lock()
	defer m.lasting.mu.Unlock()
	return m.repostLocked()
}

func (m *manager) repostLocked() error {
	for key, in := range m.lasting.kept {
		if err := m.loop.Stalled(); err != nil {
			return err
		}
		m.loop.Post(in)
		if err := m.loop.Stalled(); err != nil {
			return err
		}
		delete(m.lasting.kept, key)
	}
	return nil
}
