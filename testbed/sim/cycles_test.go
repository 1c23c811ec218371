package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// An application is created and deleted ten times. Afterwards each tier's store has the same
// documents each time, except for the root's events, whose number is bounded.
func TestStoresHoldTheSameAfterEachCycle(t *testing.T) {
	const replicas, cycles = 12, 10
	w := NewWorld(1, Settings{Network: true}, Options{})
	w.addRoot()
	c := w.addCluster("munich")
	for i := range 3 {
		c.addNode(api.NodeID(fmt.Sprintf("n%d", i)), api.NodeInfo{
			Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Capacity: api.Resources{MilliCPU: 8000, MemoryMB: 8192},
		})
	}
	c.join()
	w.Run(time.Minute)
	console := &Console{w: w}
	disks := map[string]*disk{"root": w.root.proc.disk, "munich": c.proc.disk}
	for _, n := range c.nodes {
		disks[n.name], disks[n.net.name] = n.proc.disk, n.net.proc.disk
	}
	type held struct {
		kinds map[string]int // documents by store and kind
		bytes int
	}
	var all []held
	for range cycles {
		console.must(t, fmt.Sprintf("apply acme/herd web replicas=%d vcpus=0.5 memory=64", replicas))
		console.must(t, "settle 2m")
		console.must(t, "delete acme/herd")
		console.must(t, "settle 2m")
		w.Run(5 * time.Minute) // released addresses may be used again
		now := held{kinds: map[string]int{}}
		for name, d := range disks {
			for _, doc := range d.docs {
				if doc.Kind == "event" {
					continue
				}
				now.kinds[name+" "+doc.Kind]++
				now.bytes += len(doc.Kind) + len(doc.Key) + len(doc.Data)
			}
		}
		all = append(all, now)
	}
	first, last := all[1], all[cycles-1]
	for k, n := range last.kinds {
		if n > first.kinds[k] {
			t.Errorf("%s has %d documents after cycle 2 and %d after cycle %d, want the same number", k, first.kinds[k], n, cycles)
		}
	}
	if last.bytes > first.bytes*11/10 {
		t.Errorf("the stores have %d bytes after cycle 2 and %d after cycle %d, want no growth", first.bytes, last.bytes, cycles)
	}
}

// must carries out a command; its error, or a state that is not reached, fails the test.
func (c *Console) must(t *testing.T, command string) {
	t.Helper()
	if out := c.Do(command); strings.Contains(out, "error: ") || strings.HasPrefix(out, "not settled") {
		t.Fatalf("%s: %s", command, out)
	}
}
