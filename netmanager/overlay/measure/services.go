package measure

import (
	"cmp"
	"maps"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Flow is the state of the TCP connections between an instance on this node and one remote address. That
// is a semantic address if the instance connected to one, and the other instance's address if it
// accepted.
type Flow struct {
	Local, Remote       netip.Addr // either family
	Sockets             int
	RTT                 time.Duration // smoothed, mean over the sockets
	Least               time.Duration // of all sockets, within the last few minutes
	Sent, Retransmitted uint64        // data segments
}

// Sample is a Flow whose services are known.
type Sample struct {
	Flow
	Local, Remote api.ServiceID
	// To is the remote end for the report to the cluster. It is valid if Known.
	To    End
	Known bool
}

// End is a service on a node.
type End struct {
	Service api.ServiceID
	Node    api.NodeID
	Cluster api.ClusterID // of a node of another cluster; Node is then its key
}

func compareEnds(a, b End) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
}

const (
	// MaxPairs bounds the pairs of services, because tenants choose which services their instances call.
	MaxPairs = 1024
	// MaxEnds bounds the reported ends per service for the same reason.
	MaxEnds = 64
	// maxReported bounds the services that are reported.
	maxReported = 1024
	// reportEvery is the least time between two messages that are sent only to report these round trips.
	// Other messages to the cluster carry them as well.
	reportEvery = 30 * time.Second
	// A round trip is reported again if it changed by more than changedPart of its value and
	// changedLeast.
	changedPart, changedLeast = 0.2, 500 * time.Microsecond
)

// Services keeps the round trips between services that TCP observed: all of them for the node's status,
// and for the cluster those of services whose SLA bounds their latency.
type Services struct {
	pairs      map[pair]*api.PairStatus
	reports    map[api.ServiceID]map[End]*observed
	unreported bool // there is something to report
	reportedAt time.Time
}

type pair struct{ local, remote api.ServiceID }

func comparePairs(a, b pair) int {
	return cmp.Or(cmp.Compare(a.local, b.local), cmp.Compare(a.remote, b.remote))
}

type observed struct {
	least        [2]time.Duration // in the last sample and the one before; 0: none
	connections  int
	seen         time.Time     // the last sample
	reported     time.Duration // 0: not reported
	reportedSeen time.Time     // seen when it was reported
}

// rtt returns the lesser of the last two samples, because a new connection may have measured an
// exceptional delay of its first packet.
func (o *observed) rtt() time.Duration {
	if o.least[1] > 0 {
		return min(o.least[0], o.least[1])
	}
	return o.least[0]
}

func (o *observed) sample(now time.Time, f *Flow) {
	if now.Sub(o.seen) > time.Minute {
		o.least = [2]time.Duration{}
	}
	o.least[1], o.least[0] = o.least[0], f.Least
	o.connections, o.seen = f.Sockets, now
}

// unreported reports whether the cluster needs the round trip: it changed, or the last report expires soon.
func (o *observed) unreported() bool {
	if o.reported == 0 {
		return true
	}
	change := (o.rtt() - o.reported).Abs()
	return change > max(changedLeast, time.Duration(changedPart*float64(o.reported))) || o.seen.Sub(o.reportedSeen) >= wire.MaxNetPairAge/2
}

// NewServices returns a Services without round trips.
func NewServices() *Services { return &Services{pairs: map[pair]*api.PairStatus{}} }

// SetReported replaces the services whose round trips are reported.
func (s *Services) SetReported(ids []api.ServiceID) {
	old := s.reports
	s.reports = map[api.ServiceID]map[End]*observed{}
	for _, id := range ids[:min(len(ids), maxReported)] {
		if s.reports[id] = old[id]; old[id] == nil {
			s.reports[id] = map[End]*observed{}
		}
	}
}

// Reports reports whether the round trips of a service of this node are reported.
func (s *Services) Reports(id api.ServiceID) bool { return s.reports[id] != nil }

// Digest returns the combined digest of the services that are reported.
func (s *Services) Digest() (d api.Digest) {
	for id := range s.reports {
		d = d.Toggle(id.Digest())
	}
	return d
}

