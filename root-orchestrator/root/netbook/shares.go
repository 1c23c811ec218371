package netbook

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// rest is how long a share that a cluster had is not granted again.
const rest = 30 * time.Minute

// record is the network's document in the store.
type record struct {
	Ranges  wire.NetRanges `json:"ranges"`
	Boot    uint64         `json:"boot"`
	Resting []restingShare `json:"resting,omitempty"`
}

// restingShare is a share that a cluster returned or that a removed cluster had.
type restingShare struct {
	Share netip.Prefix  `json:"share"`
	Until time.Time     `json:"until"`
	By    api.ClusterID `json:"by,omitempty"` // the cluster that returned it and to which it counts until then
}

// Record returns the document to store, which encodes as JSON.
func (b *Machine) Record() any { return record{b.ranges, b.boot, b.resting} }

// Restore reads the stored document. It must come before any AddCluster. It returns ErrConflict if
// the configuration has other ranges.
func (b *Machine) Restore(data []byte) error {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	if b.cfg.Ranges != (wire.NetRanges{}) && b.cfg.Ranges != r.Ranges {
		return fmt.Errorf("change the ranges of the network from %+v to %+v: their addresses are in use: %w", r.Ranges, b.cfg.Ranges, api.ErrConflict)
	}
	b.boot, b.resting = r.Boot, r.Resting
	if err := b.lay(r.Ranges); err != nil {
		return err
	}
	for _, s := range r.Resting {
		_ = b.blocks.Mark(s.Share)
	}
	return nil
}

// Init sets the configured or the default ranges, unless Restore has set the stored ones.
func (b *Machine) Init() error {
	switch {
	case b.blocks != nil:
		return nil
	case b.cfg.Ranges == (wire.NetRanges{}):
		return b.lay(wire.DefaultNetRanges())
	}
	return b.lay(b.cfg.Ranges)
}

func (b *Machine) lay(r wire.NetRanges) error {
	if err := CheckRanges(r); err != nil {
		return err
	}
	b.ranges, b.blocks = r, ipam.NewBlocks(r.Share, 0)
	return b.blocks.Add(r.Instances)
}

// CheckRanges returns ErrInvalid if the ranges cannot be used.
func CheckRanges(r wire.NetRanges) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("check the network's ranges: "+format+": %w", append(args, api.ErrInvalid)...)
	}
	for _, p := range []netip.Prefix{r.Instances, r.Services} {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return bad("%s is not a masked IPv4 prefix", p)
		}
	}
	for _, p := range []netip.Prefix{r.Instances6, r.Services6} {
		if !p.IsValid() || !p.Addr().Is6() || p.Bits() != 64 || p != p.Masked() {
			return bad("%s is not a masked IPv6 /64", p)
		}
	}
	switch {
	case r.Instances.Overlaps(r.Services) || r.Instances6 == r.Services6:
		return bad("%s for instances and %s for services overlap", r.Instances, r.Services)
	case r.Services.Bits() > 30 || r.Services.Bits() < 8:
		return bad("%s for services; want /8 to /30", r.Services)
	case r.Share < r.Instances.Bits() || r.Share-r.Instances.Bits() > 16 || r.Subnet < r.Share || r.Subnet > 29:
		return bad("cannot divide %s into shares of /%d and subnets of /%d; want shares at most 16 bits longer than it, and subnets from the shares' length to /29", r.Instances, r.Share, r.Subnet)
	}
	return nil
}

// Ranges returns the ranges that Init or Restore has set.
func (b *Machine) Ranges() wire.NetRanges { return b.ranges }

// Shares returns the shares of a cluster, sorted. They are only read.
func (b *Machine) Shares(id api.ClusterID) []netip.Prefix {
	if cl := b.clusters[id]; cl != nil {
		return cl.shares
	}
	return nil
}

// ShareError returns why a cluster has fewer shares than it needs, or "".
func (b *Machine) ShareError(id api.ClusterID) string {
	if cl := b.clusters[id]; cl != nil {
		return cl.shareError
	}
	return ""
}

func (b *Machine) sharesPerCluster() int { return max(1, b.allShares()*b.cfg.ClusterPercent/100) }

