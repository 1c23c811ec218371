package sched_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

var capacity = api.Resources{MilliCPU: 2000, MemoryMB: 1024}

func node(change func(*sched.Candidate)) sched.Candidate {
	c := plugintest.Node("n1", capacity)
	change(&c)
	return c
}

func TestRejections(t *testing.T) {
	base := sched.Request{Needs: api.Resources{MilliCPU: 500, MemoryMB: 512}, Virtualization: "container"}
	asking := func(change func(*sched.Request)) sched.Request {
		r := base
		change(&r)
		return r
	}
	as := func(change func(*sched.Candidate)) sched.Candidate { return node(change) }
	same := func(*sched.Candidate) {}
	mbits := func(c *sched.Candidate) {
		r := &c.Slots[0]
		c.Free.InMbit, c.Free.OutMbit = 50, 50
		r.Free, r.Largest = c.Free, c.Free
	}
	at := func(x float64) *api.Coordinate {
		c := vivaldi.New()
		c.Vec[0], c.Height = x, 0.001
		return &c
	}
	inMunich := func(r *sched.Request) {
		r.Zones = []sched.Zone{{Circle: &api.Geo{Lat: 48.14, Lon: 11.58}, Radius: 200}}
	}
	nearPre := func(r *sched.Request) {
		r.Bounds = []sched.Bound{{To: "pre.prod", RTT: 20 * time.Millisecond, Points: []api.Position{{}, {Coord: at(0)}, {Coord: at(-1)}}}}
	}
	tests := []struct {
		name string
		req  sched.Request
		c    sched.Candidate
		want api.Rejection
	}{
		{
			"silent", base, as(func(c *sched.Candidate) { c.Out = "silent" }),
			api.Rejection{Constraint: "out", Need: "takes work", Have: "silent", Shortfall: 1},
		},
		{
			"avoided", asking(func(r *sched.Request) { r.Avoid = []string{"n1"} }), as(same),
			api.Rejection{Constraint: "avoid", Have: "refused or failed it just now", Shortfall: 1},
		},
		{
			"another node", asking(func(r *sched.Request) { r.Nodes = []string{"n7", "n8"} }), as(same),
			api.Rejection{Constraint: "node", Need: "n7 or n8", Have: "n1", Shortfall: 1},
		},
		{
			"another cluster", asking(func(r *sched.Request) { r.Clusters = []string{"c2"} }),
			as(func(c *sched.Candidate) { c.Level = sched.Clusters }),
			api.Rejection{Constraint: "cluster", Need: "c2", Have: "n1", Shortfall: 1},
		},
		{
			"privileged", asking(func(r *sched.Request) { r.Privileged = true }), as(same),
			api.Rejection{Constraint: "privileged", Need: "privileged allowed", Have: "forbidden", Shortfall: 1},
		},
		{
			"runtime", asking(func(r *sched.Request) { r.Virtualization = "runsc" }), as(same),
			api.Rejection{Constraint: "virtualization", Need: "runsc", Have: "container", Shortfall: 1},
		},
		{
			"no room at all", base, as(func(c *sched.Candidate) { c.Slots = nil }),
			api.Rejection{Constraint: "virtualization", Need: "container", Have: "none", Shortfall: 1},
		},
		{
			"arch", asking(func(r *sched.Request) { r.Arch = []string{"arm64", "riscv64"} }), as(same),
			api.Rejection{Constraint: "arch", Need: "arm64 or riscv64", Have: "amd64", Shortfall: 1},
		},
		{
			"network", asking(func(r *sched.Request) { r.Network = true }), as(same),
			api.Rejection{Constraint: "network", Need: "an overlay network", Have: "none: its workloads have the node's own network or none at all", Shortfall: 1},
		},
		{
			"network of a cluster", asking(func(r *sched.Request) { r.Network = true }), as(func(c *sched.Candidate) { c.Level = sched.Clusters }),
			api.Rejection{Constraint: "network", Need: "an overlay network", Have: "none on its nodes", Shortfall: 1},
		},
		{
			"no address left", asking(func(r *sched.Request) { r.Address, r.Devices = true, []api.Device{{Name: "gpu", Count: 1}} }),
			as(func(c *sched.Candidate) { c.Slots[0].Network, c.Slots[0].Full = true, true }),
			api.Rejection{Constraint: "address", Need: "an address on the node's network", Have: "none left", Shortfall: 1},
		},
		{
			"port", asking(func(r *sched.Request) { r.Ports = []sched.Port{{"udp", 53}, {"tcp", 80}} }),
			as(func(c *sched.Candidate) { c.Ports = map[sched.Port]int{{"tcp", 53}: 1, {"tcp", 80}: 1} }),
			api.Rejection{Constraint: "port", Need: "port 80/tcp free", Have: "port 80/tcp taken", Shortfall: 1},
		},
		{
			"the node's own port", asking(func(r *sched.Request) { r.Ports = []sched.Port{{"tcp", 8080}, {"tcp", 9100}} }),
			as(func(c *sched.Candidate) {
				c.Own = &api.NodePorts{Publish: []api.PortRange{{First: 80, Last: 80}, {First: 1024, Last: 65535}}, Own: []api.HostPort{{Port: 9100, Protocol: "tcp"}}}
			}),
			api.Rejection{Constraint: "port", Need: "port 9100/tcp free", Have: "port 9100/tcp: used by the node itself", Shortfall: 1},
		},
		{
			"a port that nobody may publish", asking(func(r *sched.Request) { r.Ports = []sched.Port{{"tcp", 22}} }),
			as(func(c *sched.Candidate) {
				c.Own = &api.NodePorts{Publish: []api.PortRange{{First: 80, Last: 80}, {First: 1024, Last: 65535}}}
			}),
			api.Rejection{Constraint: "port", Need: "port 22/tcp free", Have: "port 22/tcp: not among the ports that may be published on the node (80,1024-65535)", Shortfall: 1},
		},
		{
			"vcpus", asking(func(r *sched.Request) { r.Needs.MilliCPU = 2500 }), as(same),
			api.Rejection{Constraint: "vcpus", Need: "2.5 vCPU", Have: "2 vCPU", Short: "0.5 vCPU", Shortfall: 0.2},
		},
		{
			"memory", base, as(func(c *sched.Candidate) { c.Slots[0].Largest.MemoryMB = 384 }),
			api.Rejection{Constraint: "memory", Need: "512 MiB", Have: "384 MiB", Short: "128 MiB", Shortfall: 0.25},
		},
		{
			"booked over shows as nothing left", base, as(func(c *sched.Candidate) { c.Free.MemoryMB = -100 }),
			api.Rejection{Constraint: "memory", Need: "512 MiB", Have: "0 MiB", Short: "512 MiB", Shortfall: 1},
		},
		{
			"features", asking(func(r *sched.Request) { r.Features = []string{"files"} }),
			as(same),
			api.Rejection{Constraint: "features", Need: "files of the SLA", Have: "not supported by the release or the runtime of the node", Shortfall: 1},
		},
		{
			"addons", asking(func(r *sched.Request) { r.Addons = []string{"ocr", "maps"} }),
			as(func(c *sched.Candidate) { c.Slots[0].Addons = []string{"ocr"} }),
			api.Rejection{Constraint: "addons", Need: "ocr and maps", Have: "ocr", Shortfall: 1},
		},
		{
			"labels", asking(func(r *sched.Request) { r.Labels = []sched.Selector{{Key: "disk", Value: "ssd"}} }),
			as(func(c *sched.Candidate) { c.Labels = map[string]string{"disk": "hdd"} }),
			api.Rejection{Constraint: "labels", Need: "disk=ssd", Have: "disk=hdd", Shortfall: 1},
		},
		{
			"a label that is not there", asking(func(r *sched.Request) { r.Labels = []sched.Selector{{Key: "disk", Any: true}} }), as(same),
			api.Rejection{Constraint: "labels", Need: "disk", Have: "no disk", Shortfall: 1},
		},
		{
			"area", asking(func(r *sched.Request) { r.Zones = []sched.Zone{{Area: "munich"}} }), as(same),
			api.Rejection{Constraint: "area", Need: "munich", Have: "none", Shortfall: 1},
		},
		{
			"circle", asking(inMunich), as(func(c *sched.Candidate) { c.Geo = &api.Geo{Lat: 53.35, Lon: -6.26} }), // Dublin
			api.Rejection{Constraint: "geo", Need: "200 km of 48.14,11.58", Have: "1378 km", Short: "1178 km", Shortfall: 0.855},
		},
		{
			"a hair's breadth outside", asking(inMunich), as(func(c *sched.Candidate) { c.Geo = &api.Geo{Lat: 49.939, Lon: 11.58} }),
			api.Rejection{Constraint: "geo", Need: "200 km of 48.14,11.58", Have: "200.04 km", Short: "0.04 km", Shortfall: 0},
		},
		{
			"no location", asking(inMunich), as(same),
			api.Rejection{Constraint: "geo", Need: "200 km of 48.14,11.58", Have: "no location", Shortfall: 1},
		},
		{
			"polygon", asking(func(r *sched.Request) {
				r.Zones = []sched.Zone{{Polygon: []api.Geo{{Lat: 47, Lon: 10}, {Lat: 47, Lon: 13}, {Lat: 50, Lon: 11}}}}
			}), as(func(c *sched.Candidate) { c.Geo = &api.Geo{Lat: 53.35, Lon: -6.26} }),
			api.Rejection{Constraint: "geo", Need: "within the polygon", Have: "outside", Shortfall: 1},
		},
		{
			"a cluster's hull", asking(inMunich), as(func(c *sched.Candidate) {
				c.Level, c.Hull = sched.Clusters, []api.Geo{{Lat: 53.35, Lon: -6.26}, {Lat: 54.6, Lon: -5.93}}
			}),
			api.Rejection{Constraint: "geo", Need: "200 km of 48.14,11.58", Have: "1377 km", Short: "1177 km", Shortfall: 0.855},
		},
		{
			"devices", asking(func(r *sched.Request) { r.Devices = []api.Device{{Name: "gpu", Count: 2}, {Name: "tpu", Count: 1}} }),
			as(func(c *sched.Candidate) { c.Slots[0].Devices = map[string]int{"gpu": 1} }),
			api.Rejection{Constraint: "device:gpu", Need: "2 gpu", Have: "1 gpu", Short: "1 gpu", Shortfall: 0.5},
		},
		{
			"spread", asking(func(r *sched.Request) {
				r.Domains = []sched.Domain{{By: "node", Name: "n7", Have: 1, Limit: 1}, {By: "zone", Name: "a", Have: 2, Limit: 2}}
			}), as(func(c *sched.Candidate) { c.Labels = map[string]string{"zone": "a"} }),
			api.Rejection{Constraint: "spread", Need: "at most 2 per zone", Have: "2 there", Shortfall: 1},
		},
		{
			"apart", asking(func(r *sched.Request) {
				r.Domains = []sched.Domain{{By: "node", Name: "n1", AntiAffinity: "db.prod", Have: 1}}
			}), as(same),
			api.Rejection{Constraint: "apart", Need: "no db.prod on the same node", Have: "1 there", Shortfall: 1},
		},
		{
			"latency", asking(nearPre), as(func(c *sched.Candidate) { c.Coord = at(0.0329) }),
			api.Rejection{Constraint: "latency", Need: "20 ms to pre.prod", Have: "34.9 ms", Short: "14.9 ms", Shortfall: 0.427},
		},
		{
			"a round trip that was measured", asking(func(r *sched.Request) {
				nearPre(r)
				r.Bounds[0].Measured = map[string]time.Duration{"n1": 25 * time.Millisecond}
			}), as(func(c *sched.Candidate) { c.Coord = at(0) }),
			api.Rejection{Constraint: "latency", Need: "20 ms to pre.prod", Have: "25 ms", Short: "5 ms", Shortfall: 0.2},
		},
		{
			"no coordinate", asking(nearPre), as(same),
			api.Rejection{Constraint: "latency", Need: "20 ms to pre.prod", Have: "no coordinate yet", Shortfall: 1},
		},
		{
			"a place that nobody knows", asking(func(r *sched.Request) {
				r.Bounds = []sched.Bound{{To: "198.51.100.7", RTT: 20 * time.Millisecond, Unknown: "its position is being measured"}}
			}), as(func(c *sched.Candidate) { c.Coord = at(0) }),
			api.Rejection{Constraint: "latency", Need: "20 ms to 198.51.100.7", Have: "its position is being measured", Shortfall: 1},
		},
		{
			"storage", asking(func(r *sched.Request) { r.Needs.StorageMB = 100 }), as(same),
			api.Rejection{Constraint: "storage", Need: "100 MiB", Have: "0 MiB", Short: "100 MiB", Shortfall: 1},
		},
		{
			"bandwidth in", asking(func(r *sched.Request) { r.Needs.InMbit = 100 }), as(mbits),
			api.Rejection{Constraint: "bandwidth_in", Need: "100 Mbit/s", Have: "50 Mbit/s", Short: "50 Mbit/s", Shortfall: 0.5},
		},
		{
			"bandwidth out", asking(func(r *sched.Request) { r.Needs.OutMbit = 100 }), as(mbits),
			api.Rejection{Constraint: "bandwidth_out", Need: "100 Mbit/s", Have: "50 Mbit/s", Short: "50 Mbit/s", Shortfall: 0.5},
		},
		{
			"bandwidth unknown", asking(func(r *sched.Request) { r.Needs.OutMbit = 100 }), as(func(c *sched.Candidate) { c.Slots[0].BandwidthUnknown = 1 }),
			api.Rejection{
				Constraint: "bandwidth_out", Need: "100 Mbit/s", Shortfall: 1,
				Have: "unknown bandwidth; its operator states it with the key bandwidth in the node's configuration, such as 100/20",
			},
		},
		{
			"bandwidth unknown on some of a cluster's nodes", asking(func(r *sched.Request) { r.Needs.InMbit = 100 }), as(func(c *sched.Candidate) {
				c.Level, c.Slots[0].BandwidthUnknown = sched.Clusters, 2
			}),
			api.Rejection{
				Constraint: "bandwidth_in", Need: "100 Mbit/s", Shortfall: 1,
				Have: "unknown bandwidth on 2 of its nodes; its operator states it with the key bandwidth in the node's configuration, such as 100/20",
			},
		},
		{
			"the room that gets furthest speaks", base, as(func(c *sched.Candidate) {
				c.Slots[0].Largest.MemoryMB = 256
				c.Slots = append(c.Slots, sched.Slot{Runtimes: []string{"process"}, Arch: "amd64"})
			}),
			api.Rejection{Constraint: "memory", Need: "512 MiB", Have: "256 MiB", Short: "256 MiB", Shortfall: 0.5},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := sched.Place(&tt.req, []sched.Candidate{tt.c}, rom.Plugin{}, 1)
			tt.want.Candidate = "n1"
			if len(res.Ranked) != 0 || len(res.Rejected) != 1 {
				t.Fatalf("got %+v, want %+v", res, tt.want)
			}
			got := res.Rejected[0]
			if got.Shortfall <= 0 || math.Abs(got.Shortfall-tt.want.Shortfall) > 1e-3 {
				t.Errorf("short by %v of the need, not %v", got.Shortfall, tt.want.Shortfall)
			}
			if got.Shortfall = tt.want.Shortfall; got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if ex := sched.Explain(res); ex.Causes[0].Constraint != tt.want.Constraint || ex.Causes[0].Detail == "" || ex.Nearest == nil {
				t.Errorf("explained as %+v", ex)
			}
		})
	}
}

