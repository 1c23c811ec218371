// Package netbook has the root's part of the overlay network: the clusters' shares of the instance
// network, their subscriptions to services and addresses of other clusters, and the records that
// the clusters which host these have published.
//
// It is a sub-machine of the root's core. The core calls it with the time and a View, and carries
// out the Effects that it returns.
package netbook

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Config has the settings of the network. The caller has validated them.
type Config struct {
	Ranges         wire.NetRanges // zero: what the store has, or else wire.DefaultNetRanges
	ClusterPercent int            // the largest part of the instance network for one cluster
	// Wait is how long after a start the root waits for clusters to report what they
	// have, before it gives new addresses and shares.
	Wait time.Duration
}

// View answers questions about services at the time of the call.
type View interface {
	// Service returns a service that an application has.
	Service(api.ServiceID) (Service, bool)
	// Owner returns the service that has a semantic address, or "".
	Owner(netip.Addr) api.ServiceID
	// Hosts lists, in order, the clusters to which instances of a service are assigned.
	Hosts(api.ServiceID) []api.ClusterID
	// Hosting reports whether a cluster has an instance of a service, including one
	// whose end it has not confirmed. Instances returns how many.
	Hosting(api.ClusterID, api.ServiceID) bool
	Instances(api.ClusterID, api.ServiceID) int
}

// Service is a service of an application.
type Service struct {
	Addresses api.ServiceAddresses
	Spec      *api.Microservice // not to be changed
}

// Effects are the results of a call. A call never changes the network's record and
// then fails.
type Effects struct {
	Save    bool            // the Record has changed
	Changed []api.ClusterID // whose Shares or ShareError have changed
	Events  []api.Event
	Send    []wire.Envelope
}

// Machine has one owner.
type Machine struct {
	cfg     Config
	ranges  wire.NetRanges
	boot    uint64
	rev     uint64 // of the newest record or message
	blocks  *ipam.Blocks
	holders map[netip.Prefix]api.ClusterID // by share
	resting []restingShare

	clusters map[api.ClusterID]*cluster
	services map[api.ServiceID]*service // those that a cluster subscribes to or is asked for
	names    interest.Names             // of all services that applications have
	subs     *interest.Subscriptions[api.ClusterID]
	about    map[sub]api.ServiceID         // the service that a subscription is about
	peers    map[api.PeerKey]api.ClusterID // the cluster that published a node
	rehosted map[api.ServiceID]bool        // services whose hosts may have changed
	send     map[api.ClusterID]bool        // clusters that a message may be due for

	awaited    map[api.ClusterID]bool // clusters that have not listed all since the start; nil once the wait is over
	waitsUntil time.Time
}

// sub is a subscription of a cluster.
type sub = interest.Ref[api.ClusterID]

// service is the state of a service that clusters subscribe to.
type service struct {
	subscribers map[api.ClusterID]int  // subscriptions about it
	asked       map[api.ClusterID]bool // clusters that are asked to publish it
}

// cluster is the network's state of one cluster.
type cluster struct {
	id            api.ClusterID
	heard, silent bool
	networked     bool // it has reported about the network since the root started
	shares        []netip.Prefix
	subnets       int    // how many it needs
	shareError    string // why it has fewer shares than it needs

	// Its subscriptions.
	rejected  api.Digest // of those above a bound
	perTenant map[api.Tenant]int
	full      map[api.Tenant]bool // tenants with more than is kept

	// What it publishes for other clusters.
	published interest.Replica
	asked     interest.Requests // what it is asked to publish
	unasked   bool              // it published what it was not asked for
	listing   bool              // it is listing all in parts
	listedTo  string            // the name up to which it has

	// What it is sent.
	subsDiffer   bool // its digest of its subscriptions differs
	requestWhole bool // the next message asks it to list all
	requestedAt  time.Time
	sentRev      uint64
	sentAt       time.Time
	ackedRev     uint64
	sentShares   []netip.Prefix
	more         bool // changes did not fit in the last message
	resync       interest.Resync
}

