package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// row is one row of the result: a figure, or its ratio to another, and its limit. A row without
// a limit is only shown.
type row struct {
	name   string
	what   string
	of     figure
	base   figure // zero: the limit applies to the figure itself
	beside []figure
	quick  bool // also part of quick runs
	atMost bool // the limit is a maximum, else a minimum
	p99    bool // the limit applies to the p99, not the median
	limit  float64
}

// netPaths are the paths between containers, with the shapes of their beds.
var netPaths = map[string]struct {
	make  func(*session) netbench.Path
	shape netbench.Shape
}{
	"raw":        {alone(netbench.Raw), netbench.Shape{}},
	"routed":     {alone(netbench.Routed), replicas},
	"vxlan":      {alone(netbench.VXLAN), netbench.Shape{}},
	"wireguard":  {alone(netbench.WireGuard), replicas},
	"nat":        {alone(func() netbench.Path { return netbench.Translated(netbench.Routed()) }), netbench.Shape{}},
	"vxlan-nat":  {alone(func() netbench.Path { return netbench.Translated(netbench.VXLAN()) }), netbench.Shape{}},
	"one-a-time": {alone(netbench.OneAtATime), netbench.Shape{}},

	"nft-route":   {daemons("nft", api.PathRoute), replicas},
	"ebpf-route":  {daemons("ebpf", api.PathRoute), replicas},
	"nft-vxlan":   {daemons("nft", api.PathVXLAN), netbench.Shape{}},
	"ebpf-vxlan":  {daemons("ebpf", api.PathVXLAN), netbench.Shape{}},
	"nft-tunnel":  {daemons("nft", api.PathDirect), replicas},
	"ebpf-tunnel": {daemons("ebpf", api.PathDirect), replicas},
	"ebpf-relay":  {daemons("ebpf", api.PathRelay), netbench.Shape{Apart: true}},

	"nft-table":  {alone(func() netbench.Path { return netbench.Plane("nft") }), netbench.Shape{OneCPU: true}},
	"ebpf-table": {alone(func() netbench.Path { return netbench.Plane("ebpf") }), netbench.Shape{OneCPU: true}},

	"netmanager":      {daemons("auto", api.PathDirect), netbench.Shape{}},
	"netmanager-1000": {crowded, netbench.Shape{}},

	"cluster": {}, // two nodes of one cluster, see net_route.go
	"across":  {}, // two nodes of different clusters
}

// alone returns a path that needs no program.
func alone(fn func() netbench.Path) func(*session) netbench.Path {
	return func(*session) netbench.Path { return fn() }
}

func daemons(plane string, kind api.PathKind) func(*session) netbench.Path {
	return func(s *session) netbench.Path { return netbench.Daemon(s.netmanager, plane, kind) }
}

// crowded returns a path whose first node has many routes.
func crowded(s *session) netbench.Path {
	d := netbench.Daemon(s.netmanager, "auto", api.PathDirect)
	if s.net.quick {
		return d.Crowd(20, 5)
	}
	return d.Crowd(1000, 100)
}

// replicas is the number of further instances beside the one of most loads.
var replicas = netbench.Shape{More: 9}

// load is a load of a path.
type load struct {
	unit    string
	title   string
	wire    netbench.Wire
	slow    bool        // over the link in user space, with delay and loss
	rest    bool        // measures idle processes
	slices  int         // number of slices of a sample, which alternate with those of other paths; 0: one piece
	measure measurement // nil: net_route.go
}

// measurement takes a sample of a path, a short one if quick. It also returns a note, or "".
type measurement func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error)

