package netbench

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

var rounds = flag.Int("forwarders", 9, "rounds of BenchmarkForwarders")

// The variants of a forwarder: TUN device and sockets.
var forwarders = []struct {
	name          string
	wgTUN, wgConn bool
}{
	{"treeline tun, treeline udp", false, false},
	{"wireguard tun, treeline udp", true, false},
	{"treeline tun, wireguard conn", false, true},
	{"wireguard tun, wireguard conn", true, true},
}

func TestForwardersCarryPackets(t *testing.T) {
	for i, f := range forwarders {
		t.Run(f.name, func(t *testing.T) {
			p := Forwarder(f.wgTUN, f.wgConn)
			b := bedOf(t, fmt.Sprintf("forward%d", i), Shape{}, p)
			if s, err := b.TCP(t.Context(), p.Target(), 1, time.Second); err != nil || !(s.Value > 0) {
				t.Errorf("TCP: %v Gbit/s, %v, want more than 0", s.Value, err)
			}
			if s, err := b.Datagrams(t.Context(), p.Target(), 64, time.Second); err != nil || !(s.Value > 0) {
				t.Errorf("datagrams: %v a second, %v, want more than 0", s.Value, err)
			}
		})
	}
}

// BenchmarkForwarders logs the figures of docs/adr/0080. Each round runs all variants one after
// the other, so that load of the machine affects all equally; a ratio is of one round.
//
//	go test ./netbench -run - -bench Forwarders -benchtime 1x -forwarders 9
func BenchmarkForwarders(t *testing.B) {
	type figures struct{ value, cpu []float64 }
	loads := []struct {
		name, unit, cost string
		run              func(*Bed, Path) (Sample, error)
		amount           func(value, seconds float64) float64 // the unit of cost
	}{
		{"TCP, 1 flow", "Gbit/s", "CPU s/GB", func(b *Bed, p Path) (Sample, error) { return b.TCP(t.Context(), p.Target(), 1, time.Second) }, func(v, s float64) float64 { return v * s / 8 }},
		{"TCP, 4 flows", "Gbit/s", "CPU s/GB", func(b *Bed, p Path) (Sample, error) { return b.TCP(t.Context(), p.Target(), 4, time.Second) }, func(v, s float64) float64 { return v * s / 8 }},
		{"UDP, 64 bytes", "kpackets/s", "CPU µs/packet", func(b *Bed, p Path) (Sample, error) {
			s, err := b.Datagrams(t.Context(), p.Target(), 64, time.Second)
			s.Value /= 1000
			return s, err
		}, func(v, s float64) float64 { return v * s / 1000 }},
	}
	var beds []*Bed
	var paths []Path
	for i, f := range forwarders {
		p := Forwarder(f.wgTUN, f.wgConn)
		beds, paths = append(beds, bedOf(t, fmt.Sprintf("forward%d", i), Shape{}, p)), append(paths, p)
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("load before: %s", load)
	got := make([][]figures, len(loads))
	for i := range got {
		got[i] = make([]figures, len(forwarders))
	}
	for range *rounds {
		for l, x := range loads {
			for f := range forwarders {
				before, err := CPUTime(paths[f].Processes())
				if err != nil {
					t.Fatal(err)
				}
				s, err := x.run(beds[f], paths[f])
				if err != nil {
					t.Fatalf("%s by %s: %v", x.name, forwarders[f].name, err)
				}
				after, err := CPUTime(paths[f].Processes())
				if err != nil {
					t.Fatal(err)
				}
				g := &got[l][f]
				g.value = append(g.value, s.Value)
				g.cpu = append(g.cpu, (after-before).Seconds()/x.amount(s.Value, 1))
			}
		}
	}
	load, _ = os.ReadFile("/proc/loadavg")
	t.Logf("load after: %s", load)
	for l, x := range loads {
		for f, v := range forwarders {
			value, cost := ratios(got[l][f].value, got[l][0].value), ratios(got[l][f].cpu, got[l][0].cpu)
			t.Logf("%-14s %-30s %6.2f %s (× %.2f, %.2f–%.2f); %.2f %s (× %.2f, %.2f–%.2f); n=%d", x.name, v.name,
				median(slices.Clone(got[l][f].value)), x.unit, median(value), value[0], value[len(value)-1],
				median(slices.Clone(got[l][f].cpu)), x.cost, median(cost), cost[0], cost[len(cost)-1], *rounds)
		}
	}
}

// ratios returns the ratio of a to b in each round, sorted.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	slices.Sort(out)
	return out
}
