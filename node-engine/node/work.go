package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// phase is the state of an instance with respect to the runtime.
type phase uint8

const (
	idle     phase = iota // nothing exists; it is created as soon as allowed
	creating              // ordered, without a result
	created               // exists, not started
	starting              // ordered, without a result
	running
	unsure   // it may exist or run, see unknown.go
	waiting  // exited or failed; its backoff runs
	stopping // ordered, without a result
	done     // ended for good, see api.Ended
)

// work is one instance on this node. The runtime has at most one placement of it: a newer
// epoch waits until the older one is removed.
type work struct {
	assignment         wire.Assignment // the newest
	wanted             bool
	have               api.Epoch        // epoch of the placement that the runtime has or was ordered to create
	haveSpec           api.Microservice // spec of that placement
	remains            bool             // the runtime may have something of that placement
	phase              phase
	attempt            int
	failsInRow         int
	retries            int  // of an order that failed, in a row
	endedWith          *int // exit code of a workload that exited while it is being stopped; nil: it may run
	failures           int  // that count against max_attempts, of this SLA revision, on all nodes
	restarts           int  // of this SLA revision, on all nodes
	startedAt          time.Time
	began              time.Time  // of the placement's first attempt, wall clock, if it has a deadline
	overdue            bool       // its deadline is over
	address            netip.Addr // of the placement on the overlay network, if it is on it
	ready              bool       // this attempt accepts connections, or is ready by its health checks
	started            bool       // the start-up check of this attempt has passed
	verdict            string     // what the health checks of this attempt say
	unhealthy          string     // the health check that failed; the attempt is being ended
	checked            checked    // see checks.go
	fetching           api.Epoch  // of the next placement, whose image is being fetched; see fetch.go
	fetched            api.Epoch  // of the next placement, whose image is there
	measured           Measure    // see load.go
	devices            []string   // of its placements, see devices.go
	orderedWithDevices bool       // a creation with devices was ordered since the start

	imageHealth *api.Health // of the placement's image, see wire.WorkloadEvent

	observed api.Observed
}

type workRecord struct {
	Assignment wire.Assignment  `json:"assignment"`
	Wanted     bool             `json:"wanted"`
	Have       api.Epoch        `json:"have"`
	HaveSpec   api.Microservice `json:"have_spec,omitzero"`
	Attempt    int              `json:"attempt"`
	Fails      int              `json:"fails,omitempty"`
	Failures   int              `json:"failures,omitempty"`
	Restarts   int              `json:"restarts,omitempty"`
	Done       bool             `json:"done,omitempty"`
	Devices    []string         `json:"devices,omitempty"`
	Started    bool             `json:"started,omitempty"`
	Began      time.Time        `json:"began,omitzero"`
	Observed   api.Observed     `json:"observed"`
}

func (c *Core) saveWork(w *work) {
	r := workRecord{
		Assignment: w.assignment, Wanted: w.wanted, Have: w.have, Attempt: w.attempt,
		Fails: w.failsInRow, Failures: w.failures, Restarts: w.restarts, Done: w.phase == done, Devices: w.devices, Observed: w.observed,
		Started: w.started, Began: w.began,
	}
	if w.have != w.assignment.Epoch {
		r.HaveSpec = w.haveSpec
	}
	c.journal.Put(kindWork, string(w.assignment.Instance), r)
}

func (c *Core) restoreWork(d store.Doc) error {
	var r workRecord
	if err := json.Unmarshal(d.Data, &r); err != nil {
		return err
	}
	w := &work{
		remains:    true, // until the runtime has listed its workloads
		assignment: r.Assignment, wanted: r.Wanted, have: r.Have, haveSpec: r.HaveSpec, attempt: r.Attempt,
		failsInRow: r.Fails, failures: r.Failures, restarts: r.Restarts, observed: r.Observed, address: r.Observed.Address,
		ready: r.Observed.Ready, started: r.Started, devices: r.Devices, began: r.Began,
	}
	if o := r.Observed; o.State == api.Running && (o.Reason == api.ReasonNone || o.Reason == api.ReasonNotReady) {
		w.verdict = o.Detail
	}
	if w.have == w.assignment.Epoch {
		w.haveSpec = w.assignment.Spec
	}
	switch {
	case r.Done:
		w.phase = done
	case r.Observed.State == api.Failed && r.Observed.Reason != api.ReasonLeaseExpired:
		w.phase = waiting
	}
	c.works[r.Assignment.Instance] = w
	c.armDeadline(w)
	c.observedDigest = c.observedDigest.Toggle(w.observed.Digest())
	if w.wanted {
		c.desiredDigest = c.desiredDigest.Toggle(w.assignment.Digest())
	}
	return nil
}