func TestANeedOfZeroFitsOnAnOverbookedNode(t *testing.T) {
	over := node(func(c *sched.Candidate) { c.Free = api.Resources{MilliCPU: -1, MemoryMB: -1} })
	if _, ok := sched.PlaceBest(&sched.Request{Virtualization: "container"}, []sched.Candidate{over}, rom.Plugin{}, 1); !ok {
		t.Fatal("who needs nothing lacks nothing")
	}
}

// A cluster's largest slots are per kind of node: the processor of one kind and the memory of
// another do not make a slot.
func TestResourcesOfDifferentSlotsDoNotAddUp(t *testing.T) {
	c := sched.Candidate{
		ID: "c1", Level: sched.Clusters, Capacity: capacity, Free: capacity,
		Slots: []sched.Slot{
			{Runtimes: []string{"container"}, Arch: "amd64", Free: capacity, Largest: api.Resources{MilliCPU: 2000, MemoryMB: 64}},
			{Runtimes: []string{"container"}, Arch: "arm64", Free: capacity, Largest: api.Resources{MilliCPU: 100, MemoryMB: 1024}},
		},
	}
	req := sched.Request{Needs: api.Resources{MilliCPU: 1000, MemoryMB: 512}, Virtualization: "container"}
	if _, ok := sched.PlaceBest(&req, []sched.Candidate{c}, rom.Plugin{}, 1); ok {
		t.Fatal("no kind of node has both")
	}
}

