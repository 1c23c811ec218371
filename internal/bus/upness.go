package bus

import "sync"

// Upness is the state of a connection and those who watch it: what the
// implementations of Bus.Up share. The zero value is down.
type Upness struct {
	mu       sync.Mutex // guards the fields below
	up       bool
	closed   bool
	watchers []chan bool
}

// Set notes the state and tells the watchers when it changed.
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

// Watch is a channel with the present state, later with the newest change only.
// It is closed when the bus closes.
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

// Close ends the watching.
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

// newest replaces what waits in w. Only Set sends, under its lock, so the second
// send always finds room.
func newest(w chan bool, up bool) {
	select {
	case <-w:
	default:
	}
	w <- up
}
