package ebpf_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// none is a plane without effect: the kernel's routes forward all packets.
type none struct{}

func (none) Sync(context.Context, plane.State) error                    { return nil }
func (none) Apply(context.Context, plane.Change) error                  { return nil }
func (none) Usage(context.Context) (u plane.Usage, err error)           { return u, nil }
func (none) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) { return nil, nil }
func (none) Remove(context.Context) error                               { return nil }
func (none) Close() error                                               { return nil }

var planes = []struct {
	name string
	make func(testing.TB) dataplane.Plane
}{
	{"kernel", func(testing.TB) dataplane.Plane { return none{} }},
	{"ebpf", newEBPF},
	{"nft", func(t testing.TB) dataplane.Plane {
		p, err := nft.New("tl")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}},
}

func newEBPF(t testing.TB) dataplane.Plane {
	p, err := ebpf.New("tl")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// to is the address that c1 calls: a service with the backend c4, or c4 itself for the kernel.
func to(w *dataplanetest.World, name string) netip.Addr {
	if name == "kernel" {
		return w.C(4).Addr
	}
	vip := netip.MustParseAddr("10.30.0.1")
	w.Hosts[0].MustApply(plane.Change{
		SetServices: []plane.Service{{Address: vip, Ident: 4, Backends: []plane.Backend{{Address: w.C(4).Addr, Weight: 1}}}},
	})
	return vip
}

func BenchmarkTCP(b *testing.B) {
	programtest.Need(b, "iperf3")
	for _, path := range []api.PathKind{api.PathRoute, api.PathVXLAN} {
		for _, p := range planes {
			b.Run(fmt.Sprintf("%s/%s", path, p.name), func(b *testing.B) {
				w := dataplanetest.NewWorld(b, p.make, path)
				vip := to(w, p.name)
				srv := exec.Command("nsenter", "--net="+w.C(4).Path(), "iperf3", "-s", "-1", "--forceflush")
				out, _ := srv.StdoutPipe()
				if err := srv.Start(); err != nil {
					b.Fatal(err)
				}
				_, _ = out.Read(make([]byte, 256))
				time.Sleep(200 * time.Millisecond)
				res, err := exec.Command("nsenter", "--net="+w.C(1).Path(), "iperf3", "-C", "cubic", "-J", "-t", "3", "-O", "1", "-c", vip.String()).Output()
				if err != nil {
					b.Fatalf("%v: %s", err, res)
				}
				_ = srv.Wait()
				var r struct {
					End struct {
						Sum struct {
							BPS float64 `json:"bits_per_second"`
						} `json:"sum_received"`
					} `json:"end"`
				}
				if err := json.Unmarshal(res, &r); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(r.End.Sum.BPS/1e9, "Gbit/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	for _, path := range []api.PathKind{api.PathRoute, api.PathVXLAN} {
		for _, p := range planes {
			b.Run(fmt.Sprintf("%s/%s", path, p.name), func(b *testing.B) {
				w := dataplanetest.NewWorld(b, p.make, path)
				vip := to(w, p.name)
				var l int
				w.C(4).Do(func() { l = listen(b) })
				go func() {
					for {
						c, _, err := unix.Accept(l)
						if err != nil {
							return
						}
						unix.Close(c)
					}
				}()
				b.ResetTimer()
				w.C(1).Do(func() {
					for range b.N {
						s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
						if err != nil {
							b.Fatal(err)
						}
						if err := unix.Connect(s, &unix.SockaddrInet4{Port: 80, Addr: vip.As4()}); err != nil {
							panic(err)
						}
						_ = unix.SetsockoptLinger(s, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // a reset frees the port at once
						unix.Close(s)
					}
				})
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "conn/s")
				_ = unix.Shutdown(l, unix.SHUT_RDWR)
			})
		}
	}
}

func listen(b *testing.B) int {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		panic(err)
	}
	b.Cleanup(func() { unix.Close(l) })
	if err := unix.Bind(l, &unix.SockaddrInet4{Port: 80}); err != nil {
		panic(err)
	}
	if err := unix.Listen(l, 1024); err != nil {
		panic(err)
	}
	return l
}

func BenchmarkPlane(b *testing.B) { dataplanetest.Bench(b, newEBPF) }

// BenchmarkFirstSync measures a Sync of 10,000 services in an empty kernel, and in one that has them
// from an earlier start.
func BenchmarkFirstSync(b *testing.B) {
	w := dataplanetest.NewWorld(b, newEBPF, api.PathRoute)
	h := w.Hosts[0]
	s := h.State
	for i := range 10_000 {
		v := service(0, plane.Ident(1000+i), w.C(2).Addr, w.C(4).Addr, w.C(5).Addr)
		v.Address = netip.AddrFrom4([4]byte{10, 30, byte(i >> 8), byte(i)})
		s.Services = append(s.Services, v)
	}
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			h.Do(func() { _ = h.Plane.Remove(context.Background()) })
			b.StartTimer()
			h.MustSync(s)
		}
	})
	b.Run("found", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			h.Kill()
			b.StartTimer()
			h.MustSync(s)
		}
	})
}

// BenchmarkEnd measures the end of flows, which walks the whole table of flows.
func BenchmarkEnd(b *testing.B) {
	w := dataplanetest.NewWorld(b, newEBPF, api.PathRoute)
	for b.Loop() {
		w.Hosts[0].MustApply(plane.Change{End: []netip.Addr{w.C(4).Addr}})
	}
}
