package node

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// link is the state of the connection to the cluster, and of the lease.
//
// On the node's clock, a lease ends Timing.Lease after the node sent the heartbeat that it
// answers. The cluster counts its dead time from the receipt of that heartbeat, which is later.
// The dead time exceeds the lease by more than the drift of the clocks and the time of a kill.
// A workload that stops when the lease ends therefore stops before the cluster places it elsewhere.
type link struct {
	up        bool
	seq       uint64 // of reports
	beatSeq   uint64
	sentAt    [beatsKept]sentBeat
	leased    bool       // a lease was received since the start
	leaseEnd  time.Time  // when exclusive workloads stop
	withheld  wire.Lease // the newest that takes effect when the node holds its generation; Seq 0: none
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

// beat sends a heartbeat and plans the next one. A node that needs its lease sends twice
// as many, so that more of the lease is left when a cluster restarts.
func (c *Core) beat() {
	leases, every := c.leases(), c.timing.Heartbeat
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
	c.report() // the digest below includes this report
	c.emit(wire.Envelope{To: wire.ToCluster, Volatile: true, Msg: wire.NodeToCluster(wire.Alive{
		Boot: c.boot, Seq: l.beatSeq, Gen: c.gen, Desired: c.wanted, Observed: c.known.Toggle(c.infoSum),
		CPUUsed: c.usage.CPU, MemUsed: c.usage.Mem,
	})})
}

// report sends the observations that changed since the last report, or all of them.
func (c *Core) report() {
	l := &c.link
	if !l.up || (!l.wantWhole && len(l.dirty) == 0) {
		if !l.up {
			clear(l.dirty) // a whole report follows when the link is up
		}
		return
	}
	l.seq++
	r := wire.NodeReport{Node: c.cfg.ID, Boot: c.boot, Seq: l.seq, Gen: c.gen, Whole: l.wantWhole, AnswersLease: true}
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
	c.toCluster(r)
}

// lease handles the cluster's answer to a heartbeat. A lease of a generation that the node
// does not hold yet is withheld: in that generation the cluster may have placed instances
// elsewhere that the node still runs.
func (c *Core) lease(m wire.Lease) {
	l := &c.link
	if m.RequestAlive {
		c.timers.Set(timerKey{what: timerBeat}, c.now)
	}
	if m.Boot != c.boot {
		return
	}
	if m.RequestWhole {
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

// heldNow applies a withheld lease once its generation has arrived.
func (c *Core) heldNow() {
	if m := c.link.withheld; m.Seq != 0 && c.gen >= m.Gen {
		c.link.withheld = wire.Lease{}
		c.lease(m)
	}
}

// assumeLease lets workloads run for the length of one lease after a restart. Their
// guards, which outlive the engine, stop them earlier if their lease ends earlier.
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

// cut stops an exclusive workload without grace, because the lease has ended.
func (c *Core) cut(w *work) {
	switch w.phase {
	case creating, created, starting, running, unsure:
	case stopping:
		c.stop(w, 0) // the grace ends with the lease
		return
	default:
		return
	}
	c.observe(w, api.Observed{
		State: api.Failed, Reason: api.ReasonLeaseExpired,
		Detail: "stopped: no answer from the cluster for " + c.timing.Lease.String(),
	})
	c.stop(w, 0)
}

// mayRun reports whether the instance may run now. An exclusive one needs a lease.
func (c *Core) mayRun(w *work) bool {
	return !w.haveSpec.StopsWhenCutOff() || (c.link.leased && c.now.Before(c.link.leaseEnd))
}

// freshLease sends a heartbeat, whose answer is a lease, if the instance needs a lease and
// the last one is not fresh. The cluster answers heartbeats only of nodes that need a
// lease, so an earlier heartbeat may have got no answer.
func (c *Core) freshLease(w *work) {
	if w.haveSpec.StopsWhenCutOff() && (!c.link.leased || c.link.leaseEnd.Sub(c.now) < c.timing.Lease-c.timing.Heartbeat/2) {
		c.timers.SetEarlier(timerKey{what: timerBeat}, c.now)
	}
}

// mayBegin reports whether the instance may be created: like mayRun, but half of the lease
// must be left, because a lease that was not renewed may be about to end.
func (c *Core) mayBegin(w *work) bool {
	return c.mayRun(w) && (!w.haveSpec.StopsWhenCutOff() || c.link.leaseEnd.Sub(c.now) > c.timing.Lease/2)
}

// guard orders that the workload is killed when the lease ends, even if the engine does not run.
func (c *Core) guard(w *work) {
	if w.haveSpec.StopsWhenCutOff() {
		order := wire.WorkloadOrder(wire.GuardWorkload{Key: w.key(), Until: c.link.leaseEnd})
		c.emit(wire.Envelope{To: wire.ToRuntime, Msg: order, Volatile: true})
	}
}

func (c *Core) lift(w *work) { c.order(wire.GuardWorkload{Key: w.key()}) }
