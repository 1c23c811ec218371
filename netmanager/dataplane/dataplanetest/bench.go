package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Bench measures a Sync and changes with 10,000 services, and the first packet of a flow with 1 and with
// 10,000.
//
//	func BenchmarkPlane(b *testing.B) { dataplanetest.Bench(b, factory) }
func Bench(b *testing.B, f Factory) {
	const many = 10_000
	b.Run("Sync/10000", func(b *testing.B) {
		w := NewWorld(b, f, api.PathRoute)
		s := w.manyServices(many)
		for b.Loop() {
			w.Hosts[0].MustSync(s)
		}
	})
	b.Run("Apply/10000", func(b *testing.B) {
		w := NewWorld(b, f, api.PathRoute)
		h := w.Hosts[0]
		h.MustSync(w.manyServices(many))
		h.Do(func() {
			for n := 0; b.Loop(); n++ {
				s := w.service(1, []int{2, 4, 5}[:1+n%3]...)
				if err := h.Plane.Apply(context.Background(), plane.Change{SetServices: []plane.Service{s}}); err != nil {
					panic(err)
				}
			}
		})
	})
	for _, n := range []int{1, many} {
		b.Run(fmt.Sprintf("NewFlow/%d", n), func(b *testing.B) {
			w := NewWorld(b, f, api.PathRoute)
			w.Hosts[0].MustSync(w.manyServices(n))
			w.newFlows(b)
		})
	}
}

// crowded returns the first host's state with n services of three backends each.
func (w *World) manyServices(n int) plane.State {
	var services []plane.Service
	for i := range n {
		s := w.service(1, 2, 4, 5)
		s.Address = netip.AddrFrom4([4]byte{10, 30, byte(i >> 8), byte(i + 1)})
		s.Ident = plane.Ident(1000 + i)
		services = append(services, s)
	}
	return withService(w.Hosts[0].State, services...)
}

// newFlows sends the first datagrams of flows to one service, each from another port.
func (w *World) newFlows(b *testing.B) {
	from, to := w.C(1).Addr, vip(1)
	const ports = 50_000
	w.C(1).InjectAll(func(yield func([]byte) bool) {
		for n := 0; b.Loop(); n++ {
			if n%ports == ports-1 {
				b.StopTimer()
				w.Hosts[0].Output("conntrack", "-F")
				w.Hosts[1].Output("conntrack", "-F")
				b.StartTimer()
			}
			if !yield(udp(at(from, uint16(10_000+n%ports)), at(to, 9), "x")) {
				return
			}
		}
	})
}
