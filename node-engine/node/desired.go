package node

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// start takes a new boot number, so that messages of earlier processes are dropped, and adopts
// the runtime's workloads.
func (c *Core) start(in Start) {
	c.describe(in.Info)
	// The wall clock keeps the number growing after the store was restored from a copy.
	c.boot = max(c.boot+1, uint64(max(0, c.now.Unix())))
	c.saveMeta()
	c.assumeLease()
	c.timers.Set(timerKey{what: timerHeartbeat}, c.now)
	if in.Info.RuntimeError == "" {
		c.reconcile(in.Found)
	} else {
		c.runtimeDown() // until an Info with Fresh
	}
	c.revokeLostDevices()
}

// reconcile compares the workloads of the runtime with those of the core.
func (c *Core) reconcile(found []wire.WorkloadEvent) {
	clear(c.unclaimed)
	clear(c.leaving)
	seen := map[api.InstanceID]bool{}
	for _, e := range found {
		w := c.works[e.Instance]
		switch {
		case w == nil && c.gen == 0:
			c.unclaimed[e.Instance] = e
		case w == nil:
			c.stopStray(e)
		case seen[e.Instance]:
			// A second placement of the instance. The core tracks only one.
			c.leaving[e.Key] = e.Devices
			c.order(wire.StopWorkload{Key: e.Key})
		default:
			seen[e.Instance] = true
			if !w.ended() || e.Phase != wire.WorkloadExited {
				w.addDevices(e.Devices)
			}
			c.adopt(w, e)
		}
	}
	for _, id := range step.Keys(c.works) {
		if w := c.works[id]; !seen[id] {
			c.notListed(w)
		}
	}
}

// adopt takes over a workload that an earlier process started.
func (c *Core) adopt(w *work, e wire.WorkloadEvent) {
	if w.phase == stopping {
		if e.Epoch == w.have && e.Phase == wire.WorkloadExited {
			w.endedWith = &e.ExitCode
			c.observeExited(w)
		}
		return // the stop's result is pending, or a retry is planned
	}
	if e.Epoch != w.have {
		// The runtime still has an older placement.
		w.have, w.remains, w.address = e.Epoch, true, netip.Addr{}
		if e.Spec != nil {
			w.haveSpec = *e.Spec
		}
		c.drive(w)
		return
	}
	w.remains = true
	if e.Attempt != w.attempt {
		w.nextAttempt()
	}
	w.onNetwork(e)
	if w.phase == done || !w.current() {
		if w.wanted && w.phase == idle && e.Phase == wire.WorkloadRunning {
			w.phase, w.attempt, w.startedAt = running, e.Attempt, c.now // until the image of the next placement is there
		}
		c.drive(w)
		return
	}
	switch e.Phase {
	case wire.WorkloadRunning:
		if w.unhealthy == "" {
			c.timers.Clear(timerKey{timerWork, e.Instance})
		}
		w.attempt, w.retries = e.Attempt, 0
		if w.phase != running {
			w.phase, w.startedAt = running, c.now
		}
		c.begin(w)
		c.observeRunning(w)
		c.reconcileReady(w, e)
		c.updateFiles(w)
	case wire.WorkloadCreated:
		w.attempt = e.Attempt
		c.timers.Clear(timerKey{timerWork, e.Instance})
		w.phase = created
		c.observe(w, api.Observed{State: api.Created})
		c.updateFiles(w)
		c.drive(w)
	case wire.WorkloadExited:
		if w.phase == waiting {
			// It had failed before the restart; its backoff starts again.
			c.timers.SetEarlier(timerKey{timerWork, e.Instance}, c.now.Add(c.restartPause(w)))
			return
		}
		if w.phase == idle || w.phase == unsure {
			w.phase = running // it has exited, so it was running
		}
		c.workloadExited(w, e)
	}
}

// unclaimedEvent updates an unclaimed workload, so that it is not adopted as running
// after it has exited.
func (c *Core) unclaimedEvent(e wire.WorkloadEvent) {
	found, ok := c.unclaimed[e.Instance]
	switch {
	case !ok || found.Epoch != e.Epoch:
	case e.Phase == wire.WorkloadGone:
		delete(c.unclaimed, e.Instance)
	case e.Phase == "":
		found.Address, found.Ready = e.Address, e.Ready
		c.unclaimed[e.Instance] = found
	case e.Phase == wire.WorkloadExited || e.Phase == wire.WorkloadRunning:
		e.Spec, e.Devices, e.Address, e.Ready, e.ImageHealth = found.Spec, found.Devices, found.Address, found.Ready, found.ImageHealth
		c.unclaimed[e.Instance] = e
	}
}

