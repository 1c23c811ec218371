package nodelink

import (
	"encoding/json"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
)

func netUp(id api.NodeID, payload []byte) (cluster.Input, error) {
	var up wire.NetUp
	if err := maxReport.Check(payload); err != nil {
		return nil, err
	}
	err := json.Unmarshal(payload, &up)
	return cluster.NetUp{Node: id, NetUp: up}, err
}

// netQueue has the queued network messages for one node, oldest first. Messages beyond its
// bound are lost; the node's digest shows that.
type netQueue []wire.NetDown

const maxNet = 256

// put adds a message. A whole message in one part replaces all earlier ones; it keeps their
// newest lease and their RequestWhole. put returns false if the queue is full.
func (q *netQueue) put(d wire.NetDown) bool {
	if d.Whole && d.Of == (wire.Span{}) {
		for _, old := range *q {
			if old.Lease != nil && (d.Lease == nil || old.Lease.Rev > d.Lease.Rev) {
				d.Lease = old.Lease
			}
			d.RequestWhole = d.RequestWhole || old.RequestWhole
		}
		*q = nil
	}
	if len(*q) >= maxNet {
		return false
	}
	*q = append(*q, d)
	return true
}
