package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/store"
)

// phase is where an instance stands with the runtime.
type phase uint8

const (
	idle     phase = iota // nothing exists; it is created as soon as it may be
	creating              // ordered, not answered
	created               // exists, not started
	starting              // ordered, not answered
	running
	unsure   // whether it exists or runs is not known, see unknown.go
	waiting  // ended or failed; its pause runs
	stopping // ordered, not answered
	done     // ended for good, see api.Ended
)

// work is one instance on this node. The runtime has at most one placement of
// it at a time: a newer epoch waits until the older is gone.
type work struct {
	assignment api.Assignment // the newest that the cluster wanted
	wanted     bool
	have       api.Epoch        // the placement that the runtime has or is ordered to have
	haveSpec   api.Microservice // and what it runs, for its stop
	remains    bool             // the runtime may have something under have
	phase      phase
	attempt    int
	fails      int  // in a row
	retries    int  // of an order that the runtime did not carry out, in a row
	endedWith  *int // exit code of a workload that ended while it is being stopped; nil: it may run
	failures   int  // that count against max_attempts, of this SLA revision, on all nodes
	restarts   int  // of this SLA revision, on all nodes
	startedAt  time.Time
	address    netip.Addr // of the placement on the overlay network, if it is on it
	ready      bool       // this attempt listens there
	devices    []string   // that placements of it have or may have, see devices.go
	dealt      bool       // a creation with devices was ordered in this life
	observed   api.Observed
}

type workRecord struct {
	Assignment api.Assignment   `json:"assignment"`
	Wanted     bool             `json:"wanted"`
	Have       api.Epoch        `json:"have"`
	HaveSpec   api.Microservice `json:"have_spec,omitzero"`
	Attempt    int              `json:"attempt"`
	Fails      int              `json:"fails,omitempty"`
	Failures   int              `json:"failures,omitempty"`
	Restarts   int              `json:"restarts,omitempty"`
	Done       bool             `json:"done,omitempty"`
	Devices    []string         `json:"devices,omitempty"`
	Observed   api.Observed     `json:"observed"`
}

