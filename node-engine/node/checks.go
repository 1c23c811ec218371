package node

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node/health"
)

// ToChecker is the address of the component that carries out health checks. It gets Check and Uncheck.
const ToChecker api.Addr = "checker"

type (
	// Check begins the health checks of an attempt, instead of those of an earlier attempt of the
	// placement. The checker answers with Health when the verdict changes.
	Check struct {
		wire.Key
		Attempt int
		Health  api.Health
		Address netip.Addr // on the overlay network; zero: it is reached on localhost
		Known   health.Known
	}
	// Uncheck ends the health checks of a placement.
	Uncheck struct{ wire.Key }

	// Health is a verdict of the health checks of an attempt.
	Health struct {
		wire.Key
		Attempt int
		health.Verdict
	}
)

func (in Health) apply(c *Core) {
	w := c.works[in.Instance]
	if w == nil || w.phase != running || in.Epoch != w.have || in.Attempt != w.attempt || w.unhealthy != "" {
		return
	}
	w.started, w.verdict = in.Started, in.Text
	if in.Failed {
		c.kill(w, in.Text)
		return
	}
	if w.gated() {
		w.ready = in.Ready
		c.setReady(w)
	}
	c.observeRunning(w)
}

// health returns the health checks of the placement at the runtime: those of its SLA, else that of its
// image; nil: none.
func (w *work) health() *api.Health {
	h := w.haveSpec.Health
	if h == nil {
		h = w.imageHealth
	}
	if h.Empty() {
		return nil
	}
	return h
}

// gated reports whether health checks decide whether the workload gets flows.
func (w *work) gated() bool { return w.health().Gates() }

// nextAttempt forgets what is known about the health of an attempt.
func (w *work) nextAttempt() {
	w.ready, w.started, w.verdict, w.unhealthy = false, false, "", ""
}

// follow orders the health checks of a workload that runs and the measurement of its load, and ends them
// otherwise.
func (c *Core) follow(w *work) {
	c.measure(w)
	want := Check{}
	if h := w.health(); h != nil && w.phase == running && w.unhealthy == "" {
		want = Check{
			Key: w.key(), Attempt: w.attempt, Health: *h, Address: w.address,
			Known: health.Known{Started: w.started, Ready: w.ready},
		}
	}
	is := checked{want.Key, want.Attempt, want.Address}
	switch was := w.checked; {
	case is == was:
		return
	case is == checked{}:
		c.emit(wire.Envelope{To: ToChecker, Msg: Uncheck{was.Key}, Volatile: true})
	default:
		if was.Key != is.Key && was != (checked{}) {
			c.emit(wire.Envelope{To: ToChecker, Msg: Uncheck{was.Key}, Volatile: true})
		}
		c.emit(wire.Envelope{To: ToChecker, Msg: want, Volatile: true})
	}
	w.checked = is
}

// checked identifies the checks that were ordered last; zero: none.
type checked struct {
	wire.Key
	attempt int
	address netip.Addr
}

// observeRunning reports a workload that runs, and what its health checks say.
func (c *Core) observeRunning(w *work) {
	o := api.Observed{State: api.Running}
	switch {
	case c.runtimeSilent && w.observed.Reason == api.ReasonRuntimeDown:
		o.Reason, o.Detail = w.observed.Reason, w.observed.Detail
	case w.overdue:
		o.Reason, o.Detail = api.ReasonDeadline, w.unhealthy+"; it is being ended"
	case w.unhealthy != "":
		o.Reason, o.Detail = api.ReasonUnhealthy, w.unhealthy+"; it is being restarted"
	case w.gated() && !w.ready:
		if o.Reason, o.Detail = api.ReasonNotReady, w.verdict; o.Detail == "" {
			o.Detail = "its health checks have not passed yet"
		}
	case w.health() != nil:
		o.Detail = w.verdict
	}
	c.observe(w, o)
}

// kill ends the processes of a workload that failed a health check. When it has exited, it is started
// again like one that exited by itself.
func (c *Core) kill(w *work, why string) {
	w.unhealthy, w.ready = why, false
	c.observeRunning(w)
	c.orderKill(w)
}

func (c *Core) orderKill(w *work) {
	grace := graceOf(w.haveSpec)
	c.timers.Set(timerKey{timerWork, w.assignment.Instance}, c.now.Add(grace+stopRetry))
	c.order(wire.KillWorkload{Key: w.key(), Attempt: w.attempt, Grace: grace})
}

// setReady orders the network to send new flows to the workload or not.
func (c *Core) setReady(w *work) {
	if w.address.IsValid() {
		c.order(wire.ReadyWorkload{Key: w.key(), Ready: w.ready})
	}
}
