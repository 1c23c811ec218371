package pinger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// world is a node and a user's host, each in a namespace, on one link.
type world struct {
	t          testing.TB
	node, user string
}

// The user's addresses. Those of the node end in 1.
const (
	public4  = "9.9.9.2"
	public6  = "2620:fe::2"
	private4 = "10.9.9.2"
)

var worlds atomic.Int32

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
			t.Fatal("root is required")
		}
		t.Skip("needs root")
	}
	programtest.Need(t, "ip", "nft")
	id := fmt.Sprintf("tlp%d-%d-", os.Getpid(), worlds.Add(1))
	w := &world{t, id + "n", id + "u"}
	for _, ns := range []string{w.node, w.user} {
		run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() { run(t, "ip", "netns", "del", ns) })
		run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	run(t, "ip", "-n", w.node, "link", "add", "u0", "type", "veth", "peer", "name", "u0", "netns", w.user)
	for i, ns := range []string{w.node, w.user} {
		for _, a := range []string{"9.9.9.%d/24", "10.9.9.%d/24", "2620:fe::%d/64"} {
			run(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf(a, i+1), "dev", "u0", "nodad")
		}
		run(t, "ip", "-n", ns, "link", "set", "u0", "up")
	}
	// A counter for each destination network counts the packets that arrive at the user. The chain
	// deaf has the packets that the user's firewall drops.
	w.firewall(`add table inet t
add chain inet t in { type filter hook input priority 0; }
add chain inet t deaf
add rule inet t in ip daddr 10.9.9.0/24 counter comment "private"
add rule inet t in ip daddr 9.9.9.0/24 counter comment "public"
add rule inet t in jump deaf`)
	return w
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *world) firewall(rules string) {
	w.t.Helper()
	c := exec.Command("ip", "netns", "exec", w.user, "nft", "-f", "-")
	c.Stdin = strings.NewReader(rules + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		w.t.Fatalf("nft: %v\n%s", err, out)
	}
}

// arrived reports whether a packet to private or public addresses reached the user.
func (w *world) arrived(what string) bool {
	for line := range strings.Lines(run(w.t, "ip", "netns", "exec", w.user, "nft", "list", "chain", "inet", "t", "in")) {
		if strings.Contains(line, what) {
			return !strings.Contains(line, "packets 0 ")
		}
	}
	w.t.Fatalf("there is no counter of %s", what)
	return false
}