func (w *work) key() wire.Key { return wire.Key{Instance: w.assignment.Instance, Epoch: w.have} }

// current reports whether the placement at the runtime, if any, is the desired one.
func (w *work) current() bool { return w.wanted && w.have == w.assignment.Epoch }

// ended reports whether the placement has ended for good.
func (w *work) ended() bool {
	return api.Ended(w.observed.State, w.observed.Reason) && w.observed.Epoch == w.have
}

// drive gives the next order that brings the instance closer to its assignment.
func (c *Core) drive(w *work) {
	switch {
	case w.phase == stopping:
	case !w.current() && w.mayRemain():
		if !c.fetchFirst(w) {
			c.replaced(w)
			c.stop(w, graceOf(w.haveSpec))
		}
	case !w.wanted:
		c.remove(w)
	case !w.current():
		c.beginPlacement(w)
	case w.phase == idle && w.ended():
		w.phase, w.devices = done, nil
		c.scheduleDetach(w)
	case w.phase == done:
		c.scheduleDetach(w)
	case w.phase == idle:
		c.create(w)
	case w.phase == created:
		c.startWork(w)
	}
}

// beginPlacement starts a placement for the assignment's epoch.
func (c *Core) beginPlacement(w *work) {
	w.have, w.haveSpec = w.assignment.Epoch, w.assignment.Spec
	w.phase, w.attempt, w.failsInRow, w.address, w.imageHealth = idle, 0, 0, netip.Addr{}, nil
	w.nextAttempt()
	w.failures, w.restarts = w.assignment.Failures, w.assignment.Restarts
	w.devices, w.fetching, w.fetched = nil, 0, 0
	w.began, w.overdue = time.Time{}, false
	c.timers.Clear(timerKey{timerDeadline, w.assignment.Instance})
	c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
	if !w.ended() {
		c.observe(w, api.Observed{State: api.NodeScheduled})
	}
	c.drive(w)
}

func (c *Core) create(w *work) {
	if c.runtimeSilent {
		c.setUnsure(w, unknownDetail)
		return
	}
	c.requestLease(w)
	if !c.mayCreate(w) {
		c.observe(w, api.Observed{
			State: api.NodeScheduled, Reason: api.ReasonLeaseExpired,
			Detail: "waits for a lease from the cluster: it must not run without one",
		})
		return
	}
	if limit := w.haveSpec.Attempts(); limit > 0 && w.failures >= limit {
		// Earlier placements on other nodes used all attempts.
		c.attemptsSpent(w, "all attempts failed on earlier placements", nil)
		return
	}
	if !c.allocate(w) {
		return
	}
	w.phase, w.remains = creating, true
	w.nextAttempt() // one with the same number may have been removed without a lease
	c.observe(w, api.Observed{State: api.NodeScheduled})
	if w.haveSpec.StopsWhenCutOff() {
		c.unguard(w) // the deadline of an earlier attempt would kill this one
	}
	c.order(wire.CreateWorkload{
		Key: w.key(), Attempt: w.attempt, Spec: w.haveSpec, Addresses: w.assignment.Addresses, Devices: w.devices,
		Values: w.assignment.Values,
	})
}

// updateFiles passes the newest values to the placement. It also does so for a placement that an
// earlier process of the engine created, whose last update may not have been carried out.
func (c *Core) updateFiles(w *work) {
	switch {
	case !w.current() || len(w.haveSpec.Files) == 0:
	case w.phase == waiting:
		c.hurry(w)
	case w.phase == creating, w.phase == created, w.phase == starting, w.phase == running, w.phase == unsure:
		c.order(wire.UpdateFiles{Key: w.key(), Spec: w.haveSpec, Values: w.assignment.Values})
	}
}

