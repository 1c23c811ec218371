package lab_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Two users are far from each other, each with nodes nearby. An instance with a latency
// constraint to one of them is placed nearby, by the nodes' own probes. One node cannot reach
// the users; its latency is estimated from its position and theirs.
func TestAUserIsFoundByRealProbes(t *testing.T) {
	t.Parallel()
	const (
		far        = 200 * time.Millisecond // between the coasts
		home       = 2 * time.Millisecond   // from a user to the coast
		west, east = "192.0.2.2", "192.0.2.6"
	)
	o := &lab.Overlay{Lab: lab.New(t, lab.Options{}), Net: netlab.New(t)}
	hubs := []*netlab.Host{o.Net.Host("west"), o.Net.Host("east")}
	o.Net.Slow(hubs[0], "east", "203.0.113.5/30", hubs[1], "west", "203.0.113.6/30", far, 0, 90)
	for i, hub := range hubs {
		hub.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
		hub.Route("default", fmt.Sprintf("203.0.113.%d", 6-i))
	}
	// end is a host at the end of a cable from a hub.
	end := func(name string, hub *netlab.Host, network string, at int, delay time.Duration) *netlab.Host {
		h := o.Net.Host(name)
		o.Net.Slow(h, "eth0", fmt.Sprintf("%s.%d/30", network, at+2), hub, name, fmt.Sprintf("%s.%d/30", network, at+1), delay, 0, uint64(at))
		h.Route("default", fmt.Sprintf("%s.%d", network, at+1))
		return h
	}
	users := []*netlab.Host{end("u0", hubs[0], "192.0.2", 0, home), end("u1", hubs[1], "192.0.2", 4, home)}
	users[0].Run("ip", "addr", "add", "10.99.0.2/32", "dev", "lo")
	users[0].Run("ip", "addr", "add", "198.18.0.2/32", "dev", "lo")
	hubs[0].Route("10.99.0.0/24", west)
	hubs[0].Route("198.18.0.0/24", west)
	for _, u := range users { // arrived finds a rule by its comment
		u.Nft(`table ip user {
	chain in {
		type filter hook input priority 0;
		ip daddr { 10.99.0.2, 198.18.0.2 } counter accept comment "within"
		icmp type echo-request counter comment "echo"
		tcp flags & (syn | ack) == syn counter comment "connection"
	}
}`)
	}
	users[1].Nft("add rule ip user in icmp type echo-request drop")

	h := o.Net.Host("c1")
	o.Net.Join(h, "eth0", "203.0.113.2/30", hubs[0], "c1", "203.0.113.1/30")
	h.Route("default", "203.0.113.1")
	o.First = o.Cluster("c1", lab.ClusterOptions{Host: h, Address: "203.0.113.2", Args: []string{"--dead", "30s", "--probe-allow", "192.0.2.0/24"}})
	delays := []time.Duration{4 * time.Millisecond, 60 * time.Millisecond, 4 * time.Millisecond, 60 * time.Millisecond}
	for i, d := range delays { // two in the west and two in the east; the farther ones have more capacity
		h := end(fmt.Sprintf("n%d", i), hubs[i/2], "198.51.100", 4*i, d)
		if i == 1 {
			h.Nft("table ip mute {\n chain out {\n type filter hook output priority 0;\n ip daddr 192.0.2.0/24 drop\n }\n}")
		}
		o.Nodes = append(o.Nodes, o.First.Node(fmt.Sprintf("n%d", i), lab.NodeOptions{
			Containers: true, CPUs: float64(2 + 2*(i%2)), Host: h, Overlay: true,
		}))
	}
	o.Ready(o.First, len(delays))
	// Nodes on one coast are 128 ms apart, and 416 ms or more from those on the other coast.
	learned(t, o, func(apart func(i, j int) time.Duration) bool {
		there := min(apart(0, 2), apart(0, 3), apart(1, 2), apart(1, 3))
		return apart(0, 1) > 75*time.Millisecond && apart(0, 1) < 230*time.Millisecond && there > 300*time.Millisecond
	})

	var met atomic.Int32
	ln, port := listener(t, users[1])
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			met.Add(1)
			_ = c.Close()
		}
	}()
	near := func(name, target string, threshold float64) api.Microservice {
		m := lab.Needing(o.Container(name, 1), 1, 100)
		m.Constraints = []api.Constraint{{Type: api.ConstrainLatency, Target: target, Threshold: threshold}}
		return m
	}
	runs := func(service, node string) {
		t.Helper()
		// If too few nodes answer in time, the cluster asks them again after a minute.
		o.WaitWithin(150*time.Second, service+" runs", o.Running("shop", service, 1))
		if w := o.Workload(o.ID("shop", service, 0)); w.Node != node {
			t.Errorf("%s runs on %s, want %s", service, w.Node, node)
		}
	}
	took := lab.Stopwatch()
	of := []api.Microservice{
		lab.Needing(near("echo", west, 60), 2, 100), near("refused", east, 60), near("port", fmt.Sprintf("%s:%d", east, port), 60),
		near("private", "10.99.0.2", 500), near("testing", "198.18.0.2:22", 500),
	}
	o.Apply(lab.App("shop", of...))
	runs("echo", "n0") // fills n0
	runs("refused", "n2")
	runs("port", "n2")
	t.Logf("the instances near the users run after %s", took().Round(100*time.Millisecond))
	if arrived(t, users[0], "echo") == 0 || arrived(t, users[0], "connection") > 0 {
		t.Error("the user that answers ICMP echo was probed by other packets")
	}
	if arrived(t, users[1], "echo") == 0 || met.Load() == 0 || arrived(t, users[1], "connection") <= int(met.Load()) {
		t.Errorf("the user that does not answer ICMP echo received %d echoes, %d connections and %d to its port",
			arrived(t, users[1], "echo"), arrived(t, users[1], "connection"), met.Load())
	}

	// For n1, which did not measure, the estimate comes from its position and the user's.
	o.Apply(lab.App("shop", append(of, near("placed", west, 280))...))
	runs("placed", "n1")

	// The cluster refuses both targets and sends no probe.
	for _, service := range []string{"private", "testing"} {
		id := o.ID("shop", service, 0)
		lab.Within(t, time.Minute, service+" is refused", func() error {
			why, err := o.API.Why(t.Context(), id)
			if err != nil {
				return err
			}
			text, err := json.Marshal(why)
			if err != nil {
				return err
			}
			if !strings.Contains(string(text), "operator forbids to probe it") {
				return fmt.Errorf("why says %s", text)
			}
			return blames(o.Lab, id, api.ConstrainLatency)
		})
		if i := o.Instance(id); i.State != api.Requested || len(o.WorkloadsOf(id)) > 0 {
			t.Errorf("%s is %s on %s", service, i.State, i.Cluster)
		}
	}
	if n := arrived(t, users[0], "within"); n > 0 {
		t.Errorf("%d packets reached targets that must not be probed, want 0", n)
	}
}

// listener listens on a free port of a host.
func listener(t *testing.T, h *netlab.Host) (ln net.Listener, port uint16) {
	t.Helper()
	var err error
	h.Do(func() { ln, err = net.Listen("tcp4", ":0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln, netip.MustParseAddrPort(ln.Addr().String()).Port()
}

// arrived returns the number of packets that a host counted by the rule with that comment.
func arrived(t *testing.T, h *netlab.Host, comment string) (n int) {
	t.Helper()
	for line := range strings.Lines(h.Run("nft", "list", "chain", "ip", "user", "in")) {
		if _, counter, ok := strings.Cut(line, "counter packets "); ok && strings.Contains(line, `"`+comment+`"`) {
			if _, err := fmt.Sscan(counter, &n); err != nil {
				t.Fatalf("read %q: %v", line, err)
			}
			return n
		}
	}
	t.Fatalf("%s has no rule with the comment %s", h.Name, comment)
	return 0
}
