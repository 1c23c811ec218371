package clusterlink

import (
	"context"
	"sync"

	"github.com/treeline-edge/treeline/api/topic"
)

// mostInterest bounds the netmanager's messages that wait for the cluster.
const mostInterest = 24 << 20

// interest keeps the messages of the node's netmanager to the cluster in their
// order. They have numbers: what overflows is missed by the cluster, which asks.
type interest struct {
	mu     sync.Mutex // guards the fields below
	queue  [][]byte
	bytes  int
	filled chan struct{}
}

func newInterest() *interest { return &interest{filled: make(chan struct{}, 1)} }

// Interest takes a message of the node's netmanager to the cluster and never blocks.
func (l *Link) Interest(payload []byte) {
	w := l.wants
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes+len(payload) > mostInterest {
		l.opt.Log.Warn("the cluster is too slow for the netmanager; messages are dropped", "bytes", w.bytes)
		w.queue, w.bytes = nil, 0
	}
	w.queue, w.bytes = append(w.queue, payload), w.bytes+len(payload)
	select {
	case w.filled <- struct{}{}:
	default:
	}
}

func (w *interest) take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.queue
	w.queue, w.bytes = nil, 0
	return all
}

func (l *Link) publishInterest(ctx context.Context) {
	for {
		select {
		case <-l.wants.filled:
		case <-ctx.Done():
			return
		}
		for _, m := range l.wants.take() {
			l.publishOne(ctx, topic.Interest, m, nil)
		}
	}
}
