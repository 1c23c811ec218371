package dataplanetest

import (
	"errors"
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
	for _, network := range []string{"tcp", "udp"} {
		for _, six := range []int{0, 1} {
			count := map[plane.Ident]map[string]int{equal.Ident: {}, weighted.Ident: {}}
			const turns = 10
			for n := range turns * 7 * 3 { // a multiple of both sums of weights
				from := w.C(1 + n%3)
				for _, s := range []plane.Service{equal, weighted} {
					count[s.Ident][must(t)(from.Ask(network, at(both(s.Address)[six], 80)))]++
				}
				if n%10 == 0 { // others' flows take nobody's turn
					must(t)(from.Ask(network, at(both(other.Address)[six], 80)))
				}
			}
			want := map[plane.Ident]map[string]int{
				equal.Ident:    {"c2": 7 * turns, "c4": 7 * turns, "c5": 7 * turns},
				weighted.Ident: {"c2": 12 * turns, "c4": 6 * turns, "c5": 3 * turns},
			}
			for id, labels := range want {
				for l, n := range labels {
					if d := count[id][l] - n; d < -processors() || d > processors() {
						t.Errorf("%s to %d, IPv6 %d: %v, want %v within %d", network, id, six, count[id], labels, processors())
					}
				}
			}
		}
	}
}

func noBackendIsRefusedAtOnce(t *testing.T, w *World) {
	none := w.service(1)
	w.Hosts[0].publish(none)
	for _, a := range both(none.Address) {
		began := time.Now()
		for _, network := range []string{"tcp", "udp"} {
			_, err := w.C(1).Ask(network, at(a, 80))
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s to %s: want refused, got %v", network, a, err)
			}
		}
		// Not a timeout of anybody's: SYN is sent again after a second.
		if d := time.Since(began); d > patience/2 {
			t.Errorf("refused after %v", d)
		}
	}
}
