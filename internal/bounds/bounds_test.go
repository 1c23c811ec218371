package bounds

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestEveryFieldHasABound fails if a field of a lower tier's message has no rule in the table, and if
// a rule of the table has no field.
func TestEveryFieldHasABound(t *testing.T) {
	p := planner{plans: map[reflect.Type]check{}, used: map[string]bool{}}
	for _, m := range messages {
		p.plan(m)
	}
	if len(p.missing) > 0 {
		t.Errorf("no bound in the table for %s", strings.Join(p.missing, ", "))
	}
	for name := range table {
		if !p.used[name] {
			t.Errorf("the table has %s, which no message has", name)
		}
	}
	// The planner must report fields that it has no rule for.
	type inner struct{ N int }
	type outer struct {
		Number  int
		Text    string
		List    []inner
		Map     map[string]int
		Pointer *inner
		Time    time.Time
		Float   float64
		Array   [4]byte
		Any     any
		Flag    bool
	}
	p = planner{plans: map[reflect.Type]check{}, used: map[string]bool{}}
	p.plan(reflect.TypeFor[outer]())
	for _, name := range []string{
		"outer.Number", "outer.Text", "outer.List", "outer.Map", "outer.Pointer", "outer.Time", "outer.Float", "outer.Array", "outer.Any",
	} {
		if !slices.Contains(p.missing, name) {
			t.Errorf("fields without a bound: got %v, want %s among them", p.missing, name)
		}
	}
	if slices.Contains(p.missing, "outer.Flag") {
		t.Error("outer.Flag is reported as a field without a bound; a bool needs none")
	}
}

