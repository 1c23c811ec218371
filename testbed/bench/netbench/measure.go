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

// Serve starts the servers in all containers of the second node. Call it after Path.Up.
func (b *Bed) Serve() error {
	for _, n := range append([]*Namespace{b.Container[1]}, b.More...) {
		if _, err := b.start(n, "serve", struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// metered runs a measurement and adds the CPU time used in the meantime.
func metered(fn func() (float64, error)) (Sample, error) {
	m := startMeter()
	v, err := fn()
	s := Sample{Value: v}
	s.CPU, s.Foreign = m.stop()
	return s, err
}

// RTT measures the median round trip of 64 bytes over TCP, in µs.
func (b *Bed) RTT(ctx context.Context, to netip.Addr, d time.Duration) (Sample, error) {
	return b.ask(ctx, question{What: "rtt", Target: to, For: d})
}

// Connects measures TCP connections per second, with four concurrent dialers.
func (b *Bed) Connects(ctx context.Context, to netip.Addr, d time.Duration) (Sample, error) {
	return b.ask(ctx, question{What: "connect", Target: to, For: d})
}

// HTTP measures the median duration of a GET of a small page in µs, each on a new connection and
// to the next of the addresses.
func (b *Bed) HTTP(ctx context.Context, to []netip.Addr, d time.Duration) (Sample, error) {
	return b.ask(ctx, question{What: "http", Targets: to, For: d})
}

// Transfer measures the seconds to fetch a number of bytes.
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

// iperfWrite is the size of iperf3's writes. Two maximum segments leave a remainder of its
// default of 128 KiB. If the remainder exceeds an MSS it is sent as a separate packet, which
// halves the rate of any path. That depends on the MTU: it happens at 1480, 1450 and 1400, but not
// at 1500 and 1380. With 1 MiB there is one remainder per sixteen segments.
const iperfWrite = "1M"

// TCP measures the rate at which iperf3 receives, in Gbit/s.
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

// iperf runs iperf3 between the containers and parses its report.
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
	defer cancel() // a server whose client failed waits forever
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

// seconds returns a duration as iperf3 accepts it: whole seconds, at least one if not zero.
func seconds(d time.Duration) string { return fmt.Sprint(int(math.Ceil(d.Seconds()))) }

func shorten(s string) string { return strings.TrimSpace(s[:min(len(s), 300)]) }

type discard struct{}

// Write implements io.Writer.
func (discard) Write(p []byte) (int, error) { return len(p), nil }
