package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A node decides how often it sends heartbeats and with which load. Watchers get a few of them.
func TestTheLoadOfANodeIsShownAtMostOnceInFiveSeconds(t *testing.T) {
	w := newWorld(t, 1)
	n, changes, last := w.nodes["n0"], 0, uint8(0)
	w.now = w.now.Add(time.Minute)
	begin := w.now
	for i := range 200 {
		beat := n.alive()
		beat.CPUUsed = uint8(i % 2 * 90)
		last = beat.CPUUsed
		for _, e := range w.step(beat).Send {
			if ch, ok := e.Msg.(api.Change); ok && e.To == wire.ToWatchers && ch.Kind == "node" {
				changes++
			}
		}
		w.now = w.now.Add(100 * time.Millisecond)
	}
	most := int(w.now.Sub(begin)/(5*time.Second)) + 1
	if changes == 0 || changes > most {
		t.Errorf("200 heartbeats with another load each in 20 s lead to %d changes, want 1 to %d", changes, most)
	}
	w.now = w.now.Add(10 * time.Second)
	n.seq++ // a later heartbeat shows the load
	beat := n.alive()
	beat.CPUUsed = last
	w.step(beat)
	if has := w.shown["node n0"].(api.Node); has.CPUUsed != int(last) {
		t.Errorf("watchers have a load of %d %%, want %d %%", has.CPUUsed, last)
	}
}
