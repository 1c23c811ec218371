package root

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addresses"
)

// network is what the root keeps of the overlay network: who has which part of
// its ranges, for good, and, for as long as it lives, which clusters want to know
// what, and what others have told it of that.
type network struct {
	ranges    api.NetRanges
	boot      uint64
	rev       uint64
	addresses *addresses.Book
	shares    *ipam.Blocks
	holders   map[netip.Prefix]api.ClusterID
	resting   []restingShare

	book   *interest.Book[api.ClusterID]
	names  interest.Names
	stamps map[interest.Key]uint64
	about  map[ref]api.ServiceID // which service a cluster's want is about
	peers  map[api.PeerKey]api.ClusterID
	rehost map[api.ServiceID]bool // that may run on other clusters than before
	talk   map[api.ClusterID]bool // to be told something in this step

	awaited      map[api.ClusterID]bool // to say what they have, since the start; nil: nothing new waits for that
	awaitedUntil time.Time
}

type ref = interest.Ref[api.ClusterID]

// serviceNet is a service's part of it.
type serviceNet struct {
	wanted map[api.ClusterID]int  // wants about it
	asked  map[api.ClusterID]bool // to say what they have of it
}

// clusterNet is a cluster's.
type clusterNet struct {
	speaks  bool       // of the network, in this life
	wants   api.Digest // of all that it wants and that is kept
	unkept  api.Digest // of what it wants beyond that
	wantsOf map[api.Tenant]int
	full    map[api.Tenant]bool // that want more than is kept
	exports interest.Holder     // what it said of its own
	asked   map[api.Want]bool
	askedOf api.Digest          // of them
	news    map[api.Want]bool   // asked for, or no more, and not told
	error   string              // why it has fewer shares than it needs
	needs   int                 // subnets
	quoted  map[netip.Addr]bool // addresses that rest, or are disputed, because it says that they are in use

	behind   bool // it does not hold what it should: it is told all, once all is known
	unheard  bool // it said what nobody had asked for yet
	unsure   bool // it wants more than the root heard, or less
	askNet   bool
	sent     uint64 // the last message that it was told something by
	sentAt   time.Time
	toldAll  time.Time
	tries    int // how often, in a row, without effect
	askedAll time.Time
	told     []netip.Prefix // its shares, as it was told last
}

// mostWants bounds what one cluster may want, mostWantsOfTenant what of it may be on
// behalf of one tenant's services, mostQuoted what it may say is in use.
const (
	mostWants         = 1 << 17
	mostWantsOfTenant = mostWants / 8
	mostQuoted        = 1024
	mostFull          = 64 // tenants of a cluster that are said to want more
)

// forever is when a cluster's wants expire: when it says so.
var forever = time.Unix(1<<62, 0)

// startNetwork begins the network's life: its ranges are what they always were.
func (c *Core) startNetwork() {
	n := &c.net
	if err := c.defaultRanges(); err != nil {
		panic(err) // whoever configures the core validates (Config.Validate)
	}
	// As with the clusters' boot numbers, the wall clock only keeps it growing
	// where the store was lost.
	n.boot = max(n.boot+1, uint64(max(0, c.wall.Unix())))
	n.rev = n.boot << 32
	c.saveNetwork()
	for _, id := range step.Keys(c.services) {
		if c.services[id].app != nil {
			n.names.Add(id)
		}
	}
	c.awaitAll()
	c.completeAddresses()
}

func (n *network) next() uint64 {
	n.rev++
	return n.rev
}

func (c *Core) rehosted(id api.ServiceID) { c.net.rehost[id] = true }

// hosts reports whether a cluster has an instance of a service, wanted there or
// not yet gone.
func (c *Core) hosts(cl api.ClusterID, id api.ServiceID) bool {
	s := c.services[id]
	if s == nil || s.peers[string(cl)] > 0 {
		return s != nil
	}
	for _, in := range s.instances {
		if in.Cluster == cl || in.Vacating == cl {
			return true
		}
	}
	return false
}

// network answers what depends on the step's changes and tells the clusters.
func (c *Core) network() {
	c.settle()
	for _, id := range step.Keys(c.net.rehost) {
		c.resolveAll(c.net.book.CalledBy(id))
		c.askHosts(id)
	}
	clear(c.net.rehost)
	for _, id := range c.net.book.Dirty() {
		c.net.talk[id] = true
	}
	for _, id := range step.Keys(c.net.talk) {
		if cl := c.clusters[id]; cl != nil && cl.net.speaks {
			c.tell(cl)
		}
	}
	clear(c.net.talk)
}

