package outside

import (
	"context"
	"sync"

	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Asker takes a core's questions to a scheduler outside, and its answers back.
type Asker struct {
	to     *Scheduler
	asks   chan sched.Ask
	answer func(sched.Answer)

	refused chan struct{} // holds one while there are keys of refusals
	mu      sync.Mutex    // guards keys
	keys    []string
}

// waiting is how many questions may wait for the scheduler; cores have fewer open.
// What finds no room is answered as busy.
const waiting = 256

// NewAsker asks a scheduler; nil: there is none, and nothing is asked.
// answer is called by several goroutines.
func NewAsker(to *Scheduler, answer func(sched.Answer)) *Asker {
	return &Asker{to: to, asks: make(chan sched.Ask, waiting), answer: answer, refused: make(chan struct{}, 1)}
}

// Send takes a question and never blocks.
func (a *Asker) Send(q sched.Ask) {
	if a.to == nil {
		return
	}
	select {
	case a.asks <- q:
		return
	default:
	}
	a.mu.Lock()
	a.keys = append(a.keys, q.Key)
	a.mu.Unlock()
	select {
	case a.refused <- struct{}{}:
	default:
	}
}

// Run asks until ctx ends, and closes the scheduler then.
func (a *Asker) Run(ctx context.Context) error {
	if a.to == nil {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { a.refuse(ctx) })
	for range AtOnce {
		wg.Go(func() { a.work(ctx) })
	}
	wg.Wait()
	return a.to.Close(context.WithoutCancel(ctx))
}

func (a *Asker) work(ctx context.Context) {
	for {
		select {
		case q := <-a.asks:
			a.answer(a.to.Rank(ctx, q))
		case <-ctx.Done():
			return
		}
	}
}

// refuse answers what found no room.
func (a *Asker) refuse(ctx context.Context) {
	for {
		select {
		case <-a.refused:
			a.mu.Lock()
			keys := a.keys
			a.keys = nil
			a.mu.Unlock()
			for _, k := range keys {
				a.answer(sched.Answer{Key: k, Error: "busy"})
			}
		case <-ctx.Done():
			return
		}
	}
}
