package sched

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Link is a bound on the path between an instance and something else. Exactly one of Service,
// Area and User is set, and exactly one of RTT and Km is above 0. A core finds out where the
// other end is and makes a Bound of it.
type Link struct {
	Service string        // of the same application, as the SLA names it; see Names
	Area    string        // lower case
	Way     bool          // of connectivity: broken rather than not placed, when the search is over
	User    string        // a host name or address, with a port for TCP: found by trilateration
	RTT     time.Duration // the most, round trip
	Km      float64       // the most, on the earth

	Rigidness   time.Duration // how long it may be violated before the instance moves
	Shared      bool          // in total over the last five minutes, not without interruption
	Convergence time.Duration // how long placement may measure for it
}

// LinksOf returns the links of a service's SLA in the document's order: its latency
// constraints, and latency and geo of its connectivity. The bandwidth of connectivity is in
// Microservice.Needs.
func LinksOf(m *api.Microservice) []Link {
	var out []Link
	for _, c := range m.Constraints {
		if c.Type == api.ConstrainLatency {
			out = append(out, Link{
				Service: c.Service, Area: strings.ToLower(c.Area), User: c.Target, RTT: milliseconds(c.Threshold),
				Rigidness: rigidness(c.Rigidness), Shared: c.Share > 0, Convergence: convergence(c.ConvergenceTime),
			})
		}
	}
	for _, to := range m.Connectivity {
		for _, c := range to.Constraints {
			l := Link{Service: to.Target, Way: true, Rigidness: rigidness(c.Rigidness), Shared: c.Share > 0, Convergence: convergence(c.ConvergenceTime)}
			switch c.Type {
			case "latency":
				l.RTT = milliseconds(c.Threshold)
			case "geo":
				l.Km = c.Threshold
			default:
				continue
			}
			out = append(out, l)
		}
	}
	return out
}

// To returns the name of the link's other end, for people.
func (l Link) To() string { return l.Service + l.Area + l.User }

// Names reports whether the link of service of leads to the service id. A link that has no
// namespace matches the name in any namespace.
func (l Link) Names(of, id api.ServiceID) bool {
	if l.Service == "" || of.App() != id.App() {
		return false
	}
	name := id.NameInApp()
	if !strings.Contains(l.Service, ".") {
		name, _, _ = strings.Cut(name, ".")
	}
	return name == l.Service
}

// Constraint returns the filter that rejects a candidate beyond the bound.
func (l Link) Constraint() string {
	if l.Km > 0 {
		return ConstraintGeo
	}
	return ConstraintLatency
}

// Bound returns the link's bound for the points where its other end is.
func (l Link) Bound(points ...api.Position) Bound {
	b := Bound{To: l.To(), Points: points, RTT: l.RTT, Km: l.Km}
	if l.Way {
		b.Search = l.Convergence
	}
	return b
}

// WantedBy returns b, a bound of the link, as one of the service that the link leads to;
// from has the link. Any such bound may be broken when the search is over: the link is
// violated then, and the instance that has it moves.
func (l Link) WantedBy(from api.ServiceID, b Bound) Bound {
	b.To, b.Search, b.Wanted = from.NameInApp(), l.Convergence, true
	return b
}

// Unknown returns the link's bound while the position of its other end is unknown. why is for
// people: "its position is being measured".
func (l Link) Unknown(why string) Bound {
	return Bound{To: l.To(), RTT: l.RTT, Km: l.Km, Unknown: why}
}

// Spread limits the instances of a service per domain.
type Spread struct {
	By    string // "node", "cluster", or a label's key
	Limit int    // at least 1
}

// SpreadsOf returns the spread constraints of a service's SLA with defaults filled in.
func SpreadsOf(m *api.Microservice) []Spread {
	var out []Spread
	for _, c := range m.Constraints {
		if c.Type == api.ConstrainSpread {
			out = append(out, Spread{By: by(c.By), Limit: max(c.Limit, 1)})
		}
	}
	return out
}

// AntiAffinity forbids to share a domain with instances of other services. It is symmetric:
// their instances are not placed beside this one's either.
type AntiAffinity struct {
	By       string   // "node", "cluster", or a label's key
	Services []string // of the same application, as the SLA names them; see Names
}

// AntiAffinitiesOf returns the anti-affinity constraints of a service's SLA with defaults
// filled in.
func AntiAffinitiesOf(m *api.Microservice) []AntiAffinity {
	var out []AntiAffinity
	for _, c := range m.Constraints {
		if c.Type == api.ConstrainAntiAffinity {
			out = append(out, AntiAffinity{By: by(c.By), Services: c.Services})
		}
	}
	return out
}

// Names reports whether the anti-affinity of service of is to the service id.
func (a AntiAffinity) Names(of, id api.ServiceID) bool {
	return slices.ContainsFunc(a.Services, func(s string) bool { return Link{Service: s}.Names(of, id) })
}

// DomainOf returns the name of the domain that a node is in; "" if it lacks the label.
func DomainOf(by string, cluster api.ClusterID, node api.NodeID, labels map[string]string) string {
	switch by {
	case "node":
		return string(node)
	case "cluster":
		return string(cluster)
	}
	return labels[by]
}

// RigidnessOf returns for how long the SLA tolerates that a place fails the filter constraint:
// the least of its constraints that lead to the filter, else the default. For shared see
// Link.Shared; for one bound see Link.Rigidness.
func RigidnessOf(m *api.Microservice, constraint string) (least time.Duration, shared bool) {
	add := func(seconds, share float64) {
		if d := rigidness(seconds); least == 0 || d < least {
			least, shared = d, share > 0
		}
	}
	for _, c := range m.Constraints {
		if slices.Contains(leadsTo(c), constraint) {
			add(c.Rigidness, c.Share)
		}
	}
	for _, to := range m.Connectivity {
		for _, c := range to.Constraints {
			switch {
			case c.Type == "bandwidth" && (constraint == ConstraintBandwidthIn || constraint == ConstraintBandwidthOut),
				c.Type == "latency" && constraint == ConstraintLatency,
				c.Type == "geo" && constraint == ConstraintGeo:
				add(c.Rigidness, c.Share)
			}
		}
	}
	if least == 0 {
		return rigidness(0), false
	}
	return least, shared
}

// leadsTo returns the filters that an SLA constraint leads to.
func leadsTo(c api.Constraint) []string {
	switch c.Type {
	case api.ConstrainDirect, api.ConstrainClusters:
		return []string{ConstraintCluster, ConstraintNode}
	case api.ConstrainGeo:
		return []string{ConstraintArea, ConstraintGeo}
	}
	return []string{c.Type} // addons, labels, spread, apart, latency
}

// ConvergenceOf returns how long placement may search and measure: the least that the SLA
// gives, else the default.
func ConvergenceOf(m *api.Microservice) time.Duration {
	least := 0.0
	add := func(seconds float64) {
		if seconds > 0 && (least == 0 || seconds < least) {
			least = seconds
		}
	}
	for _, c := range m.Constraints {
		add(c.ConvergenceTime)
	}
	for _, to := range m.Connectivity {
		for _, c := range to.Constraints {
			add(c.ConvergenceTime)
		}
	}
	return convergence(least)
}

func by(key string) string {
	if key == "" {
		return "node"
	}
	return key
}

func rigidness(s float64) time.Duration {
	if s <= 0 {
		s = api.DefaultRigidness
	}
	return seconds(s)
}

func convergence(s float64) time.Duration {
	if s <= 0 {
		s = api.DefaultConvergence
	}
	return seconds(s)
}

func seconds(s float64) time.Duration       { return time.Duration(s * float64(time.Second)) }
func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
