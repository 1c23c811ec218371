package lab_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// talk is a client on one node and up to nine servers, each alone on one of ten
// others, of which the spare one takes what moves.
type talk struct {
	*lab.Overlay
	t    *testing.T
	in   *lab.Inside
	at   api.ServiceAddresses
	many map[string]*lab.Caller // to the service, by what they call
	each []*lab.Caller          // to the address of each instance number
}

const talkName = "web.lab.shop.lab.treeline"

// newTalk has the client and one server run.
func newTalk(t *testing.T, servers int, netArgs ...string) *talk {
	w := &talk{Overlay: lab.NewOverlay(t, lab.Options{}), t: t, many: map[string]*lab.Caller{}}
	var on []string
	for i := range servers + 1 {
		w.Site(w.First, netlab.None, lab.NodeOptions{NetArgs: netArgs})
		if i > 0 {
			on = append(on, fmt.Sprintf("n%d", i))
		}
	}
	w.Ready(w.First, servers+1)
	web := lab.Needing(w.Server("web", 1), 3, 50) // of four vCPUs: one on each node
	web.Addresses = &api.Addresses{Closest: "auto", Instances: []api.AddressRange{{From: 0, To: 8}}}
	web.Constraints = nil
	w.Apply(lab.App("shop", lab.On(w.Container("client", 1), "c1", "n0"), lab.On(web, "c1", strings.Join(on, ";"))))
	w.Wait("both run", func(v lab.View) bool { return w.Running("shop", "client", 1)(v) && w.Running("shop", "web", 1)(v) })
	w.in, w.at = w.Inside(w.ID("shop", "client", 0)), w.Addresses("shop", "web")
	return w
}

// call has every way to the service counted at once.
func (w *talk) call() {
	to := func(a netip.Addr) string { return netip.AddrPortFrom(a, 80).String() }
	for what, a := range map[string]netip.Addr{"rr": w.at.RoundRobin, "closest": w.at.Closest} {
		w.many[what] = lab.Call(w.in, to(a))
		w.many[what+" by IPv6"] = lab.Call(w.in, to(api.DefaultNetRanges().Twin(a)))
	}
	w.many["name"] = lab.CallBy(func() (api.InstanceID, error) { // looked up anew by each
		ips, err := w.in.Lookup(w.t.Context(), "ip4", talkName)
		if err != nil {
			return "", err
		}
		return w.in.Who(net.JoinHostPort(ips[0].String(), "80"), 5*time.Second)
	})
	for _, c := range w.many {
		w.t.Cleanup(c.Stop)
	}
}

// number has an instance called by its number.
func (w *talk) number(n int) *lab.Caller {
	c := lab.Call(w.in, netip.AddrPortFrom(w.at.Instances[n], 80).String())
	w.t.Cleanup(c.Stop)
	return c
}

func (w *talk) forget() {
	for _, c := range w.many {
		c.Forget()
	}
}

// more waits until every caller was answered n times more.
func (w *talk) more(t *testing.T, n int) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(w.many)) {
		w.many[what].More(t, n)
	}
}

// lost are all requests that failed since they were forgotten.
func (w *talk) lost() (all []loss) {
	for what, c := range w.many {
		for _, f := range c.Failures() {
			all = append(all, loss{what, f})
		}
	}
	return all
}

type loss struct {
	of string
	lab.Failure
}

func (l loss) String() string { return l.of + " " + l.Failure.String() }

// nothingLost holds where nothing died.
func (w *talk) nothingLost(t *testing.T, by string) {
	t.Helper()
	if f := w.lost(); len(f) > 0 {
		t.Errorf("%d requests were lost by %s: %v", len(f), by, f)
	}
}

// onlyInFlight holds where an instance died between two moments: of each caller, who
// has one request under way at a time, that one may be lost.
func (w *talk) onlyInFlight(t *testing.T, began, died time.Time) {
	t.Helper()
	by := map[string]int{}
	for _, f := range w.lost() {
		by[f.of]++
		t.Logf("lost: %s, %s after the death", f, f.Began.Sub(died).Round(time.Millisecond))
		if f.Began.Sub(died) > time.Second {
			t.Errorf("a new flow went to what had died %s before: %s", f.Began.Sub(died), f)
		}
	}
	for of, n := range by {
		if n > 1 {
			t.Errorf("%d requests of one caller, %s, were lost", n, of)
		}
	}
}

func (w *talk) all(t *testing.T, n int) {
	t.Helper()
	w.Wait(fmt.Sprintf("%d run", n), w.Running("shop", "web", n))
	w.many["rr"].So(t, "all answer", func(m map[api.InstanceID]int) bool { return len(m) == n })
}

