package latency

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	web   = api.ServiceID("acme/shop.prod.web.prod")
	pre   = api.ServiceID("acme/shop.prod.pre.prod")
	far   = api.ServiceID("acme/shop.prod.far.prod")
	other = api.ServiceID("evil/shop.prod.pre.prod")
)

// rig drives a machine whose nodes n0, n1, … are 10 ms apart, n0 at 0.
type rig struct {
	t    *testing.T
	fx   effects.Sink
	m    *Machine
	now  time.Time
	sent []wire.ProbeOrder // since the last call of orders
	to   []api.NodeID      // parallel to sent
}

func newRig(t *testing.T, nodes int, p Probe) *rig {
	r := &rig{t: t, now: epoch}
	r.fx.Boot = 1
	r.m = New(&r.fx, "munich", p)
	r.fx.Begin(r.now)
	r.m.Start()
	for i := range nodes {
		r.node(i, nil)
	}
	return r
}

func at(ms float64) *api.Coordinate {
	c := vivaldi.New()
	c.Vec[0], c.Error = ms/1000, 0.1
	return &c
}

func nodeID(i int) api.NodeID { return api.NodeID(fmt.Sprintf("n%d", i)) }

func (r *rig) node(i int, change func(*Node)) {
	n := Node{ID: nodeID(i), Coord: at(10 * float64(i)), Probes: true, Overlay: true}
	if change != nil {
		change(&n)
	}
	r.m.SetNode(n)
}

// do makes a call in its own step and keeps the probe orders that it sends.
func (r *rig) do(call func()) {
	r.fx.Begin(r.now)
	call()
	for _, e := range r.fx.End().Send {
		o := e.Msg.(wire.ProbeOrder)
		r.sent, r.to = append(r.sent, o), append(r.to, api.NodeID(strings.TrimPrefix(string(e.To), "node/")))
	}
}

// orders returns and removes the orders that were sent since the last call.
func (r *rig) orders() ([]wire.ProbeOrder, []api.NodeID) {
	sent, to := r.sent, r.to
	r.sent, r.to = nil, nil
	return sent, to
}

// answer answers all orders for a user at a position. It returns the result of the last answer.
func (r *rig) answer(ms float64) (last Result) {
	sent, to := r.orders()
	for i, o := range sent {
		d := r.m.at[to[i]].Coord.Vec[0]*1000 - ms
		r.do(func() {
			last = r.m.Probed(to[i], wire.Probed{ID: o.ID, RTT: time.Duration(max(d, -d, 0.1) * float64(time.Millisecond))})
		})
	}
	return last
}

// pass advances the time and handles the timers that are due.
func (r *rig) pass(d time.Duration) {
	end := r.now.Add(d)
	for {
		next := r.fx.Timers.Next()
		if next.IsZero() || next.After(end) {
			break
		}
		r.now = next
		r.do(func() {
			for {
				k, ok := r.fx.Timers.Pop(r.now)
				if !ok {
					return
				}
				switch k.Kind {
				case effects.User:
					r.m.UserDue(k.Name)
				case effects.Peers:
					r.m.ChoosePeers(k.Node)
				case effects.Pairs:
					r.m.ExpirePairs()
				}
			}
		})
	}
	r.now = end
	r.fx.Begin(end)
}

func (r *rig) needs(users ...string) (waits bool) {
	r.do(func() { waits = r.m.Measure(users) })
	return waits
}

func userOf(name string) sched.Link { return sched.Link{User: name, RTT: 12 * time.Millisecond} }

const public = "8.8.8.8" // the test answers; nothing is sent