// probe is Probe in the node's namespace.
func (w *world) probe(p *Pinger, o wire.ProbeOrder) (out wire.Probed) {
	w.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		ns, err := os.Open("/var/run/netns/" + w.node)
		if err == nil {
			defer ns.Close()
			if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
				out = p.Probe(context.Background(), o)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
	if out.ID != o.ID || (out.Error == "") != (out.RTT > 0) || out.RTT > time.Minute {
		w.t.Fatalf("the answer to %+v is %+v", o, out)
	}
	return out
}

func names(m map[string][]string) func(context.Context, string) ([]netip.Addr, error) {
	return func(_ context.Context, host string) (out []netip.Addr, err error) {
		all, ok := m[host]
		if !ok {
			return nil, errors.New("no such host")
		}
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, nil
	}
}

func TestEchoes(t *testing.T) {
	w := newWorld(t)
	p := New(Options{Resolve: names(map[string][]string{"user.example": {public4}}), Burst: 100})
	for name, groups := range map[string]string{"raw sockets": "1 0", "the kernel's own": "0 2147483647"} {
		run(t, "ip", "netns", "exec", w.node, "sysctl", "-q", "-w", "net.ipv4.ping_group_range="+groups)
		for _, target := range []string{public4, public6, "user.example"} {
			if got := w.probe(p, wire.ProbeOrder{ID: 7, Target: target, Wait: maxWait}); got.How != "icmp" {
				t.Errorf("%s, probe of %s: %+v, want ICMP", name, target, got)
			} else {
				t.Logf("%s, %s: %s", name, target, got.RTT)
			}
		}
	}
}

func TestWhereEchoesAreFilteredConnectionsAnswer(t *testing.T) {
	w := newWorld(t)
	w.firewall("add rule inet t deaf icmp type echo-request drop\nadd rule inet t deaf icmpv6 type echo-request drop")
	p := New(Options{Burst: 100})
	for _, target := range []string{public4, public6} { // no server listens there: a refusal is an answer
		if got := w.probe(p, wire.ProbeOrder{Target: target, Wait: maxWait}); got.How != "tcp" {
			t.Errorf("probe of %s: %+v, want TCP", target, got)
		}
	}
	w.firewall("add rule inet t deaf tcp dport 443 drop")
	if got := w.probe(p, wire.ProbeOrder{Target: public4, Wait: maxWait}); got.How != "tcp" {
		t.Errorf("by port 80: %+v", got)
	}
}

func TestAPortIsAskedByConnectionsAlone(t *testing.T) {
	w := newWorld(t)
	w.firewall("add rule inet t deaf tcp dport 81 drop")
	p := New(Options{Burst: 100})
	for _, target := range []string{public4 + ":5060", "[" + public6 + "]:5060"} {
		if got := w.probe(p, wire.ProbeOrder{Target: target, Wait: maxWait}); got.How != "tcp" {
			t.Errorf("probe of %s: %+v, want TCP", target, got)
		}
	}
	if got := w.probe(p, wire.ProbeOrder{Target: public4 + ":81", Wait: time.Second}); got.Error == "" || got.Refused {
		t.Errorf("a port that is filtered, of a host that answers echoes: %+v", got)
	}
}

func TestWhoIsSilentCostsTheWaitAndIsNotRefused(t *testing.T) {
	w := newWorld(t)
	w.firewall("add rule inet t deaf drop")
	p := New(Options{Resolve: names(map[string][]string{"both.example": {public6, public4}})})
	got := w.probe(p, wire.ProbeOrder{Target: "both.example", Wait: time.Second})
	if got.Error == "" || got.Refused || !w.arrived("public") {
		t.Errorf("it is %+v", got)
	}
	if c := p.Counts(); c != (Counts{Silent: 1}) {
		t.Errorf("counted %+v", c)
	}
}

func TestForbiddenAddressesGetNoPacket(t *testing.T) {
	w := newWorld(t)
	p := New(Options{Burst: 100, Resolve: names(map[string][]string{
		"inside.example": {private4},
		"mapped.example": {"::ffff:" + private4},
		"mixed.example":  {private4, public4},
	})})
	own, public := netip.MustParsePrefix("10.9.9.0/24"), netip.MustParsePrefix("9.9.9.0/24")
	for _, target := range []string{private4, private4 + ":22", "::ffff:" + private4, "[::ffff:" + private4 + "]:22", "inside.example", "mapped.example:80", "127.0.0.1", "169.254.169.254", "[::1]:22", "224.0.0.1"} {
		got := w.probe(p, wire.ProbeOrder{Target: target, Wait: maxWait})
		if got.Error == "" || !got.Refused && !strings.Contains(got.Error, "is not a host") || strings.Contains(target, ".example") && strings.Contains(got.Error, private4) {
			t.Errorf("probe of %s: %+v, want it refused without the private address", target, got)
		}
	}
	if got := w.probe(p, wire.ProbeOrder{Target: "mixed.example", Wait: maxWait}); got.How != "icmp" {
		t.Errorf("the public address of a name with both: %+v", got)
	}
	if got := w.probe(p, wire.ProbeOrder{Target: private4, Wait: maxWait, Allow: []netip.Prefix{own}, Deny: []netip.Prefix{own}}); !got.Refused {
		t.Errorf("allowed and denied: %+v", got)
	}
	if w.arrived("private") {
		t.Fatal("a packet reached an address that the policy forbids")
	}
	if got := w.probe(p, wire.ProbeOrder{Target: public4, Wait: maxWait, Deny: []netip.Prefix{public}}); !got.Refused {
		t.Errorf("public and denied: %+v", got)
	}
	if got := w.probe(p, wire.ProbeOrder{Target: private4, Wait: maxWait, Allow: []netip.Prefix{own}}); got.How != "icmp" {
		t.Errorf("allowed: %+v", got)
	}
}

// TestANameThatMovesIsProbedWhereItWasChecked uses a resolver that returns a public address first, and
// then always a private one.
func TestANameThatMovesIsProbedWhereItWasChecked(t *testing.T) {
	w := newWorld(t)
	w.firewall("add rule inet t deaf icmp type echo-request drop") // so that all steps are taken
	var asked atomic.Int32
	p := New(Options{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		if asked.Add(1) == 1 {
			return []netip.Addr{netip.MustParseAddr(public4)}, nil
		}
		return []netip.Addr{netip.MustParseAddr(private4)}, nil
	}})
	got := w.probe(p, wire.ProbeOrder{Target: "rebind.example", Wait: maxWait})
	if got.How != "tcp" || asked.Load() != 1 || w.arrived("private") {
		t.Errorf("asked %d times, private addresses reached: %v, %+v", asked.Load(), w.arrived("private"), got)
	}
	if got := w.probe(p, wire.ProbeOrder{Target: "rebind.example", Wait: maxWait}); !got.Refused {
		t.Errorf("the next time: %+v", got)
	}
}