func (c *Core) saveWork(w *work) {
	r := workRecord{
		Assignment: w.assignment, Wanted: w.wanted, Have: w.have, Attempt: w.attempt,
		Fails: w.fails, Failures: w.failures, Restarts: w.restarts, Done: w.phase == done, Devices: w.devices, Observed: w.observed,
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
		remains:    true, // until the runtime has listed what it has
		assignment: r.Assignment, wanted: r.Wanted, have: r.Have, haveSpec: r.HaveSpec, attempt: r.Attempt,
		fails: r.Fails, failures: r.Failures, restarts: r.Restarts, observed: r.Observed, address: r.Observed.Address,
		ready: r.Observed.Ready, devices: r.Devices,
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
	c.known = c.known.Toggle(w.observed.Digest())
	if w.wanted {
		c.wanted = c.wanted.Toggle(w.assignment.Digest())
	}
	return nil
}

func (w *work) key() api.Key { return api.Key{Instance: w.assignment.Instance, Epoch: w.have} }

// current reports whether what the runtime has, if anything, is what is wanted.
func (w *work) current() bool { return w.wanted && w.have == w.assignment.Epoch }

// ended reports whether the placement has ended for good, whatever the runtime
// has of it.
func (w *work) ended() bool {
	return api.Ended(w.observed.State, w.observed.Reason) && w.observed.Epoch == w.have
}

// drive orders the next thing that brings the instance nearer to what is wanted.
func (c *Core) drive(w *work) {
	switch {
	case w.phase == stopping:
	case !w.current() && w.mayRemain():
		c.stop(w, graceOf(w.haveSpec))
	case !w.wanted:
		c.forget(w)
	case !w.current():
		c.begin(w)
	case w.phase == idle && w.ended():
		w.phase, w.devices = done, nil
		c.linger(w)
	case w.phase == done:
		c.linger(w)
	case w.phase == idle:
		c.create(w)
	case w.phase == created:
		c.startWork(w)
	}
}

// begin makes the assignment's epoch the one that the node works on.
func (c *Core) begin(w *work) {
	w.have, w.haveSpec = w.assignment.Epoch, w.assignment.Spec
	w.phase, w.attempt, w.fails, w.address, w.ready = idle, 0, 0, netip.Addr{}, false
	w.failures, w.restarts = w.assignment.Failures, w.assignment.Restarts
	w.devices = nil
	c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
	if !w.ended() {
		c.observe(w, api.Observed{State: api.NodeScheduled})
	}
	c.drive(w)
}

func (c *Core) create(w *work) {
	if c.blind {
		c.doubt(w, unknownDetail)
		return
	}
	c.freshLease(w)
	if !c.mayBegin(w) {
		c.observe(w, api.Observed{
			State: api.NodeScheduled, Reason: api.ReasonLeaseExpired,
			Detail: "waits for a sign of life from the cluster: it must not run without one",
		})
		return
	}
	if most := w.haveSpec.Attempts(); most > 0 && w.failures >= most {
		// Earlier placements on other nodes used up the attempts.
		c.giveUp(w, "all attempts failed on earlier placements", nil)
		return
	}
	if !c.deal(w) {
		return
	}
	w.phase, w.remains = creating, true
	c.observe(w, api.Observed{State: api.NodeScheduled})
	if w.haveSpec.StopsWhenCutOff() {
		c.lift(w) // an earlier attempt's deadline may have passed, and would end this one
	}
	c.emit(api.ToRuntime, api.CreateWorkload{
		Key: w.key(), Attempt: w.attempt, Spec: w.haveSpec, Addresses: w.assignment.Addresses, Devices: w.devices,
	})
}

func (c *Core) startWork(w *work) {
	if c.blind {
		c.doubt(w, unknownDetail)
		return
	}
	if !c.mayRun(w) {
		c.cut(w)
		return
	}
	w.phase = starting
	c.guard(w)
	c.emit(api.ToRuntime, api.StartWorkload{Key: w.key(), Attempt: w.attempt})
}

func (c *Core) stop(w *work, grace time.Duration) {
	if w.phase != stopping {
		w.phase, w.retries, w.endedWith = stopping, 0, nil
	}
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(grace+stopRetry))
	c.emit(api.ToRuntime, api.StopWorkload{Key: w.key(), Grace: grace})
}

// stopRetry is how long a stop may take beyond its grace before it is ordered
// again. It is longer than the driver's own deadline, whose answer comes first.
const stopRetry = 3 * time.Minute

func graceOf(m api.Microservice) time.Duration {
	if m.StopGrace > 0 {
		return time.Duration(m.StopGrace) * time.Second
	}
	return 10 * time.Second
}

// forget drops an instance of which nothing is left.
func (c *Core) forget(w *work) {
	id := w.assignment.Instance
	c.timers.Clear(timerKey{timerWork, id})
	delete(c.works, id)
	c.known = c.known.Toggle(w.observed.Digest())
	c.journal.Delete(kindWork, string(id))
	c.link.dirty[id] = api.Observed{
		Instance: id, Epoch: w.observed.Epoch, State: api.Terminated, Stopped: true, Node: c.cfg.ID,
		Restarts: w.restarts, Failures: w.failures,
	}
}