func TestAUserIsLocatedByTwoRoundsOfProbes(t *testing.T) {
	r := newRig(t, 40, Probe{})
	r.m.Refer([]string{public}, web.Instance(0), "")
	if !r.needs(public) {
		t.Error("placement does not wait for the first measurement")
	}
	if n := len(r.sent); n != probers {
		t.Fatalf("%d nodes probe in the first turn, want %d", n, probers)
	}
	r.answer(205)
	if n := len(r.sent); n != nearest {
		t.Fatalf("%d nodes probe in the second turn, want %d", n, nearest)
	}
	if !r.needs(public) {
		t.Error("placement does not wait for the second turn")
	}
	res := r.answer(205)
	if !res.Changed || !slices.Equal(res.Measured, []api.InstanceID{web.Instance(0)}) {
		t.Errorf("the result is %+v, want a change and the instance that names the user", res)
	}
	if sent, _ := r.orders(); len(sent) > 0 {
		t.Errorf("%d nodes probe in a third turn, want none", len(sent))
	}
	b := r.m.UserBound(userOf(public))
	if b.Unknown != "" || len(b.Points) != 1 || vivaldi.Distance(*b.Points[0].Coord, *at(205)) > 5*time.Millisecond {
		t.Errorf("the user is at %+v, want a position within 5 ms of 205 ms", b)
	}
	if s := r.m.Size(); s.Probes+s.Rounds != 0 {
		t.Errorf("%d orders are open and %d rounds under way, want none", s.Probes, s.Rounds)
	}
	r.m.Unrefer([]string{public}, web.Instance(0))
	if s := r.m.Size(); s != (Size{}) || r.fx.Timers.Has(userKey(public)) {
		t.Errorf("a user that no SLA names leaves %+v", s)
	}
}

func TestAllNodesOfASmallClusterProbe(t *testing.T) {
	r := newRig(t, probers, Probe{})
	for i := range 50 {
		name := fmt.Sprintf("%s:%d", public, 1000+i)
		r.m.Refer([]string{name}, web.Instance(i), "")
		r.needs(name)
		if sent, _ := r.orders(); len(sent) != probers {
			t.Errorf("%d of %d nodes probe user %d, want all", len(sent), probers, i)
		}
		r.pass(probeWait + 2*probeSlack) // the round ends, because a tenant only has a share of the rounds
		r.orders()
	}
}

func TestOnlyConnectedNodesProbe(t *testing.T) {
	r := newRig(t, 4, Probe{})
	r.node(0, func(n *Node) { n.Probes = false })
	r.m.DropNode("n1")
	r.m.Refer([]string{public}, web.Instance(0), "n0")
	r.needs(public)
	_, to := r.orders()
	if slices.Sort(to); !slices.Equal(to, []api.NodeID{"n2", "n3"}) {
		t.Errorf("%v probe, want n2 and n3", to)
	}
}

func TestOperatorLimitsProbes(t *testing.T) {
	lab := netip.MustParsePrefix("10.9.0.0/16")
	for name, c := range map[string]struct {
		policy Probe
		target string
		asked  bool
	}{
		"public":             {Probe{}, public, true},
		"a name":             {Probe{}, "example.org:443", true},
		"private":            {Probe{}, "10.9.1.2", false},
		"private and a port": {Probe{}, "10.9.1.2:80", false},
		"local":              {Probe{}, "127.0.0.1", false},
		"link-local":         {Probe{}, "fe80::1", false},
		"a carrier's":        {Probe{}, "100.64.1.1", false},
		"documentation":      {Probe{}, "198.51.100.7", false},
		"a benchmark's":      {Probe{}, "198.18.0.1:443", false},
		"documentation, v6":  {Probe{}, "[2001:db8::7]:443", false},
		"NAT64":              {Probe{}, "64:ff9b::808:808", false},
		"public, v6":         {Probe{}, "2001:4860:4860::8888", true},
		"unique local":       {Probe{}, "fd00::1", false},
		"private, v4-mapped": {Probe{}, "::ffff:10.9.1.2", false},
		"allowed":            {Probe{Allow: []netip.Prefix{lab}}, "10.9.1.2", true},
		"denied":             {Probe{Deny: []netip.Prefix{netip.MustParsePrefix("8.8.0.0/16")}}, public, false},
		"denied and allowed": {Probe{Allow: []netip.Prefix{lab}, Deny: []netip.Prefix{lab}}, "10.9.1.2", false},
		"off":                {Probe{Off: true}, "example.org", false},
		"allowed, v4-mapped": {Probe{Allow: []netip.Prefix{lab}}, "::ffff:10.9.1.2", true},
		"no target":          {Probe{}, "a b", false},
	} {
		r := newRig(t, 4, c.policy)
		r.m.Refer([]string{c.target}, web.Instance(0), "")
		r.needs(c.target)
		if sent, _ := r.orders(); (len(sent) > 0) != c.asked {
			t.Errorf("%s: %d nodes probe %s, want some: %v", name, len(sent), c.target, c.asked)
		}
		if b := r.m.UserBound(userOf(c.target)); b.Unknown == "" {
			t.Errorf("%s: the bound of a link to %s is %+v before any measurement, want it unknown", name, c.target, b)
		}
	}
}

