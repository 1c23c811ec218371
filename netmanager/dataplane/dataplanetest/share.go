package dataplanetest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Flood has the first container open many flows by one datagram each, from all its ports to
// many ports of the other host's first container. None is answered.
func (w *World) Flood(flows int) {
	w.t.Helper()
	c, to := w.C(1), w.C(4).Addr
	c.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			panic(err)
		}
		defer unix.Close(fd)
		const ports = 50_000
		for n := range flows {
			if err := unix.Sendto(fd, udp(at(c.Addr, uint16(10_000+n%ports)), at(to, uint16(9+n/ports)), "x"), 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				panic(err)
			}
		}
	})
}

// nobodyTakesAllRoom has one instance open many flows. Existing flows, and new flows of others,
// still pass.
func nobodyTakesAllRoom(t *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 4))
	there := []*Flow{w.C(1).Open("tcp", at(w.C(4).Addr, 80)), w.C(2).Open("tcp", at(vip(1), 80)), w.C(2).Open("udp", at(vip(1), 80))}
	const flows = 100_000
	w.Flood(flows)
	for _, network := range []string{"tcp", "udp"} {
		for _, a := range append(both(vip(1)), both(w.C(5).Addr)...) {
			must(t)(w.C(2).Ask(network, at(a, 80)))
			must(t)(w.C(4).Ask(network, at(both(w.C(2).Addr)[0], 80)))
		}
	}
	for _, f := range there {
		if err := f.Echo(); err != nil {
			t.Errorf("%s beside %d flows: %v", f, flows, err)
		}
	}
}
