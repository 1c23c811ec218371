package nodelink

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
)

const (
	// maxProbes is how many orders may wait for one node, which carries out a few a
	// second; those that overflow are lost, and the core does without the answer.
	maxProbes = 32

	maxProbed     = 4 << 10 // bytes of an answer
	maxProbeError = 512     // bytes of its error that are kept
	maxRTT        = time.Minute
)

// probed takes a node's answer, which may say anything, within bounds.
func probed(id api.NodeID, payload []byte) (cluster.Input, error) {
	var p api.Probed
	if len(payload) > maxProbed {
		return nil, fmt.Errorf("an answer to a probe of %d bytes: %w", len(payload), api.ErrTooLarge)
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil, err
	}
	switch {
	case p.RTT < 0 || p.RTT > maxRTT:
		return nil, fmt.Errorf("a round trip of %s: %w", p.RTT, api.ErrInvalid)
	case p.How != "" && p.How != "icmp" && p.How != "tcp":
		return nil, fmt.Errorf("a round trip measured by %q: %w", p.How, api.ErrInvalid)
	case p.RTT == 0 && p.Error == "":
		return nil, fmt.Errorf("neither a round trip nor an error: %w", api.ErrInvalid)
	case p.RTT != 0 && (p.Error != "" || p.Refused):
		return nil, fmt.Errorf("a round trip and an error: %w", api.ErrInvalid)
	}
	if len(p.Error) > maxProbeError {
		end := maxProbeError
		for !utf8.RuneStart(p.Error[end]) {
			end--
		}
		p.Error = p.Error[:end]
	}
	return cluster.NodeProbed{Node: id, Probed: p}, nil
}
