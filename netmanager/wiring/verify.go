package wiring

import (
	"crypto/sha256"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// checker lets only those peers through whose keys are their certificates'. A
// cluster may name a node of another; that node's key it cannot forge.
type checker struct {
	verifier *trust.Verifier
	log      *slog.Logger
	refused  atomic.Uint64

	mu    sync.Mutex // guards known
	known map[[sha256.Size]byte]time.Time
}

// The checks that are remembered, and for how long: certificates end.
const (
	mostChecked = 4096
	checkLasts  = time.Hour
)

// down takes from a message of the cluster what is not proven, and what stands on it.
func (c *checker) down(d *api.NetDown) {
	for i := range d.Routes {
		r := &d.Routes[i]
		bad := c.bad(r.Peers)
		if len(bad) == 0 {
			continue
		}
		r.Peers = slices.DeleteFunc(r.Peers, func(p api.Peer) bool { return slices.Contains(bad, p.Key) })
		r.Backends = slices.DeleteFunc(r.Backends, func(b api.Backend) bool { return slices.Contains(bad, b.Peer) })
	}
	d.Sources = slices.DeleteFunc(d.Sources, func(s api.Source) bool { return !c.sound(s.Peer) })
	unsound := func(p api.Peer) bool { return !c.sound(p) }
	d.Peers = slices.DeleteFunc(d.Peers, unsound)
	d.Measure = slices.DeleteFunc(d.Measure, unsound) // of which none is another thing than nil
}

func (c *checker) bad(all []api.Peer) (keys []api.PeerKey) {
	for _, p := range all {
		if !c.sound(p) {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

func (c *checker) sound(p api.Peer) bool {
	sum := fingerprint(p)
	now := time.Now()
	c.mu.Lock()
	until, ok := c.known[sum]
	c.mu.Unlock()
	if ok && now.Before(until) {
		return true
	}
	who, err := proof.Check(c.verifier, p)
	if err != nil {
		c.refused.Add(1)
		c.log.Warn("peer refused", "peer", p.Key, "cluster", p.Cluster, "err", err)
		return false
	}
	c.log.Debug("peer is proven", "peer", p.Key, "who", who)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= mostChecked {
		c.known = map[[sha256.Size]byte]time.Time{}
	}
	c.known[sum] = now.Add(checkLasts)
	return true
}

// fingerprint is of all that a check looks at.
func fingerprint(p api.Peer) (sum [sha256.Size]byte) {
	h := sha256.New()
	part := func(b []byte) {
		_, _ = h.Write([]byte{byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))})
		_, _ = h.Write(b)
	}
	part(p.Key[:])
	part([]byte(p.Cluster))
	part([]byte(p.Node))
	for _, c := range p.Chain {
		part(c)
	}
	part(p.Proof)
	h.Sum(sum[:0])
	return sum
}