var netLoads = map[string]load{
	"tcp-1":            {unit: "Gbit/s", title: "TCP, 1 flow", slices: 5, measure: tcp(1)},
	"tcp-4":            {unit: "Gbit/s", title: "TCP, 4 flows", slices: 5, measure: tcp(4)},
	"tcp-1-per-packet": {unit: "Gbit/s", title: "TCP, 1 flow, wire without offloads", wire: netbench.Wire{PerPacket: true}, slices: 5, measure: tcp(1)},
	"cpu-100":          {unit: "% core", title: "CPU at 100 Mbit/s, the whole machine", wire: netbench.Wire{PerPacket: true, Mbit: 100}, measure: cpuAtRate},
	"rtt":              {unit: "µs", title: "round trip of 64 bytes, p50", slices: 5, measure: timed((*netbench.Bed).RTT, 200*time.Millisecond)},
	"connects":         {unit: "conn/s", title: "new TCP connections", slices: 5, measure: timed((*netbench.Bed).Connects, 400*time.Millisecond)},
	"http-1":           {unit: "µs", title: "HTTP GET on a new connection, 1 replica, p50", slices: 5, measure: gets(func(p netbench.Path) []netip.Addr { return []netip.Addr{p.Target()} })},
	"fetch-010ms":      fetch("10 ms of round trip", netbench.Wire{RTT: 10 * time.Millisecond}),
	"fetch-050ms":      fetch("50 ms of round trip", netbench.Wire{RTT: 50 * time.Millisecond}),
	"fetch-100ms":      fetch("100 ms of round trip", netbench.Wire{RTT: 100 * time.Millisecond}),
	"fetch-250ms":      fetch("250 ms of round trip", netbench.Wire{RTT: 250 * time.Millisecond}),
	"fetch-loss":       fetch("1 % of loss each way", netbench.Wire{Loss: 0.01}),
	"rss":              {unit: "MiB", title: "netmanager's resident memory at rest, half of the time at most", rest: true, measure: resident(usually)},
	"rss-most":         {unit: "MiB", title: "netmanager's resident memory at rest, at most", rest: true, measure: resident(atMost)},
	"rss-speed":        {unit: "MiB", title: "netmanager's resident memory at full tunnel speed, at most", measure: residentAtSpeed},
	"cpu-idle":         {unit: "% core", title: "netmanager's CPU when idle", rest: true, measure: idleCPU},
	"lookup":           {unit: "µs", title: "10,000 routes: added to a round trip", measure: lookup((*netbench.PlanePath).LookupInTrip)},
	"lookup-new":       {unit: "µs", title: "10,000 routes: added to a new connection", measure: lookup((*netbench.PlanePath).LookupInConnect)},
	"sync":             {unit: "s", title: "10,000 routes: full sync of a new plane", measure: fullSync},
	"route-first":      {unit: "ms", title: "a service's first instance listens → it answers who asked all the time"},
	"route-next":       {unit: "ms", title: "one more instance listens → it answers who asks all the time"},
	"http-9":           {unit: "µs", title: "HTTP GET on a new connection, 9 replicas, p50", slices: 5, measure: gets(netbench.Path.Replicas)},
}

