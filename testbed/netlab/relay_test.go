package netlab_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// BenchmarkRelay compares the throughput between two nodes on the direct path and through the relay,
// in turns: iperf3 with one TCP flow over the tunnel.
func BenchmarkRelay(b *testing.B) {
	programtest.Need(b, "iperf3", "ss")
	w := newWorld(b)
	x, y := w.add(netlab.None), w.add(netlab.None)
	x.knows(y)
	y.knows(x)
	eventually(b, func() string {
		x.engine.Connect(y.engine.Public())
		if r, _, _, _ := x.sees(y); r.Kind == api.PathDirect {
			return ""
		}
		return "no direct path"
	})
	r, _, _, _ := x.sees(y)
	direct := tunnel.Path{Kind: r.Kind, Addr: r.Addr}
	relayed := tunnel.Path{Kind: api.PathRelay, Addr: w.at, Slot: uint32(y.i), Ticket: y.ticket()}
	back := [2]tunnel.Path{{Kind: api.PathRelay, Addr: w.at, Slot: uint32(x.i), Ticket: x.ticket()}}
	r, _, _, _ = y.sees(x)
	back[1] = tunnel.Path{Kind: r.Kind, Addr: r.Addr}
	server := exec.Command("ip", "netns", "exec", y.host.Netns(), "iperf3", "-s", "-B", y.addr().String())
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	eventually(b, func() string {
		if strings.Contains(y.host.Run("ss", "-ltn"), ":5201") {
			return ""
		}
		return "iperf3 does not listen"
	})
	var got [2][]float64
	for b.Loop() {
		for i, p := range []tunnel.Path{relayed, direct} {
			x.engine.SetPath(y.engine.Public(), p)
			y.engine.SetPath(x.engine.Public(), back[i])
			got[i] = append(got[i], iperf(b, x, y))
		}
	}
	for i, unit := range []string{"relayed-Gbit/s", "direct-Gbit/s"} {
		slices.Sort(got[i])
		b.ReportMetric(got[i][len(got[i])/2], unit)
	}
	b.ReportMetric(got[0][len(got[0])/2]/got[1][len(got[1])/2], "relayed/direct")
	b.Logf("%+v", w.relay.Stats())
}

func iperf(b *testing.B, x, y *node) float64 {
	b.Helper()
	out := x.host.Run("iperf3", "-c", y.addr().String(), "-t", "3", "-O", "1", "-C", "cubic", "-J")
	var got struct {
		End struct {
			SumReceived struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		b.Fatal(fmt.Errorf("%w: %s", err, out))
	}
	return got.End.SumReceived.Bits / 1e9
}
