package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func toUser(target string, ms float64) api.Constraint {
	return api.Constraint{Type: api.ConstrainLatency, Target: target, Threshold: ms}
}

// probed answers all orders of some envelopes as if the user stood at a place.
func (w *world) probed(envs []api.Envelope, ms float64, change func(api.NodeID, *api.Probed) bool) (answers []NodeProbed) {
	for _, e := range envs {
		o, ok := e.Msg.(api.ProbeOrder)
		if !ok {
			continue
		}
		id := api.NodeID(strings.TrimPrefix(string(e.To), "node/"))
		d := w.c.nodes[id].coord.Vec[0]*1000 - ms
		p := api.Probed{ID: o.ID, RTT: time.Duration(max(d, -d, 0.1) * float64(time.Millisecond)), How: "icmp"}
		if change == nil || change(id, &p) {
			answers = append(answers, NodeProbed{id, p})
		}
	}
	return answers
}

const there = "8.8.8.8" // nothing is sent: the test answers

func TestAUserIsFoundByProbes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(api.NodeID, *api.Probed) bool
		pass   time.Duration
		node   bool
		why    string
	}{
		"all answer":      {nil, 0, true, ""},
		"some are silent": {func(id api.NodeID, _ *api.Probed) bool { return id != "n0" && id != "n5" }, 6 * time.Second, true, ""},
		"some lie": {func(id api.NodeID, p *api.Probed) bool {
			if id == "n0" {
				p.RTT = -1
			}
			return true
		}, 6 * time.Second, true, ""},
		"nobody answers": {func(api.NodeID, *api.Probed) bool { return false }, 6 * time.Second, false, "got an answer"},
		"a node forbids it": {func(_ api.NodeID, p *api.Probed) bool {
			p.RTT, p.Refused, p.Error = 0, true, "10.0.0.1 is private"
			return true
		}, 0, false, "forbids"},
	} {
		t.Run(name, func(t *testing.T) {
			w := line(t, 6, nil)
			w.wants(of(web, 0, 1, toUser(there, 12)))
			if n := w.at(0).Node; n != "" || w.c.instances[web.Instance(0)].Offered {
				t.Fatalf("before anybody measured it is on %q", n)
			}
			answers := w.probed(w.last.Send, 38, c.change)
			for _, a := range answers {
				w.step(a)
				w.step(a) // twice
				w.step(NodeProbed{"n1", api.Probed{ID: a.ID + 1000, RTT: time.Millisecond}})
			}
			w.pass(c.pass)
			n := w.at(0).Node
			if c.node && n != "n3" && n != "n4" {
				t.Errorf("it is on %q", n)
			}
			in := w.c.instances[web.Instance(0)]
			if !c.node && (n != "" || !in.Offered || in.why == nil || !strings.Contains(in.Detail, c.why)) {
				t.Errorf("it is on %q: %s %+v", n, in.Detail, in.why)
			}
			if len(w.c.probes) != 0 || w.c.rounds.Size() != 0 {
				t.Errorf("%d probes are open, %d rounds under way or waiting", len(w.c.probes), w.c.rounds.Size())
			}
			w.checkBooks()
			// What is known is known to the next, and nobody is asked for it.
			w.wants(of(web, 1, 1, toUser(there, 12)))
			if got := w.probed(w.last.Send, 38, nil); len(got) != 0 || c.node && w.at(1).Node == "" {
				t.Errorf("the next one asks %d nodes and is on %q", len(got), w.at(1).Node)
			}
			w.drops(web.Instance(0), web.Instance(1))
			w.beat()
			if len(w.c.users) != 0 {
				t.Error("a user is remembered that nobody asks for")
			}
		})
	}
}

// A place that is told from afar is told badly: those that seem nearest are asked
// as well, once.
func TestThoseThatSeemNearestAreAskedToo(t *testing.T) {
	w := line(t, 40, nil)
	w.wants(of(web, 0, 1, toUser(there, 12)))
	first := w.probed(w.last.Send, 205, nil)
	if len(first) != probers {
		t.Fatalf("%d nodes were asked", len(first))
	}
	var second []NodeProbed
	for _, a := range first {
		w.step(a)
		second = append(second, w.probed(w.last.Send, 205, nil)...)
	}
	if len(second) != nearest {
		t.Fatalf("%d more were asked", len(second))
	}
	if n := w.at(0).Node; n != "" {
		t.Errorf("it is on %s before they have answered", n)
	}
	for _, a := range second {
		w.step(a)
		if more := w.probed(w.last.Send, 205, nil); len(more) > 0 {
			t.Errorf("%d were asked in a third turn", len(more))
		}
	}
	if n := w.at(0).Node; n != "n20" && n != "n21" {
		t.Errorf("it is on %q", n)
	}
	if len(w.c.probes) != 0 || w.c.rounds.Size() != 0 {
		t.Errorf("%d probes are open, %d rounds under way or waiting", len(w.c.probes), w.c.rounds.Size())
	}
	w.checkBooks()
}

