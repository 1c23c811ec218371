package nodelink

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/parts"
)

// halfway is a link that receives messages in parts, and the inputs that it passed on.
type halfway struct {
	t       *testing.T
	link    *Link
	removed map[api.NodeID]bool
	came    map[string]int // number of inputs by node and topic
}

func newHalfway(t *testing.T) *halfway {
	h := &halfway{t: t, removed: map[api.NodeID]bool{}, came: map[string]int{}}
	h.link = New(Options{
		Log:    slog.New(slog.DiscardHandler),
		Member: func(n api.NodeID) bool { return !h.removed[n] },
		Post: func(in cluster.Input) {
			switch in := in.(type) {
			case cluster.NodeReport:
				h.came[topic.Observed.Of(in.Node)]++
			case cluster.NetUp:
				h.came[topic.Interest.Of(in.Node)]++
			}
		},
	})
	return h
}

// send sends some parts of a message from a node.
func (h *halfway) send(n api.NodeID, leaf topic.Leaf, some ...[]byte) {
	h.t.Helper()
	read := observed
	if leaf == topic.Interest {
		read = netUp
	}
	for _, p := range some {
		h.link.take(bus.Message{Topic: leaf.Of(n), Payload: p}, read)
	}
	if l := h.link.Limited(); l > 0 {
		h.t.Fatalf("%d messages were dropped by the node's rate", l)
	}
}

// will publishes the node's last will.
func (h *halfway) will(n api.NodeID) { h.link.take(bus.Message{Topic: topic.Will.Of(n)}, will) }

// large returns a message of the given size, in parts.
func (h *halfway) large(size int) (before [][]byte, last []byte) {
	h.t.Helper()
	text := `{"boot":1,"seq":1,"pad":"`
	all, err := parts.Split([]byte(text + strings.Repeat("x", size-len(text)-2) + `"}`))
	check(h.t, err)
	return all[:len(all)-1], all[len(all)-1]
}

// TestUnfinishedMessagesOfANodeAreBounded: a node begins the largest message on each topic and
// completes none. Meanwhile another node completes its messages.
func TestUnfinishedMessagesOfANodeAreBounded(t *testing.T) {
	h := newHalfway(t)
	most, end := h.large(parts.Max)
	some, rest := h.large(parts.Max / 2)
	h.send("quiet", topic.Observed, some...)
	h.send("quiet", topic.Interest, some...)
	h.send("loud", topic.Observed, most...)
	h.send("loud", topic.Interest, most...)
	h.send("loud", topic.Observed, end)
	h.send("loud", topic.Interest, end)
	h.send("quiet", topic.Observed, rest)
	h.send("quiet", topic.Interest, rest)
	for leaf, want := range map[string]int{
		topic.Observed.Of("loud"): 0, topic.Interest.Of("loud"): 1, // the newer of the two
		topic.Observed.Of("quiet"): 1, topic.Interest.Of("quiet"): 1,
	} {
		if got := h.came[leaf]; got != want {
			t.Errorf("%d messages on %s are complete, want %d", got, leaf, want)
		}
	}
	h.send("loud", topic.Observed, append(most, end)...)
	if got := h.came[topic.Observed.Of("loud")]; got != 1 {
		t.Errorf("a dropped message that is sent again came %d times", got)
	}
}

func TestUnfinishedMessagesGoWithTheirNode(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*halfway)
		want int
	}{
		{"it stays", func(*halfway) {}, 1},
		{"its connection breaks", func(h *halfway) { h.will("n1") }, 0},
		{"it is removed", func(h *halfway) { h.link.Forget("n1") }, 0},
		{"another is removed", func(h *halfway) { h.link.Forget("n2"); h.will("n2") }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHalfway(t)
			before, last := h.large(3 << 20)
			for _, leaf := range []topic.Leaf{topic.Observed, topic.Interest} {
				h.send("n1", leaf, before...)
			}
			c.do(h)
			for leaf, read := range map[topic.Leaf]func(api.NodeID, []byte) (cluster.Input, error){topic.Observed: observed, topic.Interest: netUp} {
				h.link.take(bus.Message{Topic: leaf.Of("n1"), Payload: last}, read)
				if got := h.came[leaf.Of("n1")]; got != c.want {
					t.Errorf("%d messages on %s are complete, want %d", got, leaf.Name, c.want)
				}
			}
		})
	}
}

// TestPartsOfARemovedNodeAreNotKept: the parts arrive after the removal.
func TestPartsOfARemovedNodeAreNotKept(t *testing.T) {
	h := newHalfway(t)
	before, last := h.large(3 << 20)
	h.removed["n1"] = true
	h.link.Forget("n1")
	h.send("n1", topic.Observed, before...)
	h.removed["n1"] = false // it has joined again
	h.send("n1", topic.Observed, last)
	if got := h.came[topic.Observed.Of("n1")]; got != 0 {
		t.Errorf("%d messages are complete, of which all parts but the last came while the node was removed", got)
	}
	h.send("n1", topic.Observed, append(before, last)...)
	if got := h.came[topic.Observed.Of("n1")]; got != 1 {
		t.Errorf("%d messages of the node that joined again came, want 1", got)
	}
}