// netRows is the table of the network's figures. The kernel path uses eBPF if the kernel supports
// it, and nftables always; both have the same limits.
var netRows = []row{
	{
		name: "route-tcp", quick: true, what: "kernel path over plain routes (eBPF): TCP ÷ routed veth", limit: 0.85,
		of: figure{"ebpf-route", "tcp-1"}, base: figure{"routed", "tcp-1"},
	},
	{
		name: "route-tcp-nft", what: "the same by nftables", limit: 0.85,
		of: figure{"nft-route", "tcp-1"}, base: figure{"routed", "tcp-1"},
	},
	{
		name: "route-connects", quick: true, what: "the same (eBPF): new connections a second ÷ routed veth", limit: 0.85,
		of: figure{"ebpf-route", "connects"}, base: figure{"routed", "connects"},
	},
	{
		name: "route-connects-nft", what: "the same by nftables", limit: 0.85,
		of: figure{"nft-route", "connects"}, base: figure{"routed", "connects"},
	},
	{
		name: "route-connects-nat", what: "one rule of nftables that translates an address, and nothing else ÷ routed veth",
		of: figure{"nat", "connects"}, base: figure{"routed", "connects"},
	},

	{
		name: "vxlan-tcp", what: "kernel path over VXLAN (eBPF): TCP ÷ routed veth", limit: 0.6,
		of: figure{"ebpf-vxlan", "tcp-1"}, base: figure{"routed", "tcp-1"},
	},
	{
		name: "vxlan-tcp-nft", quick: true, what: "the same by nftables", limit: 0.6,
		of: figure{"nft-vxlan", "tcp-1"}, base: figure{"routed", "tcp-1"},
	},
	{
		name: "vxlan-tcp-alone", what: "the same (eBPF) ÷ the kernel's VXLAN alone", limit: 0.9,
		of: figure{"ebpf-vxlan", "tcp-1"}, base: figure{"vxlan", "tcp-1"},
	},
	{
		name: "vxlan-tcp-alone-nft", what: "the same by nftables", limit: 0.9,
		of: figure{"nft-vxlan", "tcp-1"}, base: figure{"vxlan", "tcp-1"},
	},
	{
		name: "vxlan-tcp-nat", what: "the kernel's VXLAN with one rule of nftables that translates ÷ the kernel's VXLAN alone",
		of: figure{"vxlan-nat", "tcp-1"}, base: figure{"vxlan", "tcp-1"},
	},
	{
		name: "vxlan-connects", what: "the same (eBPF): new connections a second ÷ routed veth", limit: 0.7,
		of: figure{"ebpf-vxlan", "connects"}, base: figure{"routed", "connects"},
	},
	{
		name: "vxlan-connects-alone", what: "the kernel's VXLAN alone, without a semantic address ÷ routed veth",
		of: figure{"vxlan", "connects"}, base: figure{"routed", "connects"},
	},
	{
		name: "vxlan-connects-nft", what: "the same by nftables", limit: 0.7,
		of: figure{"nft-vxlan", "connects"}, base: figure{"routed", "connects"},
	},
	{
		name: "vxlan-connects-nat", what: "the kernel's VXLAN with one rule of nftables that translates, and nothing else ÷ routed veth",
		of: figure{"vxlan-nat", "connects"}, base: figure{"routed", "connects"},
	},

	{
		name: "tunnel-tcp-1", quick: true, what: "encrypted tunnel: TCP, 1 flow ÷ wireguard-go", limit: 2,
		of: figure{"ebpf-tunnel", "tcp-1"}, base: figure{"wireguard", "tcp-1"}, beside: each("tcp-1", "nft-tunnel", "raw", "one-a-time"),
	},
	{
		name: "tunnel-tcp-4", what: "encrypted tunnel: TCP, 4 flows ÷ wireguard-go", limit: 2,
		of: figure{"ebpf-tunnel", "tcp-4"}, base: figure{"wireguard", "tcp-4"}, beside: each("tcp-4", "raw", "one-a-time"),
	},
	{
		name: "tunnel-per-packet", quick: true, what: "encrypted tunnel, wire without offloads: TCP ÷ raw veth", limit: 0.3,
		of: figure{"ebpf-tunnel", "tcp-1-per-packet"}, base: figure{"raw", "tcp-1-per-packet"},
		beside: each("tcp-1-per-packet", "wireguard", "one-a-time"),
	},
	{
		name: "tunnel-rtt", quick: true, what: "encrypted tunnel: RTT p50 ÷ wireguard-go", limit: 0.7, atMost: true,
		of: figure{"ebpf-tunnel", "rtt"}, base: figure{"wireguard", "rtt"},
		beside: each("rtt", "raw", "routed", "vxlan", "one-a-time", "ebpf-route", "nft-route", "ebpf-vxlan", "nft-vxlan"),
	},
	{
		name: "tunnel-cpu", quick: true, what: "encrypted tunnel: CPU at 100 Mbit/s, both ends and the kernel", limit: 30, atMost: true,
		of: figure{"ebpf-tunnel", "cpu-100"}, beside: each("cpu-100", "raw", "routed", "wireguard", "one-a-time"),
	},

	{
		name: "relay", quick: true, what: "encrypted tunnel through a relay: TCP ÷ direct", limit: 0.8,
		of: figure{"ebpf-relay", "tcp-1"}, base: figure{"ebpf-tunnel", "tcp-1"},
	},
	{
		name: "fetch-10ms", quick: true, what: "encrypted tunnel: 100 MB at 10 ms ÷ wireguard-go's time", limit: 1, atMost: true,
		of: figure{"ebpf-tunnel", "fetch-010ms"}, base: figure{"wireguard", "fetch-010ms"},
	},
	{
		name: "fetch-50ms", what: "encrypted tunnel: 100 MB at 50 ms ÷ wireguard-go's time", limit: 1, atMost: true,
		of: figure{"ebpf-tunnel", "fetch-050ms"}, base: figure{"wireguard", "fetch-050ms"},
	},
	{
		name: "fetch-100ms", what: "encrypted tunnel: 100 MB at 100 ms ÷ wireguard-go's time", limit: 1, atMost: true,
		of: figure{"ebpf-tunnel", "fetch-100ms"}, base: figure{"wireguard", "fetch-100ms"},
	},
	{
		name: "fetch-250ms", what: "encrypted tunnel: 100 MB at 250 ms ÷ wireguard-go's time", limit: 1, atMost: true,
		of: figure{"ebpf-tunnel", "fetch-250ms"}, base: figure{"wireguard", "fetch-250ms"},
	},
	{
		name: "fetch-loss", quick: true, what: "encrypted tunnel: 100 MB at 1 % loss ÷ wireguard-go's time", limit: 1, atMost: true,
		of: figure{"ebpf-tunnel", "fetch-loss"}, base: figure{"wireguard", "fetch-loss"},
	},

	{
		name: "http-1", quick: true, what: "HTTP by semantic address, 1 replica (eBPF) ÷ routed veth", limit: 1.15, atMost: true,
		of: figure{"ebpf-route", "http-1"}, base: figure{"routed", "http-1"},
	},
	{
		name: "http-9", quick: true, what: "HTTP by semantic address, 9 replicas (eBPF) ÷ the same by routed veth", limit: 1.15, atMost: true,
		of: figure{"ebpf-route", "http-9"}, base: figure{"routed", "http-9"},
	},
	{
		name: "http-1-nft", what: "HTTP by semantic address, 1 replica (nftables) ÷ routed veth", limit: 1.15, atMost: true,
		of: figure{"nft-route", "http-1"}, base: figure{"routed", "http-1"},
	},
	{
		name: "http-9-nft", what: "HTTP by semantic address, 9 replicas (nftables) ÷ the same by routed veth", limit: 1.15, atMost: true,
		of: figure{"nft-route", "http-9"}, base: figure{"routed", "http-9"},
	},
	{
		name: "http-1-tunnel", what: "encrypted tunnel: HTTP by semantic address, 1 replica ÷ wireguard-go", limit: 1.15, atMost: true,
		of: figure{"ebpf-tunnel", "http-1"}, base: figure{"wireguard", "http-1"},
	},
	{
		name: "http-9-tunnel", what: "encrypted tunnel: HTTP by semantic address, 9 replicas ÷ the same by wireguard-go", limit: 1.15, atMost: true,
		of: figure{"ebpf-tunnel", "http-9"}, base: figure{"wireguard", "http-9"},
	},
	{
		name: "http-9-more", what: "nine servers called directly ÷ one, by routed veth: what nine processes cost",
		of: figure{"routed", "http-9"}, base: figure{"routed", "http-1"},
	},
	{
		name: "http-9-more-tunnel", what: "encrypted tunnel: HTTP, 9 replicas ÷ 1",
		of: figure{"ebpf-tunnel", "http-9"}, base: figure{"ebpf-tunnel", "http-1"},
	},

	{name: "lookup", what: "10,000 routes (eBPF): added to a round trip, µs", limit: 1, atMost: true, of: figure{"ebpf-table", "lookup"}},
	{name: "lookup-nft", quick: true, what: "10,000 routes (nftables): added to a round trip, µs", limit: 1, atMost: true, of: figure{"nft-table", "lookup"}},
	{name: "lookup-new", what: "10,000 routes (eBPF): added to a new connection, µs", limit: 1, atMost: true, of: figure{"ebpf-table", "lookup-new"}},
	{name: "lookup-new-nft", quick: true, what: "10,000 routes (nftables): added to a new connection, µs", limit: 1, atMost: true, of: figure{"nft-table", "lookup-new"}},
	{name: "sync", what: "10,000 routes (eBPF): full sync, s", limit: 1, atMost: true, of: figure{"ebpf-table", "sync"}},
	{name: "sync-nft", quick: true, what: "10,000 routes (nftables): full sync, s", limit: 1, atMost: true, of: figure{"nft-table", "sync"}},

	{name: "rss-idle", quick: true, what: "netmanager, idle: resident, median of a minute, MiB", limit: 15, atMost: true, of: figure{"netmanager", "rss"}},
	{name: "rss-idle-most", quick: true, what: "netmanager, idle: resident, the most of a minute, MiB", limit: 15, atMost: true, of: figure{"netmanager", "rss-most"}},
	{name: "cpu-idle", quick: true, what: "netmanager, idle: CPU, % of a core", limit: 0.1, atMost: true, of: figure{"netmanager", "cpu-idle"}},
	{name: "rss-1000", quick: true, what: "netmanager with 1,000 routes and 100 peers: median of a minute, MiB", limit: 30, atMost: true, of: figure{"netmanager-1000", "rss"}},
	{name: "rss-speed", quick: true, what: "netmanager at full tunnel speed: resident, MiB", limit: 40, atMost: true, of: figure{"ebpf-tunnel", "rss-speed"}},

	{name: "use-first", what: "a service's first instance in use within its cluster, p99, ms", limit: routeInCluster, atMost: true, p99: true, of: figure{"cluster", "route-first"}},
	{name: "use-next", what: "one more instance in use within its cluster, p99, ms", limit: routeInCluster, atMost: true, p99: true, of: figure{"cluster", "route-next"}},
	{name: "use-first-across", what: "a service's first instance in use in another cluster, p99, ms", limit: routeAcross, atMost: true, p99: true, of: figure{"across", "route-first"}},
	{name: "use-next-across", what: "one more instance in use in another cluster, p99, ms", limit: routeAcross, atMost: true, p99: true, of: figure{"across", "route-next"}},
}

