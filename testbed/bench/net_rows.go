package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// row is one line of what the network promises: a figure, or its ratio to
// another, and what it is held to. Where nothing is promised, it is shown only.
type row struct {
	name   string
	what   string
	of     figure
	base   figure // zero: the figure itself is held to the limit
	beside []figure
	atMost bool // else at least
	limit  float64
}

// netPaths are the ways from container to container. Replicas is how many
// further containers the second node has.
var netPaths = map[string]struct {
	make     func() netbench.Path
	replicas int
}{
	"raw":        {netbench.Raw, 0},
	"routed":     {netbench.Routed, 0},
	"vxlan":      {netbench.VXLAN, 0},
	"wireguard":  {netbench.WireGuard, 0},
	"one-a-time": {netbench.OneAtATime, 0},
}

// load is what is done to a path. Measure says beside the sample what else was
// seen, or nothing.
type load struct {
	unit    string
	title   string
	wire    netbench.Wire
	slow    bool // through the wire of userspace, with its delay and loss
	measure func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error)
}

var netLoads = map[string]load{
	"tcp-1":            {unit: "Gbit/s", title: "TCP, 1 flow", measure: tcp(1)},
	"tcp-4":            {unit: "Gbit/s", title: "TCP, 4 flows", measure: tcp(4)},
	"tcp-1-per-packet": {unit: "Gbit/s", title: "TCP, 1 flow, wire without offloads", wire: netbench.Wire{PerPacket: true}, measure: tcp(1)},
	"cpu-100":          {unit: "% core", title: "CPU at 100 Mbit/s, the whole machine", wire: netbench.Wire{PerPacket: true, Mbit: 100}, measure: cpuAtRate},
	"rtt":              {unit: "µs", title: "round trip of 64 bytes, p50", measure: timed((*netbench.Bed).RTT, 1, time.Second)},
	"connects":         {unit: "conn/s", title: "new TCP connections", measure: timed((*netbench.Bed).Connects, 1, 2*time.Second)},
	"http-1":           {unit: "µs", title: "HTTP GET on a new connection, 1 replica, p50", measure: timed((*netbench.Bed).HTTP, 1, time.Second)},
	"http-9":           {unit: "µs", title: "HTTP GET on a new connection, 9 replicas, p50", measure: timed((*netbench.Bed).HTTP, 9, time.Second)},
}

// netRows is the table of the network's figures.
var netRows = []row{
	{name: "floor-tcp", what: "routed veth ÷ raw veth, TCP", of: figure{"routed", "tcp-1"}, base: figure{"raw", "tcp-1"},
		beside: each("tcp-1", "vxlan", "wireguard", "one-a-time")},
	{name: "floor-tcp-4", what: "wireguard-go ÷ raw veth, 4 flows", of: figure{"wireguard", "tcp-4"}, base: figure{"raw", "tcp-4"},
		beside: each("tcp-4", "routed", "vxlan", "one-a-time")},
	{name: "floor-per-packet", what: "wireguard-go ÷ raw veth, per-packet wire", of: figure{"wireguard", "tcp-1-per-packet"}, base: figure{"raw", "tcp-1-per-packet"},
		beside: each("tcp-1-per-packet", "routed", "vxlan", "one-a-time")},
	{name: "floor-rtt", what: "RTT, wireguard-go ÷ raw veth", of: figure{"wireguard", "rtt"}, base: figure{"raw", "rtt"},
		beside: each("rtt", "routed", "vxlan", "one-a-time")},
	{name: "floor-connects", what: "new connections, wireguard-go ÷ routed veth", of: figure{"wireguard", "connects"}, base: figure{"routed", "connects"},
		beside: each("connects", "raw", "vxlan", "one-a-time")},
	{name: "floor-cpu", what: "CPU at 100 Mbit/s, wireguard-go ÷ routed veth", of: figure{"wireguard", "cpu-100"}, base: figure{"routed", "cpu-100"},
		beside: each("cpu-100", "raw", "vxlan", "one-a-time")},
	{name: "floor-http", what: "HTTP, wireguard-go ÷ routed veth", of: figure{"wireguard", "http-1"}, base: figure{"routed", "http-1"}},
}

// each is some paths under one load.
func each(load string, paths ...string) []figure {
	var out []figure
	for _, p := range paths {
		out = append(out, figure{p, load})
	}
	return out
}

func tcp(flows int) func(context.Context, *bedInUse, bool) (netbench.Sample, string, error) {
	return func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
		d, omit := 3*time.Second, time.Second
		if quick {
			d, omit = time.Second, 0
		}
		s, err := b.TCP(ctx, b.path.Target(1), flows, d, omit)
		return s, fmt.Sprintf("%.2f cores busy: %.2f CPU s a gigabyte, iperf3 included", s.CPU, s.CPU/(s.Value/8)), err
	}
}

// cpuAtRate is what the machine spends on a flow that the wire bounds: on both
// nodes' processes, in the kernel and in iperf3, which the floors show.
func cpuAtRate(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
	d := 4 * time.Second
	if quick {
		d = time.Second
	}
	s, err := b.TCP(ctx, b.path.Target(1), 1, d, 0)
	note := fmt.Sprintf("%.0f Mbit/s", s.Value*1000)
	s.Value = s.CPU * 100
	return s, note, err
}

// loadFunc is a load of netbench that goes on for some time.
type loadFunc func(*netbench.Bed, context.Context, netip.Addr, time.Duration) (netbench.Sample, error)

// timed is a load that goes on for some time.
func timed(fn loadFunc, replicas int, d time.Duration) func(context.Context, *bedInUse, bool) (netbench.Sample, string, error) {
	return func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
		length := d
		if quick {
			length = 100 * time.Millisecond
		}
		s, err := fn(b.Bed, ctx, b.path.Target(replicas), length)
		return s, "", err
	}
}