// hurry ends the backoff of a placement whose values have changed, because they may be why it failed.
func (c *Core) hurry(w *work) {
	if w.current() && w.phase == waiting {
		c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now)
	}
}

// dropFiles deletes the files of a workload that has ended for good. Its logs stay.
func (c *Core) dropFiles(w *work) {
	if len(w.haveSpec.Files) > 0 {
		c.order(wire.UpdateFiles{Key: w.key()})
	}
}

func (c *Core) startWork(w *work) {
	if c.runtimeSilent {
		c.setUnsure(w, unknownDetail)
		return
	}
	if !c.mayRun(w) {
		c.stopWithoutLease(w)
		return
	}
	w.phase = starting
	c.guard(w)
	c.order(wire.StartWorkload{Key: w.key(), Attempt: w.attempt})
}

func (c *Core) stop(w *work, grace time.Duration) {
	if w.phase != stopping {
		w.phase, w.retries, w.endedWith = stopping, 0, nil
		c.follow(w)
		c.endFetch(w)
	}
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(grace+stopRetry))
	c.order(wire.StopWorkload{Key: w.key(), Grace: grace})
}

// stopRetry is the time after the grace at which a stop without a result is ordered again. It
// is longer than the driver's timeout.
const stopRetry = 3 * time.Minute

func graceOf(m api.Microservice) time.Duration {
	if m.StopGrace > 0 {
		return time.Duration(m.StopGrace) * time.Second
	}
	return 10 * time.Second
}

// remove deletes an instance of which the runtime has nothing.
func (c *Core) remove(w *work) {
	id := w.assignment.Instance
	c.timers.Clear(timerKey{timerWork, id})
	c.timers.Clear(timerKey{timerDeadline, id})
	w.phase = idle
	c.follow(w)
	delete(c.works, id)
	c.observedDigest = c.observedDigest.Toggle(w.observed.Digest())
	c.journal.Delete(kindWork, string(id))
	c.link.dirty[id] = api.Observed{
		Instance: id, Epoch: w.observed.Epoch, State: api.Terminated, Stopped: true, Node: c.cfg.ID,
		Restarts: w.restarts, Failures: w.failures,
	}
}

// workloadEvent handles an event of an instance's workload.
func (c *Core) workloadEvent(w *work, e wire.WorkloadEvent) {
	if e.Phase == wire.WorkloadFetched {
		c.imageFetched(w, e)
		return
	}
	if e.Epoch != w.have {
		return // of an earlier placement
	}
	if e.Phase == wire.WorkloadGone {
		c.workloadGone(w)
		return
	}
	if w.phase == stopping {
		switch e.Phase {
		case wire.WorkloadExited:
			w.endedWith = &e.ExitCode
			if w.retries > 0 { // otherwise the stop's result follows soon
				c.observeExited(w)
			}
		case wire.WorkloadFailed:
			c.retryLater(w) // retries the removal
			c.observeExited(w)
		}
		return
	}
	if e.Attempt != w.attempt {
		return
	}
	w.onNetwork(e)
	switch e.Phase {
	case wire.WorkloadCreated:
		if w.phase == creating {
			w.phase, w.retries = created, 0
			c.observe(w, api.Observed{State: api.Created})
			c.drive(w)
		}
	case wire.WorkloadRunning:
		if w.phase == creating || w.phase == created || w.phase == starting || w.phase == unsure {
			c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
			w.phase, w.startedAt, w.retries = running, c.now, 0
			c.begin(w)
			c.observeRunning(w)
		}
	case "": // it got an address, or became ready
		if w.phase == running {
			c.observeRunning(w)
		}
	case wire.WorkloadExited:
		switch {
		case w.phase == waiting || w.phase == done:
		case w.phase == running && !w.current(): // it ran until the image of the next placement was there
			c.stop(w, 0)
		default:
			c.workloadExited(w, e)
		}
	case wire.WorkloadFailed:
		switch {
		case w.phase == running && w.unhealthy != "":
			c.retryLater(w)
		case w.phase != creating && w.phase != created && w.phase != starting:
		case e.Reason == api.ReasonRuntimeDown: // the order may have been carried out
			c.setUnsure(w, e.Detail)
			c.retryLater(w)
		default:
			c.failed(w, e.Reason, e.Detail, nil)
		}
	}
	c.reconcileReady(w, e)
	if w.phase == done { // the event may have brought the address
		c.scheduleDetach(w)
	}
}

