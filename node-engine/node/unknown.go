package node

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A state that the node cannot observe is unknown, not failed. While the runtime does not
// answer, a workload keeps its last observed state with the reason runtime_unavailable, and
// nothing is created or started. An exclusive workload keeps its guard, and its stop is
// ordered when the lease ends. reconcile decides when the runtime answers again.

// unknownDetail has no cause, so that observations do not change with each failed call of the
// runtime. The node's RuntimeError has the cause.
const unknownDetail = "state unknown: the node's runtime does not answer"

// runtimeDown marks running workloads as unknown.
func (c *Core) runtimeDown() {
	c.runtimeSilent = true
	for _, id := range step.Keys(c.works) {
		switch w := c.works[id]; w.phase {
		case running:
			c.observeUnknown(w, unknownDetail)
		case idle:
			if w.remains && w.current() && !w.ended() { // it was created before the engine started
				c.setUnsure(w, unknownDetail)
			}
		}
	}
}

// runtimeUp reconciles with the workloads of a runtime that answers again. Stops that
// failed while it did not answer are ordered again soon.
func (c *Core) runtimeUp(found []wire.WorkloadEvent) {
	was := c.runtimeSilent
	c.runtimeSilent = false
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

// setUnsure moves the workload to unsure until the runtime lists its workloads.
func (c *Core) setUnsure(w *work, detail string) {
	w.phase = unsure
	c.observeUnknown(w, detail)
}

// observeUnknown reports the last observed state with the reason runtime_unavailable.
func (c *Core) observeUnknown(w *work, detail string) {
	o := api.Observed{State: api.NodeScheduled, Reason: api.ReasonRuntimeDown, Detail: detail}
	if w.mayHaveProcess() {
		o.State = w.observed.State
	}
	c.observe(w, o)
}

// mayHaveProcess reports whether a process of the workload may exist.
func (w *work) mayHaveProcess() bool {
	return w.observed.Epoch == w.have && (w.observed.State == api.Running || w.observed.State == api.Created)
}

// observeExited reports a workload that has exited, but could not be removed yet.
func (c *Core) observeExited(w *work) {
	if w.endedWith == nil || !w.mayHaveProcess() {
		return
	}
	c.observe(w, api.Observed{
		State: api.Failed, Reason: api.ReasonDeleted, ExitCode: w.endedWith,
		Detail: "stopped; its remains are being removed",
	})
}

// retryLater plans the next attempt of an order that failed. The backoff doubles, and
// differs by up to a half between instances, so that orders that failed together do not
// overload the runtime together again.
func (c *Core) retryLater(w *work) {
	w.retries++
	d := c.cfg.backoff(w.retries)
	d -= time.Duration(w.spread()) * (d / 2) / 256
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(d))
}

// spread returns a number below 256 that is constant for a placement.
func (w *work) spread() uint64 {
	return uint64(wire.Assignment{Instance: w.assignment.Instance, Epoch: w.have}.Digest()) % 256
}

// backoff returns the pause before retry n, from 1.
func (c Config) backoff(n int) time.Duration {
	d := c.BackoffMin
	for i := 1; i < n && d < c.BackoffMax; i++ {
		d *= 2
	}
	return min(d, c.BackoffMax)
}