func TestOfAFewNodesAllAreAsked(t *testing.T) {
	w := line(t, probers, nil)
	for i := range 50 {
		w.wants(of(web, i, 1, toUser(fmt.Sprintf("%s:%d", there, 1000+i), 12)))
		if n := len(w.probed(w.last.Send, 20, nil)); n != probers {
			t.Errorf("of %d nodes %d are asked for the user %d", probers, n, i)
		}
		w.pass(probeWait + 2*probeSlack) // the round ends: one tenant has a share of them only
	}
}

func TestANodeThatDiesWhileItMeasuresHoldsNothingUp(t *testing.T) {
	w := line(t, 6, nil)
	w.wants(of(web, 0, 1, toUser(there, 12)))
	answers := w.probed(w.last.Send, 20, nil)
	w.nodes["n0"].off = true
	for _, a := range answers {
		if a.Node != "n0" {
			w.step(a)
		}
	}
	w.pass(15 * time.Second)
	if n := w.at(0).Node; n == "" {
		t.Errorf("it is nowhere: %s", w.at(0).Detail)
	}
	w.checkBooks()
}

func TestTheOperatorSaysWhoMayBeProbed(t *testing.T) {
	lab := netip.MustParsePrefix("10.9.0.0/16")
	for name, c := range map[string]struct {
		policy Probe
		target string
		asked  bool
	}{
		"public":               {Probe{}, there, true},
		"a name":               {Probe{}, "example.org:443", true},
		"private":              {Probe{}, "10.9.1.2", false},
		"private and a port":   {Probe{}, "10.9.1.2:80", false},
		"local":                {Probe{}, "127.0.0.1", false},
		"link-local":           {Probe{}, "fe80::1", false},
		"a carrier's":          {Probe{}, "100.64.1.1", false},
		"documentation":        {Probe{}, "198.51.100.7", false},
		"a benchmark's":        {Probe{}, "198.18.0.1:443", false},
		"documentation, v6":    {Probe{}, "[2001:db8::7]:443", false},
		"NAT64":                {Probe{}, "64:ff9b::808:808", false},
		"public, v6":           {Probe{}, "2001:4860:4860::8888", true},
		"unique local":         {Probe{}, "fd00::1", false},
		"private in disguise":  {Probe{}, "::ffff:10.9.1.2", false},
		"allowed":              {Probe{Allow: []netip.Prefix{lab}}, "10.9.1.2", true},
		"denied":               {Probe{Deny: []netip.Prefix{netip.MustParsePrefix("8.8.0.0/16")}}, there, false},
		"denied over allowed":  {Probe{Allow: []netip.Prefix{lab}, Deny: []netip.Prefix{lab}}, "10.9.1.2", false},
		"off":                  {Probe{Off: true}, "example.org", false},
		"allowed in disguise?": {Probe{Allow: []netip.Prefix{lab}}, "::ffff:10.9.1.2", true},
	} {
		w := line(t, 4, func(conf *Config) { conf.Probe = c.policy })
		w.wants(of(web, 0, 1, toUser(c.target, 12)))
		if got := w.probed(w.last.Send, 0, nil); (len(got) > 0) != c.asked {
			t.Errorf("%s: %d nodes are asked", name, len(got))
		}
		if in := w.c.instances[web.Instance(0)]; !c.asked && (!in.Offered || in.why.Nearest == nil || in.why.Nearest.Constraint != "latency") {
			t.Errorf("%s: %s %+v", name, in.Detail, in.why)
		}
	}
}

// A tenant whose SLAs name any number of users leaves rounds to the others, and its
// own are measured one after the other.
func TestProbesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := line(t, probers, nil)
	loud, quiet := api.ServiceID("loud/shop.prod.web.v1"), api.ServiceID("quiet/shop.prod.web.v1")
	targets := map[string]bool{}
	asked := func(envs []api.Envelope) {
		for _, e := range envs {
			if o, ok := e.Msg.(api.ProbeOrder); ok {
				targets[o.Target] = true
			}
		}
	}
	var all []api.Assignment
	for i := range 2 * maxRounds {
		all = append(all, of(loud, i, 1, toUser(fmt.Sprintf("%s:%d", there, 1000+i), 12)))
	}
	w.wants(all...)
	asked(w.last.Send)
	if n := len(targets); n != tenantRounds {
		t.Errorf("%d of %d users of one tenant are measured at once, want %d", n, len(all), tenantRounds)
	}
	w.wants(append(all, of(quiet, 0, 1, toUser(there+":99", 12)))...)
	asked(w.last.Send)
	if !targets[there+":99"] {
		t.Error("the user of another tenant is not measured at once")
	}
	// Once all that is measured is deleted, those that waited have their turn.
	var gone []api.InstanceID
	for _, a := range all {
		if targets[a.Spec.Constraints[0].Target] {
			gone = append(gone, a.Instance)
		}
	}
	before := len(targets)
	w.drops(gone...)
	asked(w.last.Send)
	if n := len(targets) - before; n != tenantRounds {
		t.Errorf("%d users of the tenant are measured once the first ones are deleted, want %d", n, tenantRounds)
	}
}