// each returns the figures of several paths under one load.
func each(load string, paths ...string) []figure {
	var out []figure
	for _, p := range paths {
		out = append(out, figure{p, load})
	}
	return out
}

func tcp(flows int) measurement {
	return func(ctx context.Context, b *bedInUse, _ bool) (netbench.Sample, string, error) {
		s, err := b.TCP(ctx, b.path.Target(), flows, time.Second)
		return s, fmt.Sprintf("%.2f cores busy: %.2f CPU s a gigabyte, iperf3 included", s.CPU, s.CPU/(s.Value/8)), err
	}
}

// cpuAtRate measures the CPU time of the whole machine for a flow that the link limits: of both
// nodes' processes, the kernel and iperf3. The baselines show the part of the latter two.
func cpuAtRate(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
	d := 3 * time.Second
	if quick {
		d = time.Second
	}
	s, err := b.TCP(ctx, b.path.Target(), 1, d)
	note := fmt.Sprintf("%.0f Mbit/s", s.Value*1000)
	s.Value = s.CPU * 100
	return s, note, err
}

// fetch is a transfer of 100 MB over a slow link, including the slow start of TCP.
func fetch(title string, w netbench.Wire) load {
	return load{
		unit: "s", title: "100 MB at " + title, wire: w, slow: true,
		measure: func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
			size := uint64(100e6)
			if quick {
				size = 1e6
			}
			s, err := b.Transfer(ctx, b.path.Target(), size)
			return s, "", err
		},
	}
}

