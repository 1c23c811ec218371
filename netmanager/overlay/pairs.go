package overlay

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// What TCP has measured of instances' connections tells how far apart two services
// are for those who use them: with their devices, their bandwidth, their kernels. It
// costs no packet.

// Flow is what TCP knows of the connections between an instance of this node and one
// address: a service's, as who calls sees it, or an instance's, as who is called does.
type Flow struct {
	Local, Remote netip.Addr // either family
	Sockets       int
	RTT           time.Duration // smoothed, the mean of the sockets'
	Least         time.Duration // of any, within the last few minutes
	Sent, Again   uint64        // segments with data, and those that were sent again
}

const (
	// maxPairs bounds the pairs of services that are kept: tenants choose whom their
	// instances call.
	maxPairs = 1024
	// pairFor is how long one is kept that no flow tells of.
	pairFor = api.NetPairFor
	// unprobed is how old a peer's round trip is by the tunnel's own probes for one of
	// TCP to count: probes are the better measure, but only go while the tunnel is used.
	unprobed = 30 * time.Second
)

// servicePair are a service of this node and another one.
type servicePair struct{ local, remote api.ServiceID }

// sampled takes what TCP knows now.
func (c *Core) sampled(in Sampled) {
	now, peers := map[servicePair]*Flow{}, map[api.PeerKey]time.Duration{}
	far := map[api.ServiceID]map[farEnd]*Flow{}
	for _, f := range in.Flows {
		t, address, ok := c.between(f)
		if !ok {
			continue
		}
		if k, ok := c.peerAt(address); ok && c.at[address] == nil && (peers[k] == 0 || f.Least < peers[k]) {
			peers[k] = f.Least // what one instance makes of its own connections moves nothing where there are others
		}
		if e, asked := c.farEnd(t, address); asked {
			if far[t.local] == nil {
				far[t.local] = map[farEnd]*Flow{}
			}
			add(far[t.local], e, f)
		}
		add(now, t, f)
	}
	c.looked(far)
	for _, k := range sortedKeys(peers) {
		if c.now.Sub(c.peers[k].measured) >= unprobed {
			c.measured(Measured{Key: k, RTT: peers[k]})
		}
	}
	for t, p := range c.rtts {
		if c.now.Sub(p.Seen) >= pairFor {
			delete(c.rtts, t)
		}
	}
	for _, t := range sortedServicePairs(now) {
		if len(c.rtts) == maxPairs && c.rtts[t] == nil {
			continue
		}
		sum := now[t]
		p := &api.PairStatus{
			Local: t.local, Remote: t.remote, RTT: sum.RTT, Least: sum.Least, Connections: sum.Sockets, Seen: c.now,
		}
		if sum.Sent > 0 {
			p.Again = min(float64(sum.Again)/float64(sum.Sent), 1)
		}
		c.rtts[t] = p
	}
}

// add sums flows up by key.
func add[K comparable](sums map[K]*Flow, k K, f Flow) {
	sum := sums[k]
	if sum == nil {
		sum = &Flow{Least: f.Least}
		sums[k] = sum
	}
	n := sum.Sockets + f.Sockets
	sum.RTT = (sum.RTT*time.Duration(sum.Sockets) + f.RTT*time.Duration(f.Sockets)) / time.Duration(n)
	sum.Least, sum.Sockets = min(sum.Least, f.Least), n
	sum.Sent, sum.Again = sum.Sent+f.Sent, sum.Again+f.Again
}

// between are the services of a flow, and the other end's address.
func (c *Core) between(f Flow) (t servicePair, remote netip.Addr, ok bool) {
	if c.lease == nil || f.Sockets <= 0 || f.RTT <= 0 || f.Least <= 0 {
		return t, remote, false
	}
	at := c.at[c.lease.Ranges.Untwin(f.Local)]
	remote = c.lease.Ranges.Untwin(f.Remote)
	if at == nil || !remote.IsValid() {
		return t, remote, false
	}
	other := c.vips[remote]
	if other == "" {
		other = c.owners[remote]
	}
	if o := c.at[remote]; o != nil {
		other = o.service()
	}
	if src, known := c.sources[remote]; known && other == "" {
		other = src.Service
	}
	return servicePair{at.service(), other}, remote, other != ""
}

// Pairs are the pairs of services that TCP connections told of in the last minutes,
// in order.
func (c *Core) Pairs() (out []api.PairStatus) {
	for _, t := range sortedServicePairs(c.rtts) {
		if p := c.rtts[t]; c.now.Sub(p.Seen) < pairFor {
			out = append(out, *p)
		}
	}
	return out
}

func sortedServicePairs[V any](m map[servicePair]V) []servicePair {
	out := make([]servicePair, 0, len(m))
	for t := range m {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b servicePair) int {
		return cmp.Or(cmp.Compare(a.local, b.local), cmp.Compare(a.remote, b.remote))
	})
	return out
}
