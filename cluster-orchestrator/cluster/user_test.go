package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func toUser(target string, ms float64) api.Constraint {
	return api.Constraint{Type: api.ConstrainLatency, Target: target, Threshold: ms}
}

// probed answers all probe orders in envelopes for a user at the given position.
func (w *world) probed(envs []wire.Envelope, ms float64, change func(api.NodeID, *wire.Probed) bool) (answers []NodeProbed) {
	for _, e := range envs {
		o, ok := e.Msg.(wire.ProbeOrder)
		if !ok {
			continue
		}
		id := api.NodeID(strings.TrimPrefix(string(e.To), "node/"))
		d := w.node(id).Coord.Vec[0]*1000 - ms
		p := wire.Probed{ID: o.ID, RTT: time.Duration(max(d, -d, 0.1) * float64(time.Millisecond)), How: "icmp"}
		if change == nil || change(id, &p) {
			answers = append(answers, NodeProbed{id, p})
		}
	}
	return answers
}

const there = "8.8.8.8" // the test answers; nothing is sent

func TestAUserIsFoundByProbes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(api.NodeID, *wire.Probed) bool
		pass   time.Duration
		node   bool
		why    string
	}{
		"all answer":      {nil, 0, true, ""},
		"some are silent": {func(id api.NodeID, _ *wire.Probed) bool { return id != "n0" && id != "n5" }, 6 * time.Second, true, ""},
		"some lie": {func(id api.NodeID, p *wire.Probed) bool {
			if id == "n0" {
				p.RTT = -1
			}
			return true
		}, 6 * time.Second, true, ""},
		"nobody answers": {func(api.NodeID, *wire.Probed) bool { return false }, 6 * time.Second, false, "got an answer"},
		"a node forbids it": {func(_ api.NodeID, p *wire.Probed) bool {
			p.RTT, p.Refused, p.Error = 0, true, "10.0.0.1 is private"
			return true
		}, 0, false, "forbids"},
	} {
		t.Run(name, func(t *testing.T) {
			w := line(t, 6, nil)
			w.wants(of(web, 0, 1, toUser(there, 12)))
			if n := w.at(0).Node; n != "" || w.record(web.Instance(0)).HandedBack {
				t.Fatalf("before anybody measured it is on %q", n)
			}
			answers := w.probed(w.last.Send, 38, c.change)
			for _, a := range answers {
				w.step(a)
				w.step(a) // a duplicate
				w.step(NodeProbed{"n1", wire.Probed{ID: a.ID + 1000, RTT: time.Millisecond}})
			}
			w.pass(c.pass)
			n := w.at(0).Node
			if c.node && n != "n3" && n != "n4" {
				t.Errorf("it is on %q", n)
			}
			in := w.record(web.Instance(0))
			if !c.node && (n != "" || !in.HandedBack || w.observed(web.Instance(0)).Why == nil || !strings.Contains(in.Detail, c.why)) {
				t.Errorf("it is on %q: %s %+v", n, in.Detail, w.observed(web.Instance(0)).Why)
			}
			if s := w.c.latency.Size(); s.Probes+s.Rounds != 0 {
				t.Errorf("%d probe orders are open, %d rounds are under way or wait, want none", s.Probes, s.Rounds)
			}
			w.checkBooks()
			// The next instance uses the result, and no node probes again.
			w.wants(of(web, 1, 1, toUser(there, 12)))
			if got := w.probed(w.last.Send, 38, nil); len(got) != 0 || c.node && w.at(1).Node == "" {
				t.Errorf("the next one asks %d nodes and is on %q", len(got), w.at(1).Node)
			}
			w.drops(web.Instance(0), web.Instance(1))
			w.beat()
			if n := w.c.latency.Size().Users; n != 0 {
				t.Errorf("%d users are remembered that no SLA names", n)
			}
		})
	}
}

func TestANodeThatDiesWhileItMeasuresDelaysNoPlacement(t *testing.T) {
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
