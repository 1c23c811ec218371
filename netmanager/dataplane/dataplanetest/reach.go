package dataplanetest

import "testing"

func instancesReachOneAnother(t *testing.T, w *World) {
	w.serveAll()
	for _, to := range []int{1, 2, 4} {
		for _, a := range both(w.C(to).Addr) {
			for _, network := range []string{"tcp", "udp"} {
				if got := must(t)(w.C(1).Ask(network, at(a, 80))); got != w.C(to).Label {
					t.Errorf("c1 asked %s %s, and %s answered", network, a, got)
				}
			}
		}
	}
}