// New returns a Machine without clusters.
func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg, holders: map[netip.Prefix]api.ClusterID{}, clusters: map[api.ClusterID]*cluster{},
		services: map[api.ServiceID]*service{}, names: interest.Names{}, subs: interest.New[api.ClusterID](),
		about: map[sub]api.ServiceID{}, peers: map[api.PeerKey]api.ClusterID{},
		rehosted: map[api.ServiceID]bool{}, send: map[api.ClusterID]bool{},
	}
}

// call has the arguments and the effects of one call.
type call struct {
	*Machine
	View
	now  time.Time // without the pauses of this process
	wall time.Time
	out  Effects
}

// Now is the time of a call.
type Now struct {
	Mono time.Time // excludes the time in which this process did not run
	Wall time.Time
}

func (b *Machine) call(now Now, v View) *call {
	return &call{Machine: b, View: v, now: now.Mono, wall: now.Wall}
}

func (c *call) changed(cl *cluster) {
	if !slices.Contains(c.out.Changed, cl.id) {
		c.out.Changed = append(c.out.Changed, cl.id)
	}
}

func (c *call) event(cl *cluster, tenant api.Tenant, detail string) {
	c.out.Events = append(c.out.Events, api.Event{Tenant: tenant, Kind: "cluster", Object: string(cl.id), Cluster: cl.id, Detail: detail})
}

// Start begins to give revisions and to wait for the clusters. services are all that
// applications have.
func (b *Machine) Start(now Now, services []api.ServiceID) {
	// The clock only keeps the number growing if the store was lost.
	b.boot = max(b.boot+1, uint64(max(0, now.Wall.Unix())))
	b.rev = b.boot << 32
	for _, id := range services {
		b.names.Add(id)
	}
	b.await(now.Mono)
}

func (b *Machine) nextRev() uint64 {
	b.rev++
	return b.rev
}

// AddCluster adds a cluster with its shares from the store. It keeps those that no other cluster
// has; see Shares.
func (b *Machine) AddCluster(id api.ClusterID, shares []netip.Prefix) {
	cl := &cluster{id: id, shares: shares}
	b.clusters[id] = cl
	cl.shares = slices.DeleteFunc(cl.shares, func(p netip.Prefix) bool {
		if b.blocks.Mark(p) != nil {
			return true // another cluster has it
		}
		b.holders[p] = id
		return false
	})
}

// RemoveCluster removes a cluster, its subscriptions and what it published. Its shares
// rest before they are given again.
func (b *Machine) RemoveCluster(now Now, v View, id api.ClusterID) Effects {
	c := b.call(now, v)
	cl := b.clusters[id]
	for _, w := range b.subs.List(id) {
		c.unsubscribe(cl, w)
	}
	b.subs.Remove(id)
	delete(b.clusters, id)
	for _, p := range cl.shares {
		c.rest(p, "")
	}
	for _, key := range cl.published.TakeAll(wire.Records{}, wire.Span{}) {
		c.publishedChanged(cl, key)
	}
	for _, w := range cl.asked.List() {
		if s := b.services[w.Service]; s != nil {
			delete(s.asked, id)
			b.collect(w.Service)
		}
		c.resolveSubject(w)
	}
	return c.out
}

// SetLiveness sets whether a cluster has reported since the root started, and whether
// it is silent now. Other clusters avoid the backends of a silent one.
func (b *Machine) SetLiveness(now Now, v View, id api.ClusterID, heard, silent bool) Effects {
	c, cl := b.call(now, v), b.clusters[id]
	cl.heard, cl.silent = heard, silent
	for id := range cl.published.Routes {
		c.publishedChanged(cl, interest.RouteOf(id))
	}
	for _, w := range cl.asked.List() {
		c.resolveSubject(w)
	}
	return c.out
}

// SetNetworked records that a cluster reports about the network. From then on others are answered
// only after it has answered what it was asked for.
func (b *Machine) SetNetworked(id api.ClusterID) { b.clusters[id].networked = true }

