package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// An SLA may bound how far services of an application are from each other. The
// cluster names those services of the node, and is told what TCP measures of them:
// to which services, on which nodes. Nodes of other clusters have no names here: their
// keys stand for them, which it has from the same records.

const (
	// maxTold is how many such ends one service has at most: its tenant chooses whom it
	// talks to.
	maxTold = 64
	// maxGaps is of how many services the cluster is told.
	maxGaps = 1024
	// tellEvery is between two times that something is said for their sake alone; what is
	// said anyway has them along.
	tellEvery = 30 * time.Second
	// A round trip is news that has changed by tellPart of itself, and by tellLeast.
	tellPart, tellLeast = 0.2, 500 * time.Microsecond
)

// farEnd is a service on a node.
type farEnd struct {
	service api.ServiceID
	node    api.NodeID
	cluster api.ClusterID // of a node of another one; its key stands for it
}

// gap is how far away that is.
type gap struct {
	looks       [2]time.Duration // the least round trip in the last look and in the one before; 0: none
	connections int
	seen        time.Time     // the last look
	said        time.Duration // as the cluster has it; 0: it has not
	saidSeen    time.Time
}

// least is of two looks, for a connection that has only begun may tell of what held
// its first packet.
func (g *gap) least() time.Duration {
	if g.looks[1] > 0 {
		return min(g.looks[0], g.looks[1])
	}
	return g.looks[0]
}

// look takes in what a look found.
func (g *gap) look(now time.Time, f *Flow) {
	if now.Sub(g.seen) > time.Minute {
		g.looks = [2]time.Duration{}
	}
	g.looks[1], g.looks[0] = g.looks[0], f.Least
	g.connections, g.seen = f.Sockets, now
}

// news reports whether the cluster does not know it, or will forget it soon.
func (g *gap) news() bool {
	if g.said == 0 {
		return true
	}
	change := (g.least() - g.said).Abs()
	return change > max(tellLeast, time.Duration(tellPart*float64(g.said))) || g.seen.Sub(g.saidSeen) >= api.NetPairFor/2
}

// setGaps has the cluster told of these services from now on, and of no others.
func (c *Core) setGaps(list []api.ServiceID) {
	old := c.gaps
	c.gaps = map[api.ServiceID]map[farEnd]*gap{}
	for _, id := range list[:min(len(list), maxGaps)] {
		if c.gaps[id] = old[id]; old[id] == nil {
			c.gaps[id] = map[farEnd]*gap{}
		}
	}
}

// farEnd is where a flow of two services leads, if the cluster asks about that. By a
// semantic address that is told where it can be one node of another cluster only: of the
// cluster's own, the other end tells, which sees whose instance calls.
func (c *Core) farEnd(t servicePair, address netip.Addr) (e farEnd, asked bool) {
	if c.gaps[t.local] == nil || t.local.App() != t.remote.App() {
		return e, false
	}
	e = farEnd{service: t.remote, node: c.lease.Node}
	if c.at[address] != nil {
		return e, t.remote != t.local
	}
	k, direct := c.peerAt(address)
	if !direct {
		k = c.onlyPeer(t.remote, address)
	}
	q := c.peers[k]
	switch {
	case q == nil || q.record.Cluster == "":
		return e, false
	case q.record.Cluster != c.lease.Cluster:
		e.node, e.cluster = api.NodeID(k.String()), q.record.Cluster
		return e, true
	}
	e.node = q.record.Node
	return e, direct && e.node != ""
}

// onlyPeer is the one that has all instances to which a service's semantic address may
// lead; the zero key where there are others, here or on other nodes.
func (c *Core) onlyPeer(id api.ServiceID, address netip.Addr) (k api.PeerKey) {
	s := c.services[id]
	if s == nil || s.route == nil || len(s.local) > 0 {
		return k
	}
	at := s.route.Addresses
	for _, b := range s.route.Backends {
		if address != at.RoundRobin && address != at.Closest && address != at.Instances[b.Instance.Number()] {
			continue
		}
		if k != (api.PeerKey{}) && k != b.Peer {
			return api.PeerKey{}
		}
		k = b.Peer
	}
	return k
}

// looked takes in what a look found.
func (c *Core) looked(found map[api.ServiceID]map[farEnd]*Flow) {
	for id, all := range c.gaps {
		for e, g := range all {
			if c.now.Sub(g.seen) >= api.NetPairFor {
				delete(all, e)
			}
		}
		for _, e := range sortedKeys(found[id]) {
			g := all[e]
			if g == nil {
				if len(all) == maxTold {
					continue
				}
				g = &gap{}
				all[e] = g
			}
			g.look(c.now, found[id][e])
			c.link.gaps = c.link.gaps || g.news()
		}
	}
}

// tellGaps are what the cluster is to be told now; with all it has nothing yet.
func (c *Core) tellGaps(all bool) (out []api.NetPair) {
	if !c.link.gaps && !all {
		return nil
	}
	c.link.gaps = false
	for _, id := range sortedKeys(c.gaps) {
		for _, e := range sortedKeys(c.gaps[id]) {
			g := c.gaps[id][e]
			if all {
				g.said = 0
			}
			p := api.NetPair{
				Local: id, Remote: e.service, Node: e.node, Cluster: e.cluster,
				Least: g.least(), Connections: g.connections, Age: c.now.Sub(g.seen),
			}
			switch {
			case !g.news() || !p.Valid():
			case len(out) == api.MaxNetPairs:
				c.link.gaps = true
			default:
				g.said, g.saidSeen = p.Least, g.seen
				out = append(out, p)
			}
		}
	}
	if len(out) > 0 {
		c.link.gapsTold = c.now
	}
	return out
}
