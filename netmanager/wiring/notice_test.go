package wiring

import (
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/netsock"
)

// The cluster sends nothing new, as when it is disconnected. The node that drains a workload notifies
// the workload's callers itself, through the tunnel even if their packets take another path. The
// callers keep the notice across a restart.
func TestDrainedWorkloadIsAvoidedWithoutTheCluster(t *testing.T) {
	for _, tt := range []struct {
		plane string
		path  api.PathKind
	}{{"nft", api.PathDirect}, {"ebpf", api.PathRoute}} {
		t.Run(tt.plane+" "+string(tt.path), func(t *testing.T) {
			w := newWorld(t, 3, "--plane", tt.plane)
			if tt.path == api.PathRoute {
				w.unencrypted(w.hosts...)
			}
			client := w.hosts[0].run("client", 0, 1)
			stays, leaves := w.hosts[1].run("server", 0, 2), w.hosts[2].run("server", 1, 2)
			stays.serve(80)
			leaves.serve(80)
			calls := func(n int) int {
				left := 0
				for range n {
					if client.ask(vip(2), 80) == string(leaves.key.Instance) {
						left++
					}
				}
				return left
			}
			there := func() bool { // both are reached by the path under test
				peers := map[string][]api.PeerStatus{}
				body := must[io.ReadCloser](t)(w.hosts[0].sock.Open(t.Context(), netsock.Peers))
				defer body.Close()
				if err := json.NewDecoder(body).Decode(&peers); err != nil {
					t.Fatal(err)
				}
				n := 0
				for _, p := range peers["items"] {
					if p.Path == tt.path {
						n++
					}
				}
				return n == 2
			}
			for end := time.Now().Add(testTime); calls(4) == 0 || !there(); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("paths to both peers are not %s after %v", tt.path, testTime)
				}
			}
			// Another attempt of the workload, in the same placement, gets flows.
			attempts := 0
			again := func() {
				t.Helper()
				attempts++
				leaves.ns = w.netns(fmt.Sprintf("again%d", attempts))
				leaves.attach()
				leaves.serve(80)
				for end := time.Now().Add(testTime); calls(4) == 0; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("a new attempt of the drained workload gets no flows")
					}
				}
			}
			bestOf(t, 3, func() []string {
				if err := w.hosts[2].sock.Drain(t.Context(), leaves.key); err != nil {
					t.Fatal(err)
				}
				if n := calls(20); n > 0 { // a drain waits up to a second for callers
					again()
					return []string{fmt.Sprintf("%d of 20 calls reach who leaves", n)}
				}
				return nil
			})
			w.sendDownAll() // the same messages as before
			w.hosts[0].kill()
			w.hosts[0].start()
			w.sendDownAll()
			if n := calls(20); n > 0 {
				t.Errorf("after a restart %d of 20 calls reach the drained workload, want 0", n)
			}
			again()
		})
	}
}
