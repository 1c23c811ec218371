package tunnel

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// The benchmarks run each end of a tunnel in its own process, with its own runtime and memory: this test
// program with an order in its environment. testbed/bench compares the results with wireguard-go.

const orderEnv = "TUNNEL_BENCH_ORDER"

type order struct {
	Key, Peer     []byte // private, public
	Subnet, Other netip.Prefix
	Port          uint16
	Endpoint      netip.AddrPort
	Profile       string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(orderEnv); text != "" {
		var o order
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			panic(err)
		}
		if err := o.run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func (o order) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if o.Profile != "" {
		f, err := os.Create(o.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	dev, err := tun.Open("tl0", DefaultMTU)
	if err != nil {
		return err
	}
	e, err := New(Config{Device: dev, Key: [32]byte(o.Key), Listen: netip.AddrPortFrom(netip.IPv6Unspecified(), o.Port)})
	if err != nil {
		return err
	}
	e.SetSelf(Lease{Ranges: wire.DefaultNetRanges(), Subnet: o.Subnet})
	e.SetPeer(api.Peer{Key: api.PeerKey(o.Peer), Subnets: []netip.Prefix{o.Other}, Endpoints: []netip.AddrPort{o.Endpoint}})
	fmt.Println("ready")
	return e.Run(ctx)
}

// end is one end of a tunnel between two processes.
type end struct {
	*host
	cmd *exec.Cmd
}

// ends starts a tunnel between two hosts.
func ends(t testing.TB) (a, b *end) {
	hs := newHosts(t, 2)
	const port = 51820
	for i, h := range hs {
		o := hs[1-i]
		rand := func(h *host) *ecdh.PrivateKey { k, _ := ecdh.X25519().NewPrivateKey(h.key[:]); return k }
		ord := order{
			Key: h.key[:], Peer: rand(o).PublicKey().Bytes(), Subnet: h.subnet, Other: o.subnet, Port: port,
			Endpoint: netip.AddrPortFrom(o.under, port),
		}
		if dir := os.Getenv("TUNNEL_BENCH_PROFILE"); dir != "" {
			ord.Profile = fmt.Sprintf("%s/tunnel-%d.prof", dir, i)
		}
		text, _ := json.Marshal(ord)
		cmd := exec.Command("nsenter", "--net=/var/run/netns/"+h.ns, os.Args[0])
		cmd.Env = append(os.Environ(), orderEnv+"="+string(text))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Signal(unix.SIGTERM)
			cmd.Wait()
		})
		if !bufio.NewScanner(out).Scan() {
			t.Fatal("the tunnel process printed nothing before it exited, want \"ready\"")
		}
		run(t, "ip", "-n", h.ns, "link", "set", "dev", "tl0", "up")
		run(t, "ip", "-n", h.ns, "addr", "add", h.addr().String()+"/13", "dev", "tl0")
		if i == 0 {
			a = &end{h, cmd}
		} else {
			b = &end{h, cmd}
		}
	}
	a.exec("ping", "-c1", "-w20", b.addr().String())
	return a, b
}

// used returns the process's CPU time and its peak memory in MiB.
func (e *end) used() (cpu time.Duration, rss float64) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", e.cmd.Process.Pid))
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system int64
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.cmd.Process.Pid))
	var kb float64
	if _, after, ok := strings.Cut(string(status), "VmHWM:"); ok {
		fmt.Sscan(after, &kb)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, kb / 1024
}

// wakeups returns how often the process's threads have slept.
func (e *end) wakeups() (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", e.cmd.Process.Pid))
	for _, p := range tasks {
		b, _ := os.ReadFile(p)
		if _, after, ok := strings.Cut(string(b), "\nvoluntary_ctxt_switches:"); ok {
			var c int
			fmt.Sscan(after, &c)
			n += c
		}
	}
	return n
}

