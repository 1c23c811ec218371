package nodelink

import (
	"context"
	"fmt"
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

// hung is a broker that answers nothing.
type hung struct{ bus.Bus }

func (hung) Publish(ctx context.Context, _ bus.Message) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hung) Subscribe(context.Context, string, byte, func(bus.Message)) error { return nil }

// keeping is a broker that keeps what is published.
type keeping struct {
	bus.Bus
	came chan bus.Message
}

func (k keeping) Publish(_ context.Context, m bus.Message) error {
	k.came <- m
	return nil
}

func (keeping) Subscribe(context.Context, string, byte, func(bus.Message)) error { return nil }

// A node is connected to one of the brokers: each gets the messages to it, and one that does not answer delays no other.
func TestMessagesGoToAllBrokersOfWhichOneHangs(t *testing.T) {
	one, two := keeping{came: make(chan bus.Message, 1000)}, keeping{came: make(chan bus.Message, 1000)}
	l := New(Options{Buses: []bus.Bus{one, hung{}, two}, Post: func(cluster.Input) {}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	const nodes = 4 * publishers
	for i := range nodes {
		l.Send(wire.Envelope{To: api.NodeID(fmt.Sprint("n", i)).Addr(), Msg: wire.Lease{Boot: 1, Seq: 1}})
	}
	for _, k := range []keeping{one, two} {
		came := map[string]bool{}
		for range nodes {
			came[(<-k.came).Topic] = true
		}
		if len(came) != nodes {
			t.Errorf("a broker got messages of %d topics, want %d", len(came), nodes)
		}
	}
	cancel()
	check(t, <-ended)
}
