package node

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// start begins a life: a new boot number, so that messages of the earlier life
// are known as old, and what the runtime has is taken over.
func (c *Core) start(in Start) {
	c.describe(in.Info)
	// The wall clock only keeps the number growing where the store was restored from
	// an older copy; it serves nothing else.
	c.boot = max(c.boot+1, uint64(max(0, c.now.Unix())))
	c.saveMeta()
	c.assumeLease()
	c.timers.Set(timerKey{what: timerBeat}, c.now)
	if in.Info.RuntimeError == "" {
		c.reconcile(in.Found)
	} else {
		c.loseSight() // until the first Info that is Fresh
	}
	c.missDevices()
}

// reconcile compares what the runtime has with what the core believes it has.
func (c *Core) reconcile(found []api.WorkloadEvent) {
	clear(c.unclaimed)
	clear(c.leaving)
	seen := map[api.InstanceID]bool{}
	for _, e := range found {
		w := c.works[e.Instance]
		switch {
		case w == nil && c.gen == 0:
			c.unclaimed[e.Instance] = e
		case w == nil:
			c.stray(e)
		case seen[e.Instance]:
			// Two placements of one instance: the one that is not wanted goes.
			c.leaving[e.Key] = e.Devices
			c.emit(api.ToRuntime, api.StopWorkload{Key: e.Key})
		default:
			seen[e.Instance] = true
			if !w.ended() || e.Phase != api.WorkloadExited {
				w.join(e.Devices)
			}
			c.adopt(w, e)
		}
	}
	for _, id := range step.Keys(c.works) {
		if w := c.works[id]; !seen[id] {
			c.missing(w)
		}
	}
}

// adopt takes over a workload of an earlier life.
func (c *Core) adopt(w *work, e api.WorkloadEvent) {
	if w.phase == stopping {
		if e.Epoch == w.have && e.Phase == api.WorkloadExited {
			w.endedWith = &e.ExitCode
			c.ended(w)
		}
		return // the order's answer comes, or it failed and is ordered again in its time
	}
	if e.Epoch != w.have {
		// The runtime still has an older placement than the one that was begun.
		w.have, w.remains, w.address = e.Epoch, true, netip.Addr{}
		if e.Spec != nil {
			w.haveSpec = *e.Spec
		}
		c.drive(w)
		return
	}
	w.remains = true
	w.onNetwork(e)
	if w.phase == done || !w.current() {
		c.drive(w)
		return
	}
	switch e.Phase {
	case api.WorkloadRunning:
		c.timers.Clear(timerKey{timerWork, e.Instance})
		w.attempt, w.retries = e.Attempt, 0
		if w.phase != running {
			w.phase, w.startedAt = running, c.now
		}
		c.observe(w, api.Observed{State: api.Running})
	case api.WorkloadCreated:
		w.attempt = e.Attempt
		c.timers.Clear(timerKey{timerWork, e.Instance})
		w.phase = created
		c.observe(w, api.Observed{State: api.Created})
		c.drive(w)
	case api.WorkloadExited:
		if w.phase == waiting {
			// It had failed before the restart; its pause begins anew.
			c.timers.SetEarlier(timerKey{timerWork, e.Instance}, c.now.Add(c.pause(w)))
			return
		}
		if w.phase == idle || w.phase == unsure {
			w.phase = running // that it ran is all that is known of it
		}
		c.exited(w, e)
	}
}

// happenedUnclaimed keeps up with what becomes of a workload that nobody asked
// for yet, so that it is not adopted as running when it has ended.
func (c *Core) happenedUnclaimed(e api.WorkloadEvent) {
	found, ok := c.unclaimed[e.Instance]
	switch {
	case !ok || found.Epoch != e.Epoch:
	case e.Phase == api.WorkloadGone:
		delete(c.unclaimed, e.Instance)
	case e.Phase == "":
		found.Address, found.Ready = e.Address, e.Ready
		c.unclaimed[e.Instance] = found
	case e.Phase == api.WorkloadExited || e.Phase == api.WorkloadRunning:
		e.Spec, e.Devices, e.Address, e.Ready = found.Spec, found.Devices, found.Address, found.Ready
		c.unclaimed[e.Instance] = e
	}
}

