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
	up           bool
	seq          uint64 // of reports
	heartbeatSeq uint64
	sentAt       [heartbeatsKept]sentHeartbeat
	leased       bool       // a lease was received since the start
	leaseEnd     time.Time  // when exclusive workloads stop
	withheld     wire.Lease // the newest that takes effect when the node holds its generation; Seq 0: none
	sendWhole    bool
	dirty        map[api.InstanceID]api.Observed
}

const heartbeatsKept = 16

type sentHeartbeat struct {
	seq uint64
	at  time.Time
}

func newLink() link {
	return link{sendWhole: true, dirty: map[api.InstanceID]api.Observed{}}
}

func (c *Core) linkChanged(up bool) {
	c.link.up = up
	if !up {
		return
	}
	c.link.sendWhole = true
	c.timers.Set(timerKey{what: timerHeartbeat}, c.now)
}

// heartbeat sends one and plans the next. A node that needs its lease sends twice
// as many, so that more of the lease is left when a cluster restarts.
func (c *Core) heartbeat() {
	leases, every := c.needsLease(), c.timing.Heartbeat
	if leases {
		every /= 2
	}
	c.timers.Set(timerKey{what: timerHeartbeat}, c.now.Add(every))
	c.setDial(Dial{Brokers: c.brokers, Hurry: leases})
	if !c.link.up {
		return
	}
	c.reportEmpty()
	l := &c.link
	l.heartbeatSeq++
	l.sentAt[l.heartbeatSeq%heartbeatsKept] = sentHeartbeat{l.heartbeatSeq, c.now}
	c.report() // the digest below includes this report
	c.emit(wire.Envelope{To: wire.ToCluster, Volatile: true, Msg: wire.NodeToCluster(wire.Alive{
		Boot: c.boot, Seq: l.heartbeatSeq, Gen: c.gen, Desired: c.desiredDigest, Observed: c.observedDigest.Toggle(c.infoDigest),
		CPUUsed: c.usage.CPU, MemUsed: c.usage.Mem,
	})})
}

// report sends the observations that changed since the last report, or all of them.
func (c *Core) report() {
	l := &c.link
	if !l.up || (!l.sendWhole && len(l.dirty) == 0) {
		if !l.up {
			clear(l.dirty) // a whole report follows when the link is up
		}
		return
	}
	l.seq++
	r := wire.NodeReport{Node: c.cfg.ID, Boot: c.boot, Seq: l.seq, Gen: c.gen, Whole: l.sendWhole, AnswersLease: true}
	if l.sendWhole {
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
	l.sendWhole = false
	clear(l.dirty)
	c.toCluster(r)
}

// lease handles the cluster's answer to a heartbeat. A lease of a generation that the node
// does not hold yet is withheld: in that generation the cluster may have placed instances
// elsewhere that the node still runs.
func (c *Core) lease(m wire.Lease) {
	l := &c.link
	if m.RequestAlive {
		c.timers.Set(timerKey{what: timerHeartbeat}, c.now)
	}
	if m.Boot > c.boot && m.Boot < wire.MaxBoot {
		c.boot = m.Boot + 1
		c.saveMeta()
		l.sendWhole = true
		c.timers.Set(timerKey{what: timerHeartbeat}, c.now)
	}
	if m.Boot != c.boot {
		return
	}
	if m.RequestWhole {
		l.sendWhole = true
	}
	sent := l.sentAt[m.Seq%heartbeatsKept]
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
		case w.phase == running || w.phase == starting || w.phase == stopping || w.phase == unsure && w.mayHaveProcess():
			c.guard(w)
		case w.phase == idle:
			c.drive(w)
		}
	}
}

// applyWithheldLease applies it once its generation has arrived.
func (c *Core) applyWithheldLease() {
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
			c.stopWithoutLease(w)
		}
	}
}

// stopWithoutLease stops an exclusive workload without grace, because the lease has ended.
func (c *Core) stopWithoutLease(w *work) {
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

// requestLease sends a heartbeat, whose answer is a lease, if the instance needs a lease and
// the last one is not fresh. The cluster answers heartbeats only of nodes that need a
// lease, so an earlier heartbeat may have got no answer.
func (c *Core) requestLease(w *work) {
	if w.haveSpec.StopsWhenCutOff() && (!c.link.leased || c.link.leaseEnd.Sub(c.now) < c.timing.Lease-c.timing.Heartbeat/2) {
		c.timers.SetEarlier(timerKey{what: timerHeartbeat}, c.now)
	}
}

// mayCreate reports whether the instance may be created: like mayRun, but half of the lease
// must be left, because a lease that was not renewed may be about to end.
func (c *Core) mayCreate(w *work) bool {
	return c.mayRun(w) && (!w.haveSpec.StopsWhenCutOff() || c.link.leaseEnd.Sub(c.now) > c.timing.Lease/2)
}

// guard orders that the workload is killed when the lease ends, even if the engine does not run.
func (c *Core) guard(w *work) {
	if w.haveSpec.StopsWhenCutOff() {
		order := wire.WorkloadOrder(wire.GuardWorkload{Key: w.key(), Until: c.link.leaseEnd})
		c.emit(wire.Envelope{To: wire.ToRuntime, Msg: order, Volatile: true})
	}
}

func (c *Core) unguard(w *work) { c.order(wire.GuardWorkload{Key: w.key()}) }
