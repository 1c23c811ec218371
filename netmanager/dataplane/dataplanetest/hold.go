package dataplanetest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// theUnknownIsHeld sends to an unknown address: the packet goes to the packet queue's device,
// and to its destination once that is known.
func theUnknownIsHeld(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	for six := range 2 {
		src, service := both(w.C(1).Addr)[six], both(vip(9))[six]
		c, err := w.C(1).Dial("udp", at(service, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("early")); err != nil {
			t.Fatal(err)
		}
		p, err := h.Hold.Wait(between(src, service))
		if err != nil {
			t.Fatal(err)
		}
		type opened struct {
			label string
			err   error
		}
		tcp := make(chan opened, 1)
		go func() {
			label, err := w.C(1).Ask("tcp", at(service, 80))
			tcp <- opened{label, err}
		}()
		syn, err := h.Hold.Wait(between(src, service))
		if err != nil {
			t.Fatal(err)
		}
		h.publish(w.service(9, 4))
		for _, p := range [][]byte{p, syn} {
			if err := h.Hold.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		b := make([]byte, 100)
		if n, err := c.Read(b); err != nil || string(b[:n]) != "c4\nearly" {
			t.Errorf("%q, %v", b[:n], err)
		}
		if o := <-tcp; o.err != nil || o.label != "c4" {
			t.Error(o)
		}
		h.MustApply(plane.Change{DropServices: []netip.Addr{vip(9)}})

		// An unknown instance of the peer's.
		h.MustApply(plane.Change{DropSources: []netip.Addr{w.C(5).Addr}})
		to := both(w.C(5).Addr)[six]
		w.C(1).Inject(udp(at(src, 1000), at(to, 80), "who"))
		if _, err := h.Hold.Wait(between(src, to)); err != nil {
			t.Error(err)
		}
		h.MustApply(plane.Change{SetSources: []plane.Source{{Address: w.C(5).Addr, Ident: 5}}})
	}
}

// theUnknownCallerIsHeld sends from an unknown address.
func theUnknownCallerIsHeld(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[1]
	for six := range 2 {
		src, dst := both(w.C(1).Addr)[six], both(w.C(4).Addr)[six]
		h.MustApply(plane.Change{DropSources: []netip.Addr{w.C(1).Addr}})
		c, err := w.C(1).Dial("udp", at(dst, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("early")); err != nil {
			t.Fatal(err)
		}
		p, err := h.Hold.Wait(between(src, dst))
		if err != nil {
			t.Fatal(err)
		}
		h.MustApply(plane.Change{SetSources: []plane.Source{{Address: w.C(1).Addr, Ident: 1}}})
		if err := h.Hold.Write(p); err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		b := make([]byte, 100)
		if n, err := c.Read(b); err != nil || string(b[:n]) != "c4\nearly" {
			t.Errorf("%q, %v", b[:n], err)
		}
	}
}

// nobodyTakesTheHold has one instance send many packets to unknown addresses: few are queued,
// and another instance's packets still are.
func nobodyTakesTheHold(t *testing.T, w *World) {
	h := w.Hosts[0]
	for six := range 2 {
		to := at(both(vip(9))[six], 80)
		from := w.C(1 + 2*six) // the limit of an instance holds for both families together
		flood, err := from.Dial("udp", to, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer flood.Close()
		other, err := w.C(2).Dial("udp", to, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		const packets = 20_000
		began := time.Now()
		for range packets {
			if _, err := flood.Write([]byte("anybody?")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := other.Write([]byte("you?")); err != nil {
			t.Fatal(err)
		}
		held := 0
		if _, err := h.Hold.Wait(func(p []byte) bool {
			if between(both(from.Addr)[six], to.Addr())(p) {
				held++
			}
			return between(both(w.C(2).Addr)[six], to.Addr())(p)
		}); err != nil {
			t.Error(err)
		}
		const atOnce, aSecond = 512, 2048 // the bursts of two intervals, and the rate
		if most := atOnce + aSecond*time.Since(began).Seconds(); held == 0 || float64(held) > most {
			t.Errorf("%d of %d are held, %.0f may be", held, packets, most)
		}
	}
}
