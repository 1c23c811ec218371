package cluster

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
)

// root is what the cluster knows of its root and owes it.
type root struct {
	up      bool
	gen     api.Generation // of the desired set from the root
	wanted  api.Digest     // of that set
	helloAt time.Time

	seq     uint64
	sent    uint64 // the report that waits for its answer; 0: none does
	sentAt  time.Time
	due     bool
	wantAll bool
	known   api.Digest                // of all observations
	dirty   map[api.InstanceID]uint64 // changed, with the report that last carried it; 0: none did
	gone    map[api.InstanceID]goneReport
	fresh   bool // something of dirty, gone or the notices was in no report yet

	dead time.Duration // silence after which it takes the cluster for lost; 0: not said
	idle time.Duration // from the last report to the next, if nothing changes
	told told
}

// goneReport is the last word about an instance that is forgotten here, kept
// until the root has it.
type goneReport struct {
	api.Observed
	seq uint64
}

func newRoot() root {
	return root{dirty: map[api.InstanceID]uint64{}, gone: map[api.InstanceID]goneReport{}, wantAll: true}
}

func (c *Core) rootLink(up bool) {
	c.root.up = up
	if up {
		c.root.due, c.root.sent = true, 0
	}
}

// hello asks the root for all that this cluster does not have yet.
func (c *Core) hello(since api.Generation) {
	c.root.helloAt = c.now
	c.emit(api.ToRoot, api.Hello{Cluster: c.cfg.ID, Since: since, Digest: c.root.wanted})
}

func (c *Core) helloSoon(since api.Generation) {
	if c.root.helloAt.IsZero() || c.now.Sub(c.root.helloAt) >= resend {
		c.hello(since)
	}
}

// desired takes what the root wants. A change that does not start from what the
// cluster has is answered with a request for the rest.
func (c *Core) desired(d api.Desired) {
	r := &c.root
	switch {
	case d.From != 0 && d.From != r.gen:
		if d.Gen > r.gen {
			c.helloSoon(r.gen)
		}
		return
	case d.Gen < r.gen:
		return
	case d.Gen == r.gen && d.Digest == r.wanted && len(d.Drop) == 0:
		return
	}
	put := make(map[api.InstanceID]bool, len(d.Put))
	// The most urgent is placed first.
	puts := slices.Clone(d.Put)
	slices.SortStableFunc(puts, func(a, b api.Assignment) int { return cmp.Compare(b.Spec.Urgency(), a.Spec.Urgency()) })
	for _, a := range puts {
		put[a.Instance] = true
		c.want(a)
	}
	if d.From != 0 {
		for _, id := range d.Drop {
			c.unwant(id)
		}
	} else {
		for _, id := range step.Keys(c.instances) {
			if in := c.instances[id]; !put[id] && !in.Local {
				c.unwant(id)
			}
		}
	}
	r.gen = d.Gen
	c.saveMeta()
	r.due = true // the root counts what it reserved until it knows that we have it
	if r.wanted != d.Digest {
		// Something was lost between us; the whole set mends it.
		c.helloSoon(0)
	}
}

func (c *Core) want(a api.Assignment) {
	in := c.instances[a.Instance]
	moves := a.Moves
	a.Moves = nil // they are the instance's from here on
	switch {
	case in == nil:
		in = &instance{
			Epoch: a.Epoch, State: api.ClusterScheduled, Moves: api.MergeMoves(moves, nil, c.wall),
			Restarts: a.Restarts, Failures: a.Failures,
		}
		c.wants(in, a)
		c.root.wanted = c.root.wanted.Toggle(a.Digest())
		delete(c.root.gone, a.Instance)
		c.changed(in)
		c.tryPlace(in)
	case in.Local && a.Epoch.Root() == in.Epoch.Root() && a.SpecRev == in.Want.SpecRev:
		// The root took over what the operator added.
		in.Local = false
		c.wants(in, a)
		c.root.wanted = c.root.wanted.Toggle(a.Digest())
		c.changed(in)
	case !in.Local && !in.Leaving && in.Want.Digest() == a.Digest():
		c.retarget(in, a)
	default:
		in.Moves = api.MergeMoves(in.Moves, moves, c.wall)
		c.rewant(in, a)
	}
}