// Two services on two nodes by every policy and family, then nine replicas on nine;
// scaled, moved, killed and cut off under clients that count.
func TestServicesTalkByNameAndAddress(t *testing.T) {
	w := newTalk(t, 10)
	t.Run("names", func(t *testing.T) {
		for name, want := range map[string]netip.Addr{
			"any.rr." + talkName: w.at.RoundRobin, "any.closest." + talkName: w.at.Closest, "0.instance." + talkName: w.at.Instances[0],
		} {
			for network, of := range map[string]netip.Addr{"ip4": want, "ip6": api.DefaultNetRanges().Twin(want)} {
				ips, err := w.in.Lookup(t.Context(), network, name)
				if err != nil || len(ips) != 1 || !ips[0].Equal(net.IP(of.AsSlice())) {
					t.Errorf("%s %s is %v (%v), want %s", network, name, ips, err, of)
				}
			}
		}
		var none *net.DNSError
		if _, err := w.in.Lookup(t.Context(), "ip4", "any.rr.nothing.lab.shop.lab.treeline"); !errors.As(err, &none) || !none.IsNotFound {
			t.Errorf("a name of nothing: %v", err)
		}
	})
	t.Run("addresses", func(t *testing.T) {
		for policy, a := range map[string]netip.Addr{"rr": w.at.RoundRobin, "closest": w.at.Closest, "instance": w.at.Instances[0]} {
			for _, a := range []netip.Addr{a, api.DefaultNetRanges().Twin(a)} {
				if id, err := w.in.Who(netip.AddrPortFrom(a, 80).String(), 10*time.Second); err != nil || id != w.ID("shop", "web", 0) {
					t.Errorf("%s %s: %q answers, %v", policy, a, id, err)
				}
			}
		}
	})
	w.call()
	w.more(t, 20)
	t.Run("scaled", func(t *testing.T) {
		defer w.For(t)()
		w.Scale("shop", "web", 9)
		w.all(t, 9)
		on := map[string]bool{}
		for _, p := range w.Workloads() {
			on[p.Node] = true
		}
		if len(on) != 10 {
			t.Fatalf("nine instances and their client are on %d nodes", len(on))
		}
		rr := w.many["rr"]
		rr.Forget()
		rr.More(t, 180)
		for id, n := range rr.Answers() {
			if n < 10 || n > 30 {
				t.Errorf("%s answered %d of some 180", id, n)
			}
		}
		w.Scale("shop", "web", 3)
		w.Wait("three run", w.Running("shop", "web", 3))
		w.more(t, 20)
		w.Scale("shop", "web", 9)
		w.all(t, 9)
		w.nothingLost(t, "scaling")
	})
	t.Run("moved", func(t *testing.T) {
		defer w.For(t)()
		w.forget()
		id := w.ID("shop", "web", 2)
		node := w.Workload(id).Node
		c := w.number(2) // the only instance of its number: somebody takes it over while it is still there
		c.More(t, 5)
		if _, err := w.First.API.OwnNodes().Drain(t.Context(), api.NodeID(node)); err != nil {
			t.Fatal(err)
		}
		lab.Within(t, 60*time.Second, node+" is empty", func() error {
			if slices.ContainsFunc(w.Workloads(), func(p lab.Workload) bool { return p.Node == node }) {
				return errors.New(w.Story())
			}
			return nil
		})
		w.all(t, 9)
		w.more(t, 20)
		c.More(t, 5)
		if _, err := w.First.API.OwnNodes().Uncordon(t.Context(), api.NodeID(node)); err != nil {
			t.Fatal(err)
		}
		w.nothingLost(t, "a move")
		if f := c.Failures(); len(f) > 0 {
			t.Errorf("%d requests to the number that moved were lost: %v", len(f), f)
		}
	})
	t.Run("killed", func(t *testing.T) { w.killed(t, 1, 9) })
	t.Run("cut off", func(t *testing.T) { w.cutOff(t, 3, 9) })
}

// killed ends an instance's process under the callers.
func (w *talk) killed(t *testing.T, number, of int) {
	defer w.For(t)()
	w.forget()
	p := w.Workload(w.ID("shop", "web", number))
	c, other := w.number(number), w.number(0)
	c.More(t, 5)
	gone := p.Gone(w.Lab)
	began := time.Now()
	p.Kill9()
	w.WaitGone("the instance", gone)
	died := time.Now()
	w.Wait("it runs again", w.Running("shop", "web", of))
	lab.Within(t, 60*time.Second, "it answers again", func() error {
		if now := w.Workload(p.Instance); now.PID == p.PID {
			return errors.New("its old process is there")
		}
		return nil
	})
	c.More(t, 5)
	other.More(t, 5)
	w.all(t, of)
	w.more(t, 20)
	w.onlyInFlight(t, began, died)
	if f := other.Failures(); len(f) > 0 {
		t.Errorf("%d requests to another number were lost: %v", len(f), f)
	}
}

// cutOff takes an instance's node off the network.
func (w *talk) cutOff(t *testing.T, number, of int) {
	defer w.For(t)()
	w.forget()
	p := w.Workload(w.ID("shop", "web", number))
	c, other := w.number(number), w.number(0)
	c.More(t, 5)
	i := slices.IndexFunc(w.Nodes, func(n *lab.Node) bool { return n.Name == p.Node })
	began := time.Now()
	w.Hosts[i].Run("ip", "link", "set", "eth0", "down")
	died := time.Now()
	w.Wait("its instance runs elsewhere", func(v lab.View) bool {
		return w.Running("shop", "web", of)(v) && slices.ContainsFunc(w.WorkloadsOf(p.Instance), func(q lab.Workload) bool { return q.Node != p.Node })
	})
	c.Forget()
	c.More(t, 5)
	other.More(t, 5)
	w.more(t, 20)
	lab.Within(t, 10*time.Second, "what was in flight is over", func() error {
		if time.Since(died) < 6*time.Second {
			return errors.New("a request waits for five seconds")
		}
		return nil
	})
	w.onlyInFlight(t, began, died)
	if f := other.Failures(); len(f) > 0 {
		t.Errorf("%d requests to another number were lost: %v", len(f), f)
	}
}
