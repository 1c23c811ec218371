package wiring

import (
	"bufio"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
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
		_ = conn.SetDeadline(began.Add(patience))
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