// A tenant whose SLAs name many users leaves rounds to others, and all its users are measured in
// turn.
func TestATenantGetsItsShareOfRounds(t *testing.T) {
	r := newRig(t, probers, Probe{})
	loud, quiet := api.ServiceID("loud/shop.prod.web.v1"), api.ServiceID("quiet/shop.prod.web.v1")
	targets := map[string]bool{}
	asked := func() int {
		before := len(targets)
		sent, _ := r.orders()
		for _, o := range sent {
			targets[o.Target] = true
		}
		return len(targets) - before
	}
	name := func(i int) string { return fmt.Sprintf("%s:%d", public, 1000+i) }
	for i := range 2 * maxRounds {
		r.m.Refer([]string{name(i)}, loud.Instance(i), "")
		r.needs(name(i))
	}
	if n := asked(); n != tenantRounds {
		t.Errorf("%d of %d users of one tenant are measured at once, want %d", n, 2*maxRounds, tenantRounds)
	}
	r.m.Refer([]string{public + ":99"}, quiet.Instance(0), "")
	r.needs(public + ":99")
	if asked(); !targets[public+":99"] {
		t.Error("the user of another tenant is not measured at once")
	}
	// After the measured users are removed, the waiting ones are measured.
	for i := range 2 * maxRounds {
		if targets[name(i)] {
			r.do(func() { r.m.Unrefer([]string{name(i)}, loud.Instance(i)) })
		}
	}
	if n := asked(); n != tenantRounds {
		t.Errorf("%d users of the tenant are measured once the first ones are deleted, want %d", n, tenantRounds)
	}
}

// sampleOf returns a measurement of the given ms from a service on the node to one on another
// node.
func sampleOf(local, remote api.ServiceID, node api.NodeID, ms float64) wire.NetPair {
	return wire.NetPair{Local: local, Remote: remote, Node: node, Least: time.Duration(ms * float64(time.Millisecond)), Connections: 3}
}

// abroad returns a measurement whose other end is on a node of another cluster.
func abroad(local, remote api.ServiceID, key byte, ms float64) wire.NetPair {
	p := sampleOf(local, remote, api.NodeID(api.PeerKey{key}.String()), ms)
	p.Cluster = "bonn"
	return p
}

var toPre = sched.Link{Service: "pre.prod", RTT: 12 * time.Millisecond}

// linkedRig returns a rig with web on n2 and a link to pre on n3; another tenant's pre is on n5.
func linkedRig(t *testing.T) *rig {
	r := newRig(t, 6, Probe{})
	r.m.SetLinks(web, []sched.Link{toPre})
	r.m.SetRunning(web, "n2", true)
	r.m.SetRunning(pre, "n3", true)
	r.m.SetRunning(other, "n5", true)
	return r
}

// rtt returns the round trip by which the link of web on a node is judged.
func (r *rig) rtt(on api.NodeID, targets ...api.Target) (rtt time.Duration, how string) {
	b := toPre.Bound()
	r.m.Measured(&b, web, toPre, targets, on)
	how, _ = r.m.HowMeasured(web, on, toPre, &b, targets)
	return b.Measured[string(on)].Round(time.Millisecond), how
}

