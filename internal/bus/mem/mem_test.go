package mem_test

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/bus/mem"
)

type system struct {
	hub   *mem.Hub
	nodes map[api.NodeID]*mem.Client
}

func (s *system) Cluster(testing.TB) bus.Bus { return s.hub.Cluster() }

func (s *system) Node(_ testing.TB, n bustest.Node) bus.Bus {
	c := s.hub.Node(n.ID, n.Will)
	s.nodes[n.ID] = c
	return c
}

func (s *system) Cut(id api.NodeID)  { s.nodes[id].SetLink(false) }
func (s *system) Mend(id api.NodeID) { s.nodes[id].SetLink(true) }
func (s *system) Stop(testing.TB)    { s.hub.Stop() }
func (s *system) Start(testing.TB)   { s.hub.Start(false) }
func (s *system) Close()             {}

func TestMem(t *testing.T) {
	bustest.Run(t, bustest.Deviations{}, func(*testing.T) bustest.System {
		return &system{hub: mem.New(), nodes: map[api.NodeID]*mem.Client{}}
	})
}

func TestLossIsSettable(t *testing.T) {
	hub := mem.New()
	c, n := hub.Cluster(), hub.Node("n1", nil)
	got := make(chan bus.Message, 8)
	if err := c.Subscribe(t.Context(), "nodes/#", 1, func(m bus.Message) { got <- m }); err != nil {
		t.Fatal(err)
	}
	n.SetLoss(func(m bus.Message) bool { return string(m.Payload) == "lost" })
	for _, p := range []string{"lost", "kept"} {
		if err := n.Publish(t.Context(), bus.Message{Topic: "nodes/n1/observed", Payload: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
	if m := <-got; string(m.Payload) != "kept" {
		t.Errorf("got %q", m.Payload)
	}
	n.Close()
	c.Close()
}
