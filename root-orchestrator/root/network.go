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
	speaks  bool                    // of the network, in this life
	wants   api.Digest              // of all that it wants and that is kept
	unkept  api.Digest              // of what it wants beyond that
	wanting *interest.Run[api.Want] // through these, while it says all of them part by part
	wantsOf map[api.Tenant]int
	full    map[api.Tenant]bool // that want more than is kept
	exports interest.Holder     // what it said of its own
	asked   map[api.Want]bool
	askedOf api.Digest          // of them
	news    map[api.Want]bool   // asked for, or no more, and not told
	error   string              // why it has fewer shares than it needs
	needs   int                 // subnets
	quoted  map[netip.Addr]bool // addresses that rest, or are disputed, because it says that they are in use

	midway   bool   // it is saying all, in parts
	reached  string // how far
	behind   bool   // it does not hold what it should: it is told all, once all is known
	unheard  bool   // it said what nobody had asked for yet
	unsure   bool   // it wants more than the root heard, or less
	askNet   bool
	sent     uint64 // the last message that it was told something by
	sentAt   time.Time
	took     uint64 // the last message that it has
	toldAll  time.Time
	more     bool // of what changed than the last message had room for
	all      recount
	tries    int // how often, in a row, without effect
	askedAll time.Time
	told     []netip.Prefix // its shares, as it was told last
}

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
	said := k.saidAll(n)
	c.quote(cl, n.InUse)
	if said {
		delete(c.net.awaited, id)
	}
	c.netWants(cl, n)
	// A cluster that does not know what it was asked for cannot say that it has
	// nothing of it: what it said before it forgot counts on.
	whole := n.Whole && n.Held == held
	records, more := c.askedOnly(cl, n.Records)
	k.unheard = more || k.unheard && !(n.Whole && n.Of.After == "")
	take := k.exports.Take
	if whole {
		take = func(r api.Records) []interest.Key { return k.exports.TakeAll(r, n.Of) }
	}
	for _, key := range take(records) {
		c.exported(cl, key)
	}
	k.took = n.Rev
	switch {
	case n.Held == held:
		k.behind, k.tries = false, 0
	case n.Rev >= k.sent && k.all.on && !k.all.part.Last(): // it was not told all yet
	case n.Rev >= k.sent: // it has had what it was told last
		k.behind = true
	case c.now.Sub(k.sentAt) >= lostAfter:
		k.behind = true
	}
	k.unsure = n.Wanted != k.wants^k.unkept
	// What it says can be compared once it knows what it was asked for.
	differs := n.Held == held && n.Said != k.exports.Digest()
	if (k.unsure || differs || c.net.awaited[id]) && !said && !k.midway && c.now.Sub(k.askedAll) >= resend {
		k.askNet, k.askedAll = true, c.now
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
	book := c.net.book
	// What is too much for one message is told in several, the next one when the
	// cluster has the one before.
	if (k.all.on || k.more) && k.took < k.sent && c.now.Sub(k.sentAt) < lostAfter {
		return
	}
	m := api.RootNet{Ranges: c.net.ranges, Shares: cl.Shares, WantNet: k.askNet}
	m.Records, _ = book.Flush(id, api.PartSize, v)
	part := c.recount(cl, &m)
	var vol api.Volume
	for _, w := range sortedWants(k.news) {
		if vol.Bytes >= api.PartSize {
			break
		}
		if vol.Want(w); k.asked[w] {
			m.Asked = append(m.Asked, w)
		} else {
			m.Unasked = append(m.Unasked, w)
		}
		delete(k.news, w)
	}
	if k.unheard && len(m.Asked) > 0 {
		// An earlier life may have asked it, and what it said then was not taken in.
		m.WantNet, k.unheard, k.askedAll = true, false, c.now
	}
	if !part && m.Records.Empty() && len(m.Asked)+len(m.Unasked) == 0 && !k.askNet && !k.newShares(cl.Shares) {
		return
	}
	k.more = book.Behind(id) || len(k.news) > 0
	m.WantHeld = k.more || part && !k.all.part.Last()
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

// forgetExports forgets what a cluster that is no more had of the network.
func (c *Core) forgetExports(cl *cluster) {
	for _, p := range cl.Shares {
		c.restShare(p, "")
	}
	for _, key := range cl.net.exports.TakeAll(api.Records{}, api.Span{}) {
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