func TestExplain(t *testing.T) {
	named := func(id string, change func(*sched.Candidate)) sched.Candidate {
		c := node(change)
		c.ID = id
		return c
	}
	cs := []sched.Candidate{
		named("dead", func(c *sched.Candidate) { c.Out = "silent" }),
		named("small", func(c *sched.Candidate) { c.Free.MemoryMB = 100 }),
		named("close", func(c *sched.Candidate) { c.Free.MemoryMB = 310 }),
		named("slow", func(c *sched.Candidate) { c.Free.MilliCPU = 250 }),
	}
	req := sched.Request{Needs: api.Resources{MilliCPU: 1000, MemoryMB: 512}, Virtualization: "container"}
	ex := sched.Explain(sched.Place(&req, cs, rom.Plugin{}, 1))
	want := []api.Cause{
		{Constraint: "out", Count: 1, Detail: "silent"},
		{Constraint: "vcpus", Count: 1, Detail: "need 1 vCPU, best free 0.25 vCPU"},
		{Constraint: "memory", Count: 2, Detail: "need 512 MiB, best free 310 MiB"},
	}
	if ex.Considered != 4 || !slices.Equal(ex.Causes, want) {
		t.Fatalf("got %+v", ex)
	}
	if ex.Nearest == nil || ex.Nearest.Candidate != "close" || len(ex.Candidates) != 4 {
		t.Fatalf("nearest is %+v of %d", ex.Nearest, len(ex.Candidates))
	}
	blind := sched.Redact(ex)
	if blind.Candidates != nil || blind.Nearest.Candidate != "" || blind.Nearest.Short != "202 MiB" {
		t.Fatalf("redacted: %+v %+v", blind, blind.Nearest)
	}
	if ex.Nearest.Candidate != "close" {
		t.Fatal("redacting changed the original")
	}
}

