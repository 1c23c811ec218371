package root

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addresses"
)

const (
	kindAddress = "address" // one that rests
	metaNetwork = "network"
)

type networkRecord struct {
	Ranges  api.NetRanges  `json:"ranges"`
	Boot    uint64         `json:"boot"`
	Resting []restingShare `json:"resting,omitempty"`
}

// restingShare is a share of a cluster that was forgotten, or that gave it back.
type restingShare struct {
	Share netip.Prefix  `json:"share"`
	Until time.Time     `json:"until"`
	By    api.ClusterID `json:"by,omitempty"` // who gave it back: it counts as its own until then
}

func newNetwork() network {
	return network{
		holders: map[netip.Prefix]api.ClusterID{}, book: interest.New[api.ClusterID](), names: interest.Names{},
		about: map[ref]api.ServiceID{}, peers: map[api.PeerKey]api.ClusterID{},
		rehost: map[api.ServiceID]bool{}, talk: map[api.ClusterID]bool{},
	}
}

// lay lays out the ranges, of whose services' addresses one tenant gets so much in
// percent. They are given once, at the first start.
func (n *network) lay(r api.NetRanges, percent int) error {
	if err := checkRanges(r); err != nil {
		return err
	}
	n.ranges = r
	n.shares = ipam.NewBlocks(r.Share, 0)
	if err := n.shares.Add(r.Instances); err != nil {
		return err
	}
	var err error
	n.addresses, err = addresses.New(r.Services, max(1, 1<<(32-r.Services.Bits())*percent/100))
	return err
}

func (c *Core) saveNetwork() {
	c.journal.Put(kindMeta, metaNetwork, networkRecord{c.net.ranges, c.net.boot, c.net.resting})
}

func (c *Core) restoreNetwork(data []byte) error {
	var r networkRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	if c.cfg.Ranges != (api.NetRanges{}) && c.cfg.Ranges != r.Ranges {
		return fmt.Errorf("the network's ranges cannot be changed, for addresses of them are in use: they are %+v, and the configuration says %+v: %w",
			r.Ranges, c.cfg.Ranges, api.ErrConflict)
	}
	c.net.boot, c.net.resting = r.Boot, r.Resting
	if err := c.net.lay(r.Ranges, c.cfg.TenantPercent); err != nil {
		return err
	}
	for _, s := range r.Resting {
		_ = c.net.shares.Mark(s.Share)
	}
	return nil
}

// Validate reports what cannot be of the network, ErrInvalid.
func (c Config) Validate() error {
	if c.ClusterPercent < 0 || c.ClusterPercent > 100 {
		return fmt.Errorf("%d %% of the instance network for one cluster, want 1 to 100, or 0 for the default: %w", c.ClusterPercent, api.ErrInvalid)
	}
	if c.TenantPercent < 0 || c.TenantPercent > 100 {
		return fmt.Errorf("%d %% of the services' addresses for one tenant, want 1 to 100, or 0 for the default: %w", c.TenantPercent, api.ErrInvalid)
	}
	if c.Ranges == (api.NetRanges{}) {
		return nil
	}
	return checkRanges(c.Ranges)
}

// defaultRanges lays the network out where no earlier life did.
func (c *Core) defaultRanges() error {
	if c.net.shares != nil {
		return nil
	}
	r := c.cfg.Ranges
	if r == (api.NetRanges{}) {
		r = api.DefaultNetRanges()
	}
	return c.net.lay(r, c.cfg.TenantPercent)
}

// restoreShares marks what a cluster has. What two have, as no book of ours says,
// is the first one's.
func (c *Core) restoreShares(cl *cluster) {
	cl.Shares = slices.DeleteFunc(cl.Shares, func(p netip.Prefix) bool {
		if c.net.shares.Mark(p) != nil {
			return true
		}
		c.net.holders[p] = cl.Info.ID
		return false
	})
}

func (c *Core) restoreAddress(d store.Doc) error {
	var r addresses.Resting
	if err := json.Unmarshal(d.Data, &r); err != nil {
		return err
	}
	a, err := netip.ParseAddr(d.Key)
	if err != nil {
		return err
	}
	c.net.addresses.Rest(r, []netip.Addr{a})
	return nil
}

// sharesPerCluster bounds what one cluster can get of the network.
func (c *Core) sharesPerCluster() int { return max(1, c.allShares()*c.cfg.ClusterPercent/100) }

func (c *Core) allShares() int { return 1 << (c.net.ranges.Share - c.net.ranges.Instances.Bits()) }

// counted is how many shares a cluster has, with those that rest because it gave
// them back: who takes and returns all the time must not wear the network out.
func (c *Core) counted(cl *cluster) int {
	n := len(cl.Shares)
	for _, r := range c.net.resting {
		if r.By == cl.Info.ID {
			n++
		}
	}
	return n
}

