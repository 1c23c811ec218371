package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// overlay is a lab whose nodes are hosts of their own on one network, each with a
// netmanager.
type overlay struct {
	*lab.Lab
	t       *testing.T
	net     *netlab.Lab
	wan     *netlab.Host
	cluster *lab.Cluster
	nodes   []*lab.Node
	hosts   []*netlab.Host
}

func newOverlay(t *testing.T, args ...string) *overlay {
	o := &overlay{Lab: lab.New(t, lab.Options{}), t: t, net: netlab.New(t)}
	o.wan = o.net.Switch("wan")
	o.cluster = o.newCluster("c1", 1, args...)
	return o
}

func (o *overlay) newCluster(id api.ClusterID, n int, args ...string) *lab.Cluster {
	h := o.net.Host(string(id))
	at := fmt.Sprintf("203.0.113.%d", n)
	h.Plug(o.wan, "eth0", at+"/24")
	return o.Cluster(id, lab.ClusterOptions{Host: h, Address: at, Args: args})
}

// node adds a node behind a NAT of a kind.
func (o *overlay) node(c *lab.Cluster, kind netlab.Kind, args ...string) *lab.Node {
	o.t.Helper()
	i := len(o.nodes)
	h := o.net.Site(fmt.Sprintf("h%d", i), kind, o.wan, fmt.Sprintf("203.0.113.%d/24", 10+i), fmt.Sprintf("192.168.%d.0/24", 10+i))
	n := c.Node(fmt.Sprintf("n%d", i), lab.NodeOptions{Containers: true, CPUs: 4, Host: h, Overlay: true, Args: args})
	o.nodes, o.hosts = append(o.nodes, n), append(o.hosts, h)
	return n
}

// ready waits until every node takes work on the network.
func (o *overlay) ready(c *lab.Cluster, n int) {
	o.t.Helper()
	o.Wait("all nodes are on the network", lab.Nodes(c.ID, n))
}

func (o *overlay) server(name string, replicas int) api.Microservice {
	m := o.Container(name, replicas)
	m.Cmd = []string{"/app", "serve"}
	m.Environment = []string{"PORT=80"}
	return m
}

func within(t *testing.T, d time.Duration, what string, ok func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, d, err)
}

// caller asks again and again, each time by a new connection, and counts who
// answers and what fails.
type caller struct {
	in     *lab.Inside
	at     string
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	ok     map[api.InstanceID]int
	failed []string

	answered bool // once
}

func call(in *lab.Inside, at string) *caller {
	ctx, cancel := context.WithCancel(context.Background())
	c := &caller{in: in, at: at, cancel: cancel, ok: map[api.InstanceID]int{}}
	c.done.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			id, err := in.Who(at, 5*time.Second)
			c.mu.Lock()
			switch {
			case err == nil:
				c.ok[id]++
				c.answered = true
			case !c.answered && errors.Is(err, syscall.ECONNREFUSED): // a server that runs may not listen yet
			default:
				c.failed = append(c.failed, fmt.Sprintf("%s after %s: %v", began.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
			}
			c.mu.Unlock()
			time.Sleep(2 * time.Millisecond) // the machine is for others, too
		}
	})
	return c
}

// so waits until the caller's counts are so.
func (c *caller) so(t *testing.T, what string, ok func(map[api.InstanceID]int) bool) {
	t.Helper()
	within(t, 60*time.Second, what, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !ok(c.ok) {
			return fmt.Errorf("answered %v, failed %v", c.ok, c.failed)
		}
		return nil
	})
}

// forget counts from zero.
func (c *caller) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.ok)
	c.failed = nil
}

func (c *caller) failures() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failed)
}

// more waits for n more answers.
func (c *caller) more(t *testing.T, n int) {
	t.Helper()
	sum := func(m map[api.InstanceID]int) (s int) {
		for v := range maps.Values(m) {
			s += v
		}
		return s
	}
	c.mu.Lock()
	was := sum(c.ok)
	c.mu.Unlock()
	c.so(t, fmt.Sprintf("%d more answers", n), func(m map[api.InstanceID]int) bool { return sum(m) >= was+n })
}

func (c *caller) stop() {
	c.cancel()
	c.done.Wait()
}