// netReport takes the network's part of a report.
func (c *Core) netReport(cl *cluster, n *api.ClusterNet) {
	k := &cl.net
	id := cl.Info.ID
	c.net.talk[id] = true
	held := c.heldBy(cl)
	c.claimShares(cl, n.Shares)
	c.takeShares(cl, n.Returned)
	k.needs = n.Subnets
	if len(c.net.awaited) == 0 {
		c.grant(cl, k.needs)
	}
	if n.Whole {
		delete(c.net.awaited, id)
		c.quote(cl, n.InUse)
	}
	c.netWants(cl, n)
	// A cluster that does not know what it was asked for cannot say that it has
	// nothing of it: what it said before it forgot counts on.
	whole := n.Whole && n.Held == held
	records, more := c.askedOnly(cl, n.Records)
	k.unheard = more || k.unheard && !n.Whole
	for _, key := range k.exports.Take(records, whole) {
		c.exported(cl, key)
	}
	switch {
	case n.Held == held:
		k.behind, k.tries = false, 0
	case n.Rev >= k.sent: // it has had what it was told last
		k.behind = true
	case c.now.Sub(k.sentAt) >= lostAfter:
		k.behind = true
	}
	k.unsure = n.Wanted != k.wants^k.unkept
	// What it says can be compared once it knows what it was asked for.
	differs := n.Held == held && n.Said != k.exports.Digest()
	if (k.unsure || differs || c.net.awaited[id]) && !n.Whole && c.now.Sub(k.askedAll) >= resend {
		k.askNet, k.askedAll = true, c.now
	}
}

func (c *Core) netWants(cl *cluster, n *api.ClusterNet) {
	id := cl.Info.ID
	if n.Whole {
		keep := make(map[api.Want]bool, len(n.Wants))
		for _, w := range n.Wants {
			keep[w] = true
		}
		for _, w := range c.net.book.Wants(id) {
			if !keep[w] {
				c.dropWant(ref{Sub: id, Want: w})
			}
		}
	}
	for _, w := range n.Dropped {
		if !c.net.book.Has(id, w) && cl.net.unkept != 0 {
			cl.net.unkept = cl.net.unkept.Toggle(w.Digest())
		}
		c.dropWant(ref{Sub: id, Want: w})
	}
	k := &cl.net
	if n.Whole {
		k.unkept = 0
	}
	for _, w := range n.Wants {
		if c.net.book.Has(id, w) {
			continue
		}
		if !c.keepsWant(cl, w) {
			k.unkept = k.unkept.Toggle(w.Digest())
			continue
		}
		c.net.book.Add(id, w, forever)
		k.wants = k.wants.Toggle(w.Digest())
		k.wantsOf[w.For.Tenant()]++
		c.resolve(ref{Sub: id, Want: w})
	}
}

// keepsWant reports whether there is room for another want of a cluster's: all of
// it have so much, and each of its tenants a part of that, so that none is in
// another's way.
func (c *Core) keepsWant(cl *cluster, w api.Want) bool {
	k, t := &cl.net, w.For.Tenant()
	if len(w.Service) > longestName || len(w.For) > longestName {
		return false
	}
	if k.wantsOf == nil {
		k.wantsOf, k.full = map[api.Tenant]int{}, map[api.Tenant]bool{}
	}
	all := c.net.book.Count(cl.Info.ID)
	if k.wantsOf[t] < mostWantsOfTenant && all < mostWants {
		return true
	}
	if !k.full[t] && len(k.full) < mostFull {
		k.full[t] = true
		c.event(api.Event{
			Tenant: t, Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID,
			Detail: fmt.Sprintf("its nodes want more services and addresses elsewhere than are kept: %d of %d, for this tenant %d of %d; what is beyond is not answered",
				all, mostWants, k.wantsOf[t], mostWantsOfTenant),
		})
	}
	return false
}

func (c *Core) dropWant(r ref) {
	cl := c.clusters[r.Sub]
	k, t := &cl.net, r.Want.For.Tenant()
	if !c.net.book.Has(r.Sub, r.Want) {
		return
	}
	k.wants = k.wants.Toggle(r.Want.Digest())
	if k.wantsOf[t]--; k.wantsOf[t] == 0 {
		delete(k.wantsOf, t)
	}
	c.isAbout(r, "")
	c.net.book.Drop(r.Sub, r.Want)
	c.askAddress(r.Want)
	// There is room again for what was not kept: it is named again.
	if len(k.full) > 0 && c.net.book.Count(r.Sub) < mostWants*3/4 {
		for of := range k.full {
			if k.wantsOf[of] < mostWantsOfTenant*3/4 {
				delete(k.full, of)
				k.askNet = true
			}
		}
	}
}

// heldBy is the digest of all that a cluster should hold from the root.
func (c *Core) heldBy(cl *cluster) api.Digest {
	return c.net.book.Held(cl.Info.ID) ^ cl.net.askedOf ^ api.RootNet{Ranges: c.net.ranges, Shares: cl.Shares}.ShareDigest()
}

