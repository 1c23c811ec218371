package away

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

func TestMain(m *testing.M) {
	lab.Main()
	code := m.Run()
	lab.Forget()
	os.Exit(code)
}

const (
	// tenMinutes is the guaranteed time without orchestrators.
	tenMinutes = 10 * time.Minute
	// patience bounds a request on a machine that runs other tests at the same time.
	patience = time.Minute
)

// ranges are network ranges other than the defaults.
var ranges = wire.NetRanges{
	Instances: netip.MustParsePrefix("172.20.0.0/16"), Services: netip.MustParsePrefix("172.22.4.0/22"),
	Instances6: netip.MustParsePrefix("fd12:3456:789a::/64"), Services6: netip.MustParsePrefix("fd12:3456:789b::/64"),
}

// world has two pairs of a client and a server: client calls web through the tunnel, each
// behind a NAT, and reader calls page on a kernel path.
type world struct {
	*lab.Overlay
	pairs []pair
	talks []*talk
}

// pair is a client and the service that it calls.
type pair struct {
	client  *lab.Inside
	service string
	at      api.ServiceAddresses
	first   *lab.Inside // the service's instance 0
	path    api.PathKind
}

func newWorld(t *testing.T) *world {
	w := &world{Overlay: lab.NewOverlay(t, lab.Options{RootArgs: []string{
		"--network-instances=" + ranges.Instances.String(), "--network-services=" + ranges.Services.String(),
		"--network-instances-6=" + ranges.Instances6.String(), "--network-services-6=" + ranges.Services6.String(),
	}}, "--network-clear=203.0.113.0/24", "--dead=30s")}
	w.Node(w.First, netlab.PortRestricted)
	w.Node(w.First, netlab.PortRestricted)
	w.ClearNode(w.First, false)
	w.ClearNode(w.First, false)
	w.Ready(w.First, 4)
	web, page := w.Server("web", 1), w.Server("page", 1)
	web.Addresses = &api.Addresses{Instances: []api.AddressRange{{From: 0, To: 2}}}
	page.Port = "8088:80"
	w.Apply(lab.App("shop",
		lab.On(w.Container("client", 1), "c1", "n0"), lab.On(web, "c1", "n1"),
		lab.On(w.Container("reader", 1), "c1", "n2"), lab.On(page, "c1", "n3")))
	for _, p := range []struct {
		client, service string
		path            api.PathKind
	}{{"client", "web", api.PathDirect}, {"reader", "page", api.PathRoute}} {
		w.Wait("both run", func(v lab.View) bool { return w.Running("shop", p.client, 1)(v) && w.Running("shop", p.service, 1)(v) })
		w.pairs = append(w.pairs, pair{
			client: w.Inside(w.ID("shop", p.client, 0)), first: w.Inside(w.ID("shop", p.service, 0)),
			service: p.service, at: w.Addresses("shop", p.service), path: p.path,
		})
	}
	return w
}

// settled waits until each client's node uses the pair's path to its server's node.
func (w *world) settled(t *testing.T) {
	t.Helper()
	for i, p := range w.pairs {
		lab.Within(t, patience, fmt.Sprintf("a path by %s", p.path), func() error {
			if _, err := p.client.Who(p.v4(80), patience); err != nil {
				return err
			}
			for _, peer := range w.Nodes[2*i].Peers() {
				if peer.Node == w.Nodes[2*i+1].ID && peer.Path == p.path {
					return nil
				}
			}
			return fmt.Errorf("%+v", w.Nodes[2*i].Peers())
		})
	}
}

// v4 returns the service's address with a port, and v6 the IPv6 address that belongs to it.
func (p pair) v4(port uint16) string { return netip.AddrPortFrom(p.at.RoundRobin, port).String() }

func (p pair) v6(port uint16) string {
	return netip.AddrPortFrom(ranges.To6(p.at.RoundRobin), port).String()
}

func TestNetworkGoesOnWithoutOrchestrators(t *testing.T) {
	var short error
	if end, has := t.Deadline(); has && time.Until(end) < tenMinutes*3/2 {
		short = errors.New("go test's default is ten minutes for all")
	}
	programtest.Require(t, "-timeout=20m", short)
	programtest.NeedRoot(t)
	w := newWorld(t)
	sub := func(name string, fn func(t *testing.T)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			defer w.For(t)()
			fn(t)
		})
	}
	w.settled(t)
	sub("in ranges of one's own", w.inTheirRanges)
	sub("described with its paths", w.described)
	sub("known by name", w.knownByName)
	conf := keys(t)
	for _, p := range w.pairs {
		serveEcho(t, p.first)
		conf.serve(t, p.first)
		for _, over := range []string{"tcp", "udp"} {
			w.talks = append(w.talks, begin(t, over+" by "+string(p.path), time.Second, dialEcho(t, p, over)))
		}
		w.talks = append(w.talks, begin(t, "QUIC by "+string(p.path), time.Second, conf.dial(t, p.client, p.v4(quicPort)).by(p.first.W.Instance)))
	}
	sub("scaled beside them", func(sub *testing.T) { w.scaled(sub, t, conf) })
	for _, p := range w.pairs {
		for _, at := range []string{p.v4(80), p.v6(80), p.service + ":80"} {
			w.talks = append(w.talks, begin(t, "new connections to "+at, time.Second/2, anew(p.client, at)))
		}
	}
	sub("for ten minutes", w.withoutOrchestrators)
}

