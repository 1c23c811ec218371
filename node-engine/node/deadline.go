package node

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// The deadline of a one-shot counts from the first start of its placement on this node, over all
// attempts, restarts of the engine and times without the cluster.

func (w *work) deadline() time.Duration { return time.Duration(w.haveSpec.Deadline) * time.Second }

// begin records the first start of a placement with a deadline.
func (c *Core) begin(w *work) {
	if w.deadline() > 0 && w.began.IsZero() {
		w.began = c.now.UTC().Round(0)
		c.saveWork(w)
	}
	c.armDeadline(w)
}

func (c *Core) armDeadline(w *work) {
	if !w.began.IsZero() && w.deadline() > 0 && w.phase != done {
		c.timers.Set(timerKey{timerDeadline, w.assignment.Instance}, w.began.Add(w.deadline()))
	}
}

// deadlineAgain is when the deadline is looked at again while an attempt begins.
const deadlineAgain = time.Second

// deadlineOver ends a placement that has taken longer than its deadline.
func (c *Core) deadlineOver(w *work) {
	if !w.current() || w.began.IsZero() || w.phase == done || w.ended() {
		return
	}
	w.overdue = true
	switch w.phase {
	case running:
		if w.unhealthy == "" {
			c.kill(w, fmt.Sprintf("it took longer than its deadline of %s", w.deadline()))
		}
	case waiting:
		c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
		c.deadlineSpent(w, w.observed.ExitCode)
	default:
		c.timers.Set(timerKey{timerDeadline, w.assignment.Instance}, c.now.Add(deadlineAgain))
	}
}

func (c *Core) deadlineSpent(w *work, code *int) {
	c.giveUp(w, api.ReasonDeadline, fmt.Sprintf("took longer than its deadline of %s; no more attempts are made", w.deadline()), code)
}
