package nodelink

import (
	"encoding/json"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
)

// What a node may say of itself on the overlay network, so that none fills the
// memory of all that hear of it.
const (
	maxEndpoints = 32
	maxChain     = 4
	maxCert      = 8 << 10
	maxProof     = 512
	maxVec       = 16
	maxName      = 512 // bytes of a service's name
)

func netUp(id api.NodeID, payload []byte) (cluster.Input, error) {
	var up api.NetUp
	if err := json.Unmarshal(payload, &up); err != nil {
		return nil, err
	}
	if up.Self != nil {
		if err := checkSelf(up.Self); err != nil {
			return nil, err
		}
	}
	for _, ws := range [][]api.Want{up.Add, up.Drop} {
		for _, w := range ws {
			if len(w.Service) > maxName || len(w.For) > maxName || w.Address.Zone() != "" {
				return nil, fmt.Errorf("a want with a name of %d bytes: %w", max(len(w.Service), len(w.For)), api.ErrInvalid)
			}
		}
	}
	if len(up.Between) > api.MaxNetPairs {
		return nil, fmt.Errorf("%d pairs of services: %w", len(up.Between), api.ErrInvalid)
	}
	for _, p := range up.Between {
		if !p.Valid() || max(len(p.Local), len(p.Remote), len(p.Node), len(p.Cluster)) > maxName {
			return nil, fmt.Errorf("what was measured between two services cannot be: %w", api.ErrInvalid)
		}
	}
	return cluster.NetUp{Node: id, NetUp: up}, nil
}

func checkSelf(s *api.NetSelf) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("what a node says of itself: "+format+": %w", append(args, api.ErrInvalid)...)
	}
	switch {
	case s.Key == api.PeerKey{}:
		return bad("no key")
	case len(s.Endpoints) > maxEndpoints || len(s.Mapped) > maxEndpoints:
		return bad("%d endpoints, %d mapped", len(s.Endpoints), len(s.Mapped))
	case len(s.Chain) == 0 || len(s.Chain) > maxChain || len(s.Proof) > maxProof:
		return bad("%d certificates, a proof of %d bytes", len(s.Chain), len(s.Proof))
	case s.Coord != nil && len(s.Coord.Vec) > maxVec:
		return bad("a coordinate of %d dimensions", len(s.Coord.Vec))
	}
	for _, cert := range s.Chain {
		if len(cert) > maxCert {
			return bad("a certificate of %d bytes", len(cert))
		}
	}
	return nil
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
