package node

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// link is what the node knows of its connection to the cluster, and of the
// lease that it gives.
//
// The lease ends Timing.Lease after the moment at which the answered sign of
// life was sent, on the node's clock. The cluster counts its dead time from
// when it took that sign in, which is later, and its dead time is longer by
// more than two clocks can drift apart and a kill can take: so whoever stops
// when the lease ends has stopped before it is placed elsewhere.
type link struct {
	up        bool
	seq       uint64 // of reports
	beatSeq   uint64
	sentAt    [beatsKept]sentBeat
	leased    bool      // a lease was received in this life
	leaseEnd  time.Time // stop what must not outlive it
	withheld  api.Lease // the newest that counts once the node holds its generation; Seq 0: none
	wantWhole bool
	dirty     map[api.InstanceID]api.Observed
}

const beatsKept = 16

type sentBeat struct {
	seq uint64
	at  time.Time
}

func newLink() link {
	return link{wantWhole: true, dirty: map[api.InstanceID]api.Observed{}}
}

func (c *Core) linked(up bool) {
	c.link.up = up
	if !up {
		return
	}
	c.link.wantWhole = true
	c.timers.Set(timerKey{what: timerBeat}, c.now)
}

// beat sends a sign of life and plans the next. A node with a lease at stake sends
// twice as many: a cluster that goes away has to be back within what is left of the
// lease then.
func (c *Core) beat() {
	leases, every := c.leases(), c.timing.Beat
	if leases {
		every /= 2
	}
	c.timers.Set(timerKey{what: timerBeat}, c.now.Add(every))
	c.dialling(Dial{Brokers: c.brokers, Hurry: leases})
	if !c.link.up {
		return
	}
	c.mayPurge()
	l := &c.link
	l.beatSeq++
	l.sentAt[l.beatSeq%beatsKept] = sentBeat{l.beatSeq, c.now}
	c.report() // so that the digest below is of what the cluster was told
	c.emitVolatile(api.ToCluster, api.Alive{
		Boot: c.boot, Seq: l.beatSeq, Gen: c.gen, Desired: c.wanted, Observed: c.known.Toggle(c.said),
		CPUUsed: c.usage.CPU, MemUsed: c.usage.Mem,
	})
}

// report sends what changed since the last report, or everything.
func (c *Core) report() {
	l := &c.link
	if !l.up || (!l.wantWhole && len(l.dirty) == 0) {
		if !l.up {
			clear(l.dirty) // the whole follows when the link is up
		}
		return
	}
	l.seq++
	r := api.NodeReport{Node: c.cfg.ID, Boot: c.boot, Seq: l.seq, Gen: c.gen, Whole: l.wantWhole, Answers: true}
	if l.wantWhole {
		info := c.info
		r.Info = &info
		for _, id := range step.Keys(c.works) {
			r.Observed = append(r.Observed, c.works[id].observed)
		}
	} else {
		for _, id := range step.Keys(l.dirty) {
			r.Observed = append(r.Observed, l.dirty[id])
		}
	}
	l.wantWhole = false
	clear(l.dirty)
	c.emit(api.ToCluster, r)
}

// lease takes the cluster's answer to a sign of life. A cluster that has moved
// on to a generation that this node does not hold may have placed elsewhere what
// the node still believes to be its own, so such an answer prolongs nothing.
func (c *Core) lease(m api.Lease) {
	l := &c.link
	if m.Answer {
		c.timers.Set(timerKey{what: timerBeat}, c.now)
	}
	if m.Boot != c.boot {
		return
	}
	if m.WantWhole {
		l.wantWhole = true
	}
	sent := l.sentAt[m.Seq%beatsKept]
	if sent.seq != m.Seq || m.Seq == 0 {
		return
	}
	if c.gen < m.Gen {
		l.withheld = m
		return
	}
	end := sent.at.Add(c.timing.Lease)
	if !end.After(c.now) || (l.leased && !end.After(l.leaseEnd)) {
		return
	}
	l.leased, l.leaseEnd = true, end
	c.timers.Set(timerKey{what: timerLease}, end)
	for _, id := range step.Keys(c.works) {
		w := c.works[id]
		if !w.haveSpec.StopsWhenCutOff() {
			continue
		}
		switch {
		case w.phase == running || w.phase == starting || w.phase == stopping || w.phase == unsure && w.mayLive():
			c.guard(w)
		case w.phase == idle:
			c.drive(w)
		}
	}
}

// heldNow takes a lease that came before the generation that it presumes: after a
// restart of the cluster the two may come in either order.
func (c *Core) heldNow() {
	if m := c.link.withheld; m.Seq != 0 && c.gen >= m.Gen {
		c.link.withheld = api.Lease{}
		c.lease(m)
	}
}

// assumeLease is for the time between a restart and the first lease: what runs
// may go on for at most a lease's length; the guard, which lived on, ends it
// earlier if the lease of the earlier life does.
func (c *Core) assumeLease() {
	c.link.leased = false
	c.link.leaseEnd = c.now.Add(c.timing.Lease)
	c.timers.Set(timerKey{what: timerLease}, c.link.leaseEnd)
}

func (c *Core) leaseEnded() {
	c.link.leased = false
	for _, id := range step.Keys(c.works) {
		if w := c.works[id]; w.haveSpec.StopsWhenCutOff() {
			c.cut(w)
		}
	}
}

// cut stops what must not run without a lease, at once and without grace.
func (c *Core) cut(w *work) {
	switch w.phase {
	case creating, created, starting, running, unsure:
	case stopping:
		c.stop(w, 0) // its grace ends with the lease
		return
	default:
		return
	}
	c.observe(w, api.Observed{
		State: api.Failed, Reason: api.ReasonLeaseExpired,
		Detail: "stopped: the node did not hear from its cluster for " + c.timing.Lease.String(),
	})
	c.stop(w, 0)
}

// mayRun reports whether the instance may run now: anything may, but what must
// not outlive the lease needs one.
func (c *Core) mayRun(w *work) bool {
	return !w.haveSpec.StopsWhenCutOff() || (c.link.leased && c.now.Before(c.link.leaseEnd))
}

// freshLease sends a sign of life, whose answer is a lease, when an instance needs one
// and the last is not fresh. The cluster answers signs of life only of nodes with a lease
// at stake, so that an earlier one may not have been answered.
func (c *Core) freshLease(w *work) {
	if w.haveSpec.StopsWhenCutOff() && (!c.link.leased || c.link.leaseEnd.Sub(c.now) < c.timing.Lease-c.timing.Beat/2) {
		c.timers.SetEarlier(timerKey{what: timerBeat}, c.now)
	}
}

// mayBegin is mayRun for an instance that does not exist yet: it needs a lease of which
// half is left, because one that was not renewed may be about to end.
func (c *Core) mayBegin(w *work) bool {
	return c.mayRun(w) && (!w.haveSpec.StopsWhenCutOff() || c.link.leaseEnd.Sub(c.now) > c.timing.Lease/2)
}

// guard has the workload killed at the lease's end even if this engine is dead by then.
func (c *Core) guard(w *work) {
	if w.haveSpec.StopsWhenCutOff() {
		c.emitVolatile(api.ToRuntime, api.GuardWorkload{Key: w.key(), Until: c.link.leaseEnd})
	}
}

// lift takes back what guard set.
func (c *Core) lift(w *work) { c.emit(api.ToRuntime, api.GuardWorkload{Key: w.key()}) }