// The good messages are within their bounds.
func goodReport() wire.Report {
	code := 137
	return wire.Report{
		Cluster: "munich", Boot: 1_790_000_000, Seq: 7, Gen: 12, Desired: math.MaxUint64, Known: 1,
		Aggregate: api.Aggregate{
			Nodes: 2, Overlay: new(1), Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 8000}, Free: api.Resources{MilliCPU: -500, MemoryMB: 10},
			Slots:   []api.Slot{{Runtime: "container", Arch: "amd64", Nodes: 2, Devices: []api.SlotDevice{{Name: "gpu", Free: 2, Largest: 1}}}, {Runtime: "process", Arch: "amd64", Nodes: 2}},
			Hull:    []api.Geo{{Lat: 48, Lon: 11}},
			Latency: &api.CoordSpread{Center: api.Coordinate{Vec: make([]float64, 8)}, Nodes: 2},
		},
		Observed: []api.Observed{
			{Instance: "acme/shop.prod.web.prod#0", Epoch: api.EpochOf(17, 2), State: api.Running, Address: netip.MustParseAddr("10.16.0.2"), ExitCode: &code},
			{Instance: "acme/shop.prod.web.prod#1", Epoch: api.EpochOf(17, 0), State: api.ClusterScheduled, HandedBack: true, Why: &api.Explanation{Considered: 2, Causes: []api.Cause{{Constraint: "memory", Count: 2}}}},
		},
		Notices: []wire.Notice{{No: 1, Text: "scheduler: no answer", Times: 1}},
		Net: &wire.ClusterNet{
			Subnets: 2, Shares: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/20")}, Subscribe: []wire.Subscription{{Service: "a/b.c.d.e", For: "a/b.c.d.f"}},
			Records: wire.Records{Routes: []api.Route{{Service: "a/b.c.d.e", Rev: 1, Peers: []api.Peer{{Key: api.PeerKey{1}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/26")}}}}}},
		},
	}
}

func goodNode() wire.NodeReport {
	return wire.NodeReport{
		Node: "n1", Boot: 1_790_000_000, Seq: 1, Gen: 3, Whole: true,
		Info: &api.NodeInfo{
			ID: "n1", Hostname: "n1.example.org", Address: "192.0.2.7", Arch: "amd64", OS: "linux", Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 8000, StorageMB: 100_000, InMbit: 1000, OutMbit: 1000},
			Runtimes: []string{"container", "process"}, Labels: map[string]string{"rack": "r1"}, Network: api.NetworkOverlay,
			Devices: []api.NodeDevice{{ID: "gpu0", Kinds: []string{"gpu"}}}, Location: &api.Geo{Lat: 48, Lon: 11}, Areas: []string{"de"},
		},
		Observed: []api.Observed{{Instance: "acme/shop.prod.web.prod#0", Epoch: 1, State: api.Running}},
	}
}

func goodNet() wire.NetUp {
	return wire.NetUp{
		Boot: 1, Seq: 1, Whole: true, Subscribe: []wire.Subscription{{Service: "a/b.c.d.e", For: "a/b.c.d.f"}}, Subnet: netip.MustParsePrefix("10.16.0.0/26"), Rev: math.MaxUint64,
		Self:    &wire.NetSelf{Key: api.PeerKey{1}, Chain: [][]byte{{1}}, Coord: &api.Coordinate{Vec: make([]float64, 8)}},
		Between: []wire.NetPair{{Local: "a/b.c.d.e", Remote: "a/b.c.d.f", Node: "n2", Least: time.Millisecond, Connections: 1}},
	}
}

func TestHonestMessagesAreKeptAsTheyAre(t *testing.T) {
	same(t, goodReport())
	same(t, goodNode())
	same(t, *goodNode().Info)
	same(t, goodNet())
	same(t, wire.Hello{Cluster: "munich", Since: 4, Digest: 9})
	same(t, wire.Alive{Boot: 1, Seq: 2, Gen: 3, CPUUsed: 100, MemUsed: 4})
	same(t, wire.Probed{ID: math.MaxUint64, RTT: time.Millisecond, How: "icmp"})
	same(t, wire.NodePurging{Failed: "remove image x: containerd does not answer"})
	same(t, wire.Probed{ID: 1, Error: "refused", Refused: true})
	same(t, api.ClusterInfo{ID: "munich", Location: "48.1,11.5", Tenant: "acme", Version: "v1"})
}

func same[M Message](t *testing.T, m M) {
	t.Helper()
	got, v, ok := Apply(m)
	if !ok || v.Total > 0 || !reflect.DeepEqual(got, m) {
		t.Errorf("Apply(%T): ok %v, violations %s; want the message unchanged", m, ok, v)
	}
}

// TestWhatIsOutOfRangeIsLeftOut sets one value at a time out of range, and checks what remains of the
// message.
func TestWhatIsOutOfRangeIsLeftOut(t *testing.T) {
	many := make([]string, maxLists+1)
	for i := range many {
		many[i] = strings.Repeat("x", i+1)
	}
	aggregate := func(spoil func(*api.Aggregate)) func(*testing.T) {
		return func(t *testing.T) {
			r := goodReport()
			spoil(&r.Aggregate)
			got, v, ok := Apply(r)
			if !ok || v.Total != 1 || !reflect.DeepEqual(got.Aggregate, api.Aggregate{}) || len(got.Observed) != 2 || got.Net == nil {
				t.Errorf("ok %v, %s; the aggregate is %+v", ok, v, got.Aggregate)
			}
		}
	}
	observed := func(spoil func(*api.Observed)) func(*testing.T) {
		return func(t *testing.T) {
			r := goodReport()
			spoil(&r.Observed[0])
			got, v, ok := Apply(r)
			if !ok || v.Total != 1 || len(got.Observed) != 1 || got.Observed[0].Instance != "acme/shop.prod.web.prod#1" || got.Aggregate.Nodes != 2 {
				t.Errorf("ok %v, %s; observed are %+v", ok, v, got.Observed)
			}
		}
	}
	info := func(spoil func(*api.NodeInfo)) func(*testing.T) {
		return func(t *testing.T) {
			r := goodNode()
			spoil(r.Info)
			got, v, ok := Apply(r)
			if !ok || v.Total != 1 || got.Info != nil || len(got.Observed) != 1 {
				t.Errorf("ok %v, %s; the info is %+v", ok, v, got.Info)
			}
		}
	}
	self := func(spoil func(*wire.NetSelf)) func(*testing.T) {
		return func(t *testing.T) {
			u := goodNet()
			spoil(u.Self)
			got, v, ok := Apply(u)
			if !ok || v.Total != 1 || got.Self != nil && got.Self.Coord != nil || len(got.Subscribe) != 1 {
				t.Errorf("ok %v, %s; self is %+v", ok, v, got.Self)
			}
		}
	}
	for name, test := range map[string]func(*testing.T){
		"negative nodes":      aggregate(func(a *api.Aggregate) { a.Nodes = -5 }),
		"too many nodes":      aggregate(func(a *api.Aggregate) { a.Nodes = 1e9 }),
		"negative overlay":    aggregate(func(a *api.Aggregate) { a.Overlay = new(-1) }),
		"too many on overlay": aggregate(func(a *api.Aggregate) { a.Overlay = new(int(1e9)) }),
		"2^40 MiB":            aggregate(func(a *api.Aggregate) { a.Capacity.MemoryMB = 1 << 40 }),
		"10^12 vCPU":          aggregate(func(a *api.Aggregate) { a.Free.MilliCPU = 1e15 }),
		"largest":             aggregate(func(a *api.Aggregate) { a.Largest.StorageMB = math.MaxInt64 }),
		"deviation":           aggregate(func(a *api.Aggregate) { a.StdDev.InMbit = -1 }),
		"latency not finite":  aggregate(func(a *api.Aggregate) { a.Slots[0].Nodes = -1 }),
		"slot's free":         aggregate(func(a *api.Aggregate) { a.Slots[1].Free.MilliCPU = math.MinInt64 }),
		"slot twice":          aggregate(func(a *api.Aggregate) { a.Slots[1] = a.Slots[0] }),
		"too many slots":      aggregate(func(a *api.Aggregate) { a.Slots = make([]api.Slot, 1025) }),
		"device's count":      aggregate(func(a *api.Aggregate) { a.Slots[0].Devices[0].Free = -1 }),
		"device twice":        aggregate(func(a *api.Aggregate) { a.Slots[0].Devices = append(a.Slots[0].Devices, a.Slots[0].Devices[0]) }),
		"slot's runtime":      aggregate(func(a *api.Aggregate) { a.Slots[0].Runtime = strings.Repeat("r", 1<<20) }),
		"hull":                aggregate(func(a *api.Aggregate) { a.Hull[0].Lat = math.NaN() }),
		"unplaced":            aggregate(func(a *api.Aggregate) { a.Unplaced = -1 }),
		"urgency":             aggregate(func(a *api.Aggregate) { a.Preemptible = []api.Preemptible{{Urgency: 99}} }),
		"control characters":  aggregate(func(a *api.Aggregate) { a.Slots[0].Arch = "amd64\x1b[2J" }),
		"epoch":               observed(func(o *api.Observed) { o.Epoch = math.MaxUint64 }),
		"state":               observed(func(o *api.Observed) { o.State = "winning" }),
		"restarts":            observed(func(o *api.Observed) { o.Restarts = -1 }),
		"IPv6 address":        observed(func(o *api.Observed) { o.Address = netip.MustParseAddr("fe80::1%x") }),
		"instance":            observed(func(o *api.Observed) { o.Instance = api.InstanceID(strings.Repeat("i", 513)) }),
		"devices":             observed(func(o *api.Observed) { o.Devices = []string{"a", "a"} }),
		"node":                observed(func(o *api.Observed) { o.Node = "../../etc" }),
		"negative capacity":   info(func(i *api.NodeInfo) { i.Capacity.MemoryMB = -1 }),
		"node's 10^12 vCPU":   info(func(i *api.NodeInfo) { i.Capacity.MilliCPU = 1e15 }),
		"hostname":            info(func(i *api.NodeInfo) { i.Hostname = strings.Repeat("h", 254) }),
		"address":             info(func(i *api.NodeInfo) { i.Address = "192.0.2.7\r\n" }),
		"location":            info(func(i *api.NodeInfo) { i.Location = nil; i.Network = "all" }),
		"runtimes":            info(func(i *api.NodeInfo) { i.Runtimes = many }),
		"runtime twice":       info(func(i *api.NodeInfo) { i.Runtimes = []string{"container", "container"} }),
		"areas":               info(func(i *api.NodeInfo) { i.Areas = []string{strings.Repeat("a", longWord+1)} }),
		"label":               info(func(i *api.NodeInfo) { i.Labels = map[string]string{"k": strings.Repeat("v", longWord+1)} }),
		"devices of a node":   info(func(i *api.NodeInfo) { i.Devices = make([]api.NodeDevice, maxDevices+1) }),
		"device of a node":    info(func(i *api.NodeInfo) { i.Devices[0].Kinds = many }),
		"device's name twice": info(func(i *api.NodeInfo) { i.Devices = append(i.Devices, i.Devices[0]) }),
		"own ports":           info(func(i *api.NodeInfo) { i.Ports = &api.NodePorts{Publish: make([]api.PortRange, 1025)} }),
		"key":                 self(func(s *wire.NetSelf) { s.Key = api.PeerKey{} }),
		"chain":               self(func(s *wire.NetSelf) { s.Chain = nil }),
		"certificate":         self(func(s *wire.NetSelf) { s.Chain = [][]byte{make([]byte, evidence+1)} }),
		"endpoints":           self(func(s *wire.NetSelf) { s.Endpoints = make([]netip.AddrPort, 33) }),
		"coordinate NaN":      self(func(s *wire.NetSelf) { s.Coord.Height = math.NaN() }),
		"coordinate Inf":      self(func(s *wire.NetSelf) { s.Coord.Vec[3] = math.Inf(1) }),
		"optional parts": func(t *testing.T) {
			r := goodReport()
			r.Aggregate.Latency.Radius = -1
			r.Observed[1].Why.Candidates = []api.Rejection{{Shortfall: math.Inf(1)}, {Candidate: "x"}}
			r.Observed[0].Position = &api.Position{Geo: &api.Geo{Lat: 91}, Coord: &api.Coordinate{}}
			r.Observed[0].Moves = []time.Time{time.Now(), time.Unix(1<<40, 0)}
			got, v, ok := Apply(r)
			if !ok || v.Total != 5 || got.Aggregate.Latency != nil || got.Aggregate.Nodes != 2 || len(got.Observed[1].Why.Candidates) != 1 ||
				got.Observed[0].Position == nil || got.Observed[0].Position.Geo != nil || got.Observed[0].Position.Coord != nil || len(got.Observed[0].Moves) != 1 {
				t.Errorf("ok %v, %d: %s; %+v", ok, v.Total, v, got)
			}
		},
		"network": func(t *testing.T) {
			r := goodReport()
			n := r.Net
			n.Shares = append(n.Shares, netip.MustParsePrefix("0.0.0.0/0"), netip.PrefixFrom(netip.MustParseAddr("10.16.16.0"), 8), netip.Prefix{})
			n.Subscribe = append(n.Subscribe, wire.Subscription{Service: api.ServiceID(strings.Repeat("s", 513))}, wire.Subscription{Address: netip.MustParseAddr("fe80::1%x")})
			n.Routes[0].Peers = append(n.Routes[0].Peers, api.Peer{Key: api.PeerKey{2}, Subnets: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("10.16.16.0"), 0)}})
			n.Routes[0].Backends = []api.Backend{{Epoch: math.MaxUint64}, {Address: netip.MustParseAddr("10.16.0.9"), Load: 200}}
			got, v, ok := Apply(r)
			if !ok || v.Total != 6 || len(got.Net.Shares) != 2 || len(got.Net.Subscribe) != 1 || len(got.Net.Routes[0].Peers) != 1 || len(got.Net.Routes[0].Backends) != 1 ||
				got.Net.Routes[0].Backends[0].Load != 100 {
				t.Errorf("ok %v, %d: %s; %+v", ok, v.Total, v, got.Net)
			}
			r.Net.Subnets = -1
			if got, v, ok = Apply(r); !ok || got.Net != nil || v.Total != 1 {
				t.Errorf("ok %v, %s; %+v", ok, v, got.Net)
			}
		},
		"whole message": func(t *testing.T) {
			r := goodReport()
			r.Boot = math.MaxUint64
			if got, v, ok := Apply(r); ok || v.Total != 1 || !reflect.DeepEqual(got, wire.Report{}) {
				t.Errorf("ok %v, %s", ok, v)
			}
			if _, _, ok := Apply(wire.Alive{Gen: math.MaxUint64}); ok {
				t.Error("a generation of 2^64-1 is accepted, want refused")
			}
			for _, p := range []wire.Probed{{}, {RTT: -1}, {RTT: time.Hour}, {RTT: 1, Error: "x"}, {RTT: 1, Refused: true}, {RTT: 1, How: "guess"}} {
				if _, _, ok := Apply(p); ok {
					t.Errorf("%+v is accepted, want refused", p)
				}
			}
		},
		"long texts": func(t *testing.T) {
			r := goodReport()
			r.Observed[0].Detail = strings.Repeat("ü", sentence)
			got, v, ok := Apply(r)
			if d := got.Observed[0].Detail; !ok || v.Total > 0 || len(d) > sentence+4 || !strings.HasSuffix(d, "…") {
				t.Errorf("ok %v, %s, a detail of %d bytes", ok, v, len(d))
			}
		},
		"many at once": func(t *testing.T) {
			r := goodReport()
			r.Observed = make([]api.Observed, maxInstances+10)
			got, v, ok := Apply(r)
			if !ok || v.Total != maxInstances+1 || len(got.Observed) != 0 || len(v.First) != maxListed || len(v.String()) > 1000 {
				t.Errorf("ok %v, %d violations in %d bytes, %d are kept", ok, v.Total, len(v.String()), len(got.Observed))
			}
		},
	} {
		t.Run(name, test)
	}
}

// TestASendersMessageIsNotChanged: in one process, sender and receiver share memory.
func TestASendersMessageIsNotChanged(t *testing.T) {
	r, again := goodReport(), goodReport()
	for _, m := range []*wire.Report{&r, &again} {
		m.Observed[0].State = "winning"
		m.Observed[1].Detail = strings.Repeat("x", 3*sentence)
		m.Net.Shares[0] = netip.MustParsePrefix("0.0.0.0/0")
		m.Net.Routes[0].Peers[0].Endpoints = make([]netip.AddrPort, 99)
		m.Aggregate.Latency.Radius = -1
	}
	if _, v, _ := Apply(r); v.Total != 4 {
		t.Fatal(v)
	}
	if !reflect.DeepEqual(r, again) {
		t.Errorf("the message became %+v", r)
	}
}

func TestALogRecordsOnceAMinute(t *testing.T) {
	var l Log
	now := time.Unix(1000, 0)
	bad := Violations{First: []Violation{{"aggregate.nodes", "-5", "0 to 1000000"}}, Total: 1}
	if l.Add(now, Violations{}) != "" {
		t.Error("a message without violations is logged")
	}
	first, second := l.Add(now, bad), l.Add(now.Add(59*time.Second), bad)
	third := l.Add(now.Add(time.Minute), bad)
	if first != "refused values: aggregate.nodes is -5, want 0 to 1000000" || second != "" || !strings.Contains(third, "1 were refused since") {
		t.Errorf("%q, %q, %q", first, second, third)
	}
}

// FuzzTake applies Take to messages of hostile clusters and nodes. The result must be within the
// table, and a second Take must not change it.
func FuzzTake(f *testing.F) {
	for _, m := range []any{goodReport(), goodNode(), goodNet()} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"aggregate":{"nodes":-5,"capacity":{"milli_cpu":1e18}},"observed":[{},{"moves":["9999-12-31T23:59:59Z"]}],"net":{"shares":["10.16.16.0/0"],"subnets":-1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		twice[wire.Report](t, text)
		twice[wire.NodeReport](t, text)
		twice[wire.NetUp](t, text)
		twice[wire.Probed](t, text)
		twice[wire.Hello](t, text)
		twice[api.ClusterInfo](t, text)
	})
}

func twice[M Message](t *testing.T, text []byte) {
	t.Helper()
	var m M
	if json.Unmarshal(text, &m) != nil {
		return
	}
	once, _, ok := Apply(m)
	if !ok {
		return
	}
	again, v, ok := Apply(once)
	if !ok || v.Total > 0 || !reflect.DeepEqual(once, again) {
		t.Errorf("Take of its own result refuses: %s; want no violation", v)
	}
}

func BenchmarkTakeReport(b *testing.B) {
	r := goodReport()
	for range 10_000 {
		r.Observed = append(r.Observed, r.Observed[0])
	}
	for b.Loop() {
		Apply(r)
	}
}
