package nodelink

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestAProbeGoesOutAndItsAnswerComesIn: cluster ─ probe ─▶ n1 ─ probed ─▶ cluster.
func TestAProbeGoesOutAndItsAnswerComesIn(t *testing.T) {
	end, node := bustest.Pair(t, "n1")
	inputs := make(chan cluster.Input, 4)
	l := New(Options{Buses: []bus.Bus{end}, Post: func(in cluster.Input) { inputs <- in }})
	err := node.Subscribe(t.Context(), topic.Probe.Of("n1"), topic.Probe.QoS, func(m bus.Message) {
		var o wire.ProbeOrder
		if err := json.Unmarshal(m.Payload, &o); err != nil || o.Target != "user.example" {
			t.Errorf("the node is asked %q", m.Payload)
		}
		b, _ := json.Marshal(wire.Probed{ID: o.ID, RTT: 12 * time.Millisecond, How: "icmp"})
		go func() { _ = node.Publish(context.Background(), bus.Message{Topic: topic.Probed.Of("n1"), Payload: b}) }()
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	repeat := time.NewTicker(50 * time.Millisecond) // the link may not have subscribed yet
	defer repeat.Stop()
	for done := false; !done; {
		select {
		case in := <-inputs:
			p, ok := in.(cluster.NodeProbed)
			if !ok || p.Node != "n1" || p.ID != 7 || p.RTT != 12*time.Millisecond {
				t.Errorf("the core hears %+v", in)
			}
			done = true
		case <-repeat.C:
			l.Send(wire.Envelope{To: api.NodeID("n1").Addr(), Msg: wire.ProbeOrder{ID: 7, Target: "user.example"}})
		}
	}
	cancel()
	for {
		select {
		case <-inputs:
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

func TestProbesOfOneNodeAreBounded(t *testing.T) {
	o := newOutbox()
	for i := range 3 * maxProbes {
		o.put("n1", wire.ProbeOrder{ID: uint64(i), For: "loud"})
	}
	o.put("n1", wire.ProbeOrder{ID: 1000, For: "quiet"})
	for i := range 3 * maxProbes {
		o.put("n1", wire.ProbeOrder{ID: uint64(2000 + i), For: fmt.Sprint("t", i)})
	}
	_, l, _ := o.next()
	if len(l.probes) != maxProbes || o.lost() != 5*maxProbes+1 {
		t.Errorf("%d wait, %d were lost", len(l.probes), o.lost())
	}
	if l.probes[tenantProbes].ID != 1000 {
		t.Errorf("the order of another tenant is not among those that wait: %+v", l.probes)
	}
}

func TestALongAnswerIsNotRead(t *testing.T) {
	for _, bad := range []string{"", "[]", `{"id":-1,"rtt":5}`, `{"id":1,"error":"` + strings.Repeat("x", maxProbed) + `"}`} {
		if in, err := probed("n1", []byte(bad)); err == nil {
			t.Errorf("%.80s is taken for %+v", bad, in)
		}
	}
}
