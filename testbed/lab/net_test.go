package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Nodes behind each kind of NAT reach nodes behind every other kind. The test logs the path of
// each pair.
func TestNATMatrix(t *testing.T) {
	t.Parallel()
	o := lab.NewOverlay(t, lab.Options{})
	for _, k := range netlab.Kinds {
		o.Node(o.First, k)
		o.Node(o.First, k)
	}
	n := len(o.Nodes)
	o.Ready(o.First, n)
	app := lab.App("nat")
	for i := range o.Nodes {
		m := lab.On(o.Server(fmt.Sprintf("s%d", i), 1), "c1", o.Nodes[i].Name)
		app.Applications[0].Services = append(app.Applications[0].Services, m)
	}
	o.Apply(app)
	for i := range o.Nodes {
		o.Wait(fmt.Sprintf("s%d runs", i), o.Running("nat", fmt.Sprintf("s%d", i), 1))
	}
	at := make([]string, n)
	inside := make([]*lab.Inside, n)
	for i := range n {
		at[i] = netip.AddrPortFrom(o.Addresses("nat", fmt.Sprintf("s%d", i)).RoundRobin, 80).String()
		inside[i] = o.Inside(o.ID("nat", fmt.Sprintf("s%d", i), 0))
	}
	// The first node of each kind calls the second of each.
	for i := 0; i < n; i += 2 {
		for j := 1; j < n; j += 2 {
			lab.Within(t, time.Minute, "each node reaches each other", func() error { // a running instance may not listen yet
				id, err := inside[i].Who(at[j], 20*time.Second)
				if err == nil && id != o.ID("nat", fmt.Sprintf("s%d", j), 0) {
					t.Errorf("%s → %s: %q answers", netlab.Kinds[i/2], netlab.Kinds[j/2], id)
				}
				return err
			})
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
				// Traffic keeps the path in use during the check.
				if _, err := inside[i].Who(at[j], 10*time.Second); err != nil {
					return err
				}
				for _, p := range o.Nodes[i].Peers() {
					if p.Node == o.Nodes[j].ID {
						got = p.Path
					}
				}
				if punched(netlab.Kinds[i/2], netlab.Kinds[j/2]) && got != api.PathDirect {
					return fmt.Errorf("the path %s → %s is %s", netlab.Kinds[i/2], netlab.Kinds[j/2], got)
				}
				return nil
			}
			lab.Within(t, 2*time.Minute, "a direct path where there can be one", find)
			fmt.Fprintf(&table, " %-10s", got)
		}
		table.WriteByte('\n')
	}
	t.Logf("paths from each kind to each:\n%s", table.String())
}

// Services of two clusters with nodes behind separate NATs call each other: routes come through
// the root, packets through the relay and then directly, and no name of a node reaches the
// other cluster.
func TestServicesTalkAcrossClusters(t *testing.T) {
	t.Parallel()
	o := lab.NewOverlay(t, lab.Options{})
	second := o.NewCluster("c2", 2)
	o.Node(o.First, netlab.PortRestricted)
	o.Node(second, netlab.PortRestricted)
	o.Ready(o.First, 1)
	o.Ready(second, 1)
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", ""), lab.On(o.Server("web", 1), "c2", "")))
	o.Wait("both run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	in := o.Inside(o.ID("shop", "client", 0))
	if ips, err := in.Lookup(t.Context(), "ip4", "web.lab.shop.lab.treeline"); err != nil || len(ips) != 1 {
		t.Fatalf("the name resolves to %v (%v)", ips, err)
	}
	c := lab.Call(in, netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String())
	defer c.Stop()
	c.More(t, 20)
	lab.Within(t, 2*time.Minute, "a direct path to another cluster's node", func() error {
		peers := o.Nodes[0].Peers()
		for _, p := range peers {
			if p.Node != "" {
				t.Fatalf("the peer list names a node of another cluster: %+v", p)
			}
			if p.Path == api.PathDirect && p.Cluster == "c2" {
				return nil
			}
		}
		return fmt.Errorf("%+v", peers)
	})
	t.Run("Prometheus", func(t *testing.T) { scrapesAllDaemons(t, o) })
	toldNothingInner(t, o.Nodes[0], []string{"n1"}, "192.168.11.")
	toldNothingInner(t, o.Nodes[1], []string{"n0"}, "192.168.10.")
	o.Scale("shop", "web", 3)
	o.Wait("three run", o.Running("shop", "web", 3))
	c.So(t, "all three answer", func(m map[api.InstanceID]int) bool { return len(m) == 3 })
	o.Root.Kill9()
	c.More(t, 50)
	o.StartRoot()
	// The caller learns through the root which instances leave, so both clusters must be connected
	// again.
	o.Wait("the root hears both clusters", func(v lab.View) bool {
		return v.Clusters["c1"].Status == api.ClusterReady && v.Clusters["c2"].Status == api.ClusterReady
	})
	o.Scale("shop", "web", 1)
	o.Wait("one runs", o.Running("shop", "web", 1))
	c.More(t, 50)
	if f := c.Failures(); len(f) > 0 {
		t.Errorf("%d requests were lost: %v", len(f), f)
	}
}

// Calls that policy forbids are refused at the sender, and workloads cannot reach the host.
func TestTenantsAndCallersAreKeptApart(t *testing.T) {
	t.Parallel()
	o := lab.NewOverlay(t, lab.Options{})
	for range 2 {
		o.Node(o.First, netlab.None)
	}
	o.Ready(o.First, 2)
	closed := lab.On(o.Server("closed", 1), "c1", "n1")
	closed.Callers = []string{"none"}
	app := lab.On(o.Server("app", 1), "c1", "n1")
	app.Callers = []string{"app"}
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", "n0"), lab.On(o.Server("open", 1), "c1", "n1"), closed, app))
	o.Apply(lab.App("blog", lab.On(o.Container("reader", 1), "c1", "n0")))
	for _, s := range [][2]string{{"shop", "client"}, {"shop", "open"}, {"shop", "closed"}, {"shop", "app"}, {"blog", "reader"}} {
		o.Wait(s[1]+" runs", o.Running(s[0], s[1], 1))
	}
	at := func(s string) string { return netip.AddrPortFrom(o.Addresses("shop", s).RoundRobin, 80).String() }
	own := func(s string) string { return netip.AddrPortFrom(o.Instance(o.ID("shop", s, 0)).Address, 80).String() }
	client, reader := o.Inside(o.ID("shop", "client", 0)), o.Inside(o.ID("blog", "reader", 0))
	var refused sync.WaitGroup // most time out
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
		if tt.reach { // a running server may not listen yet
			lab.Within(t, time.Minute, tt.name, dial)
			continue
		}
		refused.Go(func() {
			if dial() == nil {
				t.Errorf("%s: the call succeeded, want it refused", tt.name)
			}
		})
	}
}

