package nodelink

import (
	"encoding/json"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	// maxProbes bounds the queued orders for one node, which executes a few per second.
	// Further orders are dropped, and the core continues without the answers.
	maxProbes = 32

	tenantProbes = maxProbes / 4 // of one tenant

	maxProbed = 4 << 10 // bytes of an answer
)

// putProbe queues an order. It returns false if the queue, or the tenant's share of it, is
// full.
func (l *letters) putProbe(o wire.ProbeOrder) bool {
	own := 0
	for _, p := range l.probes {
		if p.For == o.For {
			own++
		}
	}
	if len(l.probes) >= maxProbes || own >= tenantProbes {
		return false
	}
	l.probes = append(l.probes, o)
	return true
}

// probed decodes a node's answer. The core checks its values (internal/bounds).
func probed(id api.NodeID, payload []byte) (cluster.Input, error) {
	var p wire.Probed
	if len(payload) > maxProbed {
		return nil, fmt.Errorf("an answer to a probe of %d bytes: %w", len(payload), api.ErrTooLarge)
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil, err
	}
	return cluster.NodeProbed{Node: id, Probed: p}, nil
}
