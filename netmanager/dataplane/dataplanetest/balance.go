package dataplanetest

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

func newFlowsGoToBackendsInTurn(t *testing.T, w *World) {
	w.serveAll()
	equal, weighted := w.service(1, 2, 4, 5), w.service(2, 2, 4, 5)
	weighted.Backends[0].Weight, weighted.Backends[1].Weight = 4, 2
	other := w.service(3, 6)
	w.Hosts[0].publish(equal, weighted, other)
	const turns = 4
	want := map[plane.Ident]map[string]int{
		equal.Ident:    {"c2": 7 * turns, "c4": 7 * turns, "c5": 7 * turns},
		weighted.Ident: {"c2": 12 * turns, "c4": 6 * turns, "c5": 3 * turns},
	}
	for _, network := range networks {
		for six := range 2 {
			count := map[plane.Ident]map[string]int{equal.Ident: {}, weighted.Ident: {}}
			for n := range turns * 7 * 3 { // a multiple of both sums of weights
				from := w.C(1 + n%3)
				for _, s := range []plane.Service{equal, weighted} {
					count[s.Ident][from.MustAsk(network, at(both(s.Address)[six], 80))]++
				}
				if n%10 == 0 { // other flows take no turns
					from.MustAsk(network, at(both(other.Address)[six], 80))
				}
			}
			for id, labels := range want {
				for l, n := range labels {
					if d := count[id][l] - n; d < -processors() || d > processors() {
						t.Errorf("%s flows to service %d, IPv6 %d: got %v, want %v within %d", network, id, six, count[id], labels, processors())
					}
				}
			}
		}
	}
}

func callWithoutBackendIsRefused(t *testing.T, w *World) {
	none := w.service(1)
	w.Hosts[0].publish(none)
	for _, a := range both(none.Address) {
		began := time.Now()
		for network, a := range calls(a) {
			if _, err := w.C(1).Ask(network, at(a, 80)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("call %s %s without a backend: got %v, want connection refused", network, a, err)
			}
		}
		// Without a refusal, the client repeats its SYN after a second.
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("refusals took %v, want at most 10s", d)
		}
	}
}

// flowsStayWithTheirBackend changes a service under existing flows.
func flowsStayWithTheirBackend(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	h.publish(w.service(1, 2, 4), w.service(2, 3))
	for _, a := range both(vip(1)) {
		var flows []*Flow
		for network, a := range calls(a, a, a, a) {
			flows = append(flows, w.C(1).Open(network, at(a, 80)))
		}
		for n, backends := range [][]int{{4, 2}, {2, 4, 5}, {5}, {2}, {}, {6, 5}} {
			h.MustApply(plane.Change{SetServices: []plane.Service{w.service(1, backends...)}})
			for _, f := range flows {
				if err := f.Echo(); err != nil {
					t.Errorf("%s after change %d: %v", f, n, err)
				}
			}
			if len(backends) > 0 { // new flows see the change at once
				got := w.C(1).MustAsk("udp", at(a, 80))
				if !slices.ContainsFunc(backends, func(b int) bool { return w.C(b).Label == got }) {
					t.Errorf("a new flow after change %d: %s answered, want one of %v", n, got, backends)
				}
			}
		}
		h.MustApply(plane.Change{SetServices: []plane.Service{w.service(1, 2, 4)}})
	}
}

// endedFlowsAreReset removes a backend whose clients wait for data.
func endedFlowsAreReset(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	for _, dead := range []int{2, 4} { // on this node and at the peer
		h.publish(w.service(1, dead), w.service(2, 3, 5))
		var doomed, others []*Flow
		for six := range 2 {
			doomed = append(doomed, w.C(1).Open("tcp", at(both(vip(1))[six], 80)), w.C(3).Open("tcp", at(both(vip(1))[six], 80)))
			for network, a := range calls(both(vip(2))[six], both(w.C(6).Addr)[six]) {
				others = append(others, w.C(1).Open(network, at(a, 80)))
			}
		}
		udp := w.C(1).Open("udp", at(vip(1), 80))
		w.C(dead).IP("link set eth0 down")
		c := plane.Change{SetServices: []plane.Service{w.service(1, 5)}, End: []netip.Addr{w.C(dead).Addr}}
		if dead == 2 {
			c.DropEndpoints = c.End
		} else {
			c.DropSources = c.End
		}
		h.MustApply(c)
		for _, f := range doomed {
			// The server sends nothing, and the client waits.
			if err := f.End(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s to dead c%d: got %v, want a reset", f, dead, err)
			}
		}
		if got, err := udp.Ask(); err != nil || got != "c5" {
			t.Errorf("udp flow of dead c%d: got answer %q and error %v, want c5", dead, got, err)
		}
		checkEcho(t, "to another backend than the dead one", others...)
	}
}

