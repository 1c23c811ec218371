package network

import (
	"context"
	"sync"
)

// mostWaiting bounds what waits for a netmanager that is slow.
const mostWaiting = 32 << 20

// message is a message of the cluster, or, without one, whether it is reached.
type message struct {
	routes []byte
	up     bool
}

// inbox keeps what the cluster says in its order, while a netmanager is there to
// take it. One that is too slow has the link go down and up in its eyes, so that
// it asks for everything anew.
type inbox struct {
	mu     sync.Mutex // guards the fields below
	opened bool
	up     bool // the cluster is reached
	queue  []message
	bytes  int
	filled chan struct{}
}

func newInbox() inbox { return inbox{filled: make(chan struct{}, 1)} }

// open begins with whether the cluster is reached.
func (i *inbox) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opened, i.queue, i.bytes = true, nil, 0
	i.add(message{up: i.up})
}

func (i *inbox) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opened, i.queue, i.bytes = false, nil, 0
}

func (i *inbox) link(up bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.up = up
	i.add(message{up: up})
}

func (i *inbox) put(routes []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(routes) == 0 {
		return
	}
	if i.bytes+len(routes) > mostWaiting {
		i.queue, i.bytes = nil, 0
		i.add(message{up: false})
		i.add(message{up: i.up})
		return
	}
	i.bytes += len(routes)
	i.add(message{routes: routes})
}

func (i *inbox) add(m message) {
	if !i.opened {
		return
	}
	i.queue = append(i.queue, m)
	select {
	case i.filled <- struct{}{}:
	default:
	}
}

// take waits for the next message, or for ctx's end.
func (i *inbox) take(ctx context.Context) (message, error) {
	for {
		if m, ok := i.next(); ok {
			return m, nil
		}
		select {
		case <-i.filled:
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

func (i *inbox) next() (message, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 {
		return message{}, false
	}
	m := i.queue[0]
	i.queue = i.queue[1:]
	i.bytes -= len(m.routes)
	return m, true
}
