package cluster

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// How soon the root is told of a change of the cluster's room: what changes much
// soon, what changes little when more has come together, and nothing seldom.
const (
	gather     = 250 * time.Millisecond // how long a change of the aggregate waits for company
	gatherMore = 2 * time.Second        // one of less than little
	little     = 0.05                   // of the capacity
	idleMost   = 30 * time.Second       // between two reports, and a third of what the root calls dead
)

// told is the room that the root knows of.
type told struct {
	free, capacity api.Resources
	changes        uint64
}

// aggregateChanged has the root told of the cluster's room, a little later, so
// that changes that come together travel together. much says that it is not only a
// matter of how much is free.
func (c *Core) aggregateChanged(much bool) {
	c.changes++
	wait := gatherMore
	if much || c.muchChanged() {
		wait = gather
	}
	c.timers.SetEarlier(timerKey{what: timerReport}, c.now.Add(wait))
}

func (c *Core) muchChanged() bool {
	t := &c.root.told
	was, is, of := parts(t.free), parts(c.capacity.Minus(c.used)), parts(t.capacity)
	for i := range is {
		if d := is[i] - was[i]; float64(max(d, -d)) > little*float64(of[i]) {
			return true
		}
	}
	return false
}

// report tells the root what changed, one report at a time: what changes while
// one is on its way travels together in the next.
func (c *Core) report() {
	r := &c.root
	if !r.due && !r.wantAll && !r.fresh && !c.net.book.Fresh() {
		return
	}
	if r.sent != 0 {
		if retry := r.sentAt.Add(c.cfg.ReportRetry); c.now.Before(retry) {
			c.timers.SetEarlier(timerKey{what: timerReport}, retry)
			return
		}
	}
	r.seq++
	rep := api.Report{
		Cluster: c.cfg.ID, Boot: c.boot, Seq: r.seq, Gen: r.gen, Desired: r.wanted, Known: r.known,
		// What the root placed here it counts itself until we have answered for it: the
		// aggregate must not be older than what is observed.
		Whole: r.wantAll, Aggregate: c.Aggregate(),
	}
	if r.wantAll {
		for _, id := range step.Keys(c.instances) {
			r.dirty[id] = 0
		}
	}
	for _, id := range step.Keys(r.dirty) {
		if in := c.instances[id]; in != nil {
			rep.Observed = append(rep.Observed, c.seen(in))
			r.dirty[id] = r.seq
		} else {
			delete(r.dirty, id)
		}
	}
	for _, id := range step.Keys(r.gone) {
		g := r.gone[id]
		g.seq = r.seq
		r.gone[id] = g
		rep.Observed = append(rep.Observed, g.Observed)
	}
	rep.Notices = c.notices.carry(r.seq)
	c.net.whole = c.net.whole || r.wantAll
	rep.Net = c.clusterNet()
	c.rest(len(rep.Observed)+len(rep.Notices) > 0 || c.net.sent == r.seq)
	r.sent, r.sentAt, r.due, r.wantAll, r.fresh = r.seq, c.now, false, false, false
	c.emit(api.ToRoot, rep)
}

// rest sets when the next report goes out, if nothing happens: later each time
// that there was nothing to say.
func (c *Core) rest(news bool) {
	r := &c.root
	if news || r.told.changes != c.changes || r.idle == 0 {
		r.idle = c.cfg.ReportIdle
	} else {
		r.idle = max(c.cfg.ReportIdle, min(2*r.idle, idleMost, cmp.Or(r.dead, 3*c.cfg.ReportIdle)/3))
	}
	r.told = told{c.capacity.Minus(c.used), c.capacity, c.changes}
	c.timers.Set(timerKey{what: timerReport}, c.now.Add(r.idle))
}
