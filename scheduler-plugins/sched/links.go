package sched

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Link is a bound that an SLA sets on the way between an instance and something
// else. Exactly one of Service, Area and User is set, and exactly one of RTT and
// Km is above 0. Where the other end is, a core must find out; Bound says it then.
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

// LinksOf are the links of a service's SLA: its latency constraints and its
// connectivity's latency and geo, in the document's order. Bandwidth of a
// connectivity is in Microservice.Needs.
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

// To names the link's other end for people.
func (l Link) To() string { return l.Service + l.Area + l.User }

// Names reports whether the link goes to the service of that id, seen from the
// service of. One that gives a name without a namespace means that name in any.
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

// Constraint is the filter that a candidate fails which is too far off.
func (l Link) Constraint() string {
	if l.Km > 0 {
		return ConstraintGeo
	}
	return ConstraintLatency
}

// Bound is the link when its other end is at the nearest of points.
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

// Unknown is the link while nobody knows where its other end is; why is for
// people: "its position is being measured".
func (l Link) Unknown(why string) Bound {
	return Bound{To: l.To(), RTT: l.RTT, Km: l.Km, Unknown: why}
}

// Spread is how many instances of a service one domain may have.
type Spread struct {
	By    string // "node", "cluster", or a label's key
	Limit int    // at least 1
}

// SpreadsOf are the spread constraints of a service's SLA, defaults filled in.
func SpreadsOf(m *api.Microservice) []Spread {
	var out []Spread
	for _, c := range m.Constraints {
		if c.Type == api.ConstrainSpread {
			out = append(out, Spread{By: by(c.By), Limit: max(c.Limit, 1)})
		}
	}
	return out
}

// Apart is a wish to share no domain with the instances of other services. It
// holds both ways: they do not come where this one's are either.
type Apart struct {
	By       string   // "node", "cluster", or a label's key
	Services []string // of the same application, as the SLA names them; see Names
}

// ApartsOf are the apart constraints of a service's SLA, defaults filled in.
func ApartsOf(m *api.Microservice) []Apart {
	var out []Apart
	for _, c := range m.Constraints {
		if c.Type == api.ConstrainApart {
			out = append(out, Apart{By: by(c.By), Services: c.Services})
		}
	}
	return out
}

// Names reports whether the service of that id is among those that the service
// of is to be apart from.
func (a Apart) Names(of, id api.ServiceID) bool {
	return slices.ContainsFunc(a.Services, func(s string) bool { return Link{Service: s}.Names(of, id) })
}

// DomainOf is the name of the domain by which a node counts, "" if it is in none:
// that of a node without the label.
func DomainOf(by string, cluster api.ClusterID, node api.NodeID, labels map[string]string) string {
	switch by {
	case "node":
		return string(node)
	case "cluster":
		return string(cluster)
	}
	return labels[by]
}

// RigidnessOf is how long a service bears it that its place fails the filter of
// that name: the least of the SLA's constraints that lead to it, else the default.
// Shared is as Link.Shared. For one bound see Link.Rigidness.
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

// leadsTo names the filters that an SLA's constraint feeds.
func leadsTo(c api.Constraint) []string {
	switch c.Type {
	case api.ConstrainDirect, api.ConstrainClusters:
		return []string{ConstraintCluster, ConstraintNode}
	case api.ConstrainGeo:
		return []string{ConstraintArea, ConstraintGeo}
	}
	return []string{c.Type} // addons, labels, spread, apart, latency
}

// ConvergenceOf is how long placing a service may search and measure: the least
// that its SLA gives, else the default.
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
