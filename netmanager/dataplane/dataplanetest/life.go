package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// flowsOutliveThePlane kills the netmanager and starts it again.
func flowsOutliveThePlane(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	h.publish(w.service(1, 2, 4, 5))
	var flows []*Flow
	for _, a := range both(vip(1)) {
		for network, a := range calls(a, a, a) {
			flows = append(flows, w.C(1).Open(network, at(a, 80)), w.C(5).Open(network, at(w.C(1).Addr, 80)))
		}
	}
	s := h.State
	s.Services = []plane.Service{w.service(1, 5, 4, 2)}
	s.Allowed = append(s.Allowed, plane.Pair{From: 1, To: 101})
	for range 3 {
		h.Kill()
		checkEcho(t, "while the netmanager is stopped", flows...)
		h.MustSync(s)
		checkEcho(t, "after a restart of the netmanager", flows...)
		w.C(1).MustAsk("tcp", at(vip(1), 80))
	}
	// What is not in the new state is removed.
	s.Services, s.Allowed = nil, s.Allowed[:0:0]
	h.Kill()
	h.MustSync(s)
	w.C(1).Unreached("tcp", at(w.C(4).Addr, 80))
	w.C(1).Unreached("tcp", at(vip(1), 80))
}

// changesDoNotAffectOtherFlows applies changes as fast as possible under unrelated flows.
func changesDoNotAffectOtherFlows(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	h.publish(w.service(1, 2, 4), w.service(2, 3))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	enough := make(chan struct{}, 4) // has an element for each flow with 10 echoes or a failure
	for _, f := range []*Flow{
		w.C(1).Open("udp", at(vip(1), 80)), w.C(1).Open("udp", at(ranges.To6(vip(1)), 80)),
		w.C(3).Open("udp", at(vip(1), 80)), w.C(1).Open("tcp", at(vip(1), 80)),
	} {
		wg.Go(func() {
			for n := 0; ; n++ {
				if n == 10 {
					enough <- struct{}{}
				}
				select {
				case <-stop:
					return
				default:
				}
				if err := f.Echo(); err != nil { // a lost datagram has no answer
					t.Errorf("%s: echo %d: %v", f, n, err)
					if n < 10 {
						enough <- struct{}{}
					}
					return
				}
			}
		})
	}
	for n := 0; n < 100 || len(enough) < cap(enough); n++ { // each kind of change to each service, several times
		s := w.service(byte(2+n%7), 3, 5, 6)
		s.Backends[0].Weight = 1 + n%5
		c := plane.Change{SetServices: []plane.Service{s}, Allow: []plane.Pair{{From: 2, To: s.Ident}}}
		switch n % 4 {
		case 1:
			c.SetSources = []plane.Source{{Address: netip.AddrFrom4([4]byte{10, 16, 1, 100}), Ident: plane.Ident(n)}}
		case 2:
			c.DropServices, c.SetServices = []netip.Addr{s.Address}, nil
		case 3:
			c.End = []netip.Addr{w.C(6).Addr}
		}
		h.MustApply(c)
	}
	close(stop)
	wg.Wait()
}

// changeIsAtomic applies a change that is valid only in part.
func changeIsAtomic(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	h.publish(w.service(1, 2))
	bad := w.service(2, 4)
	bad.Backends[0].Weight = 0
	var err error
	h.Do(func() {
		err = h.Plane.Apply(context.Background(), plane.Change{SetServices: []plane.Service{w.service(1, 4), bad}})
	})
	if err == nil {
		t.Fatal("apply a weight of 0: got no error")
	}
	w.C(1).Reaches("c2", "tcp", at(vip(1), 80))
	h.publish(w.service(1, 4)) // later changes work
	w.C(1).Reaches("c4", "tcp", at(vip(1), 80))
}

// callsBeforeSyncFail calls a plane of a new netmanager.
func callsBeforeSyncFail(t *testing.T, w *World) {
	h := w.Hosts[0]
	h.Kill()
	h.Do(func() {
		ctx := context.Background()
		_, usage := h.Plane.Usage(ctx)
		_, traffic := h.Plane.Traffic(ctx)
		other := h.State
		other.Node.Prefix = "other"
		for what, err := range map[string]error{
			"Apply": h.Plane.Apply(ctx, plane.Change{}), "Usage": usage, "Traffic": traffic, "Sync with another prefix": h.Plane.Sync(ctx, other),
		} {
			if !errors.Is(err, api.ErrInvalid) {
				t.Errorf("%s before the first Sync: %v, want ErrInvalid", what, err)
			}
		}
	})
	h.MustSync(h.State)
	h.MustUse()
}

