package clusterlink

import (
	"context"
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// signal wakes a goroutine that waits for a queue to be filled. Its capacity is 1.
type signal chan struct{}

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wait returns false if ctx ends first.
func (s signal) wait(ctx context.Context) bool {
	select {
	case <-s:
		return true
	case <-ctx.Done():
		return false
	}
}

// outbox has at most one report and one heartbeat to publish. A later observation of an instance
// replaces an earlier one, so that its size depends on the number of instances only.
type outbox struct {
	filled signal

	mu     sync.Mutex // guards the fields below
	report *wire.NodeReport
	alive  *wire.Alive
}

func newOutbox() *outbox { return &outbox{filled: make(signal, 1)} }

// NodeReport queues a report, merged with the one that waits.
func (o *outbox) NodeReport(m wire.NodeReport) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.report != nil {
		m = merge(*o.report, m)
	}
	o.report = &m
	o.filled.set()
}

// Alive queues a heartbeat in place of the one that waits.
func (o *outbox) Alive(m wire.Alive) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.alive = &m
	o.filled.set()
}

// take empties the outbox. The report must be published first, because the heartbeat has the digest
// of its content.
func (o *outbox) take() (*wire.NodeReport, *wire.Alive) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, a := o.report, o.alive
	o.report, o.alive = nil, nil
	return r, a
}

const maxQueuedBytes = 24 << 20

// byteQueue has messages to publish, in order. A full queue drops all of them: the messages are
// numbered, so the cluster detects the gap and requests their content again.
type byteQueue struct {
	filled signal

	mu    sync.Mutex // guards the fields below
	queue [][]byte
	bytes int
}

func newByteQueue() *byteQueue { return &byteQueue{filled: make(signal, 1)} }

// add queues a message and returns the number of bytes that it dropped to make space.
func (q *byteQueue) add(payload []byte) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+len(payload) > maxQueuedBytes {
		dropped = q.bytes
		q.queue, q.bytes = nil, 0
	}
	q.queue, q.bytes = append(q.queue, payload), q.bytes+len(payload)
	q.filled.set()
	return dropped
}

func (q *byteQueue) take() [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.queue
	q.queue, q.bytes = nil, 0
	return all
}

// merge returns one report with the content of both.
func merge(earlier, later wire.NodeReport) wire.NodeReport {
	if later.Whole || earlier.Boot != later.Boot {
		return later
	}
	m := later
	m.Whole = earlier.Whole
	if m.Info == nil {
		m.Info = earlier.Info
	}
	m.Observed = slices.Clone(earlier.Observed)
	at := make(map[api.InstanceID]int, len(m.Observed))
	for i, o := range m.Observed {
		at[o.Instance] = i
	}
	for _, o := range later.Observed {
		if i, ok := at[o.Instance]; ok && m.Observed[i].Epoch <= o.Epoch {
			m.Observed[i] = o
		} else {
			m.Observed = append(m.Observed, o)
		}
	}
	return m
}