// happened takes what the runtime says of an instance.
func (c *Core) happened(w *work, e api.WorkloadEvent) {
	if e.Epoch != w.have {
		return // about a placement that is over
	}
	if e.Phase == api.WorkloadGone {
		c.gone(w)
		return
	}
	if w.phase == stopping {
		switch e.Phase {
		case api.WorkloadExited:
			w.endedWith = &e.ExitCode
			if w.retries > 0 { // else the stop's own result follows soon
				c.ended(w)
			}
		case api.WorkloadFailed:
			c.retryLater(w) // until nothing is left
			c.ended(w)
		}
		return
	}
	if e.Attempt != w.attempt {
		return
	}
	w.onNetwork(e)
	switch e.Phase {
	case api.WorkloadCreated:
		if w.phase == creating {
			w.phase, w.retries = created, 0
			c.observe(w, api.Observed{State: api.Created})
			c.drive(w)
		}
	case api.WorkloadRunning:
		if w.phase == creating || w.phase == created || w.phase == starting || w.phase == unsure {
			c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
			w.phase, w.startedAt, w.retries = running, c.now, 0
			c.observe(w, api.Observed{State: api.Running})
		}
	case "": // it has an address, or listens, since
		if w.phase == running {
			c.observe(w, api.Observed{State: api.Running, Reason: w.observed.Reason, Detail: w.observed.Detail})
		}
	case api.WorkloadExited:
		if w.phase != waiting && w.phase != done {
			c.exited(w, e)
		}
	case api.WorkloadFailed:
		switch {
		case w.phase != creating && w.phase != created && w.phase != starting:
		case e.Reason == api.ReasonRuntimeDown: // it may have been carried out all the same
			c.doubt(w, e.Detail)
			c.retryLater(w)
		default:
			c.failed(w, e.Reason, e.Detail, nil)
		}
	}
	if w.phase == done { // the address may be told last
		c.linger(w)
	}
}

// onNetwork takes what an event of the placement says of its place on the
// network. What one attempt was ready for says nothing of the next.
func (w *work) onNetwork(e api.WorkloadEvent) {
	if e.Address.IsValid() {
		w.address = e.Address
	}
	w.ready = e.Ready || w.ready && e.Attempt == w.attempt
}

func (c *Core) exited(w *work, e api.WorkloadEvent) {
	code := e.ExitCode
	if w.haveSpec.OneShot && code == 0 && e.Reason == api.ReasonNone {
		w.phase, w.fails, w.devices = done, 0, nil // it ended for good: nothing uses them
		c.observe(w, api.Observed{State: api.Completed, ExitCode: &code})
		c.linger(w)
		return
	}
	if e.Reason == api.ReasonNone {
		c.failed(w, api.ReasonExited, fmt.Sprintf("exited with code %d", code), &code)
		return
	}
	c.failed(w, e.Reason, e.Detail, &code)
}

// linger plans when a workload that ended for good leaves the network. It does not leave at
// once, because what it sent last is still on its way.
func (c *Core) linger(w *work) {
	c.observe(w, w.observed)
	if key := (timerKey{timerWork, w.assignment.Instance}); w.address.IsValid() && !c.timers.Has(key) {
		c.timers.Set(key, c.now.Add(c.cfg.Linger))
	}
}

func (c *Core) leaveNetwork(w *work) {
	w.address = netip.Addr{}
	c.observe(w, w.observed)
	c.emit(api.ToRuntime, api.DetachWorkload{Key: w.key()})
}

// spends reports whether a failure counts against the attempts of a one-shot. One that
// the workload did not cause does not.
func spends(r api.Reason) bool {
	switch r {
	case api.ReasonRegistryDown, api.ReasonDiskFull, api.ReasonNoRuntime, api.ReasonLeaseExpired:
		return false
	}
	return !blameless(r)
}

// blameless reports whether a failure is the node's, and does not count against
// the workload.
func blameless(r api.Reason) bool {
	switch r {
	case api.ReasonRuntimeDown, api.ReasonNetworkDown, api.ReasonNetworkFull, api.ReasonNoDevice:
		return true
	}
	return false
}