// loadFunc is a load of netbench with a duration.
type loadFunc func(*netbench.Bed, context.Context, netip.Addr, time.Duration) (netbench.Sample, error)

// timed returns the measurement of a load with a duration.
func timed(fn loadFunc, d time.Duration) measurement {
	return func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
		length := d
		if quick {
			length = 100 * time.Millisecond
		}
		s, err := fn(b.Bed, ctx, b.path.Target(), length)
		return s, "", err
	}
}

// gets are sequential GET requests, in turn to the addresses that a path has for its target. Each
// of nine servers sleeps longer between requests than a single one, on every path; therefore nine
// are compared with nine.
func gets(to func(netbench.Path) []netip.Addr) measurement {
	return func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
		d := 400 * time.Millisecond
		if quick {
			d = 100 * time.Millisecond
		}
		s, err := b.HTTP(ctx, to(b.path), d)
		return s, "", err
	}
}

// manyRoutes is the number of routes in a full table.
const manyRoutes = 10_000

// lookup measures the time that many routes add to a load, on a path with a table.
func lookup(fn func(*netbench.PlanePath, int, time.Duration) (netbench.Sample, float64, error)) measurement {
	return func(_ context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
		routes, length := manyRoutes, 250*time.Millisecond
		if quick {
			routes, length = 100, 20*time.Millisecond
		}
		s, swing, err := fn(b.path.(*netbench.PlanePath), routes, length)
		return s, fmt.Sprintf("a sample is the median of five comparisons of a full plane with an empty one; those of the last sample are within %.2f µs", swing), err
	}
}

func fullSync(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
	routes := manyRoutes
	if quick {
		routes = 100
	}
	s, made, err := b.path.(*netbench.PlanePath).FullSync(ctx, routes)
	return s, fmt.Sprintf("two instances each, behind a hundred peers; creating the empty plane with its programs took %.2f s", made.Seconds()), err
}