// A tenant with many targets cannot use all probes of a node.
func TestProbesOfOneTenantLeaveTheNodeToOthers(t *testing.T) {
	hold := make(chan struct{})
	reached := make(chan struct{}, 100)
	p := New(Options{Every: time.Hour, Resolve: func(context.Context, string) ([]netip.Addr, error) {
		reached <- struct{}{}
		<-hold
		return nil, nil
	}})
	var all sync.WaitGroup
	try := func(tenant string) (begun bool) {
		done := make(chan wire.Probed, 1)
		all.Go(func() { done <- p.Probe(t.Context(), wire.ProbeOrder{Target: "user.example", For: tenant}) })
		select {
		case <-reached:
			return true
		case <-done:
			return false
		}
	}
	begun := 0
	for range 50 {
		if try("loud") {
			begun++
		}
	}
	if begun != 3 {
		t.Errorf("%d probes of one tenant are under way, want 3 of 6", begun)
	}
	if !try("quiet") {
		t.Error("another tenant's probe is refused while one fills its share")
	}
	close(hold)
	all.Wait()
	for range 50 { // more than its rate permits
		try("loud")
	}
	if !try("quiet") {
		t.Error("another tenant's probe is refused when one has used up its rate")
	}
}

func TestFloodIsAnsweredByRefusals(t *testing.T) {
	var under, most atomic.Int32
	release := make(chan struct{})
	p := New(Options{Every: time.Hour, Resolve: func(context.Context, string) ([]netip.Addr, error) {
		n := under.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		under.Add(-1)
		return nil, nil
	}})
	flood := func() (begun int) {
		var g sync.WaitGroup
		var answered atomic.Int32
		for i := range 500 {
			g.Go(func() {
				o := p.Probe(t.Context(), wire.ProbeOrder{ID: uint64(i), Target: "user.example"})
				if o.ID != uint64(i) || o.Error == "" {
					t.Errorf("the answer is %+v", o)
				}
				if !strings.Contains(o.Error, "too many") {
					answered.Add(1)
				}
			})
		}
		for p.Counts().Excess != 497 || under.Load() != 3 {
			runtime.Gosched()
		}
		close(release)
		g.Wait()
		return int(answered.Load())
	}
	if n := flood(); n != 3 || most.Load() != 3 {
		t.Errorf("%d probes of 500 began, %d at once; want 3 and 3", n, most.Load())
	}
	// Three probes of the holder's burst are left, and no others are permitted within an hour.
	release = make(chan struct{})
	close(release)
	for range 3 {
		if o := p.Probe(t.Context(), wire.ProbeOrder{Target: "user.example"}); strings.Contains(o.Error, "too many") {
			t.Errorf("it says %q", o.Error)
		}
	}
	if o := p.Probe(t.Context(), wire.ProbeOrder{Target: "user.example"}); !strings.Contains(o.Error, "too many") {
		t.Errorf("beyond the burst it says %q", o.Error)
	}
}

func TestNonsenseIsNoTarget(t *testing.T) {
	p := New(Options{Burst: 100, Resolve: func(context.Context, string) ([]netip.Addr, error) {
		t.Error("it was looked up")
		return nil, nil
	}})
	for _, target := range []string{"", ":80", "http://x/", "a b", "10.0.0.0/8", "host:0", "host:99999", "..", "1.2.3", strings.Repeat("a.", 200) + "b"} {
		if o := p.Probe(t.Context(), wire.ProbeOrder{Target: target}); o.Error == "" {
			t.Errorf("probe of %q: %+v, want an error", target, o)
		}
	}
}