// grant gives a cluster shares ahead of its need: a quarter more subnets than it
// has use for, and at least a few.
func (c *Core) grant(cl *cluster, need int) {
	if need <= 0 {
		return
	}
	per := 1 << (c.net.ranges.Subnet - c.net.ranges.Share)
	need = min(need, per*c.sharesPerCluster())
	failed := ""
	c.sweepShares()
	for len(cl.Shares)*per < need+max(need/4, min(8, per/4)) {
		if c.counted(cl) >= c.sharesPerCluster() {
			failed = fmt.Sprintf("it has %d shares of the instance network, and none gets more", c.counted(cl))
			break
		}
		if left := c.net.shares.Free(c.now); left > 0 && len(cl.Shares) > 0 && left <= c.allShares()/8 {
			failed = fmt.Sprintf("the instance network is nearly exhausted: its last %d shares are kept for clusters that have none", left)
			break
		}
		p, err := c.takeShare()
		if err != nil {
			failed = "the instance network is exhausted: " + err.Error()
			break
		}
		c.net.holders[p] = cl.Info.ID
		cl.Shares = append(slices.Clone(cl.Shares), p)
		slices.SortFunc(cl.Shares, netip.Prefix.Compare)
		c.changedCluster(cl)
		c.net.talk[cl.Info.ID] = true
	}
	if cl.net.error == failed {
		return
	}
	if cl.net.error = failed; failed != "" {
		c.event(api.Event{Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Detail: failed})
	}
	c.changedCluster(cl)
}

func (c *Core) takeShare() (netip.Prefix, error) {
	return c.net.shares.Take(c.now, netip.Prefix{})
}

// sweepShares ends the rests that are over.
func (c *Core) sweepShares() {
	n := &c.net
	before := len(n.resting)
	n.resting = slices.DeleteFunc(n.resting, func(r restingShare) bool {
		over := !r.Until.After(c.wall)
		if over {
			n.shares.Give(c.now, r.Share)
		}
		return over
	})
	if len(n.resting) != before {
		c.saveNetwork()
	}
}

func (c *Core) restShare(p netip.Prefix, by api.ClusterID) {
	delete(c.net.holders, p)
	c.net.resting = append(c.net.resting, restingShare{p, c.wall.Add(addresses.Rest), by})
	c.saveNetwork()
}

// takeShares takes shares back that a cluster has no use for any more.
func (c *Core) takeShares(cl *cluster, returned []netip.Prefix) {
	for _, p := range returned {
		i := slices.Index(cl.Shares, p)
		if i < 0 {
			continue
		}
		cl.Shares = slices.Delete(slices.Clone(cl.Shares), i, i+1)
		c.restShare(p, cl.Info.ID)
		c.changedCluster(cl)
		c.net.talk[cl.Info.ID] = true
	}
}

// claimShares gives a cluster the shares that it has, where this root knows of
// nobody who has them: it was restored from an older copy. Others the cluster
// gives up when it is told what it has.
func (c *Core) claimShares(cl *cluster, have []netip.Prefix) {
	c.sweepShares() // a share whose rest is over may have been given since
	for _, p := range have {
		if slices.Contains(cl.Shares, p) {
			continue
		}
		switch {
		case c.net.holders[p] != "":
			c.event(api.Event{
				Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID,
				Detail: fmt.Sprintf("gives up %s of the instance network, which is cluster %s's", p, c.net.holders[p]),
			})
		case len(cl.Shares) >= c.sharesPerCluster() || c.net.shares.Mark(p) != nil:
		default:
			c.net.holders[p] = cl.Info.ID
			cl.Shares = append(slices.Clone(cl.Shares), p)
			slices.SortFunc(cl.Shares, netip.Prefix.Compare)
			c.changedCluster(cl)
		}
		c.net.talk[cl.Info.ID] = true
	}
}

// quote lets addresses rest that a cluster says are in use, and that nobody has
// here: a root that was restored from an older copy must not give them away. What
// a cluster can keep from others so is bounded: what rests because of it counts as
// long as it does, and what it disputes as long as another has it.
func (c *Core) quote(cl *cluster, used []api.ServiceAddress) {
	k := &cl.net
	maps.DeleteFunc(k.quoted, func(a netip.Addr, _ bool) bool {
		_, rests := c.net.addresses.Resting(a)
		return !rests && c.net.addresses.Owner(a) == ""
	})
	for _, u := range used {
		owner := c.net.addresses.Owner(u.Address)
		if owner == u.Service || k.quoted[u.Address] || len(k.quoted) >= mostQuoted || !quotable(u.Service) {
			continue
		}
		if owner == "" && c.lay(addresses.Resting{Service: u.Service, Quoted: true}, []netip.Addr{u.Address}) == 0 {
			continue // it rests already, or is none of ours
		}
		if owner != "" {
			c.event(api.Event{
				Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID,
				Detail: fmt.Sprintf("still has %s on address %s, which is another service's now", u.Service.Name(), u.Address),
			})
		}
		if k.quoted == nil {
			k.quoted = map[netip.Addr]bool{}
		}
		k.quoted[u.Address] = true
	}
}