// Two services on two nodes by every policy and family, then nine replicas; scaled,
// moved, killed and cut off under a client that counts.
func TestServicesTalkByNameAndAddress(t *testing.T) {
	o := newOverlay(t)
	for range 3 {
		o.node(o.cluster, netlab.None)
	}
	o.ready(o.cluster, 3)
	web := o.server("web", 1)
	web.Addresses = &api.Addresses{Closest: "auto", Instances: []api.AddressRange{{From: 0, To: 8}}}
	web.Constraints = nil
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", "n0"), lab.On(web, "c1", "n1;n2")))
	o.Wait("both run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	in := o.Inside(o.ID("shop", "client", 0))
	at := o.Addresses("shop", "web")

	t.Run("names", func(t *testing.T) {
		full := "web.lab.shop.lab.treeline"
		for name, want := range map[string]netip.Addr{
			"any.rr." + full: at.RoundRobin, "any.closest." + full: at.Closest, "0.instance." + full: at.Instances[0],
		} {
			for network, of := range map[string]netip.Addr{"ip4": want, "ip6": api.DefaultNetRanges().Twin(want)} {
				ips, err := in.Lookup(t.Context(), network, name)
				if err != nil || len(ips) != 1 || !ips[0].Equal(net.IP(of.AsSlice())) {
					t.Errorf("%s %s is %v (%v), want %s", network, name, ips, err, of)
				}
			}
		}
		var none *net.DNSError
		if _, err := in.Lookup(t.Context(), "ip4", "any.rr.nothing.lab.shop.lab.treeline"); !errors.As(err, &none) || !none.IsNotFound {
			t.Errorf("a name of nothing: %v", err)
		}
	})
	t.Run("addresses", func(t *testing.T) {
		for policy, a := range map[string]netip.Addr{"rr": at.RoundRobin, "closest": at.Closest, "instance": at.Instances[0]} {
			for _, a := range []netip.Addr{a, api.DefaultNetRanges().Twin(a)} {
				if id, err := in.Who(netip.AddrPortFrom(a, 80).String(), 10*time.Second); err != nil || id != o.ID("shop", "web", 0) {
					t.Errorf("%s %s: %q answers, %v", policy, a, id, err)
				}
			}
		}
	})

	c := call(in, netip.AddrPortFrom(at.RoundRobin, 80).String())
	defer c.stop()
	c.more(t, 20)
	t.Run("scaled up and down", func(t *testing.T) {
		defer o.For(t)()
		o.Scale("shop", "web", 9)
		o.Wait("nine run", o.Running("shop", "web", 9))
		c.so(t, "all nine answer", func(m map[api.InstanceID]int) bool { return len(m) == 9 })
		c.forget()
		c.more(t, 180)
		c.mu.Lock()
		for id, n := range c.ok {
			if n < 10 || n > 30 {
				t.Errorf("%s answered %d of some 180", id, n)
			}
		}
		c.mu.Unlock()
		o.Scale("shop", "web", 3)
		o.Wait("three run", o.Running("shop", "web", 3))
		c.more(t, 50)
		if f := c.failures(); len(f) > 0 {
			t.Errorf("%d requests were lost by scaling: %v", len(f), f)
		}
	})
	t.Run("moved", func(t *testing.T) {
		defer o.For(t)()
		c.forget()
		if _, err := o.cluster.API.OwnNodes().Drain(t.Context(), "n1"); err != nil {
			t.Fatal(err)
		}
		within(t, 60*time.Second, "n1 is empty", func() error {
			if slices.ContainsFunc(o.Workloads(), func(w lab.Workload) bool { return w.Node == "n1" }) {
				return errors.New(o.Story())
			}
			return nil
		})
		o.Wait("three run", o.Running("shop", "web", 3))
		c.more(t, 50)
		if _, err := o.cluster.API.OwnNodes().Uncordon(t.Context(), "n1"); err != nil {
			t.Fatal(err)
		}
		if f := c.failures(); len(f) > 0 {
			t.Errorf("%d requests were lost by the move: %v", len(f), f)
		}
	})
	t.Run("killed", func(t *testing.T) {
		defer o.For(t)()
		c.forget()
		w := o.Workload(o.ID("shop", "web", 1))
		w.Kill9()
		died := time.Now()
		o.Wait("three run again", o.Running("shop", "web", 3))
		c.more(t, 50)
		// What was in flight, and new connections until the node's cluster knows.
		if f := c.failures(); len(f) > 30 || slices.ContainsFunc(f, func(s string) bool { return strings.Contains(s, "deadline") }) {
			t.Errorf("%d requests were lost by a kill %s ago: %v", len(f), time.Since(died), f)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		defer o.For(t)()
		o.Scale("shop", "web", 8) // on both nodes, wherever the moves have left the three
		o.Wait("eight run", o.Running("shop", "web", 8))
		c.so(t, "all eight answer", func(m map[api.InstanceID]int) bool { return len(m) == 8 })
		on := map[string]int{}
		for _, w := range o.Workloads() {
			on[w.Node]++
		}
		if on["n1"] == 0 || on["n2"] == 0 {
			t.Fatalf("the instances are on %v", on)
		}
		c.forget()
		o.hosts[2].Run("ip", "link", "set", "eth0", "down")
		o.Wait("its instances run elsewhere", func(v lab.View) bool {
			on := 0
			for _, w := range o.Workloads() {
				if w.Node == "n1" {
					on++
				}
			}
			return on == 8 && o.Running("shop", "web", 8)(v)
		})
		c.more(t, 50)
		// A request that is under way waits for as long as it may; a new one leads
		// elsewhere within a second.
		if f := c.failures(); len(f) > 8 {
			t.Errorf("%d requests were lost to a node that was cut off: %v", len(f), f)
		}
	})
}

// Every kind of NAT with every other, with real daemons: all pairs talk, and which
// path each got is shown.
func TestNATMatrix(t *testing.T) {
	o := newOverlay(t)
	for _, k := range netlab.Kinds {
		o.node(o.cluster, k)
		o.node(o.cluster, k)
	}
	n := len(o.nodes)
	o.ready(o.cluster, n)
	app := lab.App("nat")
	for i := range o.nodes {
		m := lab.On(o.server(fmt.Sprintf("s%d", i), 1), "c1", o.nodes[i].Name)
		app.Applications[0].Services = append(app.Applications[0].Services, m)
	}
	o.Apply(app)
	for i := range o.nodes {
		o.Wait(fmt.Sprintf("s%d runs", i), o.Running("nat", fmt.Sprintf("s%d", i), 1))
	}
	at := make([]string, n)
	inside := make([]*lab.Inside, n)
	for i := range n {
		at[i] = netip.AddrPortFrom(o.Addresses("nat", fmt.Sprintf("s%d", i)).RoundRobin, 80).String()
		inside[i] = o.Inside(o.ID("nat", fmt.Sprintf("s%d", i), 0))
	}
	// The first of each kind calls the second of each.
	for i := 0; i < n; i += 2 {
		for j := 1; j < n; j += 2 {
			id, err := inside[i].Who(at[j], 20*time.Second)
			if err != nil || id != o.ID("nat", fmt.Sprintf("s%d", j), 0) {
				t.Errorf("%s → %s: %q answers, %v", netlab.Kinds[i/2], netlab.Kinds[j/2], id, err)
			}
		}
	}
	punched := func(a, b netlab.Kind) bool {
		hard := func(k netlab.Kind) bool { return k == netlab.PortRestricted || k == netlab.Double }
		return a != netlab.Blocked && b != netlab.Blocked &&
			(a != netlab.Symmetric || b != netlab.Symmetric && !hard(b)) && (b != netlab.Symmetric || !hard(a))
	}
	var table strings.Builder
	for i := 0; i < n; i += 2 {
		fmt.Fprintf(&table, "%-16s", netlab.Kinds[i/2])
		for j := 1; j < n; j += 2 {
			var got api.PathKind
			find := func() error {
				// Traffic keeps the path alive while it is looked for.
				if _, err := inside[i].Who(at[j], 10*time.Second); err != nil {
					return err
				}
				for _, p := range o.nodes[i].Peers() {
					if p.Node == o.nodes[j].ID {
						got = p.Path
					}
				}
				if punched(netlab.Kinds[i/2], netlab.Kinds[j/2]) && got != api.PathDirect {
					return fmt.Errorf("%s → %s goes by %s", netlab.Kinds[i/2], netlab.Kinds[j/2], got)
				}
				return nil
			}
			within(t, 40*time.Second, "a direct path where there can be one", find)
			fmt.Fprintf(&table, " %-10s", got)
		}
		table.WriteByte('\n')
	}
	t.Logf("paths from each kind to each:\n%s", table.String())
}

// What is known goes on without root and cluster: flows, and new ones.
func TestNetworkGoesOnWithoutOrchestrators(t *testing.T) {
	t.Parallel()
	o := newOverlay(t)
	for range 2 {
		o.node(o.cluster, netlab.PortRestricted)
	}
	o.ready(o.cluster, 2)
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", "n0"), lab.On(o.server("web", 1), "c1", "n1")))
	o.Wait("both run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	in := o.Inside(o.ID("shop", "client", 0))
	at := netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String()
	c := call(in, at)
	defer c.stop()
	c.more(t, 20)
	within(t, 30*time.Second, "a direct path", func() error {
		for _, p := range o.nodes[0].Peers() {
			if p.Path == api.PathDirect {
				return nil
			}
		}
		return fmt.Errorf("%+v", o.nodes[0].Peers())
	})
	c.forget()
	o.Root.Kill9()
	o.cluster.Kill9()
	time.Sleep(away()) // that it goes on for so long is what is proven
	c.more(t, 20)
	if f := c.failures(); len(f) > 0 {
		t.Errorf("%d requests were lost without orchestrators: %v", len(f), f)
	}
	if ips, err := in.Lookup(t.Context(), "ip4", "web.lab.shop.lab.treeline"); err != nil || len(ips) != 1 {
		t.Errorf("the name is %v (%v)", ips, err)
	}

	// A netmanager that is killed meanwhile comes back with what it knew.
	o.nodes[0].Net.Kill9()
	o.nodes[0].Net.Start()
	c.more(t, 20)
	if f := c.failures(); len(f) > 3 {
		t.Errorf("%d requests were lost by a netmanager's restart: %v", len(f), f)
	}
	c.forget()
	o.StartRoot()
	o.cluster.Start()
	o.Scale("shop", "web", 2)
	o.Wait("two run", o.Running("shop", "web", 2))
	c.so(t, "the new instance answers", func(m map[api.InstanceID]int) bool { return len(m) == 2 })
	if f := c.failures(); len(f) > 0 {
		t.Errorf("%d requests were lost when they came back: %v", len(f), f)
	}
}

// Services of two clusters, each node behind a NAT of its own: routes by way of the
// root, packets by way of the relay and then directly, and no node's name across.
func TestServicesTalkAcrossClusters(t *testing.T) {
	o := newOverlay(t)
	second := o.newCluster("c2", 2)
	o.node(o.cluster, netlab.PortRestricted)
	o.node(second, netlab.PortRestricted)
	o.ready(o.cluster, 1)
	o.ready(second, 1)
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", ""), lab.On(o.server("web", 1), "c2", "")))
	o.Wait("both run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	in := o.Inside(o.ID("shop", "client", 0))
	if ips, err := in.Lookup(t.Context(), "ip4", "web.lab.shop.lab.treeline"); err != nil || len(ips) != 1 {
		t.Fatalf("the name is %v (%v)", ips, err)
	}
	c := call(in, netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String())
	defer c.stop()
	c.more(t, 20)
	within(t, 30*time.Second, "a direct path to another cluster's node", func() error {
		peers := o.nodes[0].Peers()
		for _, p := range peers {
			if p.Node != "" {
				t.Fatalf("a node of another cluster is named: %+v", p)
			}
			if p.Path == api.PathDirect && p.Cluster == "c2" {
				return nil
			}
		}
		return fmt.Errorf("%+v", peers)
	})
	o.Scale("shop", "web", 3)
	o.Wait("three run", o.Running("shop", "web", 3))
	c.so(t, "all three answer", func(m map[api.InstanceID]int) bool { return len(m) == 3 })
	o.Root.Kill9()
	c.more(t, 50)
	o.StartRoot()
	// Who calls hears by way of the root who leaves: both clusters must have it again.
	o.Wait("the root hears both clusters", func(v lab.View) bool {
		return v.Clusters["c1"].Status == api.ClusterReady && v.Clusters["c2"].Status == api.ClusterReady
	})
	o.Scale("shop", "web", 1)
	o.Wait("one runs", o.Running("shop", "web", 1))
	c.more(t, 50)
	if f := c.failures(); len(f) > 0 {
		t.Errorf("%d requests were lost: %v", len(f), f)
	}
}

// Who may not call is refused where it leaves; nothing of the host is reached.
func TestTenantsAndCallersAreKeptApart(t *testing.T) {
	t.Parallel()
	o := newOverlay(t)
	for range 2 {
		o.node(o.cluster, netlab.None)
	}
	o.ready(o.cluster, 2)
	closed := lab.On(o.server("closed", 1), "c1", "n1")
	closed.Callers = []string{"none"}
	app := lab.On(o.server("app", 1), "c1", "n1")
	app.Callers = []string{"app"}
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", "n0"), lab.On(o.server("open", 1), "c1", "n1"), closed, app))
	o.Apply(lab.App("blog", lab.On(o.Container("reader", 1), "c1", "n0")))
	for _, s := range [][2]string{{"shop", "client"}, {"shop", "open"}, {"shop", "closed"}, {"shop", "app"}, {"blog", "reader"}} {
		o.Wait(s[1]+" runs", o.Running(s[0], s[1], 1))
	}
	at := func(s string) string { return netip.AddrPortFrom(o.Addresses("shop", s).RoundRobin, 80).String() }
	own := func(s string) string { return netip.AddrPortFrom(o.Instance(o.ID("shop", s, 0)).Address, 80).String() }
	client, reader := o.Inside(o.ID("shop", "client", 0)), o.Inside(o.ID("blog", "reader", 0))
	var refused sync.WaitGroup // most of them by silence, for as long as a caller waits
	defer refused.Wait()
	for _, tt := range []struct {
		name  string
		from  *lab.Inside
		to    string
		reach bool
	}{
		{"open by its own application", client, at("open"), true},
		{"open by the tenant's", reader, at("open"), true},
		{"open at its own address", reader, own("open"), true},
		{"app by its own application", client, at("app"), true},
		{"app by another", reader, at("app"), false},
		{"app by another at its own address", reader, own("app"), false},
		{"closed by anybody", client, at("closed"), false},
		{"closed at its own address", client, own("closed"), false},
		{"the node", client, "203.0.113.10:7443", false},
		{"the cluster, on the node's network", client, "203.0.113.1:7443", false},
	} {
		dial := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			conn, err := tt.from.Dial(ctx, "tcp", tt.to)
			if conn != nil {
				_ = conn.Close()
			}
			return err
		}
		if tt.reach { // a server that runs may not listen yet
			within(t, 20*time.Second, tt.name, dial)
			continue
		}
		refused.Go(func() {
			if dial() == nil {
				t.Errorf("%s: it is reached", tt.name)
			}
		})
	}
}

// A published port is reached at its node, and nobody takes it twice.
func TestPublishedPorts(t *testing.T) {
	t.Parallel()
	o := newOverlay(t)
	for range 2 {
		o.node(o.cluster, netlab.None)
	}
	o.ready(o.cluster, 2)
	web := o.server("web", 2)
	web.Port = "8088:80"
	o.Apply(lab.App("shop", web))
	o.Wait("both run", o.Running("shop", "web", 2))
	outside := o.net.Host("outside")
	outside.Plug(o.wan, "eth0", "203.0.113.200/24")
	seen := map[string]bool{}
	for i := range 2 {
		within(t, 20*time.Second, "the port answers", func() error {
			var out string
			var err error
			outside.Do(func() { out, err = get(fmt.Sprintf("203.0.113.%d:8088", 10+i)) })
			if err == nil {
				seen[out] = true
			}
			return err
		})
	}
	if len(seen) != 2 {
		t.Errorf("answers of %v", seen)
	}
	o.Scale("shop", "web", 3)
	o.Wait("the third finds no node", func(v lab.View) bool {
		i, ok := v.Instances[o.ID("shop", "web", 2)]
		return ok && i.State == api.Requested && i.Reason != ""
	})
	why, err := o.API.Why(t.Context(), o.ID("shop", "web", 2))
	if err != nil || !strings.Contains(fmt.Sprintf("%+v", why), "8088") {
		t.Errorf("why says %+v (%v)", why, err)
	}
}

// away is how long the orchestrators are away: ten minutes on request.
func away() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("TREELINE_LAB_AWAY")); err == nil {
		return d
	}
	return 15 * time.Second
}

// get is the instance that answers at an address of this network.
func get(address string) (string, error) {
	c, err := net.DialTimeout("tcp", address, 3*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	_, rest, ok := strings.Cut(string(text), `"instance":"`)
	if !ok {
		return "", fmt.Errorf("answered %q: %w", text, err)
	}
	id, _, _ := strings.Cut(rest, `"`)
	return id, nil
}
