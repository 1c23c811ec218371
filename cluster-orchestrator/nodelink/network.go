package nodelink

import (
	"encoding/json"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
)

func netUp(id api.NodeID, payload []byte) (cluster.Input, error) {
	var up api.NetUp
	if err := maxReport.Check(payload); err != nil {
		return nil, err
	}
	err := json.Unmarshal(payload, &up)
	return cluster.NetUp{Node: id, NetUp: up}, err
}

// netQueue are the network's messages that wait for one node, oldest first. What
// overflows is lost; the node's digest says so.
type netQueue []api.NetDown

const maxNet = 256

// put adds a message. All of it replaces what was said before, but the lease.
func (q *netQueue) put(d api.NetDown) bool {
	if d.Whole && d.Of == (api.Span{}) {
		for _, old := range *q {
			if old.Lease != nil && (d.Lease == nil || old.Lease.Rev > d.Lease.Rev) {
				d.Lease = old.Lease
			}
			d.WantWhole = d.WantWhole || old.WantWhole
		}
		*q = nil
	}
	if len(*q) >= maxNet {
		return false
	}
	*q = append(*q, d)
	return true
}
