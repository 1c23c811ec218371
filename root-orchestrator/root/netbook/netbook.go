// Package netbook has the root's part of the overlay network: the clusters' shares of the instance
// network, their subscriptions to services and addresses of other clusters, and the records that
// the hosting clusters publish.
//
// It is a sub-machine of the root's core, which calls it with the time and a View and carries out
// the Effects that it returns.
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

// Config configures a Machine. The caller has validated it.
type Config struct {
	Ranges         wire.NetRanges // zero: the stored ranges, or else wire.DefaultNetRanges
	ClusterPercent int            // limit for one cluster's part of the instance network
	// Wait is how long after a start the root waits for the reports of clusters before it assigns
	// new addresses and shares.
	Wait time.Duration
}

// View reads the state of other sub-machines at the time of the call.
type View interface {
	// Service returns a service, and whether an application has it.
	Service(api.ServiceID) (Service, bool)
	// Owner returns the service with a semantic address, or "".
	Owner(netip.Addr) api.ServiceID
	// Hosts returns, sorted, the clusters to which instances of a service are assigned.
	Hosts(api.ServiceID) []api.ClusterID
	// Hosting reports whether a cluster has an instance of a service, including one whose end it
	// has not confirmed. Instances returns the number of these instances.
	Hosting(api.ClusterID, api.ServiceID) bool
	Instances(api.ClusterID, api.ServiceID) int
}

// Service is a service of an application.
type Service struct {
	Addresses api.ServiceAddresses
	Spec      *api.Microservice // only read
}

// Effects are the results of a call.
type Effects struct {
	Save    bool            // Record has changed
	Changed []api.ClusterID // clusters whose Shares or ShareError have changed
	Events  []api.Event
	Send    []wire.Envelope
}

// Machine is not safe for concurrent use.
type Machine struct {
	cfg     Config
	ranges  wire.NetRanges
	boot    uint64
	rev     uint64 // of the newest record or message
	blocks  *ipam.Blocks
	holders map[netip.Prefix]api.ClusterID // by share
	resting []restingShare

	clusters map[api.ClusterID]*cluster
	services map[api.ServiceID]*service // services that a cluster subscribes to or has to publish
	names    interest.Names             // of all services of applications
	subs     *interest.Subscriptions[api.ClusterID]
	about    map[sub]api.ServiceID         // the service that a subscription resolves to
	peers    map[api.PeerKey]api.ClusterID // the cluster that published a node
	rehosted map[api.ServiceID]bool        // services whose hosts may have changed
	send     map[api.ClusterID]bool        // clusters to which a message may be due

	awaited    map[api.ClusterID]bool // clusters that have not listed everything yet; nil after the wait
	waitsUntil time.Time
}

// sub is a subscription of a cluster.
type sub = interest.Ref[api.ClusterID]

// service is the state of a service that clusters subscribe to.
type service struct {
	subscribers map[api.ClusterID]int  // number of subscriptions to it
	asked       map[api.ClusterID]bool // clusters that have to publish it
}

// cluster is the network state of one cluster.
type cluster struct {
	id            api.ClusterID
	heard, silent bool
	networked     bool // it has reported about the network since the root started
	shares        []netip.Prefix
	subnets       int    // number of subnets that it needs
	shareError    string // why it has fewer shares than it needs

	// Its subscriptions.
	rejected  api.Digest // digest of its subscriptions above a limit
	perTenant map[api.Tenant]int
	full      map[api.Tenant]bool // tenants that have reached their limit

	// The records that it publishes for other clusters.
	published interest.Replica
	asked     interest.Requests // the subscriptions sent to it
	unasked   bool              // it published records without a subscription
	listing   bool              // it is listing everything in parts
	listedTo  string            // the name up to which it has listed

	// The messages to it.
	subsDiffer   bool // its subscriptions differ from those here
	requestWhole bool // the next message requests a list of everything
	requestedAt  time.Time
	sentRev      uint64
	sentAt       time.Time
	ackedRev     uint64
	sentShares   []netip.Prefix
	more         bool // changes did not fit in the last message
	resync       interest.Resync
	demands      map[netip.Addr]bool // of other clusters, to be sent
}