// SetRehosted records that the hosts of a service may have changed, for Send.
func (b *Machine) SetRehosted(id api.ServiceID) { b.rehosted[id] = true }

// SetServices takes the services that an application had before and has now. All that
// depends on their SLA is resolved again.
func (b *Machine) SetServices(now Now, v View, before, after []api.ServiceID) Effects {
	c := b.call(now, v)
	for _, id := range before {
		b.names.Remove(id)
	}
	for _, id := range after {
		b.names.Add(id)
	}
	all := slices.Sorted(slices.Values(slices.Concat(before, after)))
	for _, id := range slices.Compact(all) {
		c.serviceChanged(id)
	}
	return c.out
}

// SetOwners follows a change of the owners of semantic addresses.
func (b *Machine) SetOwners(now Now, v View, addrs []netip.Addr) Effects {
	c := b.call(now, v)
	for _, a := range addrs {
		c.resolveAll(b.subs.About(wire.Subscription{Address: a}))
	}
	return c.out
}

// Report takes the network's part of a cluster's report.
func (b *Machine) Report(now Now, v View, id api.ClusterID, n *wire.ClusterNet) Effects {
	c, cl := b.call(now, v), b.clusters[id]
	b.send[id] = true
	held := b.heldBy(cl)
	c.claimShares(cl, n.Shares)
	c.takeShares(cl, n.Returned)
	cl.subnets = n.Subnets
	if !b.Waiting() {
		c.grant(cl)
	}
	listed := cl.listedAll(n)
	if listed {
		delete(b.awaited, id)
	}
	c.subscriptions(cl, n)
	// A cluster that does not know what it is asked for cannot publish all of it: what
	// it published before still counts.
	whole := n.Whole && n.Held == held
	records, more := c.onlyAsked(cl, n.Records)
	cl.unasked = more || cl.unasked && !(n.Whole && n.Of.After == "")
	var keys []interest.Key
	if whole {
		keys = cl.published.TakeAll(records, n.Of)
	} else {
		keys = cl.published.Take(records)
	}
	for _, key := range keys {
		c.publishedChanged(cl, key)
	}
	cl.ackedRev = n.Rev
	switch {
	case n.Held == held:
		cl.resync.Settled()
	case n.Rev >= cl.sentRev && cl.resync.Incomplete(): // the resync goes on
	case n.Rev >= cl.sentRev, c.now.Sub(cl.sentAt) >= lostAfter:
		cl.resync.Due = true
	}
	cl.subsDiffer = n.Subscribed != c.subs.Digest(id)^cl.rejected
	// What it published can be compared once it knows what it is asked for.
	differs := n.Held == held && n.Published != cl.published.Digest()
	if (cl.subsDiffer || differs || b.awaited[id]) && !listed && !cl.listing && c.now.Sub(cl.requestedAt) >= resend {
		cl.requestWhole, cl.requestedAt = true, c.now
	}
	return c.out
}

// listedAll reports whether a cluster has listed, with this report, all that it has.
// It may have sent the parts before this one to an earlier process of the root.
func (cl *cluster) listedAll(n *wire.ClusterNet) bool {
	if !n.Whole || n.Of.After != "" && (!cl.listing || n.Of.After > cl.listedTo) {
		cl.listing = false
		return false
	}
	cl.listing, cl.listedTo = !n.Of.Last(), n.Of.To
	return n.Of.Last()
}

// Interest returns how many subscriptions clusters have, and how many of them have no
// answer.
func (b *Machine) Totals() (all, open int) { return b.subs.Total() }

// service returns the state of a service, which the caller will use.
func (b *Machine) service(id api.ServiceID) *service {
	s := b.services[id]
	if s == nil {
		s = &service{subscribers: map[api.ClusterID]int{}, asked: map[api.ClusterID]bool{}}
		b.services[id] = s
	}
	return s
}

// collect removes the state of a service that is not used.
func (b *Machine) collect(id api.ServiceID) {
	if s := b.services[id]; s != nil && len(s.subscribers) == 0 && len(s.asked) == 0 {
		delete(b.services, id)
	}
}