// retarget takes what an instance is measured against elsewhere, and whether it
// is watched. Neither is news by itself: the next look at it minds them.
func (c *Core) retarget(in *instance, a api.Assignment) {
	if reflect.DeepEqual(in.Want.Targets, a.Targets) && in.Want.Watched == a.Watched {
		return
	}
	in.Want.Targets, in.Want.Watched = a.Targets, a.Watched
	c.save(in)
	c.watched(in)
	c.shifted(in)
	c.searched(in)
}

// rewant begins a new placement of the root for an instance that is here.
func (c *Core) rewant(in *instance, a api.Assignment) {
	if !in.Local && !in.Leaving {
		c.root.wanted = c.root.wanted.Toggle(in.Want.Digest())
	}
	c.root.wanted = c.root.wanted.Toggle(a.Digest())
	old, urgency := in.Node, in.demand.request.Urgency
	c.unask(in)
	c.unreserve(in)
	c.breakOff(in)
	if old != "" {
		c.unassign(in, true)
	}
	c.wants(in, a)
	in.Epoch = max(a.Epoch, in.Epoch)
	in.stilled = false
	in.Local, in.Leaving, in.Withdrawn, in.Offered, in.Bound, in.Moving, in.GivenUp = false, false, false, false, false, false, false
	in.Violated, in.Strained, in.since, in.until, in.cause, in.told = "", false, time.Time{}, time.Time{}, api.ReasonNone, nil
	in.avoid, in.why, in.Restarts, in.Failures, in.ExitCode = nil, nil, a.Restarts, a.Failures, nil
	in.State = api.ClusterScheduled
	in.Reason, in.Detail = api.ReasonUpdated, ""
	c.changed(in)
	if old != "" && c.staysOn(in, c.nodes[old]) {
		c.moveTo(in, old, api.ReasonNone, "")
		if in.demand.request.Urgency < urgency {
			c.grown[old] = true // for those that it makes way for now
		}
		return
	}
	c.tryPlace(in)
}

// staysOn reports whether the instance's own node can take the new placement:
// the room that the old one frees counts, for the node ends it first.
func (c *Core) staysOn(in *instance, n *node) bool {
	if n.out() != "" {
		return false
	}
	if slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Node != n.info.ID }) && in.exclusive() {
		return false
	}
	return c.fits(in, n, c.without(n, in.id()))
}

func (c *Core) unwant(id api.InstanceID) {
	in := c.instances[id]
	if in == nil || in.Leaving {
		return
	}
	if !in.Local {
		c.root.wanted = c.root.wanted.Toggle(in.Want.Digest())
	}
	in.Leaving = true
	c.unask(in)
	c.unreserve(in)
	c.breakOff(in)
	c.waiting.Remove(id)
	if in.Node != "" {
		c.unassign(in, true)
	}
	if in.State != api.Terminated {
		in.State = lifecycle.Must(in.State, lifecycle.Withdraw)
	}
	in.Offered, in.Moving, in.Strained, in.Violated = false, false, false, ""
	in.Reason, in.Detail = api.ReasonDeleted, ""
	c.changed(in)
	c.finish(in)
}

// seen is what the root is told of an instance, with where it is if it asked.
func (c *Core) seen(in *instance) api.Observed {
	o := in.view()
	if n := c.nodes[in.Node]; in.Want.Watched && n != nil {
		at := n.position()
		o.Position, in.told = &at, &at
	}
	return o
}

func (c *Core) acked(a api.ReportAck) {
	r := &c.root
	if a.Boot != c.boot || a.Seq > r.seq {
		return
	}
	if a.Seq >= r.sent {
		r.sent = 0
	}
	if a.Seq >= c.net.sent {
		c.net.sent = 0
	}
	for id, seq := range r.dirty {
		if in := c.instances[id]; in != nil && in.Local {
			continue // said again until the root took it over, or would not have it
		}
		if seq != 0 && seq <= a.Seq {
			delete(r.dirty, id)
		}
	}
	for id, g := range r.gone {
		if g.seq != 0 && g.seq <= a.Seq {
			delete(r.gone, id)
		}
	}
	c.notices.taken(a.Seq)
	r.dead = a.Dead
	if a.WantWhole {
		r.wantAll, r.due = true, true
	}
	if a.Gen > r.gen {
		// The stream should bring it; if it does not, the next answer finds us here again.
		c.helloSoon(r.gen)
	}
}
