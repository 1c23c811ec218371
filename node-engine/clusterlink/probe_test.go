package clusterlink

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// TestProbesAreAnsweredAndBounded asks for more than a node measures at once,
// while those that it has begun take for ever, and then lets them end.
func TestProbesAreAnsweredAndBounded(t *testing.T) {
	cluster, end := bustest.Pair(t, "n1")
	begun, release := make(chan uint64, 4*maxProbes), make(chan struct{})
	l := New(Options{
		ID: "n1", Bus: end, Post: func(node.Input) {}, Deliver: func(context.Context, node.Input) error { return nil },
		Probe: func(_ context.Context, o wire.ProbeOrder) wire.Probed {
			begun <- o.ID
			<-release
			return wire.Probed{ID: o.ID, RTT: 5, How: "tcp"}
		},
	})
	answers := make(chan wire.Probed, 4*maxProbes)
	err := cluster.Subscribe(t.Context(), topic.Probed.Of("n1"), topic.Probed.QoS, func(m bus.Message) {
		var p wire.Probed
		if err := json.Unmarshal(m.Payload, &p); err != nil {
			t.Error(err)
		}
		answers <- p
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(payload string) {
		l.probe(t.Context(), bus.Message{Topic: topic.Probe.Of("n1"), Payload: []byte(payload)})
	}
	ask("nonsense")
	for range 3 * maxProbes {
		ask(`{"id":7,"target":"user.example"}`)
	}
	for range maxProbes {
		<-begun
	}
	close(release)
	for range maxProbes {
		if p := <-answers; p.ID != 7 || p.RTT != 5 {
			t.Errorf("the answer is %+v", p)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Run(ctx) // whatever it says, it returns when what it began has ended
	if len(begun) > 0 || len(answers) > 0 {
		t.Errorf("%d more were begun, %d more answered", len(begun), len(answers))
	}
	ask(`{"id":8,"target":"user.example"}`)
	if len(begun) > 0 {
		t.Error("a probe began after the end")
	}
}
