package client

import (
	"context"
	"sync"

	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Asker sends a core's questions to an external scheduler and returns the answers.
type Asker struct {
	scheduler *Scheduler
	asks      chan sched.Ask
	answer    func(sched.Answer)

	wake    chan struct{} // capacity 1; signals that refused is not empty
	mu      sync.Mutex    // guards refused
	refused []string      // keys of questions that did not fit into asks
}

// maxQueued bounds the questions that wait for the scheduler. A core has fewer open questions.
const maxQueued = 256

// NewAsker returns an Asker. With a nil scheduler it drops every question. Several goroutines
// call answer. A question that does not fit into the queue gets the error "busy".
func NewAsker(s *Scheduler, answer func(sched.Answer)) *Asker {
	return &Asker{scheduler: s, asks: make(chan sched.Ask, maxQueued), answer: answer, wake: make(chan struct{}, 1)}
}

// Send queues a question. It never blocks.
func (a *Asker) Send(q sched.Ask) {
	if a.scheduler == nil {
		return
	}
	select {
	case a.asks <- q:
		return
	default:
	}
	a.mu.Lock()
	a.refused = append(a.refused, q.Key)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run sends questions until ctx ends, and then closes the scheduler.
func (a *Asker) Run(ctx context.Context) error {
	if a.scheduler == nil {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { a.refuse(ctx) })
	for range MaxParallel {
		wg.Go(func() { a.work(ctx) })
	}
	wg.Wait()
	return a.scheduler.Close(context.WithoutCancel(ctx))
}

func (a *Asker) work(ctx context.Context) {
	for {
		select {
		case q := <-a.asks:
			a.answer(a.scheduler.Rank(ctx, q))
		case <-ctx.Done():
			return
		}
	}
}

// refuse answers the questions that did not fit into the queue. Send cannot, because answer
// may block.
func (a *Asker) refuse(ctx context.Context) {
	for {
		select {
		case <-a.wake:
			a.mu.Lock()
			keys := a.refused
			a.refused = nil
			a.mu.Unlock()
			for _, k := range keys {
				a.answer(sched.Answer{Key: k, Error: "busy"})
			}
		case <-ctx.Done():
			return
		}
	}
}