func usageIsCounted(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	h.publish(w.service(1, 2, 4), w.service(2, 3))
	const flows = 12
	for n := range flows {
		w.C(1).MustAsk(networks[n%2], at(both(vip(1))[n/2%2], 80))
	}
	u := h.MustUse()
	if got := u.Services[vip(1)]; got != flows {
		t.Errorf("flows to the service: got %d, want %d", got, flows)
	}
	if got := u.Backends[w.C(2).Addr] + u.Backends[w.C(4).Addr]; got != flows {
		t.Errorf("flows to its backends: got %d, want %d", got, flows)
	}
	if n, used := u.Services[vip(2)]; used && n > 0 {
		t.Errorf("flows to a service without calls: got %d, want 0", n)
	}
	if got := w.Hosts[1].MustUse().Sources[w.C(1).Addr]; got == 0 {
		t.Error("flows from c1 at the peer: got 0, want some")
	}
	for i, h := range w.Hosts {
		bytes, carried := h.MustUse().Peers[w.Hosts[1-i].Key]
		if w.path == api.PathDirect {
			if carried {
				t.Errorf("host %d counts bytes of the tunnel, want none", i+1)
			}
			continue
		}
		// All flows of one protocol may go to the backend on this host, so count datagrams of one
		// byte each way.
		if least := uint64(flows / 2 * 29); bytes[0] < least || bytes[1] < least {
			t.Errorf("host %d counts %v bytes to and from its peer, want %d or more each", i+1, bytes, least)
		}
	}
	h.MustSync(withService(h.State, w.service(1, 2, 4)))
	if got := h.MustUse().Services[vip(1)]; got < flows {
		t.Errorf("flows after a sync: got %d, want %d or more", got, flows)
	}
}

func withService(s plane.State, services ...plane.Service) plane.State {
	s.Services = services
	s.Allowed = append(s.Allowed, callers(services)...)
	return s
}

func removeLeavesNothing(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	remove := func() {
		t.Helper()
		var err error
		h.Do(func() { err = h.Plane.Remove(context.Background()) })
		if err != nil {
			t.Fatal(err)
		}
	}
	remove()
	before := w.left(h)
	if rules := h.Output("nft", "list", "ruleset"); strings.TrimSpace(rules) != "" {
		t.Errorf("rules after Remove:\n%s", rules)
	}
	for range 2 {
		e := plane.Endpoint{Address: w.C(1).Addr, Ident: 1, Device: w.C(1).Device, Ports: []api.PortMap{{Host: 8080, Instance: 80, Protocol: "tcp"}}}
		h.MustSync(withService(h.State, w.service(1, 2, 4)))
		h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
		w.C(1).MustAsk("tcp", at(vip(1), 80))
		h.Output("nft", "list", "ruleset") // a plane's rules can be listed
		h.Kill()
		h.MustSync(h.State)
		remove()
		remove()
		if after := w.left(h); after != before {
			t.Errorf("Remove left something.\nbefore:\n%s\nafter:\n%s", before, after)
		}
	}
}

// left returns the state of a host that a plane might change.
func (w *World) left(h *Host) string {
	var b strings.Builder
	for _, args := range [][]string{
		{"nft", "list", "ruleset"},
		{"ip", "-br", "link"},
		{"ip", "-br", "addr"},
		{"ip", "route", "show", "table", "main"},
		{"ip", "-6", "route", "show", "table", "main"},
		{"ip", "rule"},
		{"ip", "-6", "rule"},
		{"tc", "qdisc"},
		// Not sysctl(8), which reads all settings of the machine. Some are not readable.
		{"sh", "-c", "grep -rs . /proc/sys/net/ipv[46]/conf /proc/sys/net/ipv4/ip_forward /proc/sys/net/netfilter/nf_conntrack_[!c]*; true"},
	} {
		fmt.Fprintf(&b, "# %s\n%s", strings.Join(args, " "), h.Output(args[0], args[1:]...))
	}
	return b.String()
}
