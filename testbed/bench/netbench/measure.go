package netbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// Serve starts the servers in all containers of the second node. A Path's Up is
// over before.
func (b *Bed) Serve() error {
	for _, n := range append([]*Namespace{b.Container[1]}, b.More...) {
		if _, err := b.start(n, "serve", struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// metered runs what measures and says what was used meanwhile.
func metered(fn func() (float64, error)) (Sample, error) {
	m := startMeter()
	v, err := fn()
	s := Sample{Value: v}
	s.CPU, s.Foreign = m.stop()
	return s, err
}

// RTT is the median round trip of 64 bytes over TCP within some time, in µs.
func (b *Bed) RTT(ctx context.Context, to netip.Addr, d time.Duration) (Sample, error) {
	return b.ask(ctx, question{What: "rtt", Target: to, For: d})
}

// Connects is how many TCP connections are made a second, by four at once.
func (b *Bed) Connects(ctx context.Context, to netip.Addr, d time.Duration) (Sample, error) {
	return b.ask(ctx, question{What: "connect", Target: to, For: d})
}

// HTTP is the median of GETs of a small page within some time, each on a new
// connection and to the next of some addresses, in µs.
func (b *Bed) HTTP(ctx context.Context, to []netip.Addr, d time.Duration) (Sample, error) {
	return b.ask(ctx, question{What: "http", Targets: to, For: d})
}

// Transfer is how long it takes to fetch some bytes, in seconds.
func (b *Bed) Transfer(ctx context.Context, to netip.Addr, bytes uint64) (Sample, error) {
	return b.ask(ctx, question{What: "transfer", Target: to, Bytes: bytes})
}

func (b *Bed) ask(ctx context.Context, q question) (Sample, error) {
	c, err := b.Container[0].start("ask", q)
	if err != nil {
		return Sample{}, err
	}
	return metered(func() (v float64, err error) {
		err = c.result(ctx, &v)
		return v, err
	})
}

// iperfWrite is what iperf3 hands to the kernel at once. Of its own 128 KiB, two
// segments of the largest size leave a rest, and whether that exceeds an MSS, and so is
// sent as a packet of its own, is the MTU's luck: at 1500 and 1380 it does not, at
// 1480, 1450 and 1400 it does, which halves any path's rate. Of a MiB there is one rest
// to sixteen segments.
const iperfWrite = "1M"

// TCP is what iperf3 receives, in Gbit/s.
func (b *Bed) TCP(ctx context.Context, to netip.Addr, flows int, d time.Duration) (Sample, error) {
	var rate float64
	s, err := b.iperf(ctx, to, d, func(text []byte) error {
		var r struct {
			Error string
			End   struct {
				Received struct {
					Bits float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
		}
		if err := json.Unmarshal(text, &r); err != nil || r.Error != "" {
			return fmt.Errorf("%s: %w", r.Error, err)
		}
		rate = r.End.Received.Bits / 1e9
		return nil
	}, "--congestion", "cubic", "--parallel", fmt.Sprint(flows), "--length", iperfWrite)
	s.Value = rate
	return s, err
}

// iperf runs iperf3 between the containers, and has its report parsed.
func (b *Bed) iperf(ctx context.Context, to netip.Addr, d time.Duration, parse func([]byte) error, args ...string) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, d+30*time.Second)
	defer cancel()
	const port = "7005"
	server := exec.CommandContext(ctx, "iperf3", "--server", "--one-off", "--idle-timeout", "60", "--forceflush", "--port", port)
	out, err := server.StdoutPipe()
	if err != nil {
		return Sample{}, err
	}
	if err := b.Container[1].Start(server); err != nil {
		return Sample{}, err
	}
	defer func() { _ = server.Wait() }()
	defer cancel() // a server whose client failed waits for ever
	in := bufio.NewReader(out)
	for line := ""; !strings.HasPrefix(line, "Server listening"); {
		if line, err = in.ReadString('\n'); err != nil {
			return Sample{}, fmt.Errorf("iperf3 does not listen in %s: %w", b.Container[1].Name, err)
		}
	}
	go func() { _, _ = in.WriteTo(discard{}) }()

	var text bytes.Buffer
	client := exec.CommandContext(ctx, "iperf3", append([]string{"--client", to.String(), "--port", port, "--json", "--time", seconds(d)}, args...)...)
	client.Stdout, client.Stderr = &text, &text
	return metered(func() (float64, error) {
		if err := b.Container[0].Start(client); err != nil {
			return 0, err
		}
		waited := client.Wait()
		if err := parse(text.Bytes()); err != nil || waited != nil {
			return 0, fmt.Errorf("iperf3 from %s to %s: %v: %v %s", b.Container[0].Name, to, waited, err, shorten(text.String()))
		}
		return 0, nil
	})
}

// Datagrams returns how many UDP datagrams of size bytes iperf3 receives a second, with a
// sender that does not wait.
func (b *Bed) Datagrams(ctx context.Context, to netip.Addr, size int, d time.Duration) (Sample, error) {
	var received float64
	s, err := b.iperf(ctx, to, d, func(text []byte) (err error) {
		var r struct {
			Error string
			End   struct {
				Sum struct {
					Packets, Lost_packets, Seconds float64 //nolint:revive // iperf3's keys
				}
			}
		}
		if err := json.Unmarshal(text, &r); err != nil || r.Error != "" {
			return fmt.Errorf("%s: %w", r.Error, err)
		}
		received = (r.End.Sum.Packets - r.End.Sum.Lost_packets) / r.End.Sum.Seconds
		return nil
	}, "--udp", "--bitrate", "0", "--length", fmt.Sprint(size))
	s.Value = received
	return s, err
}

// seconds are what iperf3 takes: whole ones, at least one where there are any.
func seconds(d time.Duration) string { return fmt.Sprint(int(math.Ceil(d.Seconds()))) }

func shorten(s string) string { return strings.TrimSpace(s[:min(len(s), 300)]) }

type discard struct{}

// Write is io.Writer's.
func (discard) Write(p []byte) (int, error) { return len(p), nil }