// onNetwork stores the address and readiness in an event. A new attempt is not ready before an
// event reports it, or its health checks have passed.
func (w *work) onNetwork(e wire.WorkloadEvent) {
	if e.Address.IsValid() {
		w.address = e.Address
	}
	if e.ImageHealth != nil {
		w.imageHealth = e.ImageHealth
	}
	if !w.gated() {
		w.ready = e.Ready || w.ready && e.Attempt == w.attempt
	}
}

// reconcileReady repeats the order to the network if an event shows that it was not carried out.
func (c *Core) reconcileReady(w *work, e wire.WorkloadEvent) {
	if w.phase == running && w.gated() && e.Address.IsValid() && e.Ready != w.ready {
		c.setReady(w)
	}
}

func (c *Core) workloadExited(w *work, e wire.WorkloadEvent) {
	code := e.ExitCode
	if why := w.unhealthy; why != "" { // even if it exited with 0
		w.unhealthy = ""
		c.failed(w, api.ReasonUnhealthy, why, &code)
		return
	}
	if w.haveSpec.OneShot && code == 0 && e.Reason == api.ReasonNone {
		w.phase, w.failsInRow, w.devices = done, 0, nil // nothing uses them
		c.observe(w, api.Observed{State: api.Completed, ExitCode: &code})
		c.dropFiles(w)
		c.scheduleDetach(w)
		return
	}
	if e.Reason == api.ReasonNone {
		c.failed(w, api.ReasonExited, fmt.Sprintf("exited with code %d", code), &code)
		return
	}
	c.failed(w, e.Reason, e.Detail, &code)
}

// scheduleDetach schedules the detachment of a workload that ended for good from the network. The delay
// lets its last packets arrive.
func (c *Core) scheduleDetach(w *work) {
	c.observe(w, w.observed)
	if key := (timerKey{timerWork, w.assignment.Instance}); w.address.IsValid() && !c.timers.Has(key) {
		c.timers.Set(key, c.now.Add(c.cfg.Linger))
	}
}

func (c *Core) detach(w *work) {
	w.address = netip.Addr{}
	c.observe(w, w.observed)
	c.order(wire.DetachWorkload{Key: w.key()})
}

// countsAsAttempt reports whether a failure counts against the attempts of a one-shot, because the
// workload may have caused it.
func countsAsAttempt(r api.Reason) bool {
	switch r {
	case api.ReasonRegistryDown, api.ReasonDiskFull, api.ReasonNoRuntime, api.ReasonLeaseExpired, api.ReasonNoFiles, api.ReasonVolumeDriver:
		return false
	}
	return !causedByNode(r)
}

// causedByNode reports whether the node caused a failure, and not the workload.
func causedByNode(r api.Reason) bool {
	switch r {
	case api.ReasonRuntimeDown, api.ReasonNetworkDown, api.ReasonNetworkFull, api.ReasonNoDevice, api.ReasonVolume:
		return true
	}
	return false
}

