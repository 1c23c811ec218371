package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Result is the result of a seed.
type Result struct {
	Seed      uint64
	Violation *Violation // nil if there was none
	Steps     int        // of all cores
	Time      time.Duration
	Woken     int // services that were asleep and woke when they were demanded
	story     *story
}

// The bounds within which a world must settle once all faults have ended.
const (
	settleBound = 10 * time.Minute // one-shots that crash are tried on several nodes and clusters in turn
	deleteBound = 3 * time.Minute
	calmWindow  = 30 * time.Second

	darkness   = 10 * time.Second // within which all machines start again after a power cut
	powerBound = 3 * time.Minute  // after that, without faulty images: the back-off is up to a minute
)

// Run runs a seed in four phases: changes and faults; time in which the world must settle;
// time in which only heartbeats may be sent; and the deletion of all applications, after
// which nothing may be left.
func Run(seed uint64, opts Options) Result {
	w := newChaos(seed, opts)
	w.live()
	return Result{Seed: seed, Violation: w.violation, Steps: w.steps, Time: w.now, Woken: w.woken, story: &w.story}
}

func (w *World) live() {
	c := w.chaos
	until := w.between(40*time.Second, 110*time.Second)
	for w.now < until && w.violation == nil {
		w.Run(time.Second)
		w.look()
	}
	if w.opts.Away > 0 && w.violation == nil {
		w.rootAway(w.opts.Away)
	}
	if w.opts.Only == "" && w.chance.IntN(4) == 0 {
		c.powerCut()
		w.Run(darkness)
		c.end()
		c.recovers = true
		ok := w.settle("power", powerBound)
		if c.recovers = false; !ok {
			return
		}
	} else {
		c.end()
	}
	if !w.settle("settle", settleBound) {
		return
	}
	w.calm()
	if w.opts.Scale {
		w.sleepAndWake()
	}
	w.note("people", "everything is deleted")
	for _, p := range c.people {
		if p.exists {
			p.remove()
		}
	}
	if !w.settle("delete", deleteBound) {
		return
	}
	w.Run(calmWindow)
	w.leftovers()
}

// settle runs the world until there is no complaint.
func (w *World) settle(promise string, bound time.Duration) bool {
	var last []complaint
	ok := w.RunUntil(func() bool {
		w.look()
		last = w.tolerate(w.unsettled())
		return len(last) == 0
	}, bound)
	if !ok && w.violation == nil {
		if why, ok := w.root.core.Why(api.InstanceID(last[0].subject), w.root.proc.clock.at(w.now)); ok {
			w.note(last[0].subject, "%+v", why)
		}
		w.violate(promise, last[0].subject, "not settled %s after the last fault: %s", bound, join(last))
	}
	if ok {
		w.note("world", "all is settled")
	}
	return ok
}

// tolerate drops complaints about instances that cannot settle because their image stays
// faulty. That they run only once is still checked.
func (w *World) tolerate(cs []complaint) []complaint {
	if w.chaos == nil || !w.chaos.staysSick && !w.chaos.recovers {
		return cs
	}
	kept := cs[:0]
	for _, c := range cs {
		if !w.isSick(c.subject) {
			kept = append(kept, c)
		}
	}
	return kept
}

func (w *World) isSick(instance string) bool {
	sick := func(code string) bool {
		kind := code[strings.LastIndexByte(code, ':')+1:]
		return kind == "crash" || kind == "flaky" || kind == "missing"
	}
	if h, ok := w.root.core.RollOutHistory(api.ServiceID(instance)); ok { // it is a service, with a roll-out
		return slices.ContainsFunc(h.Versions, func(v api.RollOutVersion) bool { return sick(v.Code) })
	}
	for _, in := range w.root.core.Instances("") {
		if string(in.ID) != instance {
			continue
		}
		if s, ok := w.root.core.Service(in.Service); ok && sick(s.Spec.Code) {
			return true
		}
	}
	// An instance that waits for the newest specification of its service has an older one.
	for _, c := range w.clusters {
		for _, n := range c.nodes {
			for _, v := range n.runtime.have[api.InstanceID(instance)] {
				if sick(v.spec.Code) {
					return true
				}
			}
		}
	}
	return false
}

// calm checks that a settled world sends only heartbeats and saves nothing.
func (w *World) calm() {
	for _, in := range w.root.core.Instances("") {
		s, _ := w.root.core.Service(in.Service)
		if s.Spec.Schedule != nil || in.State == "requested" || in.State == "cluster_scheduled" || w.isSick(string(in.ID)) {
			w.Run(calmWindow)
			return
		}
	}
	w.strained = slices.ContainsFunc(w.root.core.Instances(""), func(in api.Instance) bool { return in.Violated != "" }) // it may end
	w.Run(calmWindow / 3)                                                                                                // a lost answer is requested again
	if w.Network {
		w.Run(time.Minute) // and network state within a minute
	}
	saves := w.saves
	w.talk = talk{listening: true}
	w.Run(calmWindow)
	w.talk.listening = false
	if w.strained {
		return // coordinates still change, and instances move because of them
	}
	if n := len(w.talk.noise); n > 0 {
		w.violate("calm", "world", "%d messages in a settled world, the first: %s", n, w.talk.noise[0])
	}
	if n := w.saves - saves; n > 0 {
		w.violate("calm", "world", "%d saves in a settled world", n)
	}
}

// Trace returns the complete trace of a seed, which is the same in each run, with the
// violation and a sequence diagram of the events before it.
func Trace(seed uint64, opts Options) string {
	opts.Trace = true
	res := Run(seed, opts)
	var b strings.Builder
	b.WriteString(res.story.text())
	subject := ""
	if v := res.Violation; v != nil {
		subject = v.Subject
		fmt.Fprintf(&b, "\nseed %d: VIOLATION %v\n", seed, v)
	} else {
		fmt.Fprintf(&b, "\nseed %d: every promise was kept\n", seed)
	}
	fmt.Fprintf(&b, "%d steps, %s\n\n%s", res.Steps, res.Time.Round(time.Millisecond), res.story.diagram(subject))
	return b.String()
}
