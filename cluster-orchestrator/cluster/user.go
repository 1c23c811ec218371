package cluster

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/probe"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Probe is the operator's policy on probing the users that SLAs name, of whom
// nobody is probed if it is off; see probe.Permitted.
type Probe struct {
	Off   bool
	Allow []netip.Prefix
	Deny  []netip.Prefix
}

// user is something outside of the cluster to which an SLA sets a latency. Its
// place is found from round trips that some nodes measure to it (the paper's
// Algorithm 2).
type user struct {
	of       map[api.InstanceID]bool  // whose SLA names it
	at       *api.Coordinate          // nil: not known
	measured map[string]time.Duration // by node, in the last round
	wrong    string                   // why nothing is known, after a round
	round    uint64
	holder   string // whose round is or was under way: a tenant

	asked    map[api.NodeID]uint64 // orders without an answer; nil: no round is under way
	refines  bool                  // the round's second half is: those are asked that seem nearest
	tried    map[api.NodeID]bool   // in this round
	answers  map[string]time.Duration
	refused  string
	deadline time.Time
}

const (
	probers    = 8                // nodes that measure one user
	nearest    = 4                // and then of those that seem nearest to it: a place that is told from afar is told badly
	probeWait  = 3 * time.Second  // for a node's answer
	probeSlack = time.Second      // for the order and the answer to travel
	userFresh  = 10 * time.Minute // until a user is measured again
	userRetry  = time.Minute      // after a round that told nothing
	maxRounds  = 64               // under way at once; more wait, and tenants take turns

	tenantRounds = maxRounds / 4 // of one tenant
)

func (u *user) known() bool { return u != nil && (u.at != nil || len(u.measured) > 0) }

// userBound is a link to a user, as far as its place is known.
func (c *Core) userBound(l sched.Link) sched.Bound {
	u := c.users[l.User]
	switch {
	case u.known():
		b := l.Bound()
		b.Measured = u.measured
		if u.at != nil {
			b.Points = []api.Position{{Coord: u.at}}
		}
		return b
	case u != nil && u.wrong != "":
		return l.Unknown(u.wrong)
	case c.forbidden(l.User) != "":
		return l.Unknown(c.forbidden(l.User))
	case u != nil && u.asked != nil:
		return l.Unknown("its position is being measured")
	}
	return l.Unknown("its position was not measured yet")
}

// forbidden says why a user may not be probed, as far as that can be told without
// asking for its name's address, which is the node's part.
func (c *Core) forbidden(target string) string {
	if c.cfg.Probe.Off {
		return "the cluster's operator has nobody probed"
	}
	host, _, err := api.ParseTarget(target)
	if err != nil {
		return "it is no target: " + err.Error()
	}
	a, err := netip.ParseAddr(host)
	if err != nil || probe.Permitted(a, c.cfg.Probe.Allow, c.cfg.Probe.Deny) {
		return ""
	}
	return "the cluster's operator forbids to probe it"
}

// refersTo notes that an instance's SLA names users, or does so no longer: what
// nobody asks for is forgotten.
func (c *Core) refersTo(targets []string, id api.InstanceID, does bool) {
	for _, t := range targets {
		u := c.users[t]
		if u == nil {
			u = &user{of: map[api.InstanceID]bool{}}
			c.users[t] = u
		}
		if u.of[id] = true; !does {
			delete(u.of, id)
		}
		if len(u.of) == 0 {
			c.endRound(u)
			c.rounds.Remove(t)
			c.timers.Clear(timerKey{what: timerUser, name: t})
			delete(c.users, t)
		}
	}
	if !does {
		c.nextRounds()
	}
}

// measure begins a round of probes for each of the users that nothing is known of.
func (c *Core) measure(targets []string) (waits bool) {
	for _, t := range targets {
		u := c.users[t]
		switch {
		case u != nil && u.refines, u != nil && u.asked != nil && !u.known():
			waits = true
		case u == nil || u.known() || u.wrong != "":
		default:
			c.round(t)
			waits = waits || u.asked != nil || c.rounds.Waits(t)
		}
	}
	return waits
}