func TestMeasuredRoundTripCountsWhileFresh(t *testing.T) {
	r := linkedRig(t)
	if rtt, how := r.rtt("n2"); rtt != 0 || how != "estimated by coordinates" {
		t.Errorf("before any report the round trip is %s, %s", rtt, how)
	}
	if !r.m.Report("n3", []wire.NetPair{sampleOf(pre, web, "n2", 40)}, nil) {
		t.Error("the first report changes nothing")
	}
	want := "measured by 3 connections at 00:00:00 UTC"
	if rtt, how := r.rtt("n2"); rtt != 40*time.Millisecond || how != want {
		t.Errorf("the round trip is %s, %s; want 40ms, %s", rtt, how, want)
	}
	if r.m.Report("n3", []wire.NetPair{sampleOf(pre, web, "n2", 41)}, nil) {
		t.Error("a change by less than a tenth counts as a change")
	}
	// The shorter measurement of the two ends counts.
	r.m.Report("n2", []wire.NetPair{sampleOf(web, pre, "n3", 9)}, nil)
	if rtt, _ := r.rtt("n2"); rtt != 9*time.Millisecond {
		t.Errorf("the round trip is %s, want the 9ms that the other end measured", rtt)
	}
	r.pass(wire.MaxNetPairAge)
	if rtt, how := r.rtt("n2"); rtt != 0 || how != "estimated by coordinates" {
		t.Errorf("an old report still counts: %s, %s", rtt, how)
	}
	r.pass(wire.MaxNetPairAge)
	if n := r.m.Size().Pairs; n != 0 {
		t.Errorf("%d old pairs are kept", n)
	}
}

func TestTheNearestInstanceDecidesTheRoundTrip(t *testing.T) {
	r := linkedRig(t)
	r.m.Report("n3", []wire.NetPair{sampleOf(pre, web, "n2", 40)}, nil)
	r.m.SetRunning(pre, "n1", true)
	if rtt, how := r.rtt("n2"); rtt != 10*time.Millisecond || how != "estimated by coordinates" {
		t.Errorf("beside one measured at 40ms another is 10ms away by coordinates: %s, %s", rtt, how)
	}
	r.m.SetRunning(pre, "n2", true)
	r.m.Report("n2", []wire.NetPair{sampleOf(web, pre, "n2", 3)}, nil)
	b := toPre.Bound()
	if r.m.Measured(&b, web, toPre, nil, "n2"); len(b.Measured) != 1 || b.Measured["n2"] != 0 {
		t.Errorf("on the same node the round trip is %v, want 0", b.Measured)
	}
}

// A node may only report pairs of its own services with services that run where it reports.
func TestForgedReportsAreNotKept(t *testing.T) {
	r := linkedRig(t)
	r.m.SetRunning(other, "n5", true)
	for name, forged := range map[string]wire.NetPair{
		"of what runs elsewhere":     sampleOf(pre, web, "n2", 40),
		"of the end that links":      sampleOf(web, pre, "n3", 40),
		"to another application":     sampleOf(other, web, "n2", 40),
		"of a service that is not":   sampleOf(far, web, "n2", 40),
		"to where it does not run":   sampleOf(other, other, "n1", 40),
		"to no node":                 sampleOf(other, other, "n99", 40),
		"to itself":                  sampleOf(other, other, "n5", 40),
		"of an unnamed service":      sampleOf("", "", "n2", 40),
		"of a service without a dot": sampleOf("x", "x", "n2", 40),
	} {
		if r.m.Report("n5", []wire.NetPair{forged}, nil); r.m.Size().Pairs != 0 {
			t.Errorf("%s: a forged report is kept", name)
		}
	}
	for name, change := range map[string]func(*wire.NetPair){
		"no time":        func(p *wire.NetPair) { p.Least = 0 },
		"less than none": func(p *wire.NetPair) { p.Least = -time.Second },
		"an hour":        func(p *wire.NetPair) { p.Least = time.Hour },
		"no connection":  func(p *wire.NetPair) { p.Connections = 0 },
		"in the future":  func(p *wire.NetPair) { p.Age = -time.Hour },
		"too long ago":   func(p *wire.NetPair) { p.Age = wire.MaxNetPairAge },
	} {
		p := sampleOf(pre, web, "n2", 40)
		change(&p)
		if r.m.Report("n3", []wire.NetPair{p}, nil); r.m.Size().Pairs != 0 {
			t.Errorf("%s: an impossible report is kept", name)
		}
	}
}

