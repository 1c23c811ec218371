package network

import (
	"context"
	"sync"
)

const maxQueuedBytes = 32 << 20

// message is a message of the cluster. If routes is nil, it is the state of the connection to it.
type message struct {
	routes []byte
	up     bool
}

// inbox queues messages for a connected netmanager. If it is full, it drops them and queues that the
// connection to the cluster was lost and restored: the netmanager then requests everything again.
type inbox struct {
	mu     sync.Mutex // guards the fields below
	opened bool       // the netmanager is connected
	up     bool       // the cluster is connected
	queue  []message
	bytes  int
	filled chan struct{}
}

func newInbox() inbox { return inbox{filled: make(chan struct{}, 1)} }

// open starts queueing, with the state of the connection to the cluster as the first message.
func (i *inbox) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reset(true)
	i.add(message{up: i.up})
}

// close drops the queued messages, and all others until open is called.
func (i *inbox) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reset(false)
}

func (i *inbox) reset(opened bool) { i.opened, i.queue, i.bytes = opened, nil, 0 }

func (i *inbox) link(up bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.up = up
	i.add(message{up: up})
}

func (i *inbox) put(routes []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case len(routes) == 0:
	case i.bytes+len(routes) > maxQueuedBytes:
		i.reset(i.opened)
		i.add(message{up: false})
		i.add(message{up: i.up})
	default:
		i.bytes += len(routes)
		i.add(message{routes: routes})
	}
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

// take waits for the next message, until ctx ends.
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
