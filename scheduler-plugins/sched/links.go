package sched

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Link is a bound on the path between an instance and a service, area or user. Exactly one of
// Service, Area and User is set, and exactly one of RTT and Km is above 0. A core converts it
// to a Bound with the positions of the other end.
type Link struct {
	Service   string        // of the same application, as the SLA names it; see Names
	Area      string        // lower case
	Relaxable bool          // from connectivity: may be violated once the search time is over; see Request.Relax
	User      string        // host name or address, with a port for TCP; located by trilateration
	RTT       time.Duration // maximum round trip
	Km        float64       // maximum distance on the earth

	Rigidness   time.Duration // how long it may be violated before the instance moves
	Shared      bool          // Rigidness is the total over the last five minutes, not without interruption
	Convergence time.Duration // how long placement may search and measure
}

// LinksOf returns the links of a service's SLA in the document's order: its latency
// constraints, and the latency and geo constraints of its connectivity. The bandwidth of
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
			l := Link{Service: to.Target, Relaxable: true, Rigidness: rigidness(c.Rigidness), Shared: c.Share > 0, Convergence: convergence(c.ConvergenceTime)}
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

// Names reports whether a link of the service of leads to the service id. A name without a
// namespace matches the service in any namespace.
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

// Constraint returns the constraint that excludes candidates beyond the bound.
func (l Link) Constraint() string {
	if l.Km > 0 {
		return ConstraintGeo
	}
	return ConstraintLatency
}

// Bound returns the link's bound for the points where its other end is.
func (l Link) Bound(points ...api.Position) Bound {
	b := Bound{To: l.To(), Points: points, RTT: l.RTT, Km: l.Km}
	if l.Relaxable {
		b.Search = l.Convergence
	}
	return b
}

// Inbound converts b, a bound of a link of the service from, to a bound for instances of the
// service that the link leads to. Such a bound may always be violated once the search time is
// over; the violation then moves the instance that has the link.
func (l Link) Inbound(from api.ServiceID, b Bound) Bound {
	b.To, b.Search, b.Inbound = from.NameInApp(), l.Convergence, true
	return b
}

// Unknown returns the link's bound while the position of its other end is unknown. why is
// shown to people: "its position is being measured".
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
			out = append(out, Spread{By: cmp.Or(c.By, "node"), Limit: max(c.Limit, 1)})
		}
	}
	return out
}

// AntiAffinity forbids sharing a domain with instances of other services. It is symmetric:
// their instances are kept away from the service's instances too.
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
			out = append(out, AntiAffinity{By: cmp.Or(c.By, "node"), Services: c.Services})
		}
	}
	return out
}

// Names reports whether an anti-affinity of the service of names the service id.
func (a AntiAffinity) Names(of, id api.ServiceID) bool {
	return slices.ContainsFunc(a.Services, func(s string) bool { return Link{Service: s}.Names(of, id) })
}

// DomainOf returns the name of a node's domain, or "" if the node lacks the label.
func DomainOf(by string, cluster api.ClusterID, node api.NodeID, labels map[string]string) string {
	switch by {
	case "node":
		return string(node)
	case "cluster":
		return string(cluster)
	}
	return labels[by]
}

// RigidnessOf returns how long the SLA tolerates a violation of a filter's constraint: the
// minimum over its constraints that lead to the filter, or the default. For shared see
// Link.Shared; for one bound see Link.Rigidness.
func RigidnessOf(m *api.Microservice, constraint string) (least time.Duration, shared bool) {
	add := func(seconds, share float64) {
		if d := rigidness(seconds); least == 0 || d < least {
			least, shared = d, share > 0
		}
	}
	for _, c := range m.Constraints {
		if slices.Contains(filtersOf(c), constraint) {
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

func filtersOf(c api.Constraint) []string {
	switch c.Type {
	case api.ConstrainDirect, api.ConstrainClusters:
		return []string{ConstraintCluster, ConstraintNode}
	case api.ConstrainGeo:
		return []string{ConstraintArea, ConstraintGeo}
	}
	return []string{c.Type} // addons, labels, spread, apart, latency
}

// ConvergenceOf returns how long placement may search and measure: the minimum in the SLA, or
// the default.
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

func rigidness(s float64) time.Duration { return seconds(cmp.Or(max(s, 0), api.DefaultRigidness)) }

func convergence(s float64) time.Duration { return seconds(cmp.Or(max(s, 0), api.DefaultConvergence)) }

func seconds(s float64) time.Duration       { return time.Duration(s * float64(time.Second)) }
func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
