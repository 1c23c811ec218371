package wiring

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// A workload takes flows when it listens, at the latest after a while, and each
// attempt anew; the node engine is told of each once.
func TestReadyWhenItListens(t *testing.T) {
	w := newWorld(t, 1)
	h := w.hosts[0]
	attached := time.Now() // at the earliest
	deaf, server := h.run("deaf", 0, 1), h.run("server", 0, 2)
	ready := func(k api.Key) bool {
		all, err := h.sock.Attachments(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a.Key == k {
				return a.Ready
			}
		}
		t.Fatalf("%s is not attached", k)
		return false
	}
	began := time.Now()
	server.serve(80)
	for !ready(server.key) {
		time.Sleep(time.Millisecond)
	}
	t.Logf("ready %s after it listens", time.Since(began).Round(time.Millisecond))
	early := ready(deaf.key)
	if since := time.Since(attached); early && since < longest {
		t.Errorf("what does not listen is ready after %s", since)
	}
	h.kill()
	h.start()
	if !ready(server.key) {
		t.Error("a restart of the netmanager has it start anew")
	}
	for !ready(deaf.key) {
		time.Sleep(10 * time.Millisecond)
	}
}

func TestALookThatCostsMuchIsSeldom(t *testing.T) {
	for _, c := range []struct{ watched, look, want time.Duration }{
		{0, 0, lookOften},
		{0, 100 * time.Microsecond, lookOften},
		{0, 20 * time.Millisecond, 200 * time.Millisecond},
		{lookFor, time.Millisecond, lookLess},
		{lookFor, 20 * time.Millisecond, 200 * time.Millisecond},
	} {
		if got := untilNext(c.watched, c.look); got != c.want {
			t.Errorf("watched for %v, a look of %v: %v, want %v", c.watched, c.look, got, c.want)
		}
	}
}
