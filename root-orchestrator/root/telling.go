package root

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// How many events a cluster may make by what it says, in a span and at once: of one
// instance, and of all together. A node that dies takes each of its instances
// through fewer states than that.
const (
	eventsOfOne  = 30
	eventsOfAll  = 100
	eventsOfEach = 8 // more for each instance that it has
	eventSpan    = time.Minute
)

// pace is how fast something goes on: n at once, and n in each span after that
// (ITU-T I.371's generic cell rate algorithm).
type pace struct{ done time.Time } // when all of it so far would have been due

// next is when there is room for one more of n.
func (p pace) next(n int) time.Time { return p.done.Add(eventSpan/time.Duration(n) - eventSpan) }

func (p *pace) take(now time.Time, n int) {
	if p.done.Before(now) {
		p.done = now
	}
	p.done = p.done.Add(eventSpan / time.Duration(n))
}

// telling is how fast events are told, and those that are left out until there is
// room for one that sums them up.
type telling struct {
	pace
	by   api.ClusterID // who made them
	last api.Event
	left int
}

func (t *telling) leave(by api.ClusterID, e api.Event, n int) { t.by, t.last, t.left = by, e, t.left+n }

// tenantEvents is the telling of what a cluster says about one tenant's instances.
type tenantEvents struct {
	telling
	now      int       // instances that the cluster has
	hosted   int       // the most that it had lately
	hostedAt time.Time // and when
}

// note notes how many there are, and were lately.
func (t *tenantEvents) note(now time.Time) {
	if t.now >= t.hosted || now.Sub(t.hostedAt) > 2*eventSpan {
		t.hosted, t.hostedAt = t.now, now
	}
}

// hosts counts instances of the tenant that the cluster gets (1) or loses (-1).
func (cl *cluster) hosts(of api.Tenant, n int, now time.Time) {
	top := of.Top()
	t := cl.tenants[top]
	if t == nil {
		for id, o := range cl.tenants { // those that are gone for long make room
			if o.now <= 0 && o.left == 0 && now.Sub(o.hostedAt) > 2*eventSpan {
				delete(cl.tenants, id)
			}
		}
		t = &tenantEvents{}
		cl.tenants[top] = t
	}
	t.note(now)
	t.now += n
	t.note(now)
}

// mostEventsOf is how many events the cluster may make about the tenant in a span.
// Those of all tenants are together what the cluster may make.
func (c *Core) mostEventsOf(cl *cluster, t *tenantEvents) int {
	t.note(c.now)
	return max(1, min(eventsOfAll/len(cl.tenants)+eventsOfEach*t.hosted, c.cfg.EventsKept))
}

// mayTell reports whether an event, which stands for n, may be told now; where not,
// it is kept in mind. What a cluster says may make no more of them than its pace
// allows, of each tenant no more than the tenant's, and of each instance no more than
// the instance's.
func (c *Core) mayTell(cl *cluster, e api.Event, n int) bool {
	one, all := new(telling), &cl.telling
	if in := c.instances[e.Instance]; in != nil {
		if in.telling == nil {
			in.telling = one
		}
		one = in.telling
		if at := one.next(eventsOfOne); one.left > 0 || at.After(c.now) {
			one.leave(cl.Info.ID, e, n)
			c.timers.Set(timerKey{what: timerTellOfOne, instance: e.Instance}, at)
			return false
		}
	}
	of, share := cl.tenants[e.Tenant.Top()], 0
	if of != nil && e.Instance != "" {
		share = c.mostEventsOf(cl, of)
		if at := of.next(share); of.left > 0 || at.After(c.now) {
			of.leave(cl.Info.ID, e, n)
			c.timers.Set(timerKey{what: timerTellOfTenant, cluster: cl.Info.ID, tenant: e.Tenant.Top()}, at)
			return false
		}
	}
	most := c.mostEvents(cl)
	if at := all.next(most); all.left > 0 || at.After(c.now) {
		all.leave(cl.Info.ID, e, n)
		c.timers.Set(timerKey{what: timerTellOfAll, cluster: cl.Info.ID}, at)
		return false
	}
	one.take(c.now, eventsOfOne)
	if share > 0 {
		of.take(c.now, share)
	}
	all.take(c.now, most)
	return true
}

// noteHosted notes how many instances the cluster has, and had lately: of those that
// go there is something to tell, too.
func (cl *cluster) noteHosted(now time.Time) {
	if n := len(cl.assigned); n >= cl.hosted || now.Sub(cl.hostedAt) > 2*eventSpan {
		cl.hosted, cl.hostedAt = n, now
	}
}

// mostEvents is how many events the cluster may make in a span.
func (c *Core) mostEvents(cl *cluster) int {
	return max(1, min(eventsOfAll+eventsOfEach*cl.hosted, c.cfg.EventsKept))
}

// tellOfOne tells the last of an instance's events that were left out.
func (c *Core) tellOfOne(in *instance) {
	t := in.telling
	if t == nil || t.left == 0 {
		return
	}
	e, n := t.last, t.left
	t.last, t.left = api.Event{}, 0
	if n > 1 {
		e.Detail = fmt.Sprintf("%s … and %d more like this", e.Detail, n-1)
	}
	if cl := c.clusters[t.by]; cl == nil || c.mayTell(cl, e, n) {
		c.tellEvent(e)
	}
}

// tellOfTenant tells the last of the events about a tenant's instances that were left
// out because the cluster made too many.
func (c *Core) tellOfTenant(cl *cluster, tenant api.Tenant) {
	t := cl.tenants[tenant]
	if t == nil || t.left == 0 {
		return
	}
	if at := t.next(c.mostEventsOf(cl, t)); at.After(c.now) {
		c.timers.Set(timerKey{what: timerTellOfTenant, cluster: cl.Info.ID, tenant: tenant}, at)
		return
	}
	e, n := t.last, t.left
	t.last, t.left = api.Event{}, 0
	if n > 1 {
		e.Detail = fmt.Sprintf("%s … and %d more events of instances of tenant %s on cluster %s", e.Detail, n-1, tenant, cl.Info.ID)
	}
	if c.mayTell(cl, e, n) {
		c.tellEvent(e)
	}
}

// tellOfAll tells how many events were left out because the cluster made too many.
func (c *Core) tellOfAll(cl *cluster) {
	t := &cl.telling
	if t.left == 0 {
		return
	}
	most := c.mostEvents(cl)
	if at := t.next(most); at.After(c.now) {
		c.timers.Set(timerKey{what: timerTellOfAll, cluster: cl.Info.ID}, at)
		return
	}
	t.take(c.now, most)
	c.tellEvent(api.Event{
		Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID,
		Detail: fmt.Sprintf("%d events were left out, the last of %s %s: it makes more than %d a minute", t.left, t.last.Kind, t.last.Object, most),
	})
	t.last, t.left = api.Event{}, 0
}
