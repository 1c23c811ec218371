package node

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A running placement is not stopped for its next one before the image of that is on the node, so
// that an image that does not exist, or takes long to fetch, does not interrupt the instance.

// fetchFirst reports whether the placement continues, because the image of the next one is being
// fetched.
func (c *Core) fetchFirst(w *work) bool {
	was, is := &w.haveSpec, &w.assignment.Spec
	if w.fetching != w.assignment.Epoch {
		c.endFetch(w)
	}
	switch {
	case !w.wanted || w.phase != running || w.fetched == w.assignment.Epoch:
		return false
	case was.Code == is.Code && was.Platform == is.Platform && was.Virtualization == is.Virtualization:
		return false
	case was.Exclusive != is.Exclusive || was.KeepsData() != is.KeepsData() || was.StopsWhenCutOff() != is.StopsWhenCutOff():
		return false // the cluster goes by the new SLA when the node falls silent
	case w.fetching == w.assignment.Epoch || c.runtimeSilent:
		return true
	}
	w.fetching = w.assignment.Epoch
	c.order(wire.FetchWorkload{Key: wire.Key{Instance: w.assignment.Instance, Epoch: w.fetching}, Spec: *is, Values: w.assignment.Values})
	return true
}

// endFetch cancels the fetch of an image that is not needed any more.
func (c *Core) endFetch(w *work) {
	if w.fetching != 0 {
		c.order(wire.StopWorkload{Key: wire.Key{Instance: w.assignment.Instance, Epoch: w.fetching}})
		w.fetching = 0
	}
}

// imageFetched handles the result of a FetchWorkload. After a failure it is repeated, and the
// observation of the placement that continues says why.
func (c *Core) imageFetched(w *work, e wire.WorkloadEvent) {
	if e.Epoch != w.fetching || w.phase != running || !w.wanted || w.current() {
		return
	}
	w.fetching = 0
	if e.Reason == api.ReasonNone {
		w.fetched, w.retries = e.Epoch, 0
		c.drive(w)
		return
	}
	c.retryLater(w)
	c.observe(w, api.Observed{
		State: api.Running, Reason: e.Reason, Detail: "the earlier version continues, because the image of the new one cannot be fetched: " + e.Detail,
	})
}

// replaced reports that a running placement is about to stop for its next one, so that it gets no
// new flows.
func (c *Core) replaced(w *work) {
	if w.wanted && w.phase == running {
		c.observe(w, api.Observed{State: api.Running, Reason: api.ReasonUpdated, Detail: "is replaced by its next placement"})
	}
}