func TestExplanationCountsEveryCandidateOnce(t *testing.T) {
	fits := node(func(*sched.Candidate) {})
	out := node(func(c *sched.Candidate) { c.ID, c.Out = "n2", "cordoned" })
	req := sched.Request{Virtualization: "container"}
	ex := sched.Explain(sched.Place(&req, []sched.Candidate{fits, out}, rom.Plugin{}, 1))
	sum := 0
	for _, c := range ex.Causes {
		sum += c.Count
	}
	if sum != ex.Considered || sum != 2 || ex.Causes[1].Constraint != sched.Fits {
		t.Fatalf("got %+v", ex)
	}
	if ex := sched.Explain(sched.Result{}); ex.Considered != 0 || ex.Nearest != nil || ex.Causes != nil {
		t.Fatalf("nothing considered gives %+v", ex)
	}
}

func TestConstraintsIntersect(t *testing.T) {
	direct := func(cluster, node string) api.Constraint {
		return api.Constraint{Type: "direct", Cluster: cluster, Node: node}
	}
	among := func(names ...string) api.Constraint { return api.Constraint{Type: "clusters", Allowed: names} }
	tests := []struct {
		name     string
		given    []api.Constraint
		clusters []string
		nodes    []string
	}{
		{"nothing", nil, nil, nil},
		{"one of each", []api.Constraint{direct("c1", "n1")}, []string{"c1"}, []string{"n1"}},
		{"lists", []api.Constraint{direct("c1; c2", "n1;n2")}, []string{"c1", "c2"}, []string{"n1", "n2"}},
		{"both kinds", []api.Constraint{among("c1", "c2"), direct("c2;c3", "")}, []string{"c2"}, nil},
		{"contradiction", []api.Constraint{among("c1"), direct("c2", "")}, []string{"(contradicting constraints)"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := sched.RequestFor("i", &api.Microservice{Constraints: tt.given})
			if !slices.Equal(req.Clusters, tt.clusters) || !slices.Equal(req.Nodes, tt.nodes) {
				t.Fatalf("clusters %v, nodes %v", req.Clusters, req.Nodes)
			}
		})
	}
}

