package bus

import "sync"

// Upness is the state of a connection and its watchers, for implementations of Bus.Up. The zero
// value is down. It is safe for concurrent use.
type Upness struct {
	mu       sync.Mutex // guards the fields below
	up       bool
	closed   bool
	watchers []chan bool
}

// Set sets the state and notifies the watchers of a change.
func (u *Upness) Set(up bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.up == up {
		return
	}
	u.up = up
	for _, w := range u.watchers {
		newest(w, up)
	}
}

// Watch returns a channel with the current state, then with the newest change. Close closes it.
func (u *Upness) Watch() <-chan bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	w := make(chan bool, 1)
	w <- u.up
	if u.closed {
		close(w)
		return w
	}
	u.watchers = append(u.watchers, w)
	return w
}

// Close closes all watchers.
func (u *Upness) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	u.closed, u.up = true, false
	for _, w := range u.watchers {
		close(w)
	}
	u.watchers = nil
}

// newest replaces the value in w. The caller holds mu, so that there is no other sender and the
// send does not block.
func newest(w chan bool, up bool) {
	select {
	case <-w:
	default:
	}
	w <- up
}
