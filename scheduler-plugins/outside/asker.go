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
}

// waiting is how many questions may wait for the scheduler. What finds no room, the
// core decides itself when its time is over.
const waiting = 256

// NewAsker asks a scheduler; nil: there is none, and nothing is asked.
// answer is called by several goroutines.
func NewAsker(to *Scheduler, answer func(sched.Answer)) *Asker {
	return &Asker{to: to, asks: make(chan sched.Ask, waiting), answer: answer}
}

// Send takes a question and never blocks.
func (a *Asker) Send(q sched.Ask) {
	if a.to == nil {
		return
	}
	select {
	case a.asks <- q:
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
