package dataplanetest

import (
	"context"
	"encoding/json"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
)

// Throughput compares a plane, by a semantic address, with the same path without a plane: TCP
// with iperf3, and new connections, from a container to one of the other host. The two
// alternate, so that other load of the machine affects both. It reports medians: flow_ratio and
// connect_ratio are the plane's rate relative to the routed one.
//
//	func BenchmarkThroughput(b *testing.B) { dataplanetest.Throughput(b, factory) }
func Throughput(b *testing.B, f Factory) {
	programtest.Need(b, "iperf3")
	for _, path := range []api.PathKind{api.PathRoute, api.PathVXLAN} {
		b.Run(string(path), func(b *testing.B) {
			w := NewWorld(b, f, path)
			server := exec.Command("nsenter", "--net="+w.C(4).Path(), "iperf3", "-s")
			if err := server.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
			w.serve(4)
			with, without := withService(w.Hosts[0].State, w.service(1, 4)), at(w.C(4).Addr, 80)
			var flows, routed, connects, plain []float64
			for b.Loop() {
				for range 5 {
					for _, h := range w.Hosts {
						h.Do(func() { _ = h.Plane.Remove(context.Background()) })
					}
					routed = append(routed, w.C(1).stream(b, without.Addr()))
					plain = append(plain, w.C(1).connect(b, without))
					w.Hosts[0].MustSync(with)
					w.Hosts[1].MustSync(w.Hosts[1].State)
					flows = append(flows, w.C(1).stream(b, vip(1)))
					connects = append(connects, w.C(1).connect(b, at(vip(1), 80)))
				}
			}
			b.ReportMetric(median(flows)/1e9, "Gbit/s")
			b.ReportMetric(median(connects), "connects/s")
			b.ReportMetric(median(routed)/1e9, "routed_Gbit/s")
			b.ReportMetric(median(flows)/median(routed), "flow_ratio")
			b.ReportMetric(median(connects)/median(plain), "connect_ratio")
		})
	}
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}

// stream returns the rate of one TCP flow in bit/s.
func (c *Container) stream(b *testing.B, to netip.Addr) float64 {
	b.Helper()
	var out []byte
	var err error
	for range 50 { // the server may not listen yet
		out, err = exec.Command("nsenter", "--net="+c.Path(), "iperf3", "-c", to.String(), "-C", "cubic", "-t", "1.5", "-O", "0.5", "-J").Output()
		if err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	var r struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		b.Fatalf("iperf3 to %s: %v: %s", to, err, out)
	}
	return r.End.Received.Rate
}

// connect returns how many connections a second are opened, one after another.
func (c *Container) connect(b *testing.B, to netip.AddrPort) float64 {
	b.Helper()
	const n = 1500
	began := time.Now()
	c.Do(func() {
		for range n {
			if err := once(to); err != nil {
				panic(err)
			}
		}
	})
	return n / time.Since(began).Seconds()
}

// once opens a connection, reads an answer, and resets the connection to free its port, without
// Go's poller.
func once(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return err
	}
	_, err = unix.Read(fd, make([]byte, 16))
	return err
}
