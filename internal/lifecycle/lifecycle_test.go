package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
)

var events = []lifecycle.Event{
	lifecycle.Request, lifecycle.ClusterChosen, lifecycle.NodeChosen, lifecycle.ImageReady, lifecycle.Started,
	lifecycle.StartFailed, lifecycle.ExitedOK, lifecycle.ExitedBad, lifecycle.Restart, lifecycle.Replace,
	lifecycle.NodeLost, lifecycle.HandBack, lifecycle.ClusterLost, lifecycle.Sleep, lifecycle.Wake, lifecycle.Withdraw,
}

func TestEveryPairIsAnEdgeOrAConflict(t *testing.T) {
	legal := map[lifecycle.Edge]bool{}
	for _, e := range lifecycle.Edges() {
		legal[e] = true
	}
	used := map[lifecycle.Event]bool{}
	for _, s := range lifecycle.States {
		for _, e := range events {
			to, err := lifecycle.Next(s, e)
			switch {
			case err == nil && legal[lifecycle.Edge{From: s, Event: e, To: to}]:
				used[e] = true
				delete(legal, lifecycle.Edge{From: s, Event: e, To: to})
			case errors.Is(err, api.ErrConflict) && to == s:
			default:
				t.Errorf("%s and %s give %s, %v", s, e, to, err)
			}
		}
	}
	for e := range legal {
		t.Errorf("an edge that no known event takes: %v", e)
	}
	for _, e := range events {
		if !used[e] {
			t.Errorf("no state takes %s", e)
		}
	}
}

func TestEveryStateIsReachedAndEnds(t *testing.T) {
	for _, s := range lifecycle.States {
		if s != api.Registered && !lifecycle.Leads(api.Registered, s) {
			t.Errorf("nothing leads to %s", s)
		}
		if s != api.Terminated && !lifecycle.Leads(s, api.Terminated) {
			t.Errorf("nothing leads from %s to the end", s)
		}
		if lifecycle.Leads(api.Terminated, s) || lifecycle.Leads(s, api.Registered) {
			t.Errorf("%s: the end and the beginning are final", s)
		}
	}
}

func TestALife(t *testing.T) {
	tests := []struct {
		name   string
		events []lifecycle.Event
		want   api.State
	}{
		{"runs", events[:5], api.Running},
		{"is done", append(events[:5:5], lifecycle.ExitedOK), api.Completed},
		{"restarts on its node", append(events[:5:5], lifecycle.ExitedBad, lifecycle.Restart, lifecycle.ImageReady, lifecycle.Started), api.Running},
		{"outlives its node", append(events[:5:5], lifecycle.NodeLost, lifecycle.NodeChosen), api.NodeScheduled},
		{"outlives its cluster", append(events[:5:5], lifecycle.ClusterLost, lifecycle.ClusterChosen), api.ClusterScheduled},
		{"is handed back", append(events[:2:2], lifecycle.HandBack), api.Requested},
		{"is withdrawn", append(events[:5:5], lifecycle.Withdraw), api.Terminated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := api.Registered
			for _, e := range tt.events {
				s = lifecycle.Must(s, e)
			}
			if s != tt.want {
				t.Fatalf("ended %s, want %s", s, tt.want)
			}
		})
	}
}

func TestIllegalEdges(t *testing.T) {
	for _, e := range []lifecycle.Edge{
		{From: api.Registered, Event: lifecycle.Started},
		{From: api.Requested, Event: lifecycle.NodeChosen}, // a node only through a cluster
		{From: api.Completed, Event: lifecycle.Restart},    // a completed one-shot does not restart
		{From: api.Terminated, Event: lifecycle.Request},   // a terminated instance is never wanted again
		{From: "nonsense", Event: lifecycle.Started},
	} {
		if to, err := lifecycle.Next(e.From, e.Event); !errors.Is(err, api.ErrConflict) || to != e.From {
			t.Errorf("%s and %s give %s, %v", e.From, e.Event, to, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("our own illegal edge is to panic")
		}
	}()
	lifecycle.Must(api.Terminated, lifecycle.Started)
}

func TestDiagramsShowEveryEdge(t *testing.T) {
	diagram, text := lifecycle.Diagram(), lifecycle.Text()
	if diagram != lifecycle.Diagram() || text != lifecycle.Text() {
		t.Fatal("drawn twice, they differ")
	}
	for _, e := range lifecycle.Edges() {
		if e.Event == lifecycle.Withdraw {
			continue
		}
		found := false
		for line := range strings.Lines(diagram) {
			found = found || strings.Contains(line, string(e.From)+" --> "+string(e.To)+":") && strings.Contains(line, string(e.Event))
		}
		if !found || !strings.Contains(text, string(e.Event)) {
			t.Errorf("%v is not drawn", e)
		}
	}
}