// raced reports whether the race detector is enabled.
func raced() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// A tunnel without traffic does not wake up.
func TestIdleTunnelSleeps(t *testing.T) {
	x, y := ends(t)
	last, still := 0, 0
	for seconds := 0; still < 3; seconds++ {
		if seconds == 180 {
			t.Fatal("it has not slept for three of 180 seconds, one after the other")
		}
		time.Sleep(time.Second)
		now := x.wakeups() + y.wakeups()
		if still++; now > last+4 { // the runtime's own wake-ups
			still = 0
		}
		last = now
	}
	if _, rss := x.used(); rss > 15 && !raced() {
		t.Errorf("%.1f MiB", rss)
	}
}

func benchTCP(b *testing.B, flows int, slow bool) {
	programtest.Need(b, "iperf3", "ethtool", "ss")
	x, y := ends(b)
	if slow {
		for i, e := range []*end{x, y} {
			off := []string{"tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off"}
			e.exec(append([]string{"ethtool", "-K", "eth0"}, off...)...)
			run(b, append([]string{"ip", "netns", "exec", e.hub, "ethtool", "-K", fmt.Sprintf("v%d", i)}, off...)...)
		}
	}
	server := exec.Command("ip", "netns", "exec", y.ns, "iperf3", "-s")
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	eventually(b, "iperf3 listens", func() bool {
		return strings.Contains(y.exec("ss", "-Hltn"), ":5201")
	})
	var res struct {
		End struct {
			Received struct {
				Bytes float64 `json:"bytes"`
				Bits  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
			Sent struct {
				Retransmits float64 `json:"retransmits"`
			} `json:"sum_sent"`
		} `json:"end"`
	}
	for b.Loop() {
		x0, _ := x.used()
		y0, _ := y.used()
		out := x.exec("iperf3", "-J", "-C", "cubic", "-c", y.addr().String(), "-t", "3", "-O", "1", "-P", fmt.Sprint(flows))
		x1, xr := x.used()
		y1, yr := y.used()
		if err := json.Unmarshal([]byte(out), &res); err != nil {
			b.Fatal(err)
		}
		gb := res.End.Received.Bytes / 1e9 * 4 / 3 // includes the omitted second
		b.ReportMetric(res.End.Received.Bits/1e9, "Gbit/s")
		b.ReportMetric((x1-x0).Seconds()/gb, "sender-s/GB")
		b.ReportMetric((y1-y0).Seconds()/gb, "receiver-s/GB")
		b.ReportMetric(max(xr, yr), "MiB")
		b.ReportMetric(res.End.Sent.Retransmits, "retransmits")
	}
}

func BenchmarkTCP(b *testing.B) {
	for _, flows := range []int{1, 4} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) { benchTCP(b, flows, false) })
	}
	b.Run("perpacket", func(b *testing.B) { benchTCP(b, 1, true) })
}

func BenchmarkRTT(b *testing.B) {
	x, y := ends(b)
	l := y.listen("tcp", netip.AddrPortFrom(y.addr(), 7).String())
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		buf := make([]byte, 64)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			c.Write(buf[:n])
		}
	}()
	c := x.dial("tcp", netip.AddrPortFrom(y.addr(), 7).String()).(*net.TCPConn)
	buf := make([]byte, 64)
	var took []time.Duration
	before := x.wakeups()
	for b.Loop() {
		t := time.Now()
		c.Write(buf)
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(t))
	}
	b.ReportMetric(float64(x.wakeups()-before)/float64(len(took)), "sleeps/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkCPU measures the CPU time of each end for 100 Mbit/s of single packets.
func BenchmarkCPU(b *testing.B) {
	programtest.Need(b, "iperf3", "ss")
	x, y := ends(b)
	server := exec.Command("ip", "netns", "exec", y.ns, "iperf3", "-s")
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	eventually(b, "iperf3 listens", func() bool { return strings.Contains(y.exec("ss", "-Hltn"), ":5201") })
	for b.Loop() {
		x0, _ := x.used()
		y0, _ := y.used()
		x.exec("iperf3", "-u", "-b", "100M", "-l", "1300", "-c", y.addr().String(), "-t", "4")
		x1, _ := x.used()
		y1, _ := y.used()
		b.ReportMetric((x1-x0).Seconds()/4*100, "sender-%")
		b.ReportMetric((y1-y0).Seconds()/4*100, "receiver-%")
	}
}