// failed starts the pause before the next attempt.
func (c *Core) failed(w *work, reason api.Reason, detail string, code *int) {
	if w.phase == running && c.now.Sub(w.startedAt) >= c.cfg.StableAfter {
		w.fails = 0
	}
	if !blameless(reason) {
		w.fails++
	}
	if spends(reason) {
		w.failures++
	}
	if most := w.haveSpec.Attempts(); most > 0 && w.failures >= most {
		c.giveUp(w, fmt.Sprintf("the last: %s: %s", reason, detail), code)
		return
	}
	pause := c.pause(w)
	w.phase = waiting
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(pause))
	detail = fmt.Sprintf("%s; next attempt in %s", detail, pause.Round(100*time.Millisecond))
	if w.fails >= c.cfg.MaxFailures {
		detail = fmt.Sprintf("%d failures in a row, the last: %s: %s", w.fails, reason, detail)
		reason = api.ReasonTooManyFails
	}
	c.observe(w, api.Observed{State: api.Failed, Reason: reason, Detail: detail, ExitCode: code})
}

// giveUp ends a one-shot that failed as often as its SLA allows. The workload stays
// for its logs, as that of a completed one does.
func (c *Core) giveUp(w *work, detail string, code *int) {
	w.phase, w.fails, w.devices = done, 0, nil
	c.observe(w, api.Observed{
		State: api.Failed, Reason: api.ReasonAttemptsSpent, ExitCode: code,
		Detail: fmt.Sprintf("%d of %d attempts failed, and it is not tried again; %s", w.failures, w.haveSpec.Attempts(), detail),
	})
	c.linger(w)
}

// pause doubles with every failure in a row. It differs by up to a quarter
// between instances, so that those that failed together do not return together.
func (c *Core) pause(w *work) time.Duration {
	d := c.cfg.backoff(w.fails)
	return d - d/4*time.Duration(w.spread())/256
}

func (c *Core) pauseOver(w *work) {
	switch w.phase {
	case stopping:
		c.stop(w, 0)
	case unsure:
		if !c.blind { // else it is known when the runtime is back
			w.phase = idle
			c.drive(w)
		}
	case waiting:
		if !blameless(w.observed.Reason) {
			w.restarts++
		}
		w.attempt++
		w.phase, w.ready = idle, false
		c.drive(w)
	case done:
		c.leaveNetwork(w)
	}
}

// gone takes that the runtime has nothing of the instance any more.
func (c *Core) gone(w *work) {
	w.remains = false
	switch w.phase {
	case stopping:
		w.retries = 0
		w.dealt = false // orders for one key are carried out in turn: none of its creations is left
		c.timers.Clear(timerKey{timerWork, w.assignment.Instance})
		if w.haveSpec.StopsWhenCutOff() {
			c.lift(w)
		}
		w.phase = idle
		c.drive(w)
	case idle, unsure, waiting, done:
	case creating:
		// Orders for one key are carried out in turn, so this answers a stop that was
		// ordered twice before the creation.
		w.remains = true
	default:
		c.failed(w, api.ReasonStartFailed, "the runtime lost it", nil)
	}
}

// observe notes what is true of the instance now. What stays the same is not
// saved or sent again.
func (c *Core) observe(w *work, o api.Observed) {
	o.Instance, o.Epoch, o.Node, o.Restarts, o.Address = w.assignment.Instance, w.have, c.cfg.ID, w.restarts, w.address
	o.Failures = w.failures
	o.Ready, o.Devices = w.ready && o.State == api.Running, w.devices
	if old := w.observed; old.Digest() == o.Digest() && old.Detail == o.Detail && old.Node == o.Node {
		return
	}
	if old := w.observed; old.Epoch == o.Epoch && old.State != "" && old.State != o.State && !lifecycle.Leads(old.State, o.State) {
		panic(fmt.Sprintf("%s went from %s to %s, which no sequence of events allows", w.key(), old.State, o.State))
	}
	if w.observed.State != "" {
		c.known = c.known.Toggle(w.observed.Digest())
	}
	w.observed = o
	c.known = c.known.Toggle(o.Digest())
	c.link.dirty[o.Instance] = o
	c.saveWork(w)
}