// quotable reports whether a service's name is one that may be kept: whatever
// longer comes from a cluster is no name of ours.
func quotable(id api.ServiceID) bool { return len(id) <= longestName }

// longestName is what the root keeps of names that clusters say: a tenant's path of
// eight parts and four names, and room to spare.
const longestName = 512

// rest gives addresses back, to be given to nobody else for a while.
func (c *Core) rest(id api.ServiceID, addrs []netip.Addr) {
	c.lay(addresses.Resting{Service: id}, addrs)
}

// lay lets addresses rest from now on, and says how many of them do by that.
func (c *Core) lay(r addresses.Resting, addrs []netip.Addr) int {
	r.Until = c.wall.Add(addresses.Rest)
	resting := c.net.addresses.Rest(r, addrs)
	for _, a := range resting {
		c.journal.Put(kindAddress, a.String(), r)
		c.resolveAll(c.net.book.Of(api.Want{Address: a}))
	}
	return len(resting)
}

// planned are the addresses that an application would have.
type planned map[api.ServiceID]addresses.Plan

// planAddresses takes the addresses that an application asks for, or says why it
// cannot have them and takes nothing.
func (c *Core) planAddresses(id api.AppID, spec api.Application) (planned, error) {
	for _, a := range c.net.addresses.Sweep(c.wall) {
		c.journal.Delete(kindAddress, a.String())
	}
	var have map[api.ServiceID]api.ServiceAddresses
	if a := c.apps[id]; a != nil {
		have = a.Addresses
	}
	plans := planned{}
	for i := range spec.Services {
		m := &spec.Services[i]
		if m.Virtualization == "process" {
			continue // it is on its node's network
		}
		sid := id.Service(m.Name, m.Namespace)
		p, err := c.net.addresses.Assign(c.wall, sid, m.Addresses, have[sid])
		if err == nil {
			if err = c.net.checkTwin(sid, m.Addresses, p.Addresses.RoundRobin); err != nil {
				c.net.addresses.Undo(p)
			}
		}
		if err == nil && p.Gives(c.wall, sid) {
			if err = c.notYet("addresses for " + sid.Name()); err != nil {
				c.net.addresses.Undo(p)
			}
		}
		if err != nil {
			for _, other := range plans {
				c.net.addresses.Undo(other)
			}
			return nil, err
		}
		plans[sid] = p
	}
	return plans, nil
}

// checkTwin refuses an IPv6 address that is not the twin of the IPv4 address that
// the service gets.
func (n *network) checkTwin(id api.ServiceID, want *api.Addresses, got netip.Addr) error {
	if want == nil || want.RoundRobin6 == "" {
		return nil
	}
	if twin := n.ranges.Twin(got); want.RoundRobin6 != twin.String() {
		return fmt.Errorf("rr_ip_v6 %s for %s: the IPv6 address of %s is %s; write that, or leave rr_ip_v6 out: %w",
			want.RoundRobin6, id.Name(), got, twin, api.ErrInvalid)
	}
	return nil
}

// commit makes the plans true.
func (c *Core) commit(a *app, plans planned) {
	for _, id := range step.Keys(plans) {
		p := plans[id]
		for _, addr := range p.Woken() {
			c.journal.Delete(kindAddress, addr.String())
		}
		c.setAddresses(a, id, p.Addresses)
		c.rest(id, p.Freed)
	}
	for _, id := range step.Keys(a.Addresses) {
		if _, still := plans[id]; !still {
			c.dropAddresses(a, id)
		}
	}
}

func (c *Core) setAddresses(a *app, id api.ServiceID, have api.ServiceAddresses) {
	if !addressesDiffer(a.Addresses[id], have) {
		return
	}
	if a.Addresses == nil {
		a.Addresses = map[api.ServiceID]api.ServiceAddresses{}
	}
	a.Addresses[id] = have
	c.changedApp(a)
}

func (c *Core) dropAddresses(a *app, id api.ServiceID) {
	have := addresses.Addresses(a.Addresses[id])
	delete(a.Addresses, id)
	c.rest(id, have)
}

func addressesDiffer(a, b api.ServiceAddresses) bool {
	return a.RoundRobin != b.RoundRobin || a.Closest != b.Closest || !maps.Equal(a.Instances, b.Instances)
}

func addressesOf(a api.ServiceAddresses) []netip.Addr { return addresses.Addresses(a) }

// addressesFor are what the assignment of one instance says.
func (s *service) addressesFor(n int) api.ServiceAddresses {
	all := s.app.Addresses[s.id]
	mine := api.ServiceAddresses{RoundRobin: all.RoundRobin, Closest: all.Closest}
	if a, ok := all.Instances[n]; ok {
		mine.Instances = map[int]netip.Addr{n: a}
	}
	return mine
}
