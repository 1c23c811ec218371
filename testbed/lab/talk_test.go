package lab_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// talk has a client on one node and servers, one each on the other nodes. A spare node takes
// instances that move.
type talk struct {
	*lab.Overlay
	t    *testing.T
	in   *lab.Inside
	at   api.ServiceAddresses
	many map[string]*lab.Caller // by the kind of address that they call
}

const talkName = "web.lab.shop.lab.treeline"

// newTalk starts the client and one server.
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

// call starts callers that use every kind of name and address of the service.
func (w *talk) call() {
	to := func(a netip.Addr) string { return netip.AddrPortFrom(a, 80).String() }
	for what, a := range map[string]netip.Addr{"rr": w.at.RoundRobin, "closest": w.at.Closest} {
		w.many[what] = lab.Call(w.in, to(a))
		w.many[what+" by IPv6"] = lab.Call(w.in, to(wire.DefaultNetRanges().To6(a)))
	}
	w.many["name"] = lab.CallBy(func() (api.InstanceID, error) { // resolved for each request
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

// number starts a caller of the instance with this number.
func (w *talk) number(n int) *lab.Caller {
	return lab.Call(w.in, netip.AddrPortFrom(w.at.Instances[n], 80).String())
}

func (w *talk) forget() {
	for _, c := range w.many {
		c.Forget()
	}
}

// more waits until every caller has n more answers.
func (w *talk) more(t *testing.T, n int) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(w.many)) {
		w.many[what].More(t, n)
	}
}

// lost returns all failed requests since the last Forget.
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

// nothingLost fails the test if a request was lost.
func (w *talk) nothingLost(t *testing.T, by string) {
	t.Helper()
	if f := w.lost(); len(f) > 0 {
		t.Errorf("%d requests were lost by %s, want 0: %v", len(f), by, f)
	}
}

// fewLost fails the test if as many requests as half of the callers were lost, besides those that except
// excuses. A daemon that disturbs flows loses a request of most callers. Fewer are permitted because two
// were lost, for an unknown cause, in eight restarts of a cluster orchestrator with 17 callers on a busy machine.
func (w *talk) fewLost(t *testing.T, by string, except func(loss) bool) {
	t.Helper()
	f := slices.DeleteFunc(w.lost(), func(l loss) bool { return except != nil && except(l) })
	if most := (len(w.many) - 1) / 2; len(f) > most {
		t.Errorf("%d requests were lost by %s, want %d at most: %v", len(f), by, most, f)
	} else if len(f) > 0 {
		t.Logf("%d requests were lost by %s: %v", len(f), by, f)
	}
}

// onlyInFlight returns an error if more was lost after the death of an instance than the one
// request that each caller had under way. Until the node detects that a process was killed,
// the kernel refuses connections to it, which may last less than a second.
func (w *talk) onlyInFlight(t *testing.T, died time.Time, refusing bool) (err error) {
	t.Helper()
	inFlight, refused, until := map[string]int{}, 0, time.Duration(0)
	for _, l := range w.lost() {
		after := l.Began.Sub(died)
		switch {
		case refusing && after <= time.Second && errors.Is(l.Err, syscall.ECONNREFUSED):
			refused++
			until = max(until, after)
		case after <= 0:
			inFlight[l.of]++
		default:
			err = errors.Join(err, fmt.Errorf("a request was lost %s after the instance died: %s", after, l))
		}
	}
	for of, n := range inFlight {
		if n > 1 {
			err = errors.Join(err, fmt.Errorf("%d requests of the caller %s were lost in flight, want at most 1", n, of))
		}
	}
	t.Logf("lost: the request in flight of %d callers, and %d that were refused until %s after the instance died", len(inFlight), refused, until.Round(time.Millisecond))
	return err
}

// all waits until n instances run and each has answered after that.
func (w *talk) all(t *testing.T, n int) {
	t.Helper()
	w.Wait(fmt.Sprintf("%d run", n), w.Running("shop", "web", n))
	var run []api.Instance
	w.Look(func(v lab.View) { run = v.Of(w.ServiceID("shop", "web")) })
	was := w.many["rr"].Answers()
	w.many["rr"].So(t, "all answer", func(m map[api.InstanceID]int) bool {
		return !slices.ContainsFunc(run, func(i api.Instance) bool { return m[i.ID] == was[i.ID] })
	})
}

// Two services on two nodes call each other by every policy and address family; then nine
// replicas on nine nodes are scaled, moved, killed and cut off while callers count losses.
func TestServicesTalkByNameAndAddress(t *testing.T) {
	w := newTalk(t, 10)
	t.Run("names", func(t *testing.T) {
		for name, want := range map[string]netip.Addr{
			"any.rr." + talkName: w.at.RoundRobin, "any.closest." + talkName: w.at.Closest, "0.instance." + talkName: w.at.Instances[0],
		} {
			for network, of := range map[string]netip.Addr{"ip4": want, "ip6": wire.DefaultNetRanges().To6(want)} {
				ips, err := w.in.Lookup(t.Context(), network, name)
				if err != nil || len(ips) != 1 || !ips[0].Equal(net.IP(of.AsSlice())) {
					t.Errorf("%s %s resolves to %v (%v), want %s", network, name, ips, err, of)
				}
			}
		}
		var none *net.DNSError
		if _, err := w.in.Lookup(t.Context(), "ip4", "any.rr.nothing.lab.shop.lab.treeline"); !errors.As(err, &none) || !none.IsNotFound {
			t.Errorf("resolve a name that does not exist: %v, want not found", err)
		}
	})
	t.Run("addresses", func(t *testing.T) {
		for policy, a := range map[string]netip.Addr{"rr": w.at.RoundRobin, "closest": w.at.Closest, "instance": w.at.Instances[0]} {
			for _, a := range []netip.Addr{a, wire.DefaultNetRanges().To6(a)} {
				lab.Within(t, time.Minute, policy+" "+a.String()+" answers", func() error { // a running instance may not listen yet
					id, err := w.in.Who(netip.AddrPortFrom(a, 80).String(), 10*time.Second)
					if err == nil && id != w.ID("shop", "web", 0) {
						t.Errorf("%s %s: %q answers", policy, a, id)
					}
					return err
				})
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
			t.Fatalf("nine instances and their client are on %d nodes, want one each on 10", len(on))
		}
		shared := []*lab.Caller{w.many["rr"], w.many["rr by IPv6"], w.many["name"]} // these share one round-robin order
		for _, c := range shared {
			c.Forget()
		}
		w.more(t, 60)
		answers, all := map[api.InstanceID]int{}, 0
		for _, c := range shared {
			for id, n := range c.Answers() {
				answers[id] += n
				all += n
			}
		}
		// A loaded node gets fewer requests, down to a sixteenth of an idle one's, and the nodes read
		// this machine's load at different times.
		for id, n := range answers {
			if n > all*3/4 {
				t.Errorf("%s answered %d of %d requests, want at most three quarters", id, n, all)
			}
		}
		w.Scale("shop", "web", 3)
		w.Wait("three run", w.Running("shop", "web", 3))
		w.more(t, 20)
		// New instances do not reuse the numbers of instances that are still leaving.
		w.Wait("three are left", func(v lab.View) bool { return len(v.Instances) == 3+1 })
		w.Scale("shop", "web", 9)
		w.all(t, 9)
		w.nothingLost(t, "scaling")
	})
	t.Run("moved", func(t *testing.T) {
		defer w.For(t)()
		w.forget()
		id := w.ID("shop", "web", 2)
		node := w.Workload(id).Node
		c := w.number(2) // the new placement starts before the old one stops
		defer c.Stop()
		c.More(t, 5)
		if err := w.First.API.OwnNodes().Drain(t.Context(), api.NodeID(node)); err != nil {
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
		if err := w.First.API.OwnNodes().Uncordon(t.Context(), api.NodeID(node)); err != nil {
			t.Fatal(err)
		}
		w.nothingLost(t, "a move")
		if f := c.Failures(); len(f) > 0 {
			t.Errorf("%d requests to the instance that moved were lost, want 0: %v", len(f), f)
		}
	})
	t.Run("killed", func(t *testing.T) { w.killed(t, 9, 1, 4, 5) })
	t.Run("cut off", func(t *testing.T) { w.cutOff(t, 9, 3) })
}

// killed ends processes of instances while callers run, and repeats this if the machine was too
// slow.
func (w *talk) killed(t *testing.T, of int, numbers ...int) {
	defer w.For(t)()
	var err error
	for _, n := range numbers {
		if err = w.kill(t, n, of); err == nil {
			return
		}
		t.Logf("number %d: %v", n, err)
	}
	t.Error(err)
}

func (w *talk) kill(t *testing.T, number, of int) error {
	t.Helper()
	p := w.Workload(w.ID("shop", "web", number))
	c, other := w.number(number), w.number(0)
	defer c.Stop()
	defer other.Stop()
	c.More(t, 5)
	w.forget()
	gone := p.Gone(w.Lab)
	p.Kill9()
	w.WaitGone("the instance", gone)
	died := time.Now()
	lab.Within(t, 60*time.Second, "it runs again", func() error {
		if now := w.Workload(p.Instance); now.PID == p.PID {
			return errors.New("its old process is there")
		}
		return nil
	})
	c.More(t, 5)
	other.More(t, 5)
	w.all(t, of)
	w.more(t, 20)
	if f := other.Failures(); len(f) > 0 {
		t.Errorf("%d requests to other instances were lost, want 0: %v", len(f), f)
	}
	return w.onlyInFlight(t, died, true)
}

// cutOff disconnects an instance's node from the network.
func (w *talk) cutOff(t *testing.T, of, number int) {
	defer w.For(t)()
	p := w.Workload(w.ID("shop", "web", number))
	c, other := w.number(number), w.number(0)
	defer c.Stop()
	defer other.Stop()
	c.More(t, 5)
	i := slices.IndexFunc(w.Nodes, func(n *lab.Node) bool { return n.Name == p.Node })
	w.forget()
	w.Hosts[i].Run("ip", "link", "set", "eth0", "down")
	died := time.Now()
	w.more(t, 20) // until requests in flight have ended
	// The process has its name only after its exec, which may be later than the reports about it.
	lab.Within(t, time.Minute, "its instance runs elsewhere", func() error {
		if !slices.ContainsFunc(w.WorkloadsOf(p.Instance), func(q lab.Workload) bool { return q.Node != p.Node }) {
			return fmt.Errorf("its processes are %+v", w.WorkloadsOf(p.Instance))
		}
		return nil
	})
	w.Wait("all run", w.Running("shop", "web", of))
	c.Forget()
	c.More(t, 5)
	other.More(t, 5)
	w.all(t, of)
	if err := w.onlyInFlight(t, died, false); err != nil {
		t.Error(err)
	}
	if f := other.Failures(); len(f) > 0 {
		t.Errorf("%d requests to other instances were lost, want 0: %v", len(f), f)
	}
}

// The same failures with the nftables data plane.
func TestServicesTalkByNftables(t *testing.T) {
	t.Parallel()
	w := newTalk(t, 4, "--plane", "nft")
	w.call()
	w.Scale("shop", "web", 3)
	w.all(t, 3)
	t.Run("killed", func(t *testing.T) { w.killed(t, 3, 1, 2, 1) })
	t.Run("cut off", func(t *testing.T) { w.cutOff(t, 3, 2) })
}
