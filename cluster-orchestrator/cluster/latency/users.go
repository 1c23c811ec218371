package latency

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
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/probe"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// user is a host outside the cluster to which an SLA limits the latency. Its position is
// computed from the round trips that some nodes measure to it (the paper's Algorithm 2).
type user struct {
	of       map[api.InstanceID]api.NodeID // instances whose SLA names it, with their nodes
	at       *api.Coordinate               // nil: unknown
	measured map[string]time.Duration      // by node, in the last round
	failure  string                        // why the last round had no result
	round    uint64
	holder   string // tenant to whose share the last round counts

	asked      map[api.NodeID]uint64 // pending orders; nil: no round is under way
	secondHalf bool                  // second half of the round: the nodes that seem nearest probe
	tried      map[api.NodeID]bool   // nodes that got an order in this round
	answers    map[string]time.Duration
	refused    string
}

const (
	probers    = 8                // nodes that measure one user in the first half of a round
	nearest    = 4                // nodes in the second half; near nodes locate a user more accurately
	probeWait  = 3 * time.Second  // for the user's answer to a probe
	probeSlack = time.Second      // for the order and the answer to travel
	userFor    = 10 * time.Minute // until a user is measured again
	userRetry  = time.Minute      // after a round without a result
	maxRounds  = 64               // under way at once; see line

	tenantRounds = maxRounds / 4 // of one tenant
)

func (u *user) known() bool { return u != nil && (u.at != nil || len(u.measured) > 0) }

func userKey(name string) effects.Key { return effects.Key{Kind: effects.User, Name: name} }

// UserBound returns the bound of a link to a user: with the user's position, or with the
// reason why it is unknown.
func (m *Machine) UserBound(l sched.Link) sched.Bound {
	u := m.users[l.User]
	switch {
	case u.known():
		b := l.Bound()
		b.Measured = u.measured
		if u.at != nil {
			b.Points = []api.Position{{Coord: u.at}}
		}
		return b
	case u != nil && u.failure != "":
		return l.Unknown(u.failure)
	case m.forbidden(l.User) != "":
		return l.Unknown(m.forbidden(l.User))
	case u != nil && u.asked != nil:
		return l.Unknown("its position is being measured")
	}
	return l.Unknown("its position was not measured yet")
}

// forbidden returns why a user may not be probed, or "". It does not resolve names: nodes
// check the addresses that they resolve.
func (m *Machine) forbidden(name string) string {
	if m.probe.Off {
		return "the cluster's operator has turned off probes"
	}
	host, _, err := api.ParseTarget(name)
	if err != nil {
		return "target refused: " + err.Error()
	}
	a, err := netip.ParseAddr(host)
	if err != nil || probe.Permitted(a, m.probe.Allow, m.probe.Deny) {
		return ""
	}
	return "the cluster's operator forbids to probe it"
}

// Refer records that an instance's SLA names users, and the instance's node or "".
func (m *Machine) Refer(users []string, id api.InstanceID, on api.NodeID) {
	for _, name := range users {
		if m.users[name] == nil {
			m.users[name] = &user{of: map[api.InstanceID]api.NodeID{}}
		}
		m.users[name].of[id] = on
	}
}

// Unrefer records that an instance's SLA no longer names users. A user that no SLA names is
// removed.
func (m *Machine) Unrefer(users []string, id api.InstanceID) {
	for _, name := range users {
		u := m.users[name]
		if u == nil {
			continue
		}
		if delete(u.of, id); len(u.of) == 0 {
			m.endRound(u)
			m.rounds.remove(name)
			m.fx.Timers.Clear(userKey(name))
			delete(m.users, name)
		}
	}
	m.startWaiting()
}

// Measure starts a round of probes for each user without a result. It reports whether a
// result is pending.
func (m *Machine) Measure(users []string) (waits bool) {
	for _, name := range users {
		u := m.users[name]
		switch {
		case u != nil && u.secondHalf, u != nil && u.asked != nil && !u.known():
			waits = true
		case u == nil || u.known() || u.failure != "":
		default:
			m.startRound(name)
			waits = waits || u.asked != nil || m.rounds.waits(name)
		}
	}
	return waits
}

// startRound orders some nodes to probe a user, or makes the user wait for its turn.
func (m *Machine) startRound(name string) {
	u := m.users[name]
	if u.asked != nil {
		return
	}
	if u.failure = m.forbidden(name); u.failure != "" {
		m.setTimer(name, userFor)
		return
	}
	holder := m.holderOf(u)
	if !m.rounds.begin(holder, name) {
		return
	}
	nodes := m.probers(name, u.round)
	if len(nodes) == 0 {
		m.rounds.end(holder)
		u.failure = "no node can probe it now"
		m.setTimer(name, userRetry)
		return
	}
	u.round++
	u.holder = holder
	u.tried, u.answers, u.refused = map[api.NodeID]bool{}, map[string]time.Duration{}, ""
	m.order(name, nodes)
}

// holderOf returns the tenant to whose share a user's round counts: of the tenants whose
// SLAs name the user, the one with the fewest rounds under way.
func (m *Machine) holderOf(u *user) string {
	best, least := "", -1
	for _, id := range step.Keys(u.of) {
		top := string(id.Tenant().Top())
		if n := m.rounds.underWayOf(top); least < 0 || n < least {
			best, least = top, n
		}
	}
	return best
}

// shareOf returns an opaque name of a tenant. Nodes divide their probes among these names.
func shareOf(tenant string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tenant))
	return strconv.FormatUint(h.Sum64(), 36)
}