func TestDockerAndContainerAreOneRuntime(t *testing.T) {
	for given, want := range map[string]string{"docker": "container", "container": "container", "runsc": "runsc"} {
		if req := sched.RequestFor("i", &api.Microservice{Virtualization: given}); req.Virtualization != want {
			t.Errorf("%s asks for %s", given, req.Virtualization)
		}
	}
}

func TestSeedsDependOnTheBoundariesOfParts(t *testing.T) {
	seeds := []uint64{
		sched.SeedOf("ab", "c"), sched.SeedOf("a", "bc"), sched.SeedOf("abc"),
		sched.SeedOf(api.InstanceID("abc"), api.Epoch(1)), sched.SeedOf(api.InstanceID("abc"), api.Epoch(2)), sched.SeedOf(),
	}
	slices.Sort(seeds)
	if len(slices.Compact(seeds)) != 6 {
		t.Fatalf("the seeds are %v, want 6 different ones", seeds)
	}
	if a, again := sched.SeedOf("a", 1), sched.SeedOf("a", 1); a != again {
		t.Fatal("a seed is to replay")
	}
}

type broken struct{}

func (broken) Name() string { return "broken" }

func (broken) Score(f sched.Facts) float64 {
	if f.Peers() > 0 {
		return math.NaN()
	}
	return -1e300
}