// notListed handles an instance that the runtime did not list.
func (c *Core) notListed(w *work) {
	if w.phase == creating || w.phase == stopping {
		// The runtime may carry out the order after it listed its workloads. Only the order's
		// result shows what exists (simulator seeds 7005 and 341).
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
		c.timers.SetEarlier(timerKey{timerWork, w.assignment.Instance}, c.now.Add(c.restartPause(w)))
	default:
		if w.observed.State == api.Running || w.observed.State == api.Created {
			// The machine or the runtime restarted. The workload did not fail, so it starts
			// again without a backoff.
			w.restarts++
			w.attempt++
			w.nextAttempt()
			c.observe(w, api.Observed{State: api.Failed, Reason: api.ReasonExited, Detail: "the machine or its runtime restarted"})
		}
		w.phase = idle
		c.drive(w)
	}
}

// stopStray stops a workload that is not in the desired set.
func (c *Core) stopStray(e wire.WorkloadEvent) {
	w := &work{
		assignment: wire.Assignment{Instance: e.Instance, Epoch: e.Epoch},
		have:       e.Epoch, remains: true, attempt: e.Attempt, devices: e.Devices,
	}
	if e.Spec != nil {
		w.assignment.Spec, w.haveSpec = *e.Spec, *e.Spec
	}
	c.works[e.Instance] = w
	c.observe(w, api.Observed{State: api.Failed, Reason: api.ReasonDeleted, Detail: "found on the node, but not in its desired set"})
	c.drive(w)
}

// desired applies a desired set. It ignores an older generation, and a change of a generation
// that the node does not have: the cluster then sends the whole set.
func (c *Core) desired(d wire.Desired) {
	defer c.applyWithheldLease()
	switch {
	case d.From != 0 && d.From != c.gen:
		return
	case d.Gen < c.gen:
		return
	case d.Gen == c.gen && d.Digest == c.desiredDigest && c.gen != 0:
		return
	}
	put := make(map[api.InstanceID]bool, len(d.Put))
	for _, a := range d.Put {
		put[a.Instance] = true
		c.assign(a)
	}
	if d.From != 0 {
		for _, id := range d.Drop {
			c.unassign(id)
		}
	} else {
		for _, id := range step.Keys(c.works) {
			if !put[id] {
				c.unassign(id)
			}
		}
	}
	for _, id := range step.Keys(c.unclaimed) {
		c.stopStray(c.unclaimed[id])
	}
	clear(c.unclaimed)
	c.gen, c.purge = d.Gen, d.Purge
	if d.Timing != nil && d.Timing.Heartbeat > 0 && d.Timing.Lease > 0 {
		c.timing = *d.Timing
	}
	c.learnBrokers(d.Brokers)
	c.saveMeta()
}

func (c *Core) assign(a wire.Assignment) {
	w := c.works[a.Instance]
	if w == nil {
		w = &work{assignment: a, wanted: true, have: a.Epoch, haveSpec: a.Spec}
		c.works[a.Instance] = w
		c.desiredDigest = c.desiredDigest.Toggle(a.Digest())
		found, ok := c.unclaimed[a.Instance]
		if !ok {
			c.beginPlacement(w)
			return
		}
		delete(c.unclaimed, a.Instance)
		w.addDevices(found.Devices)
		c.observe(w, api.Observed{State: api.NodeScheduled})
		w.attempt, w.started, w.ready = found.Attempt, found.Ready, found.Ready // as the network remembers it
		c.adopt(w, found)
		return
	}
	changed := !slices.Equal(w.assignment.Values, a.Values)
	if w.wanted {
		if w.assignment.Digest() == a.Digest() {
			if changed { // the account of a registry
				w.assignment.Values = a.Values
				c.saveWork(w)
				c.hurry(w)
			}
			return
		}
		c.desiredDigest = c.desiredDigest.Toggle(w.assignment.Digest())
	}
	c.desiredDigest = c.desiredDigest.Toggle(a.Digest())
	w.assignment, w.wanted = a, true
	c.saveWork(w)
	c.drive(w)
	if changed {
		c.updateFiles(w)
	}
}

func (c *Core) unassign(id api.InstanceID) {
	w := c.works[id]
	if w == nil || !w.wanted {
		return
	}
	c.desiredDigest = c.desiredDigest.Toggle(w.assignment.Digest())
	w.wanted = false
	c.saveWork(w)
	c.drive(w)
}