// missing handles an instance of which the runtime has nothing.
func (c *Core) missing(w *work) {
	if w.phase == creating || w.phase == stopping {
		// A creation may not have been carried out yet when the runtime listed what it
		// has. Only its own answer says what became of it (seed 7005), and only that of a
		// stop that was ordered after it says that nothing is left (seed 341).
		return
	}
	w.remains = false
	switch w.phase {
	case done:
		c.drive(w)
	case waiting:
		if !w.current() {
			c.drive(w)
			return
		}
		c.timers.SetEarlier(timerKey{timerWork, w.assignment.Instance}, c.now.Add(c.pause(w)))
	default:
		if w.observed.State == api.Running || w.observed.State == api.Created {
			// The machine or the runtime restarted without it: that is no failure of
			// the workload, and it starts again at once.
			w.restarts++
			w.attempt++
			w.ready = false
			c.observe(w, api.Observed{State: api.Failed, Reason: api.ReasonExited, Detail: "the machine or its runtime restarted"})
		}
		w.phase = idle
		c.drive(w)
	}
}

// stray ends a workload that nobody wants.
func (c *Core) stray(e api.WorkloadEvent) {
	w := &work{
		assignment: api.Assignment{Instance: e.Instance, Epoch: e.Epoch},
		have:       e.Epoch, remains: true, attempt: e.Attempt, devices: e.Devices,
	}
	if e.Spec != nil {
		w.assignment.Spec, w.haveSpec = *e.Spec, *e.Spec
	}
	c.works[e.Instance] = w
	c.observe(w, api.Observed{State: api.Failed, Reason: api.ReasonDeleted, Detail: "found on the node and wanted by nobody"})
	c.drive(w)
}

// desired takes what the cluster wants. An older generation is a late message;
// a change that does not start from what the node has waits for the whole.
func (c *Core) desired(d api.Desired) {
	defer c.heldNow()
	switch {
	case d.From != 0 && d.From != c.gen:
		return
	case d.Gen < c.gen:
		return
	case d.Gen == c.gen && d.Digest == c.wanted && c.gen != 0:
		return
	}
	put := make(map[api.InstanceID]bool, len(d.Put))
	for _, a := range d.Put {
		put[a.Instance] = true
		c.want(a)
	}
	if d.From != 0 {
		for _, id := range d.Drop {
			c.unwant(id)
		}
	} else {
		for _, id := range step.Keys(c.works) {
			if !put[id] {
				c.unwant(id)
			}
		}
	}
	for _, id := range step.Keys(c.unclaimed) {
		c.stray(c.unclaimed[id])
	}
	clear(c.unclaimed)
	c.gen, c.purge = d.Gen, d.Purge
	if d.Timing != nil && d.Timing.Beat > 0 && d.Timing.Lease > 0 {
		c.timing = *d.Timing
	}
	c.learnBrokers(d.Brokers)
	c.saveMeta()
}

func (c *Core) want(a api.Assignment) {
	w := c.works[a.Instance]
	if w == nil {
		w = &work{assignment: a, wanted: true, have: a.Epoch, haveSpec: a.Spec}
		c.works[a.Instance] = w
		c.wanted = c.wanted.Toggle(a.Digest())
		found, ok := c.unclaimed[a.Instance]
		if !ok {
			c.begin(w)
			return
		}
		delete(c.unclaimed, a.Instance)
		w.join(found.Devices)
		c.observe(w, api.Observed{State: api.NodeScheduled})
		c.adopt(w, found)
		return
	}
	if w.wanted {
		if w.assignment.Digest() == a.Digest() {
			return
		}
		c.wanted = c.wanted.Toggle(w.assignment.Digest())
	}
	c.wanted = c.wanted.Toggle(a.Digest())
	w.assignment, w.wanted = a, true
	c.saveWork(w)
	c.drive(w)
}

func (c *Core) unwant(id api.InstanceID) {
	w := c.works[id]
	if w == nil || !w.wanted {
		return
	}
	c.wanted = c.wanted.Toggle(w.assignment.Digest())
	w.wanted = false
	c.saveWork(w)
	c.drive(w)
}