// For other clusters, a node may only report its own services and services that the root has
// announced there.
func TestForgedReportsOnOtherClustersAreNotKept(t *testing.T) {
	r := newRig(t, 6, Probe{})
	r.m.SetLinks(web, []sched.Link{toPre})
	r.m.SetRunning(web, "n2", true)
	targets := map[api.ServiceID][]api.Target{web: {{Service: pre, Positions: []api.Position{{Coord: at(30)}}}}}
	own, nameless := abroad(web, pre, 1, 40), abroad(web, pre, 1, 40)
	own.Cluster, nameless.Node = "munich", ""
	for name, forged := range map[string]struct {
		by   api.NodeID
		pair wire.NetPair
	}{
		"of what runs elsewhere":   {"n3", abroad(web, pre, 1, 40)},
		"to what is not there":     {"n2", abroad(web, far, 1, 40)},
		"to another application":   {"n2", abroad(web, other, 1, 40)},
		"to itself":                {"n2", abroad(web, web, 1, 40)},
		"in the cluster, by a key": {"n2", own},
		"to no node":               {"n2", nameless},
	} {
		if r.m.Report(forged.by, []wire.NetPair{forged.pair}, targets); r.m.Size().Pairs != 0 {
			t.Errorf("%s: a forged report is kept", name)
		}
	}
	var many []wire.NetPair
	for i := range byte(3 * maxRemote) {
		many = append(many, abroad(web, pre, i, 5))
	}
	if r.m.Report("n2", many, targets); r.m.Size().Pairs != maxRemote {
		t.Errorf("%d pairs with other clusters are kept, want %d", r.m.Size().Pairs, maxRemote)
	}
	r.pass(2 * wire.MaxNetPairAge)
	if r.m.Report("n2", []wire.NetPair{abroad(web, pre, 1, 40)}, nil); r.m.Size().Pairs != 0 {
		t.Error("a report on a service that is in no other cluster any more is kept")
	}
}

// A service that was measured on all nodes of its route is not estimated in addition.
func TestRouteDecidesWhetherAllWereMeasured(t *testing.T) {
	r := newRig(t, 6, Probe{})
	r.m.SetLinks(web, []sched.Link{toPre})
	r.m.SetRunning(web, "n2", true)
	target := api.Target{Service: pre, Positions: []api.Position{{Coord: at(30)}}}
	r.m.Report("n2", []wire.NetPair{abroad(web, pre, 1, 40)}, map[api.ServiceID][]api.Target{web: {target}})
	key := func(k byte) api.NodeID { return api.NodeID(api.PeerKey{k}.String()) }
	for name, c := range map[string]struct {
		route map[api.NodeID]api.ClusterID
		want  time.Duration
	}{
		"unknown":        {nil, 40 * time.Millisecond},
		"where it was":   {map[api.NodeID]api.ClusterID{key(1): "bonn"}, 40 * time.Millisecond},
		"elsewhere":      {map[api.NodeID]api.ClusterID{key(2): "bonn"}, 10 * time.Millisecond},
		"on one more":    {map[api.NodeID]api.ClusterID{key(1): "bonn", key(2): "bonn"}, 10 * time.Millisecond},
		"in another one": {map[api.NodeID]api.ClusterID{key(1): "paris"}, 10 * time.Millisecond},
	} {
		r.m.SetRemote(pre, c.route)
		if rtt, how := r.rtt("n2", target); rtt != c.want {
			t.Errorf("route %s: the round trip is %s (%s), want %s", name, rtt, how, c.want)
		}
	}
}

