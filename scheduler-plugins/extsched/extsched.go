// Package extsched keeps a core's exchange with an external scheduler: the open questions and
// the instances that wait for one. It validates answers. It does no I/O; package client sends
// the questions.
//
//	if !x.Full() {
//		ask := x.Ask(extsched.Question{Instance: id, Ask: ask})  // emit it, and set a timer of ask.Deadline
//	} else {
//		x.Wait(id, urgency, reason)                              // later: x.Next()
//	}
//	res, ok := x.Answer(answer)                                  // or, when the timer ends, x.Expire(id)
//
// If a Result has a Fault, the core uses its built-in plugin.
package extsched

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const (
	// MaxOpen bounds the open questions. Further instances wait.
	MaxOpen = 64
	// MaxCandidates bounds the candidates of a question. A core selects the ones that its
	// built-in plugin ranks highest.
	MaxCandidates = 128
	maxPoints     = 64 // per bound of a request

	// DefaultDeadline is the deadline of a request whose SLA sets no convergence time.
	DefaultDeadline = time.Duration(api.DefaultConvergence * float64(time.Second))
)

// Question is a question that a core wants to ask about an instance.
type Question struct {
	Instance api.InstanceID
	Reason   api.Reason // why it is placed; copied to Result
	Ask      sched.Ask  // its Key must never repeat, not even after a restart
}

// Result is the outcome of a question.
type Result struct {
	Instance api.InstanceID
	Reason   api.Reason
	// Ranked are candidates of the question, best first, each at most once. There is at least
	// one unless there is a Fault. They may have become full since the question.
	Ranked []sched.Choice
	Fault  string // why there is no usable answer, at most about 1 KiB
}

// Exchange has the open questions and the instances that wait for one. Each instance has at
// most one question. Use New; the zero Exchange is not usable.
type Exchange struct {
	open    map[string]Question       // by key
	keys    map[api.InstanceID]string // of the open question
	waiting Queue
	reasons map[api.InstanceID]api.Reason // of the instances that wait
}

func New() *Exchange {
	return &Exchange{open: map[string]Question{}, keys: map[api.InstanceID]string{}, reasons: map[api.InstanceID]api.Reason{}}
}

// Full reports whether MaxOpen questions are open.
func (x *Exchange) Full() bool { return len(x.open) >= MaxOpen }

func (x *Exchange) Open(id api.InstanceID) bool { _, ok := x.keys[id]; return ok }

func (x *Exchange) Waits(id api.InstanceID) bool { return x.waiting.Has(id) }

func (x *Exchange) Pending(id api.InstanceID) bool { return x.Open(id) || x.Waits(id) }

// Size returns the numbers of open questions and of waiting instances.
func (x *Exchange) Size() (open, waiting int) { return len(x.open), x.waiting.Len() }

// Ask opens a question, which replaces any other about the instance. It returns the Ask to
// send: a copy of bounded size, in a deterministic order, with a deadline.
func (x *Exchange) Ask(q Question) sched.Ask {
	x.Cancel(q.Instance)
	q.Ask = bounded(q.Ask)
	x.open[q.Ask.Key] = q
	x.keys[q.Instance] = q.Ask.Key
	return q.Ask
}

// bounded copies the parts of a question that the core may change later, and bounds the parts
// that grow with the cluster.
func bounded(a sched.Ask) sched.Ask {
	a.Deadline = cmp.Or(a.Deadline, a.Request.Convergence, DefaultDeadline)
	a.Candidates = slices.Clone(a.Candidates[:min(len(a.Candidates), MaxCandidates)])
	slices.SortFunc(a.Candidates, func(a, b sched.Candidate) int { return strings.Compare(a.ID, b.ID) })
	r := &a.Request
	r.Peers = maps.Clone(r.Peers)
	r.Domains = slices.Clone(r.Domains)
	slices.SortFunc(r.Domains, func(a, b sched.Domain) int {
		return cmp.Or(strings.Compare(a.By, b.By), strings.Compare(a.Name, b.Name), strings.Compare(a.AntiAffinity, b.AntiAffinity))
	})
	r.Bounds = slices.Clone(r.Bounds)
	for i := range r.Bounds {
		b := &r.Bounds[i]
		b.Points, b.Places = sampled(b.All(), maxPoints), nil
	}
	return a
}

// sampled returns at most n of the points, at even intervals.
func sampled(points []api.Position, n int) []api.Position {
	if len(points) <= n {
		return points
	}
	out := make([]api.Position, n)
	for i := range out {
		out[i] = points[i*len(points)/n]
	}
	return out
}

// Wait queues an instance until Next returns it. See Queue.Add.
func (x *Exchange) Wait(id api.InstanceID, urgency int, reason api.Reason) {
	x.waiting.Add(id, urgency)
	x.reasons[id] = reason
}

// Next removes and returns the first waiting instance. ok is false if none waits or the
// exchange is full.
func (x *Exchange) Next() (id api.InstanceID, reason api.Reason, ok bool) {
	if !x.Full() {
		id, ok = x.waiting.Pop()
	}
	reason = x.reasons[id]
	delete(x.reasons, id)
	return id, reason, ok
}

// About returns the instance that the open question with the key is about.
func (x *Exchange) About(key string) (api.InstanceID, bool) {
	q, ok := x.open[key]
	return q.Instance, ok
}

// Cancel removes the instance's question and removes it from the queue.
func (x *Exchange) Cancel(id api.InstanceID) {
	x.waiting.Remove(id)
	delete(x.reasons, id)
	delete(x.open, x.keys[id])
	delete(x.keys, id)
}

// Answer closes the question of an answer. The result has a Fault if sched.Check refuses the
// answer or it names no candidate. ok is false if the question is not open, because the answer
// is late or a duplicate.
func (x *Exchange) Answer(ans sched.Answer) (r Result, ok bool) {
	q, ok := x.open[ans.Key]
	if !ok {
		return Result{}, false
	}
	x.Cancel(q.Instance)
	r = Result{Instance: q.Instance, Reason: q.Reason}
	switch err := sched.Check(&q.Ask, &ans); {
	case ans.Error != "":
		r.Fault = step.Clip(ans.Error)
	case err != nil:
		r.Fault = step.Clip(err.Error())
	case len(ans.Ranked) == 0:
		r.Fault = "it names no candidate"
	default:
		r.Ranked = ans.Ranked
	}
	return r, true
}

// Expire closes the instance's question after its deadline. The result has a Fault. ok is
// false if no question about the instance is open.
func (x *Exchange) Expire(id api.InstanceID) (r Result, ok bool) {
	q, ok := x.open[x.keys[id]]
	if !ok {
		return Result{}, false
	}
	x.Cancel(id)
	return Result{Instance: id, Reason: q.Reason, Fault: fmt.Sprintf("no answer within %s", q.Ask.Deadline)}, true
}