// round has some nodes measure their way to a user.
func (c *Core) round(t string) {
	u := c.users[t]
	if u.asked != nil {
		return
	}
	if u.wrong = c.forbidden(t); u.wrong != "" {
		c.again(t, userFresh)
		return
	}
	holder := c.holderOf(u)
	if !c.rounds.Begin(holder, t) {
		return
	}
	nodes := c.probers(t, u.round)
	if len(nodes) == 0 {
		c.rounds.End(holder)
		u.wrong = "no node can measure the way to it now"
		c.again(t, userRetry)
		return
	}
	u.round++
	u.holder = holder
	u.tried, u.answers, u.refused = map[api.NodeID]bool{}, map[string]time.Duration{}, ""
	c.ask(t, nodes)
}

// holderOf returns the tenant to whose share a user's round counts: of the tenants whose
// SLAs name the user, the one with the fewest rounds under way.
func (c *Core) holderOf(u *user) string {
	best, least := "", -1
	for _, id := range step.Keys(u.of) {
		top := string(id.Tenant().Top())
		if n := c.rounds.UnderWay(top); least < 0 || n < least {
			best, least = top, n
		}
	}
	return best
}

// shareOf returns an opaque name of a tenant, by which nodes divide their probes.
func shareOf(tenant string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tenant))
	return strconv.FormatUint(h.Sum64(), 36)
}

// ask has nodes measure a user.
func (c *Core) ask(t string, nodes []api.NodeID) {
	u := c.users[t]
	u.asked = map[api.NodeID]uint64{}
	for _, id := range nodes {
		u.tried[id] = true
		c.lastProbe++
		u.asked[id] = c.boot<<24 | c.lastProbe&(1<<24-1)
		c.probes[u.asked[id]] = t
		c.emit(id.Addr(), api.ProbeOrder{
			ID: u.asked[id], Target: t, For: shareOf(u.holder), Allow: c.cfg.Probe.Allow, Deny: c.cfg.Probe.Deny, Wait: probeWait,
		})
	}
	u.deadline = c.now.Add(probeWait + probeSlack)
	c.timers.Set(timerKey{what: timerUser, name: t}, u.deadline)
}

// probers are the nodes that measure a user: those that have what is measured
// against it, and else by chance of those whose own place is known.
func (c *Core) probers(t string, round uint64) (out []api.NodeID) {
	take := func(id api.NodeID, blind bool) {
		n := c.nodes[id]
		if n == nil || n.silent || !n.heard || n.suspect || !blind && n.coord == nil || slices.Contains(out, id) {
			return
		}
		out = append(out, id)
	}
	for _, id := range step.Keys(c.users[t].of) {
		if in := c.instances[id]; len(out) < probers/2 && in.Node != "" {
			take(in.Node, true)
		}
	}
	all := c.table.All()
	chance := drawsOf("user", t, round)
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	drawn := order[:min(len(all), 8*probers)]
	for i := range drawn { // none twice: of a few nodes all are asked, and three that answer are needed
		j := i + chance.below(len(order)-i)
		order[i], order[j] = order[j], order[i]
	}
	for _, blind := range []bool{false, true} { // a node whose place is not known tells of itself alone
		for _, i := range drawn {
			if len(out) >= probers {
				return out
			}
			take(api.NodeID(all[i].ID), blind)
		}
	}
	return out
}

