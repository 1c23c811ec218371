package sched

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Request is an instance to place. External schedulers get it as JSON.
type Request struct {
	ID             string        `json:"id"`
	Tenant         api.Tenant    `json:"tenant,omitempty"` // the instance's owner; checked if Level is Clusters
	Needs          api.Resources `json:"needs"`
	Devices        []api.Device  `json:"devices,omitempty"` // to itself; each kind once
	Virtualization string        `json:"virtualization"`
	Arch           []string      `json:"arch,omitempty"` // any of them; empty: any
	Privileged     bool          `json:"privileged,omitempty"`
	Network        bool          `json:"network,omitempty"`  // it needs an overlay network
	Address        bool          `json:"address,omitempty"`  // it takes an address on its node's overlay network, where there is one. Checked where Level is Nodes
	Ports          []Port        `json:"ports,omitempty"`    // that must be free on the node. Checked where Level is Nodes
	Clusters       []string      `json:"clusters,omitempty"` // only these; empty: any. Checked where Level is Clusters
	Nodes          []string      `json:"nodes,omitempty"`    // only these; empty: any. Checked where Level is Nodes
	Addons         []string      `json:"addons,omitempty"`   // all of them
	Labels         []Selector    `json:"labels,omitempty"`   // all of them. Checked where Level is Nodes: labels stay within a cluster
	Zones          []Zone        `json:"zones,omitempty"`    // in all of them
	Bounds         []Bound       `json:"bounds,omitempty"`   // near enough to all of them
	Domains        []Domain      `json:"domains,omitempty"`  // that are full: spread and apart, already counted
	Avoid          []string      `json:"avoid,omitempty"`    // candidates that just refused or failed; ruled out

	Peers   map[string]int `json:"peers,omitempty"` // how many instances of the same service each candidate has
	Urgency int            `json:"urgency"`         // of its priority class, see api.Priorities

	// Convergence is how long a scheduler may search; then the best result so far counts.
	Convergence time.Duration `json:"convergence,omitempty"`

	// Search is the least Bound.Search of the links that cannot be measured at this level;
	// a lower level may find them broken. 0: there are none.
	Search time.Duration `json:"-"`
}

// Selector is one condition on a node's labels.
type Selector struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	Any   bool   `json:"any,omitempty"` // whatever its value
	Not   bool   `json:"not,omitempty"` // the opposite; a node without the key satisfies it
}

// Zone is a part of the earth that a candidate must be in. Exactly one of Area, Circle (with
// Radius) and Polygon is set. A cluster passes if one of its nodes may be in the zone.
type Zone struct {
	Area    string    `json:"area,omitempty"`   // a name that the candidate has
	Circle  *api.Geo  `json:"circle,omitempty"` // its centre
	Radius  float64   `json:"radius,omitempty"` // km
	Polygon []api.Geo `json:"polygon,omitempty"`
}

// Bound limits the distance from the nearest of some points, as round trip or on the earth.
// Exactly one of RTT and Km is above 0.
type Bound struct {
	To     string         `json:"to"` // for people: "pre.prod", "munich", "198.51.100.7"
	Points []api.Position `json:"points,omitempty"`
	// Places are further points, prepared for many requests. Checked if Level is Nodes.
	Places []*Places     `json:"-"`
	RTT    time.Duration `json:"rtt,omitempty"`
	Km     float64       `json:"km,omitempty"`
	// Measured are measured round trips to the nearest point, by candidate. They have
	// precedence over estimates.
	Measured map[string]time.Duration `json:"measured,omitempty"`
	// Unknown says why there are no points ("its position is being measured"). Then no
	// candidate passes.
	Unknown string `json:"unknown,omitempty"`

	// Search is how long to search for a place that keeps the bound. After that time the
	// instance may be placed where the bound is broken; see Request.Relax. 0: never.
	Search time.Duration `json:"-"`
	Wanted bool          `json:"-"` // another service's link to the instance's own asks for it
}

