package dataplanetest

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// sendEarly sends a datagram from c and returns it when it is in h's packet queue.
func (h *Host) sendEarly(c *Container, src, dst netip.Addr) (flow net.Conn, queued []byte) {
	h.t.Helper()
	flow, err := c.Dial("udp", at(dst, 80), 0)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { flow.Close() })
	if _, err := flow.Write([]byte("early")); err != nil {
		h.t.Fatal(err)
	}
	if queued, err = h.Queue.Wait(between(src, dst)); err != nil {
		h.t.Fatal(err)
	}
	return flow, queued
}

func (h *Host) release(packets ...[]byte) {
	h.t.Helper()
	for _, p := range packets {
		if err := h.Queue.Write(p); err != nil {
			h.t.Fatal(err)
		}
	}
}

// checkEarly checks that container 4 has answered the datagram of sendEarly.
func checkEarly(t *testing.T, flow net.Conn) {
	t.Helper()
	_ = flow.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 100)
	if n, err := flow.Read(b); err != nil || string(b[:n]) != "c4\nearly" {
		t.Errorf("answer to the queued datagram: got %q and error %v, want that of c4", b[:n], err)
	}
}

// packetsToUnknownAddressesAreQueued sends to an unknown address: the packet goes to the packet
// queue's device, and to its destination once that is known.
func packetsToUnknownAddressesAreQueued(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	for six := range 2 {
		src, service := both(w.C(1).Addr)[six], both(vip(9))[six]
		flow, datagram := h.sendEarly(w.C(1), src, service)
		tcp := make(chan answer, 1)
		go w.C(1).ask(tcp, "tcp", at(service, 80))
		syn, err := h.Queue.Wait(between(src, service))
		if err != nil {
			t.Fatal(err)
		}
		h.publish(w.service(9, 4))
		h.release(datagram, syn)
		checkEarly(t, flow)
		if a := <-tcp; a.err != nil || a.label != "c4" {
			t.Errorf("connect to a queued address: got answer %q and error %v, want c4", a.label, a.err)
		}
		h.MustApply(plane.Change{DropServices: []netip.Addr{vip(9)}})

		// An unknown instance of the peer.
		h.MustApply(plane.Change{DropSources: []netip.Addr{w.C(5).Addr}})
		to := both(w.C(5).Addr)[six]
		w.C(1).Inject(udp(at(src, 1000), at(to, 80), "unknown"))
		if _, err := h.Queue.Wait(between(src, to)); err != nil {
			t.Error(err)
		}
		h.MustApply(plane.Change{SetSources: []plane.Source{{Address: w.C(5).Addr, Ident: 5}}})
	}
}

func packetsFromUnknownAddressesAreQueued(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[1]
	for six := range 2 {
		h.MustApply(plane.Change{DropSources: []netip.Addr{w.C(1).Addr}})
		flow, datagram := h.sendEarly(w.C(1), both(w.C(1).Addr)[six], both(w.C(4).Addr)[six])
		h.MustApply(plane.Change{SetSources: []plane.Source{{Address: w.C(1).Addr, Ident: 1}}})
		h.release(datagram)
		checkEarly(t, flow)
	}
}

// queuedPacketsOfAnInstanceAreLimited sends many packets from one instance to unknown addresses:
// few of them are queued, and those of another instance still are.
func queuedPacketsOfAnInstanceAreLimited(t *testing.T, w *World) {
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
			if _, err := flood.Write([]byte("flood")); err != nil {
				t.Fatal(err)
			}
		}
		// On a busy machine the device's own queue may be full: repeat the packet until it is seen.
		stop := make(chan struct{})
		var repeats sync.WaitGroup
		repeats.Go(func() {
			for tick := time.NewTicker(50 * time.Millisecond); ; {
				_, _ = other.Write([]byte("other"))
				select {
				case <-tick.C:
				case <-stop:
					tick.Stop()
					return
				}
			}
		})
		queued := 0
		if _, err := h.Queue.Wait(func(p []byte) bool {
			if between(both(from.Addr)[six], to.Addr())(p) {
				queued++
			}
			return between(both(w.C(2).Addr)[six], to.Addr())(p)
		}); err != nil {
			t.Error(err)
		}
		close(stop)
		repeats.Wait()
		const atOnce, aSecond = 512, 2048 // the bursts of two intervals, and the rate
		if limit := atOnce + aSecond*time.Since(began).Seconds(); queued == 0 || float64(queued) > limit {
			t.Errorf("queued packets of an instance that sent %d: got %d, want 1 to %.0f", packets, queued, limit)
		}
	}
}