// tell tells a cluster what there is to tell. All of it at once, which takes away
// what it should not have, is told only when everything is known: after a restart
// of the root clusters keep what they have until then.
func (c *Core) tell(cl *cluster) {
	id, k := cl.Info.ID, &cl.net
	v := elsewhere{c, cl}
	rec, _ := c.net.book.Flush(id, false, v)
	all := k.behind && !c.now.Before(k.toldAll.Add(k.pause()))
	whole := all && !k.unsure && c.net.book.Open(id) == 0
	m := api.RootNet{Whole: whole, Ranges: c.net.ranges, Shares: cl.Shares, Records: rec, WantNet: k.askNet}
	if all {
		m.Records, _ = c.net.book.Flush(id, true, v)
		m.Asked = sortedWants(k.asked)
		k.behind, k.toldAll = !whole, c.now
		k.tries++
	} else {
		for _, w := range sortedWants(k.news) {
			if k.asked[w] {
				m.Asked = append(m.Asked, w)
			} else {
				m.Unasked = append(m.Unasked, w)
			}
		}
	}
	if clear(k.news); k.unheard && len(m.Asked) > 0 {
		// An earlier life may have asked it, and what it said then was not taken in.
		m.WantNet, k.unheard, k.askedAll = true, false, c.now
	}
	if !all && m.Records.Empty() && len(m.Asked)+len(m.Unasked) == 0 && !k.askNet && !k.newShares(cl.Shares) {
		return
	}
	k.told, k.askNet = cl.Shares, false
	m.Rev = c.net.next()
	k.sent, k.sentAt = m.Rev, c.now
	c.emit(id.Addr(), m)
}

// lostAfter is how long a message may be on its way to a cluster.
const lostAfter = 5 * time.Second

// pause is between two times that a cluster is told all: none before the first.
func (k *clusterNet) pause() time.Duration {
	if k.tries == 0 {
		return 0
	}
	return resend << min(k.tries-1, 6)
}

func (k *clusterNet) newShares(now []netip.Prefix) bool { return !slices.Equal(k.told, now) }

func sortedWants[V any](m map[api.Want]V) []api.Want {
	out := make([]api.Want, 0, len(m))
	for w := range m {
		out = append(out, w)
	}
	slices.SortFunc(out, interest.CompareWants)
	return out
}

// netSilence has the routes to a cluster's instances avoided where there are
// others, or taken as before.
func (c *Core) netSilence(cl *cluster) {
	for id := range cl.net.exports.Routes {
		c.exported(cl, interest.RouteOf(id))
	}
	for _, w := range sortedWants(cl.net.asked) {
		c.resolveAbout(w)
	}
}

// forgetWants forgets what a cluster wanted and held.
func (c *Core) forgetWants(cl *cluster) {
	for _, w := range c.net.book.Wants(cl.Info.ID) {
		c.dropWant(ref{Sub: cl.Info.ID, Want: w})
	}
	c.net.book.Forget(cl.Info.ID)
}

// forgetExports forgets what a cluster that is no more had of the network.
func (c *Core) forgetExports(cl *cluster) {
	for _, p := range cl.Shares {
		c.restShare(p, "")
	}
	for _, key := range cl.net.exports.Take(api.Records{}, true) {
		c.exported(cl, key)
	}
	for _, w := range sortedWants(cl.net.asked) {
		if s := c.services[w.Service]; s != nil {
			delete(s.net.asked, cl.Info.ID)
		}
		c.resolveAbout(w)
	}
}

// checkRanges says what is wrong with ranges, ErrInvalid.
func checkRanges(r api.NetRanges) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("the network's ranges: "+format+": %w", append(args, api.ErrInvalid)...)
	}
	for _, p := range []netip.Prefix{r.Instances, r.Services} {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return bad("%s is no IPv4 network", p)
		}
	}
	for _, p := range []netip.Prefix{r.Instances6, r.Services6} {
		if !p.IsValid() || !p.Addr().Is6() || p.Bits() != 64 || p != p.Masked() {
			return bad("%s is no IPv6 /64", p)
		}
	}
	switch {
	case r.Instances.Overlaps(r.Services) || r.Instances6 == r.Services6:
		return bad("those of instances and of services overlap")
	case r.Services.Bits() > 30 || r.Services.Bits() < 8:
		return bad("%s for services; want /8 to /30", r.Services)
	case r.Share < r.Instances.Bits() || r.Share-r.Instances.Bits() > 16 || r.Subnet < r.Share || r.Subnet > 29:
		return bad("shares of /%d and subnets of /%d of %s", r.Share, r.Subnet, r.Instances)
	}
	return nil
}

// Interest is how many wants of clusters there are, and how many have no answer.
func (c *Core) Interest() (wants, open int) { return c.net.book.Total() }
