package wiring

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/host/workloads"
)

// A workload gets flows when it listens, or after workloads.ListenTimeout, and keeps them
// when the netmanager restarts.
func TestReadyWhenItListens(t *testing.T) {
	w := newWorld(t, 1)
	h := w.hosts[0]
	attached := time.Now() // at the earliest
	deaf, server := h.run("deaf", 0, 1), h.run("server", 0, 2)
	ready := func(k wire.Key) bool {
		t.Helper()
		all, err := h.sock.Attachments(t.Context())
		if err != nil {
			t.Fatalf("list attachments: %v", err)
		}
		for _, a := range all {
			if a.Key == k {
				return a.Ready
			}
		}
		t.Fatalf("%s is not among the %d attachments", k, len(all))
		return false
	}
	awaitReady := func(k wire.Key) {
		t.Helper()
		for end := time.Now().Add(testTime); !ready(k); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not ready after %v, want ready", k, testTime)
			}
		}
	}
	began := time.Now()
	server.serve(80)
	awaitReady(server.key)
	t.Logf("ready %s after it listens", time.Since(began).Round(time.Millisecond))
	early := ready(deaf.key)
	if since := time.Since(attached); early && since < workloads.ListenTimeout {
		t.Errorf("%s does not listen and is ready after %s, want not before %s", deaf.key, since, workloads.ListenTimeout)
	}
	h.kill()
	h.start()
	if !ready(server.key) {
		t.Errorf("%s is not ready after a restart of the netmanager, want ready as before", server.key)
	}
	awaitReady(deaf.key)
}
