package node

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// What the node cannot observe is unknown, never failed. While the runtime does
// not answer, a workload keeps the state that was seen last, with
// runtime_unavailable as its reason, and nothing is created or started. A
// workload that must not outlive the lease keeps its guard, and is ordered to
// stop when the lease ends. When the runtime answers again, what it lists
// decides (reconcile).

// unknownDetail names no cause, so that the many workloads of a node do not
// change with each attempt to reach the runtime; the node's own trouble has it.
const unknownDetail = "whether it runs is not known: the node's runtime does not answer"

// loseSight marks what runs as unknown while the runtime does not answer.
func (c *Core) loseSight() {
	c.blind = true
	for _, id := range step.Keys(c.works) {
		switch w := c.works[id]; w.phase {
		case running:
			c.doubtful(w, unknownDetail)
		case idle:
			if w.remains && w.current() && !w.ended() { // of an earlier life
				c.doubt(w, unknownDetail)
			}
		}
	}
}

// regainSight reconciles with what a runtime that answers again has. Stops that failed
// because it did not answer are ordered again soon.
func (c *Core) regainSight(found []api.WorkloadEvent) {
	was := c.blind
	c.blind = false
	c.reconcile(found)
	if !was {
		return
	}
	for _, id := range step.Keys(c.works) {
		if w := c.works[id]; w.phase == stopping && w.retries > 0 {
			w.retries = 0
			c.retryLater(w)
		}
	}
}

// doubt moves the workload to unsure until the runtime lists what it has of it.
func (c *Core) doubt(w *work, detail string) {
	w.phase = unsure
	c.doubtful(w, detail)
}

// doubtful reports the state that was seen last, with runtime_unavailable as its reason.
func (c *Core) doubtful(w *work, detail string) {
	o := api.Observed{State: api.NodeScheduled, Reason: api.ReasonRuntimeDown, Detail: detail}
	if w.mayLive() {
		o.State = w.observed.State
	}
	c.observe(w, o)
}

// mayLive reports whether a process of the workload was seen, or may have been
// started since it was seen.
func (w *work) mayLive() bool {
	return w.observed.Epoch == w.have && (w.observed.State == api.Running || w.observed.State == api.Created)
}

// ended reports that a workload which could not be removed yet has no process.
func (c *Core) ended(w *work) {
	if w.endedWith == nil || !w.mayLive() {
		return
	}
	c.observe(w, api.Observed{
		State: api.Failed, Reason: api.ReasonDeleted, ExitCode: w.endedWith,
		Detail: "it was stopped and has ended; what is left of it is being removed",
	})
}

// retryLater plans the next attempt of an order that the runtime did not carry
// out. The pause doubles, and differs by up to a half between instances: orders
// that failed together must not overload the runtime together again.
func (c *Core) retryLater(w *work) {
	w.retries++
	d := c.cfg.backoff(w.retries)
	d -= time.Duration(w.spread()) * (d / 2) / 256
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(d))
}

// spread is a number below 256 that is the same for a placement at all times.
func (w *work) spread() uint64 {
	return uint64(api.Assignment{Instance: w.assignment.Instance, Epoch: w.have}.Digest()) % 256
}

// backoff is the pause before the nth attempt again, from 1.
func (c Config) backoff(n int) time.Duration {
	d := c.BackoffMin
	for i := 1; i < n && d < c.BackoffMax; i++ {
		d *= 2
	}
	return min(d, c.BackoffMax)
}