// failed ends an attempt. It starts the backoff before the next one, or gives up a one-shot.
func (c *Core) failed(w *work, reason api.Reason, detail string, code *int) {
	if w.phase == running && c.now.Sub(w.startedAt) >= c.cfg.StableAfter {
		w.failsInRow = 0
	}
	if !causedByNode(reason) {
		w.failsInRow++
	}
	if countsAsAttempt(reason) {
		w.failures++
	}
	if w.overdue {
		c.deadlineSpent(w, code)
		return
	}
	if limit := w.haveSpec.Attempts(); limit > 0 && w.failures >= limit {
		c.attemptsSpent(w, fmt.Sprintf("the last: %s: %s", reason, detail), code)
		return
	}
	pause := c.restartPause(w)
	w.phase = waiting
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(pause))
	detail = fmt.Sprintf("%s; next attempt in %s", detail, pause.Round(100*time.Millisecond))
	if w.failsInRow >= c.cfg.MaxFailures {
		detail = fmt.Sprintf("%d failures in a row, the last: %s: %s", w.failsInRow, reason, detail)
		reason = api.ReasonTooManyFails
	}
	c.observe(w, api.Observed{State: api.Failed, Reason: reason, Detail: detail, ExitCode: code})
}

func (c *Core) attemptsSpent(w *work, detail string, code *int) {
	c.giveUp(w, api.ReasonAttemptsSpent, fmt.Sprintf("%d of %d attempts failed, no more are made; %s", w.failures, w.haveSpec.Attempts(), detail), code)
}

// giveUp ends a one-shot that has failed for good. Its workload stays for its logs.
func (c *Core) giveUp(w *work, reason api.Reason, detail string, code *int) {
	w.phase, w.failsInRow, w.devices = done, 0, nil
	c.observe(w, api.Observed{State: api.Failed, Reason: reason, ExitCode: code, Detail: detail})
	c.dropFiles(w)
	c.scheduleDetach(w)
}

// restartPause returns the backoff, which doubles with each failure in a row. It differs by up to
// a quarter between instances, so that those that failed together do not retry together.
func (c *Core) restartPause(w *work) time.Duration {
	d := c.cfg.backoff(w.failsInRow)
	return d - d/4*time.Duration(w.spread())/256
}

func (c *Core) pauseEnded(w *work) {
	switch w.phase {
	case stopping:
		c.stop(w, 0)
	case running:
		if w.unhealthy != "" {
			c.orderKill(w)
		} else {
			c.drive(w) // fetches again
		}
	case unsure:
		if !c.runtimeSilent { // otherwise reconcile decides when the runtime answers again
			w.phase = idle
			c.drive(w)
		}
	case waiting:
		if !causedByNode(w.observed.Reason) {
			w.restarts++
		}
		w.attempt++
		w.phase = idle
		w.nextAttempt()
		c.drive(w)
	case done:
		c.detach(w)
	}
}

// workloadGone handles the event that the runtime has nothing of the instance.
func (c *Core) workloadGone(w *work) {
	w.remains = false
	switch w.phase {
	case stopping:
		w.retries = 0
		w.orderedWithDevices = false // orders of one key are carried out in sequence: no creation is pending
		c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
		if w.haveSpec.StopsWhenCutOff() {
			c.unguard(w)
		}
		w.phase = idle
		c.drive(w)
	case idle, unsure, waiting, done:
	case creating:
		// Orders of one key are carried out in sequence: this is the result of a stop that was
		// ordered twice before the creation.
		w.remains = true
	default:
		c.failed(w, api.ReasonStartFailed, "the runtime has lost the workload", nil)
	}
}

// observe sets the observed state of the instance. It saves and reports changes only.
func (c *Core) observe(w *work, o api.Observed) {
	c.follow(w)
	o.Instance, o.Epoch, o.Node, o.Restarts, o.Address = w.assignment.Instance, w.have, c.cfg.ID, w.restarts, w.address
	o.Failures = w.failures
	o.Ready, o.Devices = w.ready && o.State == api.Running, w.devices
	if old := w.observed; old.Digest() == o.Digest() && old.Detail == o.Detail && old.Node == o.Node {
		return
	}
	if old := w.observed; old.Epoch == o.Epoch && old.State != "" && old.State != o.State && !lifecycle.Leads(old.State, o.State) {
		panic(fmt.Sprintf("%s: illegal transition from %s to %s", w.key(), old.State, o.State))
	}
	if w.observed.State != "" {
		c.observedDigest = c.observedDigest.Toggle(w.observed.Digest())
	}
	w.observed = o
	c.observedDigest = c.observedDigest.Toggle(o.Digest())
	c.link.dirty[o.Instance] = o
	c.saveWork(w)
}
