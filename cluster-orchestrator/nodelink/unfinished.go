package nodelink

import (
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus/parts"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

var unfinishedParts = fairshare.Declare(fairshare.Bound{
	Resource: "parts of nodes' unfinished messages", Total: parts.Max >> 20, Unit: "MiB", Per: "topic; of each node",
	Beyond: "the node's message on the other topic is dropped, and the node sends it again; all are dropped when the node's connection breaks or it is removed",
	Attack: "TestUnfinishedMessagesOfANodeAreBounded",
})

// unfinished has the messages of nodes of which not all parts have arrived. It is safe for
// concurrent use.
type unfinished struct {
	member func(api.NodeID) bool

	mu    sync.Mutex // guards the field below
	nodes map[api.NodeID]map[topic.Leaf]*parts.Joiner
}

func newUnfinished(member func(api.NodeID) bool) *unfinished {
	return &unfinished{member: member, nodes: map[api.NodeID]map[topic.Leaf]*parts.Joiner{}}
}

// join adds a payload, which may be a part. ok is true if it completes a message.
func (u *unfinished) join(id api.NodeID, leaf topic.Leaf, payload []byte) (whole []byte, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	j := u.nodes[id][leaf]
	if j == nil {
		j = &parts.Joiner{}
	}
	whole, ok = j.Add(payload)
	switch {
	case !j.Waits():
		delete(u.nodes[id], leaf)
		if len(u.nodes[id]) == 0 {
			delete(u.nodes, id)
		}
		return whole, ok
	case !u.member(id): // late messages of removed nodes must not be kept
		return whole, ok
	case u.nodes[id] == nil:
		u.nodes[id] = map[topic.Leaf]*parts.Joiner{}
	}
	u.nodes[id][leaf] = j
	sum := 0
	for _, j := range u.nodes[id] {
		sum += j.Len()
	}
	if sum > unfinishedParts.Total<<20 {
		u.nodes[id] = map[topic.Leaf]*parts.Joiner{leaf: j}
	}
	return whole, ok
}

func (u *unfinished) drop(id api.NodeID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.nodes, id)
}
