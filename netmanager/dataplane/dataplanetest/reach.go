package dataplanetest

import "testing"

func instancesReachEachOther(_ *testing.T, w *World) {
	w.serveAll()
	for _, to := range []int{1, 2, 4} {
		for network, a := range calls(both(w.C(to).Addr)...) {
			w.C(1).Reaches(w.C(to).Label, network, at(a, 80))
		}
	}
}
