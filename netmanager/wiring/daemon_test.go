package wiring

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/netsock"
)

func TestServiceAddressLeadsToAnotherHost(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 2, "--plane", plane)
			client := w.hosts[0].run("client", 0, 1)
			server := w.hosts[1].run("server", 0, 2)
			server.serve(80)
			if got, want := client.ask(vip(2), 80), string(server.key.Instance); got != want {
				t.Errorf("%s answers, want %s", got, want)
			}
		})
	}
}

// stream sends numbered lines through a connection until stop, and reports the
// longest that one took to come back.
func stream(t *testing.T, conn net.Conn, stop <-chan struct{}) time.Duration {
	t.Helper()
	defer conn.Close()
	r := bufio.NewReader(conn)
	if _, err := r.ReadString('\n'); err != nil { // who it is
		t.Errorf("the flow: %v", err)
		return 0
	}
	var longest time.Duration
	for n := 0; ; n++ {
		select {
		case <-stop:
			return longest
		default:
		}
		began := time.Now()
		_ = conn.SetDeadline(began.Add(testTime))
		if _, err := fmt.Fprintln(conn, n); err != nil {
			t.Errorf("the flow: %v", err)
			return longest
		}
		if got, err := r.ReadString('\n'); err != nil || got != fmt.Sprintln(n) {
			t.Errorf("the flow: %q, %v", got, err)
			return longest
		}
		longest = max(longest, time.Since(began))
		time.Sleep(2 * time.Millisecond)
	}
}

// A killed netmanager takes no flow along: those within a host are the kernel's
// alone, those to another host wait for its return.
func TestKilledUnderTraffic(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 2, "--plane", plane)
			client := w.hosts[0].run("client", 0, 1)
			near, far := w.hosts[0].run("near", 0, 2), w.hosts[1].run("far", 0, 3)
			near.serve(80)
			far.serve(80)
			within, between := must[net.Conn](t)(client.dial(vip(2), 80)), must[net.Conn](t)(client.dial(vip(3), 80))
			stop := make(chan struct{})
			var g sync.WaitGroup
			var kernel, tunnelled time.Duration
			g.Go(func() { kernel = stream(t, within, stop) })
			g.Go(func() { tunnelled = stream(t, between, stop) })
			for range 3 {
				time.Sleep(100 * time.Millisecond)
				w.hosts[0].kill()
				time.Sleep(100 * time.Millisecond) // a while without one
				w.hosts[0].start()
			}
			time.Sleep(300 * time.Millisecond)
			close(stop)
			g.Wait()
			t.Logf("longest wait: %s within the host, %s between hosts", kernel, tunnelled)
			if got, want := client.ask(vip(3), 80), string(far.key.Instance); got != want {
				t.Errorf("afterwards %s answers, want %s", got, want)
			}
		})
	}
}

// Where the operator calls the network clear, packets stay in the kernel once both
// ends know that no NAT lies between.
func TestClearNetworkIsTheKernelsAlone(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 2, "--plane", plane)
			w.mu.Lock()
			for _, h := range w.hosts {
				h.lease.Rev++
				h.lease.Clear = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			}
			w.mu.Unlock()
			w.tellAll()
			client, server := w.hosts[0].run("client", 0, 1), w.hosts[1].run("server", 0, 2)
			server.serve(80)
			kernel := func(h *host) bool { // what it sends goes that way
				peers := shown[api.Page[api.PeerStatus]](h, netsock.Peers).Items
				return len(peers) == 1 && peers[0].Path == api.PathRoute
			}
			for end := time.Now().Add(testTime); !kernel(w.hosts[0]) || !kernel(w.hosts[1]); time.Sleep(50 * time.Millisecond) {
				if got := client.ask(vip(2), 80); got != string(server.key.Instance) {
					t.Fatalf("%s answers", got)
				}
				if time.Now().After(end) {
					t.Fatal("the kernel's path is not taken")
				}
			}
			observed(t, client, server)
			w.hosts[0].end(syscall.SIGTERM)
			w.hosts[1].end(syscall.SIGTERM)
			if got := client.ask(vip(2), 80); got != string(server.key.Instance) {
				t.Errorf("without netmanagers %s answers", got)
			}
		})
	}
}
