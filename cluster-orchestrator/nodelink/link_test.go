package nodelink

import (
	"log/slog"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestMessagesOfOneNodeLeaveRoomForOthers: a node that sends without a pause does not fill the
// core's queue.
func TestMessagesOfOneNodeLeaveRoomForOthers(t *testing.T) {
	came := map[api.NodeID]int{}
	l := New(Options{Log: slog.New(slog.DiscardHandler), Post: func(in cluster.Input) { came[in.(cluster.NodeAlive).Node]++ }})
	sign, err := wire.Alive{Boot: 1, Seq: 1}.MarshalBinary()
	check(t, err)
	send := func(n api.NodeID) {
		l.take(bus.Message{Topic: topic.Alive.Of(n), Payload: sign}, alive)
	}
	const flood = 20_000
	for i := range flood {
		send("loud")
		if i%1000 == 0 {
			send("quiet")
		}
	}
	if n := came["loud"]; n < 1000 || n > flood/2 {
		t.Errorf("%d of %d messages of one node reach the core, want 1000 and 100 a second", n, flood)
	}
	if uint64(came["loud"])+l.Limited() != flood {
		t.Errorf("%d messages came and %d are counted as dropped, of %d", came["loud"], l.Limited(), flood)
	}
	if came["quiet"] != flood/1000 {
		t.Errorf("%d of %d messages of another node reach the core", came["quiet"], flood/1000)
	}
}