// closest are the nodes that seem nearest to a place and were not tried.
func (c *Core) closest(at api.Coordinate, tried map[api.NodeID]bool) (out []api.NodeID) {
	type near struct {
		id api.NodeID
		d  time.Duration
	}
	var best []near // sorted, at most that many
	for _, cand := range c.table.All() {
		n := c.nodes[api.NodeID(cand.ID)]
		if n == nil || tried[n.info.ID] || n.coord == nil || n.silent || !n.heard || n.suspect {
			continue
		}
		d := vivaldi.Distance(at, *n.coord)
		i, _ := slices.BinarySearchFunc(best, near{n.info.ID, d}, func(a, b near) int {
			return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.id, b.id))
		})
		if i < nearest {
			best = slices.Insert(best, i, near{n.info.ID, d})
			best = best[:min(len(best), nearest)]
		}
	}
	for _, b := range best {
		out = append(out, b.id)
	}
	return out
}

// nodeProbed takes a node's answer. One that nobody waits for changes nothing.
func (c *Core) nodeProbed(id api.NodeID, p api.Probed) {
	t, ok := c.probes[p.ID]
	u := c.users[t]
	if !ok || u == nil || u.asked[id] != p.ID {
		return
	}
	delete(c.probes, p.ID)
	delete(u.asked, id)
	switch {
	case p.Refused:
		u.refused = step.Clip("the operator forbids to probe it: " + p.Error)
	case p.Error == "" && p.RTT > 0 && p.RTT <= time.Minute:
		u.answers[string(id)] = p.RTT
	}
	if len(u.asked) == 0 || u.refused != "" {
		c.concluded(t)
	}
}

// userDue ends a round whose time is over, or begins one because what was known
// has grown old.
func (c *Core) userDue(t string) {
	u := c.users[t]
	switch {
	case u == nil:
	case u.asked != nil:
		c.concluded(t)
	default:
		u.wrong = ""
		c.round(t)
	}
}

// concluded makes of a round's answers what they tell, and has those that waited
// for it placed.
func (c *Core) concluded(t string) {
	u := c.users[t]
	asked, refined := len(u.answers)+len(u.asked), u.refines
	c.endRound(u)
	var from []api.Coordinate
	var rtts []time.Duration
	for _, id := range step.Keys(u.answers) {
		if n := c.nodes[api.NodeID(id)]; n != nil && n.coord != nil {
			from, rtts = append(from, *n.coord), append(rtts, u.answers[id])
		}
	}
	at, found := vivaldi.Locate(from, rtts)
	found = found && vivaldi.Valid(&at)
	if found && !refined && u.refused == "" {
		if more := c.closest(at, u.tried); len(more) > 0 {
			u.at, u.measured, u.refines = &at, maps.Clone(u.answers), true // whose time is over before takes that
			c.rounds.Take(u.holder)
			c.ask(t, more)
			return
		}
	}
	next := userFresh
	switch {
	case u.refused != "":
		u.wrong, u.at, u.measured = u.refused, nil, nil
	case found:
		u.at, u.measured = &at, u.answers
	case len(u.answers) > 0 && u.at == nil:
		u.measured, next = u.answers, userRetry // too few to tell where it is; what they measured is true of them
	case u.known():
		next = userRetry // what was known before is better than nothing
	default:
		u.wrong, next = fmt.Sprintf("none of %d nodes got an answer from it", asked), userRetry
	}
	u.tried, u.answers = nil, nil
	c.version++ // who is measured against it may fit where it did not
	c.again(t, next)
	for _, id := range step.Keys(u.of) {
		c.searched(c.instances[id])
	}
	c.nextRounds()
}

// nextRounds starts waiting rounds while there is room.
func (c *Core) nextRounds() {
	for {
		more, ok := c.rounds.Next()
		if !ok {
			return
		}
		if c.users[more] != nil {
			c.round(more)
		}
	}
}

func (c *Core) endRound(u *user) {
	if u.asked == nil {
		return
	}
	for _, order := range u.asked {
		delete(c.probes, order)
	}
	u.asked, u.refines = nil, false
	c.rounds.End(u.holder)
}

// again has a user measured after a while, if anybody still asks for it then.
func (c *Core) again(t string, after time.Duration) {
	c.timers.Set(timerKey{what: timerUser, name: t}, c.now.Add(after))
}
