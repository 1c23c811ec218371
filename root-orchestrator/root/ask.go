package root

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// questions are those to the scheduler outside that are open. There are few at a
// time; what else is to be placed waits for its turn.
type questions struct {
	open map[string]question // by key
	next queue
}

// question is about an instance and names clusters.
type question struct {
	instance api.InstanceID
	names    map[string]bool
}

func newQuestions() questions { return questions{open: map[string]question{}} }

// mostQuestions bounds the questions that are open at once, mostNamed the clusters
// of one: the best by the built-in plugin.
const (
	mostQuestions = 64
	mostNamed     = 128
)

// defaultConvergence is how long a scheduler has where the SLA does not say.
const defaultConvergence = time.Duration(api.DefaultConvergence * float64(time.Second))

// askOutside has the scheduler outside rank the clusters that fit.
func (c *Core) askOutside(in *instance) {
	if len(c.questions.open) >= mostQuestions {
		c.questions.next.add(in)
		return
	}
	req, _, ok := c.find(in)
	if !ok {
		c.nowhere(in, &req)
		return
	}
	fit := c.table.Place(&req, c.plugin(in), in.seed()).Ranked
	fit = fit[:min(len(fit), mostNamed)]
	// The peers go on changing; what is asked must not.
	req.Peers = maps.Clone(req.Peers)
	a := sched.Ask{
		Key: strconv.FormatUint(c.next(), 10), Level: sched.Clusters, Request: req,
		Seed: in.seed(), Deadline: cmp.Or(req.Convergence, defaultConvergence),
	}
	q := question{instance: in.ID, names: make(map[string]bool, len(fit))}
	for _, choice := range fit {
		a.Candidates = append(a.Candidates, *c.table.Get(choice.ID))
		q.names[choice.ID] = true
	}
	c.stopWaiting(in)
	c.questions.open[a.Key], in.asked = q, a.Key
	c.timers.Set(timerKey{what: timerAsk, instance: in.ID}, c.now.Add(a.Deadline))
	c.emit(api.ToScheduler, a)
}

func (c *Core) forgetQuestion(in *instance) {
	c.questions.next.remove(in.ID)
	if in.asked != "" {
		delete(c.questions.open, in.asked)
		c.timers.Clear(timerKey{what: timerAsk, instance: in.ID})
		in.asked = ""
	}
}

// askMore asks what had to wait for its turn.
func (c *Core) askMore() {
	if c.questions.next.len() == 0 || len(c.questions.open) >= mostQuestions {
		return
	}
	for _, id := range c.questions.next.list() {
		if len(c.questions.open) >= mostQuestions {
			return
		}
		c.questions.next.remove(id)
		if in := c.instances[id]; in != nil {
			c.tryPlace(in)
		}
	}
}

// ranked takes an answer. It counts as far as it is true: the first named cluster
// that still fits gets the instance. From one that is no answer, or names what was
// not asked about, nothing is taken.
func (c *Core) ranked(a sched.Answer) {
	q, ok := c.questions.open[a.Key]
	if !ok {
		return
	}
	in := c.instances[q.instance]
	c.forgetQuestion(in)
	switch {
	case a.Error != "":
		c.decideInstead(in, a.Error)
		return
	case len(a.Ranked) == 0:
		c.decideInstead(in, "it named no cluster")
		return
	}
	for _, choice := range a.Ranked {
		if !q.names[choice.ID] {
			c.decideInstead(in, fmt.Sprintf("it named %q, which it was not asked about", choice.ID))
			return
		}
	}
	req, _, _ := c.find(in)
	for _, choice := range a.Ranked {
		cand := c.table.Get(choice.ID)
		if cand == nil {
			continue
		}
		if _, fits := sched.PlaceBest(&req, []sched.Candidate{*cand}, c.cfg.Plugin, 0); fits {
			c.place(in, c.clusters[api.ClusterID(choice.ID)], choice.Score, false)
			return
		}
	}
	c.decide(in) // what it named has been taken meanwhile
}

func (c *Core) unanswered(in *instance) {
	if in.asked != "" {
		c.forgetQuestion(in)
		c.decideInstead(in, "it did not answer in time")
	}
}

// decideInstead has the built-in plugin decide, and says why.
func (c *Core) decideInstead(in *instance, why string) {
	c.event(c.about(in, in.State, api.ReasonNoScheduler, step.Clip("scheduler "+c.cfg.Asks+": "+why)+"; "+c.cfg.Plugin.Name()+" decides"))
	c.decide(in)
}