func (m *Machine) order(name string, nodes []api.NodeID) {
	u := m.users[name]
	u.asked = map[api.NodeID]uint64{}
	for _, id := range nodes {
		u.tried[id] = true
		m.lastProbe++
		u.asked[id] = m.fx.Boot<<24 | m.lastProbe&(1<<24-1)
		m.probes[u.asked[id]] = name
		m.fx.ToNode(id, wire.ProbeOrder{
			ID: u.asked[id], Target: name, For: shareOf(u.holder), Allow: m.probe.Allow, Deny: m.probe.Deny, Wait: probeWait,
		})
	}
	m.setTimer(name, probeWait+probeSlack)
}

// probers returns the nodes that measure a user. Up to half of them run an instance whose SLA
// names the user. The others are drawn at random; nodes with a coordinate come first.
func (m *Machine) probers(name string, round uint64) (out []api.NodeID) {
	take := func(n *node, blind bool) {
		if n != nil && n.Probes && (blind || n.Coord != nil) && !slices.Contains(out, n.ID) {
			out = append(out, n.ID)
		}
	}
	u := m.users[name]
	for _, id := range step.Keys(u.of) {
		if len(out) < probers/2 {
			take(m.at[u.of[id]], true)
		}
	}
	random := newSeededRandom("user", name, round)
	order := slices.Clone(m.nodes)
	drawn := order[:min(len(order), 8*probers)]
	for i := range drawn { // without repetition, because a position takes three answers
		j := i + random.intn(len(order)-i)
		order[i], order[j] = order[j], order[i]
	}
	for _, blind := range []bool{false, true} { // the answer of a node without a coordinate helps that node only
		for _, n := range drawn {
			if len(out) >= probers {
				return out
			}
			take(n, blind)
		}
	}
	return out
}

// closest returns the nodes not in tried whose coordinates are nearest to a position.
func (m *Machine) closest(at api.Coordinate, tried map[api.NodeID]bool) (out []api.NodeID) {
	type near struct {
		id api.NodeID
		d  time.Duration
	}
	var best []near // sorted, at most nearest
	for _, n := range m.nodes {
		if tried[n.ID] || n.Coord == nil || !n.Probes {
			continue
		}
		d := vivaldi.Distance(at, *n.Coord)
		i, _ := slices.BinarySearchFunc(best, near{n.ID, d}, func(a, b near) int {
			return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.id, b.id))
		})
		if i < nearest {
			best = slices.Insert(best, i, near{n.ID, d})
			best = best[:min(len(best), nearest)]
		}
	}
	for _, b := range best {
		out = append(out, b.id)
	}
	return out
}

// Probed handles a node's answer to a probe order. An unexpected answer has no effect.
func (m *Machine) Probed(by api.NodeID, p wire.Probed) Result {
	name, ok := m.probes[p.ID]
	u := m.users[name]
	if !ok || u == nil || u.asked[by] != p.ID {
		return Result{}
	}
	delete(m.probes, p.ID)
	delete(u.asked, by)
	switch {
	case p.Refused:
		u.refused = step.Clip("the operator forbids to probe it: " + p.Error)
	case p.Error == "" && p.RTT > 0 && p.RTT <= time.Minute:
		u.answers[string(by)] = p.RTT
	}
	if len(u.asked) == 0 || u.refused != "" {
		return m.endHalf(name)
	}
	return Result{}
}

// UserDue ends a round whose time is over, or starts one if the last result is old.
func (m *Machine) UserDue(name string) Result {
	u := m.users[name]
	switch {
	case u == nil:
	case u.asked != nil:
		return m.endHalf(name)
	default:
		u.failure = ""
		m.startRound(name)
	}
	return Result{}
}

// endHalf computes a user's position from the answers. It starts the second half of the round
// after the first.
func (m *Machine) endHalf(name string) Result {
	u := m.users[name]
	asked, refined := len(u.answers)+len(u.asked), u.secondHalf
	m.endRound(u)
	var from []api.Coordinate
	var rtts []time.Duration
	for _, id := range step.Keys(u.answers) {
		if n := m.at[api.NodeID(id)]; n != nil && n.Coord != nil {
			from, rtts = append(from, *n.Coord), append(rtts, u.answers[id])
		}
	}
	at, found := vivaldi.Locate(from, rtts)
	found = found && vivaldi.Valid(&at)
	if found && !refined && u.refused == "" {
		if more := m.closest(at, u.tried); len(more) > 0 {
			u.at, u.measured, u.secondHalf = &at, maps.Clone(u.answers), true // used by placements that cannot wait
			m.rounds.beginBeyondShare(u.holder)
			m.order(name, more)
			return Result{}
		}
	}
	next := userFor
	switch {
	case u.refused != "":
		u.failure, u.at, u.measured = u.refused, nil, nil
	case found:
		u.at, u.measured = &at, u.answers
	case len(u.answers) > 0 && u.at == nil:
		u.measured, next = u.answers, userRetry // too few for a position, but valid for the nodes that measured
	case u.known():
		next = userRetry // the old result is better than none
	default:
		u.failure, next = fmt.Sprintf("none of %d nodes got an answer from it", asked), userRetry
	}
	u.tried, u.answers = nil, nil
	m.setTimer(name, next)
	m.startWaiting()
	return Result{Changed: true, Measured: step.Keys(u.of)}
}

func (m *Machine) startWaiting() {
	for {
		name, ok := m.rounds.next()
		if !ok {
			return
		}
		if m.users[name] != nil {
			m.startRound(name)
		}
	}
}

func (m *Machine) endRound(u *user) {
	if u.asked == nil {
		return
	}
	for _, order := range u.asked {
		delete(m.probes, order)
	}
	u.asked, u.secondHalf = nil, false
	m.rounds.end(u.holder)
}

func (m *Machine) setTimer(name string, after time.Duration) {
	m.fx.Timers.Set(userKey(name), m.fx.Now.Add(after))
}
