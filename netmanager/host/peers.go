package host

import (
	"crypto/sha256"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
)

// PeerCheck removes from the cluster's messages the peers whose certificate does not prove their
// key. A cluster can name a node of another cluster, but cannot forge its proof.
type PeerCheck struct {
	verifier *trust.Verifier
	log      *slog.Logger
	refused  atomic.Uint64

	mu      sync.Mutex // guards the fields below
	known   map[[sha256.Size]byte]time.Time
	retired uint64 // verifier.Retirements when known was begun
}

// maxChecked bounds the remembered checks. A check is repeated after checkLifetime, because
// certificates expire.
const (
	maxChecked    = 4096
	checkLifetime = time.Hour
)

// NewPeerCheck returns a check against the verifier's root.
func NewPeerCheck(v *trust.Verifier, log *slog.Logger) *PeerCheck {
	return &PeerCheck{verifier: v, log: log, known: map[[sha256.Size]byte]time.Time{}}
}

// Renewed takes from a renewed certificate of this node which authorities are retired, and which roots it trusts.
func (c *PeerCheck) Renewed(own []*x509.Certificate) { c.verifier.Learn(own) }

// Refused counts the records of peers that were refused.
func (c *PeerCheck) Refused() uint64 { return c.refused.Load() }

// Clean removes unproven peers from the message, and the backends and sources that refer to
// them. Measure stays non-nil if it was: an empty list differs from none.
func (c *PeerCheck) Clean(d *wire.NetDown) {
	unproven := func(p api.Peer) bool { return !c.proven(p) }
	for i := range d.Routes {
		r := &d.Routes[i]
		var bad []api.PeerKey
		for _, p := range r.Peers {
			if unproven(p) {
				bad = append(bad, p.Key)
			}
		}
		r.Peers = slices.DeleteFunc(r.Peers, func(p api.Peer) bool { return slices.Contains(bad, p.Key) })
		r.Backends = slices.DeleteFunc(r.Backends, func(b api.Backend) bool { return slices.Contains(bad, b.Peer) })
	}
	d.Sources = slices.DeleteFunc(d.Sources, func(s wire.Source) bool { return unproven(s.Peer) })
	d.Peers = slices.DeleteFunc(d.Peers, unproven)
	d.Measure = slices.DeleteFunc(d.Measure, unproven)
}

func (c *PeerCheck) proven(p api.Peer) bool {
	sum := fingerprint(p)
	now := time.Now()
	c.mu.Lock()
	if n := c.verifier.Retirements(); n != c.retired {
		c.retired = n
		clear(c.known)
	}
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
	c.log.Debug("peer proven", "peer", p.Key, "who", who)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxChecked {
		clear(c.known)
	}
	c.known[sum] = now.Add(checkLifetime)
	return true
}

// fingerprint hashes everything that a check depends on.
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
