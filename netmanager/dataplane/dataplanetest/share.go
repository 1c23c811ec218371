package dataplanetest

import "testing"

// Flood opens many flows from the first container by one datagram each, from all its ports to
// many ports of the other host's first container. None is answered.
func (w *World) Flood(flows int) {
	w.t.Helper()
	from, to := w.C(1).Addr, w.C(4).Addr
	const ports = 50_000
	w.C(1).InjectAll(func(yield func([]byte) bool) {
		for n := range flows {
			if !yield(udp(at(from, uint16(10_000+n%ports)), at(to, uint16(9+n/ports)), "x")) {
				return
			}
		}
	})
}

// flowsOfAnInstanceAreLimited opens many flows from one instance. Existing flows, and new flows of
// others, still pass.
func flowsOfAnInstanceAreLimited(t *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 4))
	before := []*Flow{w.C(1).Open("tcp", at(w.C(4).Addr, 80)), w.C(2).Open("tcp", at(vip(1), 80)), w.C(2).Open("udp", at(vip(1), 80))}
	w.Flood(100_000)
	for network, a := range calls(append(both(vip(1)), both(w.C(5).Addr)...)...) {
		w.C(2).MustAsk(network, at(a, 80))
		w.C(4).MustAsk(network, at(w.C(2).Addr, 80))
	}
	checkEcho(t, "beside 100,000 flows", before...)
}