func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg, holders: map[netip.Prefix]api.ClusterID{}, clusters: map[api.ClusterID]*cluster{},
		services: map[api.ServiceID]*service{}, names: interest.Names{}, subs: interest.New[api.ClusterID](),
		about: map[sub]api.ServiceID{}, peers: map[api.PeerKey]api.ClusterID{},
		rehosted: map[api.ServiceID]bool{}, send: map[api.ClusterID]bool{},
	}
}

// call is the state of one call: its arguments and effects.
type call struct {
	*Machine
	View
	now  time.Time // without pauses of the process
	wall time.Time
	out  Effects
}

// Now is the time of a step.
type Now struct {
	Mono time.Time // without pauses of the process
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

// Start begins a new boot and the wait for reports of clusters. services are the services of all
// applications. It follows Init or Restore, and AddCluster for each stored cluster.
func (b *Machine) Start(now Now, services []api.ServiceID) {
	// The clock makes the number grow even if the store was lost.
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

// AddCluster adds a cluster with its shares from the store, except shares that another cluster has;
// see Shares.
func (b *Machine) AddCluster(id api.ClusterID, shares []netip.Prefix) {
	cl := &cluster{id: id, shares: shares, demands: map[netip.Addr]bool{}}
	b.clusters[id] = cl
	cl.shares = slices.DeleteFunc(cl.shares, func(p netip.Prefix) bool {
		if b.blocks.Mark(p) != nil {
			return true // another cluster has it
		}
		b.holders[p] = id
		return false
	})
}

// RemoveCluster removes a cluster, its subscriptions and its records. Its shares rest before they
// are granted again.
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

// SetLiveness sets whether a cluster has reported since the root started, and whether it is silent.
// The backends of a silent cluster are draining for others.
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

// SetNetworked records that a cluster reports about the network. From then on, subscriptions of
// other clusters wait for its records.
func (b *Machine) SetNetworked(id api.ClusterID) { b.clusters[id].networked = true }

// SetRehosted records that the hosts of a service may have changed. Send handles it.
func (b *Machine) SetRehosted(id api.ServiceID) { b.rehosted[id] = true }

// SetServices replaces the services of an application, and resolves again the subscriptions that
// depend on their SLA.
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

// SetOwners resolves again the subscriptions to semantic addresses whose owners have changed.
func (b *Machine) SetOwners(now Now, v View, addrs []netip.Addr) Effects {
	c := b.call(now, v)
	for _, a := range addrs {
		c.resolveAll(b.subs.About(wire.Subscription{Address: a}))
	}
	return c.out
}

// Report handles the network part of a cluster's report.
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
	// A cluster without the present subscriptions cannot publish everything: its earlier records
	// stay.
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
	for _, w := range n.Demand {
		c.demand(cl, w)
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
	// Its records can be compared once it has the present subscriptions.
	differs := n.Held == held && n.Published != cl.published.Digest()
	if (cl.subsDiffer || differs || b.awaited[id]) && !listed && !cl.listing && c.now.Sub(cl.requestedAt) >= resend {
		cl.requestWhole, cl.requestedAt = true, c.now
	}
	return c.out
}

// listedAll reports whether this report completes the list of everything that a cluster has. The
// cluster may have sent earlier parts to an earlier process of the root; these do not count.
func (cl *cluster) listedAll(n *wire.ClusterNet) bool {
	if !n.Whole || n.Of.After != "" && (!cl.listing || n.Of.After > cl.listedTo) {
		cl.listing = false
		return false
	}
	cl.listing, cl.listedTo = !n.Of.Last(), n.Of.To
	return n.Of.Last()
}

// Totals returns how many subscriptions clusters have, and how many of them are unanswered.
func (b *Machine) Totals() (all, open int) { return b.subs.Total() }

// service returns the state of a service, and creates it if necessary.
func (b *Machine) service(id api.ServiceID) *service {
	s := b.services[id]
	if s == nil {
		s = &service{subscribers: map[api.ClusterID]int{}, asked: map[api.ClusterID]bool{}}
		b.services[id] = s
	}
	return s
}

// collect removes the state of an unused service.
func (b *Machine) collect(id api.ServiceID) {
	if s := b.services[id]; s != nil && len(s.subscribers) == 0 && len(s.asked) == 0 {
		delete(b.services, id)
	}
}