// unansweredFlowsTryAgain removes backends before they answer: a waiting client gets another
// backend without a new call, and no client is refused.
func unansweredFlowsTryAgain(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	for round, change := range []func(*plane.Change, []netip.Addr){
		func(c *plane.Change, a []netip.Addr) { c.End = a },
		func(c *plane.Change, a []netip.Addr) { c.Retry = a },
	} {
		silent := [][]int{{2, 4}, {3, 5}}[round] // on this node and at the peer
		h.publish(w.service(1, silent[0]), w.service(2, silent[1]), w.service(3, 6))
		answered := []*Flow{w.C(1).Open("tcp", at(vip(3), 80)), w.C(1).Open("tcp", at(ranges.To6(vip(3)), 80))}
		var addrs []netip.Addr
		for _, n := range silent {
			w.C(n).IP("link set eth0 down")
			addrs = append(addrs, w.C(n).Addr)
		}
		if round == 1 { // unready backends keep answered flows
			addrs = append(addrs, w.C(6).Addr)
		}
		was := h.MustUse().Services
		answers := make(chan answer)
		services := []netip.Addr{vip(1), vip(2)}
		for _, vip := range services {
			for _, a := range both(vip) {
				go w.C(1).ask(answers, "tcp", at(a, 80))
			}
		}
		for _, vip := range services {
			waitFor(t, "flows to "+vip.String(), func() bool { return h.MustUse().Services[vip] >= was[vip]+2 })
		}
		c := plane.Change{SetServices: []plane.Service{w.service(1, 6), w.service(2, 6)}}
		change(&c, addrs)
		h.MustApply(c)
		for range 4 {
			if a := <-answers; a.err != nil || a.label != "c6" {
				t.Errorf("round %d: got answer %q and error %v, want c6", round, a.label, a.err)
			}
		}
		checkEcho(t, "which was answered before", answered...)
	}
}

// instanceMayBeItsOwnBackend tests the hairpin.
func instanceMayBeItsOwnBackend(_ *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 1))
	for network, a := range calls(both(vip(1))...) {
		w.C(1).Reaches("c1", network, at(a, 80))
	}
}

// clientsMayUseTheSameSourcePort uses the same source ports from two clients at once.
func clientsMayUseTheSameSourcePort(t *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 4))
	// Other ports for IPv6: those of closed connections stay reserved for a while.
	for six, a := range both(vip(1)) {
		for network, a := range calls(a) {
			for _, port := range [][]uint16{{40000, 65535}, {40001, 65534}}[six] {
				one, two := w.C(1).OpenFrom(network, at(a, 80), port), w.C(2).OpenFrom(network, at(a, 80), port)
				for range 3 {
					checkEcho(t, "from a port that two clients use", one, two)
				}
				one.Close()
				two.Close()
			}
		}
	}
}

// udpFlowsTimeOut sets the timeouts of UDP flows to a second: after a longer silence a flow gets
// the other one of two backends.
func udpFlowsTimeOut(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	for _, of := range []string{"nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"} {
		h.Sysctl("net/netfilter/"+of, "1")
	}
	h.MustApply(plane.Change{Node: &h.State.Node})
	h.publish(w.service(1, 4, 5))
	for _, a := range both(vip(1)) {
		f := w.C(1).Open("udp", at(a, 80))
		time.Sleep(2500 * time.Millisecond) // the flow is silent; there is no event to wait for
		if got, err := f.Ask(); err != nil || got == f.Label {
			t.Errorf("%s after its timeout: got answer %q and error %v, want another backend's answer", f, got, err)
		}
	}
}