// Sampled applies a sample of all present TCP flows of the node.
func (s *Services) Sampled(now time.Time, samples []Sample) {
	pairs, ends := map[pair]*Flow{}, map[api.ServiceID]map[End]*Flow{}
	for _, x := range samples {
		add(pairs, pair{x.Local, x.Remote}, x.Flow)
		if x.Known {
			if ends[x.Local] == nil {
				ends[x.Local] = map[End]*Flow{}
			}
			add(ends[x.Local], x.To, x.Flow)
		}
	}
	s.observe(now, ends)
	maps.DeleteFunc(s.pairs, func(_ pair, p *api.PairStatus) bool { return now.Sub(p.Seen) >= wire.MaxNetPairAge })
	for _, k := range sorted.Keys(pairs, comparePairs) {
		if len(s.pairs) == MaxPairs && s.pairs[k] == nil {
			continue
		}
		sum := pairs[k]
		p := &api.PairStatus{Local: k.local, Remote: k.remote, RTT: sum.RTT, Least: sum.Least, Connections: sum.Sockets, Seen: now}
		if sum.Sent > 0 {
			p.Again = min(float64(sum.Retransmitted)/float64(sum.Sent), 1)
		}
		s.pairs[k] = p
	}
}

// add adds a flow to the sum of its key.
func add[K comparable](sums map[K]*Flow, k K, f Flow) {
	sum := sums[k]
	if sum == nil {
		sum = &Flow{Least: f.Least}
		sums[k] = sum
	}
	n := sum.Sockets + f.Sockets
	sum.RTT = (sum.RTT*time.Duration(sum.Sockets) + f.RTT*time.Duration(f.Sockets)) / time.Duration(n)
	sum.Least, sum.Sockets = min(sum.Least, f.Least), n
	sum.Sent, sum.Retransmitted = sum.Sent+f.Sent, sum.Retransmitted+f.Retransmitted
}

func (s *Services) observe(now time.Time, found map[api.ServiceID]map[End]*Flow) {
	for id, all := range s.reports {
		maps.DeleteFunc(all, func(_ End, o *observed) bool { return now.Sub(o.seen) >= wire.MaxNetPairAge })
		for _, e := range sorted.Keys(found[id], compareEnds) {
			o := all[e]
			if o == nil {
				if len(all) == MaxEnds {
					continue
				}
				o = &observed{}
				all[e] = o
			}
			o.sample(now, found[id][e])
			s.unreported = s.unreported || o.unreported()
		}
	}
}

// Due reports whether to send a message only to report round trips.
func (s *Services) Due(now time.Time) bool {
	return s.unreported && now.Sub(s.reportedAt) >= reportEvery
}

// Report returns the round trips that the cluster needs, and marks them as reported. all means that the
// cluster has none.
func (s *Services) Report(now time.Time, all bool) (out []wire.NetPair) {
	if !s.unreported && !all {
		return nil
	}
	s.unreported = false
	for _, id := range sorted.Ordered(s.reports) {
		for _, e := range sorted.Keys(s.reports[id], compareEnds) {
			o := s.reports[id][e]
			if all {
				o.reported = 0
			}
			p := wire.NetPair{
				Local: id, Remote: e.Service, Node: e.Node, Cluster: e.Cluster,
				Least: o.rtt(), Connections: o.connections, Age: now.Sub(o.seen),
			}
			switch {
			case !o.unreported() || !p.Valid():
			case len(out) == wire.MaxNetPairs:
				s.unreported = true
			default:
				o.reported, o.reportedSeen = p.Least, o.seen
				out = append(out, p)
			}
		}
	}
	if len(out) > 0 {
		s.reportedAt = now
	}
	return out
}

// Pairs lists, in order, the pairs of services that were seen within wire.MaxNetPairAge.
func (s *Services) Pairs(now time.Time) (out []api.PairStatus) {
	for _, k := range sorted.Keys(s.pairs, comparePairs) {
		if p := s.pairs[k]; now.Sub(p.Seen) < wire.MaxNetPairAge {
			out = append(out, *p)
		}
	}
	return out
}

// Pair returns the last sample of two services.
func (s *Services) Pair(local, remote api.ServiceID) (p api.PairStatus, ok bool) {
	if q := s.pairs[pair{local, remote}]; q != nil {
		return *q, true
	}
	return p, false
}