func TestMeasuredPairsAreBounded(t *testing.T) {
	r := linkedRig(t)
	for i := range maxPairs + 10 {
		r.node(100+i, nil)
		r.m.SetRunning(far, nodeID(100+i), true)
		r.m.Report("n3", []wire.NetPair{sampleOf(pre, far, nodeID(100+i), 1)}, nil)
	}
	if n := r.m.Size().Pairs; n != 2*maxPairs { // each pair has two entries
		t.Errorf("%d pairs of one service on a node are kept, want %d", n/2, maxPairs)
	}
	r.m.Report("n2", []wire.NetPair{sampleOf(web, pre, "n3", 1)}, nil)
	if n := r.m.Size().Pairs; n != 2*maxPairs {
		t.Error("the other end's report exceeds the bound")
	}
}

func TestLinkedServicesAreReported(t *testing.T) {
	r := newRig(t, 4, Probe{})
	r.m.SetRunning(pre, "n0", true)
	r.m.SetRunning(far, "n0", true)
	r.m.SetRunning(web, "n1", true)
	expect := func(when string, n0, n1 []api.ServiceID) {
		t.Helper()
		for id, want := range map[api.NodeID][]api.ServiceID{"n0": n0, "n1": n1} {
			if got := r.m.Reports(id); !slices.Equal(got, want) {
				t.Errorf("%s: %s reports %v, want %v", when, id, got, want)
			}
		}
	}
	expect("without links", nil, nil)
	told := r.m.SetLinks(web, []sched.Link{toPre})
	if slices.Sort(told); !slices.Equal(slices.Compact(told), []api.NodeID{"n0", "n1"}) {
		t.Errorf("a new link concerns %v, want n0 and n1", told)
	}
	expect("with a link", []api.ServiceID{pre}, []api.ServiceID{web})
	if told := r.m.SetLinks(web, []sched.Link{toPre}); len(told) > 0 {
		t.Errorf("the same link again concerns %v", told)
	}
	r.m.SetRunning(pre, "n1", true)
	expect("with pre on both", []api.ServiceID{pre}, []api.ServiceID{pre, web})
	r.m.SetLinks(web, nil)
	expect("without the link", nil, nil)
	for _, gone := range []struct {
		s api.ServiceID
		n api.NodeID
	}{{pre, "n0"}, {far, "n0"}, {web, "n1"}, {pre, "n1"}} {
		r.m.SetRunning(gone.s, gone.n, false)
	}
	if s := r.m.Size(); s != (Size{}) {
		t.Errorf("services that do not exist any more leave %+v", s)
	}
}

func TestMembersMeasureAFewOthers(t *testing.T) {
	r := newRig(t, 30, Probe{})
	r.node(7, func(n *Node) { n.Silent = true })
	r.node(8, func(n *Node) { n.Overlay = false })
	if _, chosen := r.m.Peers("n0"); chosen {
		t.Error("peers are chosen before those that come together are known")
	}
	r.pass(2 * peersFirstIn)
	by := map[api.NodeID][]api.NodeID{}
	for i := range 30 {
		id := nodeID(i)
		peers, chosen := r.m.Peers(id)
		if i == 8 {
			if chosen {
				t.Errorf("%s is no member of the overlay network and measures %v", id, peers)
			}
			continue
		}
		if len(peers) != nearPeers+randomPeers || slices.Contains(peers, id) || slices.Contains(peers, "n7") || slices.Contains(peers, "n8") {
			t.Errorf("%s measures %v, want %d other members that are not silent", id, peers, nearPeers+randomPeers)
		}
		for _, p := range peers {
			by[p] = append(by[p], id)
		}
	}
	for id, want := range by {
		if slices.Sort(want); !slices.Equal(r.m.MeasuredBy(id), want) {
			t.Errorf("%s is measured by %v, want %v", id, r.m.MeasuredBy(id), want)
		}
	}
	gone := r.m.MeasuredBy("n3")
	r.m.DropNode("n3")
	r.pass(peersFirstIn)
	for _, id := range gone {
		if peers, _ := r.m.Peers(id); slices.Contains(peers, "n3") {
			t.Errorf("%s still measures a removed node: %v", id, peers)
		}
	}
}