func (b *Machine) allShares() int { return 1 << (b.ranges.Share - b.ranges.Instances.Bits()) }

// counted returns how many shares count to a cluster, including the resting ones that it returned,
// so that no cluster can exhaust the network by taking and returning shares.
func (b *Machine) counted(cl *cluster) int {
	n := len(cl.shares)
	for _, r := range b.resting {
		if r.By == cl.id {
			n++
		}
	}
	return n
}

// GrantAll grants shares to all clusters that need some.
func (b *Machine) GrantAll(now Now) Effects {
	c := b.call(now, nil)
	for _, id := range step.Keys(b.clusters) {
		if cl := b.clusters[id]; cl.networked {
			c.grant(cl)
		}
	}
	return c.out
}

// grant grants shares to a cluster ahead of its need: for a quarter more subnets than it needs, and
// at least a few.
func (c *call) grant(cl *cluster) {
	if cl.subnets <= 0 {
		return
	}
	per := 1 << (c.ranges.Subnet - c.ranges.Share)
	need := min(cl.subnets, per*c.sharesPerCluster())
	failed := ""
	c.sweep()
	for len(cl.shares)*per < need+max(need/4, min(8, per/4)) {
		if n := c.counted(cl); n >= c.sharesPerCluster() {
			failed = fmt.Sprintf("it has %d shares of the instance network, and none gets more", n)
			break
		}
		if left := c.blocks.Free(c.now); left > 0 && len(cl.shares) > 0 && left <= c.allShares()/8 {
			failed = fmt.Sprintf("the instance network is nearly exhausted: its last %d shares are kept for clusters that have none", left)
			break
		}
		p, err := c.blocks.Take(c.now, netip.Prefix{})
		if err != nil {
			failed = "the instance network is exhausted: " + err.Error()
			break
		}
		c.give(cl, p)
		c.Machine.send[cl.id] = true
	}
	if cl.shareError == failed {
		return
	}
	if cl.shareError = failed; failed != "" {
		c.event(cl, "", failed)
	}
	c.changed(cl)
}

func (c *call) give(cl *cluster, p netip.Prefix) {
	c.holders[p] = cl.id
	cl.shares = append(slices.Clone(cl.shares), p)
	slices.SortFunc(cl.shares, netip.Prefix.Compare)
	c.changed(cl)
}

func (c *call) sweep() {
	before := len(c.resting)
	c.resting = slices.DeleteFunc(c.resting, func(r restingShare) bool {
		over := !r.Until.After(c.wall)
		if over {
			c.blocks.Give(c.now, r.Share)
		}
		return over
	})
	c.out.Save = c.out.Save || len(c.resting) != before
}

func (c *call) rest(p netip.Prefix, by api.ClusterID) {
	delete(c.holders, p)
	c.resting = append(c.resting, restingShare{p, c.wall.Add(rest), by})
	c.out.Save = true
}

// takeShares takes back the shares that a cluster returns, and lets them rest.
func (c *call) takeShares(cl *cluster, returned []netip.Prefix) {
	for _, p := range returned {
		i := slices.Index(cl.shares, p)
		if i < 0 {
			continue
		}
		cl.shares = slices.Delete(slices.Clone(cl.shares), i, i+1)
		c.rest(p, cl.id)
		c.changed(cl)
		c.Machine.send[cl.id] = true
	}
}

// claimShares grants a cluster the shares that it reports and that no cluster has here: the store
// was restored from an older copy. The cluster gives up other shares when it receives the list of
// its shares.
func (c *call) claimShares(cl *cluster, have []netip.Prefix) {
	c.sweep() // a share whose rest is over can be claimed
	for _, p := range have {
		if slices.Contains(cl.shares, p) {
			continue
		}
		switch {
		case c.holders[p] != "":
			c.event(cl, "", fmt.Sprintf("must return share %s of the instance network, which belongs to cluster %s", p, c.holders[p]))
		case len(cl.shares) >= c.sharesPerCluster() || c.blocks.Mark(p) != nil:
		default:
			c.give(cl, p)
		}
		c.Machine.send[cl.id] = true
	}
}