// A published port is reachable at its node and is never used twice. If a node has no addresses
// left, instances are placed on another.
func TestPublishedPorts(t *testing.T) {
	t.Parallel()
	o := lab.NewOverlay(t, lab.Options{RootArgs: []string{"--network-subnet-bits=29", "--oakestra-compat"}}) // five instances a node
	oakestraImages(t, o)
	for i, name := range []string{"n0", oakestraNode} {
		o.Site(o.First, netlab.None, lab.NodeOptions{Name: name, Args: []string{"--address", fmt.Sprintf("203.0.113.%d", 10+i)}})
	}
	o.Ready(o.First, 2)
	web := o.Server("web", 2)
	web.Port = "8088:80"
	o.Apply(lab.App("shop", web))
	o.Wait("both run", o.Running("shop", "web", 2))
	outside := o.Net.Host("outside")
	outside.Plug(o.WAN, "eth0", "203.0.113.200/24")
	seen := map[string]bool{}
	for i := range 2 {
		lab.Within(t, time.Minute, "the port answers", func() error {
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
		t.Errorf("the published ports were answered by %v", seen)
	}
	_, developer := o.UserWithToken("dora", "Application_Provider")
	reachedAt(t, o, outside, developer, o.ID("shop", "web", 0), o.ID("shop", "web", 1))
	t.Run("Oakestra", func(t *testing.T) { oakestraRuns(t, o, outside) })
	o.Scale("shop", "web", 3)
	o.Wait("the third finds no node", func(v lab.View) bool {
		i, ok := v.Instances[o.ID("shop", "web", 2)]
		return ok && i.State == api.Requested && i.Reason != ""
	})
	whyNames(t, o, o.ID("shop", "web", 2), "8088")
	t.Run("addresses", func(t *testing.T) { addressesRunOut(t, o) })
}

// addressesRunOut fills n0, which has the most capacity except for addresses. One of its five
// addresses is used, and two of the other node's.
func addressesRunOut(t *testing.T, o *lab.Overlay) {
	o.Apply(lab.App("ballast", lab.On(lab.Needing(o.Container("ballast", 1), 3, 50), "c1", oakestraNode)))
	o.Wait("the ballast runs", o.Running("ballast", "ballast", 1))
	o.Apply(lab.App("many", lab.On(o.Container("many", 6), "c1", "n0;"+oakestraNode)))
	o.Wait("all run", o.Running("many", "many", 6))
	on := map[string]int{}
	for _, w := range o.Service("many", "many", 6) {
		on[w.Node]++
	}
	if on["n0"] != 4 || on[oakestraNode] != 2 {
		t.Errorf("the instances run on %v", on)
	}
	o.Scale("many", "many", 8)
	var last api.InstanceID
	o.Wait("the last is nowhere", func(v lab.View) bool {
		run := 0
		last = ""
		for i := range 8 {
			id := o.ID("many", "many", i)
			switch in := v.Instances[id]; {
			case in.State == api.Running:
				run++
			case in.State == api.Requested && in.Reason != "":
				last = id
			}
		}
		return run == 7 && last != ""
	})
	whyNames(t, o, last, "2 address", "Constraint:address Count:2")
}

// whyNames waits until the explanation of an instance contains one of the texts, because an
// earlier explanation may be shown first.
func whyNames(t *testing.T, o *lab.Overlay, id api.InstanceID, texts ...string) {
	t.Helper()
	lab.Within(t, time.Minute, fmt.Sprintf("why names %q", texts), func() error {
		why, err := o.API.Why(t.Context(), id)
		if err != nil {
			return err
		}
		says := fmt.Sprintf("%+v", why)
		if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(says, s) }) {
			return errors.New(says)
		}
		return nil
	})
}

// get returns the instance that answers at an address of this network.
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