// The configured ranges are used in both families.
func (w *world) inTheirRanges(t *testing.T) {
	for _, p := range w.pairs {
		own := w.Instance(p.first.W.Instance).Address
		if !ranges.Services.Contains(p.at.RoundRobin) || !ranges.Instances.Contains(own) {
			t.Errorf("%s has the address %s and its instance %s, want both within the configured ranges", p.service, p.at.RoundRobin, own)
		}
		for _, at := range []netip.Addr{p.at.RoundRobin, ranges.To6(p.at.RoundRobin), own, ranges.To6(own)} {
			if id, err := p.client.Who(netip.AddrPortFrom(at, 80).String(), patience); err != nil || id != p.first.W.Instance {
				t.Errorf("%s at %s: %q answers, %v", p.service, at, id, err)
			}
		}
	}
}

// treeline shows the path to each peer.
func (w *world) described(t *testing.T) {
	for i, p := range w.pairs {
		shown := w.Nodes[2*i].DescribeNode()
		peer := w.Nodes[2*i+1].Name
		if !slices.ContainsFunc(strings.Split(shown, "\n"), func(line string) bool {
			f := strings.Fields(line)
			return len(f) > 1 && f[0] == peer && f[1] == string(p.path)
		}) {
			t.Errorf("the path to %s is %s, but treeline prints:\n%s", peer, p.path, shown)
		}
	}
}

// Two more instances do not affect existing connections, and get new ones.
func (w *world) scaled(t, outer *testing.T, conf quicKeys) {
	p := w.pairs[0]
	w.Scale("shop", p.service, 3)
	w.Wait("three run", w.Running("shop", p.service, 3))
	for i := 1; i < 3; i++ {
		in := w.Inside(w.ID("shop", p.service, i))
		serveEcho(outer, in)
		conf.serve(outer, in)
	}
	seen := map[api.InstanceID]bool{}
	lab.Within(t, patience, "new connections by QUIC find all three", func() error {
		id, err := conf.dial(t, p.client, p.v4(quicPort)).ask(strings.Repeat("a stream ", 20_000))
		if err != nil {
			t.Errorf("QUIC: %v", err)
		}
		if seen[id] = true; len(seen) < 3 {
			return fmt.Errorf("%v", seen)
		}
		return nil
	})
}

// Root and cluster are down for ten minutes. Nothing is lost, although other daemons are
// killed in that time, and changes take effect when root and cluster are back.
func (w *world) withoutOrchestrators(t *testing.T) {
	w.Root.Kill9()
	w.First.Kill9()
	began := time.Now()
	at := func(d time.Duration) { time.Sleep(time.Until(began.Add(d))) } // the test is about this duration

	at(tenMinutes / 5)
	// The client's end of the tunnel. Nobody repeats datagrams that are lost before the
	// tunnel is open again.
	killed := time.Now()
	w.Nodes[0].Net.Restart()
	if _, err := w.pairs[0].client.Who(w.pairs[0].v4(80), patience); err != nil {
		t.Errorf("the tunnel does not open again: %v", err)
	}
	back := time.Now()
	at(tenMinutes * 2 / 5)
	w.Nodes[1].Restart()
	at(tenMinutes * 3 / 5)
	w.Nodes[3].Net.Restart() // on a kernel path this loses nothing
	at(tenMinutes * 4 / 5)
	t.Run("known by name", w.knownByName)
	at(tenMinutes)

	w.StartRoot()
	w.First.Start()
	late := lab.Encode(lab.App("blog", lab.On(w.Server("late", 1), "c1", "n1")))
	// A root that has just started assigns no addresses before it knows which are in use.
	lab.Within(t, patience, "what is new is taken", func() error { return w.TryApply(late) })
	w.Wait("what is new runs", w.Running("blog", "late", 1))
	for _, p := range w.pairs {
		lab.Within(t, patience, "what is new is found", func() error {
			_, err := p.client.Who("late.lab.blog.lab.treeline:80", patience)
			return err
		})
	}
	for _, k := range w.talks {
		said, lost := k.end()
		t.Logf("%s: %d times", k.name, said)
		if said < int(tenMinutes/time.Second)/3 {
			t.Errorf("%s: only %d requests were made", k.name, said)
		}
		for _, l := range lost {
			if k.name == "udp by "+string(api.PathDirect) && l.at.After(killed.Add(-time.Second)) && l.at.Before(back.Add(time.Second)) {
				t.Logf("%s: lost before the tunnel was open again, after %s: %s", k.name, back.Sub(killed).Round(time.Millisecond), l)
				continue
			}
			t.Errorf("%s: lost %s, want no loss", k.name, l)
		}
	}
}
