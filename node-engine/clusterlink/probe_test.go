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

// TestProbesAreAnsweredAndLimited orders more probes than a node carries out concurrently.
func TestProbesAreAnsweredAndLimited(t *testing.T) {
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
		decoded(l, func(o wire.ProbeOrder) { l.probe(t.Context(), o) })(bus.Message{Topic: topic.Probe.Of("n1"), Payload: []byte(payload)})
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
			t.Errorf("answer: got %+v, want that of order 7", p)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Run(ctx) // returns when all probes have ended
	if len(begun) > 0 || len(answers) > 0 {
		t.Errorf("further probes: got %d begun, %d answered, want none", len(begun), len(answers))
	}
	ask(`{"id":8,"target":"user.example"}`)
	if len(begun) > 0 {
		t.Error("probe after the link ended: it began, want it dropped")
	}
}