func TestPluginThatScoresNaNComesLast(t *testing.T) {
	cs := []sched.Candidate{node(func(*sched.Candidate) {}), node(func(c *sched.Candidate) { c.ID = "n2" })}
	req := sched.Request{Virtualization: "container", Peers: map[string]int{"n1": 1}}
	ranked := sched.Place(&req, cs, broken{}, 1).Ranked
	if ranked[0].ID != "n2" || !math.IsInf(ranked[1].Score, -1) {
		t.Fatalf("the ranking is %v, want n2 first and a score of -Inf second", ranked)
	}
}

func TestPlaceBestAllocatesNothing(t *testing.T) {
	cs := many(100)
	req := &sched.Request{Needs: api.Resources{MilliCPU: 100, MemoryMB: 64}, Virtualization: "container"}
	var p sched.Plugin = rom.Plugin{}
	if n := testing.AllocsPerRun(20, func() { sched.PlaceBest(req, cs, p, 1) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestATableDecidesWithoutAllocating(t *testing.T) {
	var table sched.Table
	for _, c := range nodes(300) {
		table.Put(c)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	plain := sched.Request{Needs: api.Resources{MilliCPU: 100, MemoryMB: 64}, Virtualization: "container"}
	labelled, far := plain, asking(rng)
	labelled.Labels = []sched.Selector{{Key: "zone", Value: "z3"}}
	for name, req := range map[string]*sched.Request{"plain": &plain, "labels": &labelled, "places": &far} {
		for _, p := range []sched.Plugin{rom.Plugin{}, ldp.Plugin{}} {
			table.Best(req, p, 1)
			if n := testing.AllocsPerRun(20, func() { table.Best(req, p, 1) }); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, p.Name(), n)
			}
		}
	}
}

func many(n int) []sched.Candidate {
	cs := make([]sched.Candidate, n)
	for i := range cs {
		cs[i] = plugintest.Node(fmt.Sprintf("node-%d", i), api.Resources{MilliCPU: int64(100 * (i%40 + 1)), MemoryMB: 4096})
	}
	return cs
}

func BenchmarkPlaceBest10000(b *testing.B) {
	cs := many(10_000)
	req := &sched.Request{Needs: api.Resources{MilliCPU: 500, MemoryMB: 64}, Virtualization: "container"}
	b.ReportAllocs()
	for b.Loop() {
		sched.PlaceBest(req, cs, rom.Plugin{}, 1)
	}
}

func BenchmarkPlace10000(b *testing.B) {
	cs := many(10_000)
	req := &sched.Request{Needs: api.Resources{MilliCPU: 500, MemoryMB: 64}, Virtualization: "container"}
	b.ReportAllocs()
	for b.Loop() {
		sched.Place(req, cs, rom.Plugin{}, 1)
	}
}