// Domain is a full set of candidates: By "node" or "cluster" the one of that name, else all
// nodes whose label By has the value Name. If candidates are nodes, a domain By "cluster" is
// their own cluster and contains all of them. If they are clusters, only domains By "cluster"
// count.
type Domain struct {
	By           string `json:"by"`
	Name         string `json:"name"`
	AntiAffinity string `json:"apart,omitempty"` // the service that it must be apart from; empty: its own, spread
	Have         int    `json:"have"`            // instances there
	Limit        int    `json:"limit"`           // the most that may be
}

// RequestFor returns the request for an instance of a service as far as its SLA determines it.
// Each constraint narrows the others. The core adds bounds, full domains and peers; see
// LinksOf, SpreadsOf and AntiAffinitiesOf.
func RequestFor(id api.InstanceID, m *api.Microservice) Request {
	r := Request{
		ID:             string(id),
		Tenant:         id.Tenant(),
		Needs:          m.Needs(),
		Virtualization: RuntimeName(m.Virtualization),
		Arch:           m.Arch,
		Privileged:     m.Privileged,
		Network:        m.NeedsNetwork(),
		Address:        m.TakesAddress(),
		Ports:          PortsOf(m),
		Devices:        m.NeedsDevices(),
		Urgency:        m.Urgency(),
		Convergence:    ConvergenceOf(m),
	}
	for _, c := range m.Constraints {
		switch c.Type {
		case api.ConstrainDirect:
			r.Clusters = narrow(r.Clusters, names(c.Cluster))
			r.Nodes = narrow(r.Nodes, names(c.Node))
		case api.ConstrainClusters:
			r.Clusters = narrow(r.Clusters, c.Allowed)
		case api.ConstrainAddons:
			r.Addons = append(r.Addons, c.Needs...)
		case api.ConstrainLabels:
			for _, l := range c.Labels {
				r.Labels = append(r.Labels, ParseSelector(l))
			}
		case api.ConstrainGeo:
			r.Zones = append(r.Zones, zoneOf(c))
		}
	}
	return r
}

// ParseSelector reads "key=value", "key!=value", "key" or "!key".
func ParseSelector(text string) Selector {
	key, value, valued := strings.Cut(text, "=")
	s := Selector{Key: key, Value: value, Any: !valued}
	if valued {
		s.Key, s.Not = strings.CutSuffix(key, "!")
	} else {
		s.Key, s.Not = strings.CutPrefix(key, "!")
	}
	s.Key, s.Value = strings.TrimSpace(s.Key), strings.TrimSpace(s.Value)
	return s
}

// zoneOf returns the zone of a geo constraint. An invalid constraint, which the parser
// refuses, is a zone without places.
func zoneOf(c api.Constraint) Zone {
	corners := make([]api.Geo, 0, len(c.Polygon))
	for _, p := range c.Polygon {
		g, err := api.ParseGeo(p)
		if err != nil {
			return Zone{Area: nowhere}
		}
		corners = append(corners, g)
	}
	switch {
	case len(corners) > 0:
		return Zone{Polygon: corners}
	case c.Area != "":
		return Zone{Area: strings.ToLower(c.Area)}
	}
	g, err := api.ParseGeo(c.Location)
	if err != nil {
		return Zone{Area: nowhere}
	}
	return Zone{Circle: &g, Radius: c.Threshold}
}

// PortsOf returns the ports of its node that an instance of the service publishes.
func PortsOf(m *api.Microservice) []Port {
	if m.Port == "" {
		return nil
	}
	var out []Port
	for _, p := range m.Ports() {
		out = append(out, Port{p.Protocol, p.Host})
	}
	return out
}

// RuntimeName returns the canonical name of a runtime: Oakestra's documents say "docker" and
// "container" for the same.
func RuntimeName(virtualization string) string {
	if virtualization == "docker" {
		return "container"
	}
	return virtualization
}

// nowhere is not a valid name of a machine. It is what contradicting constraints leave, and an
// explanation shows it.
const nowhere = "(contradicting constraints)"

func narrow(have, by []string) []string {
	if len(by) == 0 {
		return have
	}
	if len(have) == 0 {
		return by
	}
	var both []string
	for _, h := range have {
		if slices.Contains(by, h) {
			both = append(both, h)
		}
	}
	if len(both) == 0 {
		return []string{nowhere}
	}
	return both
}

func names(list string) []string {
	var out []string
	for n := range strings.SplitSeq(list, ";") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}
