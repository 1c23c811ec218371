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
	Address        bool          `json:"address,omitempty"`  // it takes an overlay address, if any; checked for nodes
	Ports          []Port        `json:"ports,omitempty"`    // that must be free; checked for nodes
	Clusters       []string      `json:"clusters,omitempty"` // only these; empty: any; checked for clusters
	Nodes          []string      `json:"nodes,omitempty"`    // only these; empty: any; checked for nodes
	Features       []string      `json:"features,omitempty"` // all of them, see api.NodeInfo.Features
	Addons         []string      `json:"addons,omitempty"`   // all of them
	Labels         []Selector    `json:"labels,omitempty"`   // all of them; checked for nodes
	Zones          []Zone        `json:"zones,omitempty"`    // in all of them
	Bounds         []Bound       `json:"bounds,omitempty"`   // near enough to all of them
	Domains        []Domain      `json:"domains,omitempty"`  // full domains, by spread and anti-affinity
	Avoid          []string      `json:"avoid,omitempty"`    // candidates that just refused or failed; excluded

	Peers   map[string]int `json:"peers,omitempty"` // number of instances of the same service by candidate
	Urgency int            `json:"urgency"`         // index in api.Priorities

	// VolumeAt is the candidate that has the local volumes of the instance; empty: none has.
	VolumeAt string `json:"volume_at,omitempty"`
	// VolumeIn are the candidates from which its CSI volumes are accessible, sorted, and VolumeKeys the
	// topology keys that say so, for people; empty VolumeKeys: all candidates.
	VolumeIn   []string `json:"volume_in,omitempty"`
	VolumeKeys string   `json:"volume_keys,omitempty"`

	// TogetherAt is the cluster that has the other instances of the service, with which this one takes
	// turns; empty: any.
	TogetherAt string `json:"together_at,omitempty"`

	// Convergence is how long a scheduler may search. Then the best result so far is used.
	Convergence time.Duration `json:"convergence,omitempty"`

	// Search is the minimum Bound.Search of the links that cannot be measured at this level;
	// a lower tier may find them violated. 0: there are none.
	Search time.Duration `json:"-"`
}

// Selector is one condition on a node's labels.
type Selector = api.Selector

// Zone is an area in which a candidate must be. Exactly one of Area, Circle (with Radius) and
// Polygon is set. A cluster passes if one of its nodes may be in the zone.
type Zone struct {
	Area    string    `json:"area,omitempty"`   // a name that the candidate has
	Circle  *api.Geo  `json:"circle,omitempty"` // its centre
	Radius  float64   `json:"radius,omitempty"` // km
	Polygon []api.Geo `json:"polygon,omitempty"`
}

// Bound limits the distance to the nearest of some points, as a round trip or on the earth.
// Exactly one of RTT and Km is above 0.
type Bound struct {
	To     string         `json:"to"` // for people: "pre.prod", "munich", "198.51.100.7"
	Points []api.Position `json:"points,omitempty"`
	// Places are further points, prepared for many requests; checked for nodes.
	Places []*Places     `json:"-"`
	RTT    time.Duration `json:"rtt,omitempty"`
	Km     float64       `json:"km,omitempty"`
	// Measured are measured round trips to the nearest point, by candidate. They take
	// precedence over estimates.
	Measured map[string]time.Duration `json:"measured,omitempty"`
	// Unknown is why there are no points ("its position is being measured"). No candidate
	// passes such a bound.
	Unknown string `json:"unknown,omitempty"`

	// Search is how long to search for a place that meets the bound. After that time the
	// instance may be placed where it is violated; see Request.Relax. 0: never.
	Search  time.Duration `json:"-"`
	Inbound bool          `json:"-"` // from another service's link to the instance's service
}

// Domain is a full domain. With By "node" or "cluster", it is the candidate Name; otherwise,
// all nodes whose label By has the value Name. If candidates are nodes, a domain By "cluster"
// is their own cluster and contains all of them. If candidates are clusters, only domains By
// "cluster" apply.
type Domain struct {
	By           string `json:"by"`
	Name         string `json:"name"`
	AntiAffinity string `json:"apart,omitempty"` // service to keep away from; empty: full by spread
	Have         int    `json:"have"`            // number of instances there
	Limit        int    `json:"limit"`           // maximum of spread
}

// RequestFor returns the part of an instance's request that its SLA determines. All
// constraints apply. The core adds bounds, full domains and peers; see LinksOf, SpreadsOf and
// AntiAffinitiesOf.
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
		Features:       m.Features(),
		Devices:        m.NeedsDevices(),
		Urgency:        m.Urgency(),
		Convergence:    ConvergenceOf(m),
	}
	for _, c := range m.Constraints {
		switch c.Type {
		case api.ConstrainDirect:
			r.Clusters = restrict(r.Clusters, splitNames(c.Cluster))
			r.Nodes = restrict(r.Nodes, splitNames(c.Node))
		case api.ConstrainClusters:
			r.Clusters = restrict(r.Clusters, c.Allowed)
		case api.ConstrainAddons:
			r.Addons = append(r.Addons, c.Needs...)
		case api.ConstrainLabels:
			for _, l := range c.Labels {
				r.Labels = append(r.Labels, api.ParseSelector(l))
			}
		case api.ConstrainGeo:
			r.Zones = append(r.Zones, zoneOf(c))
		}
	}
	return r
}

// zoneOf returns the zone of a geo constraint. An invalid constraint, which the parser should
// have refused, is a zone that excludes all candidates.
func zoneOf(c api.Constraint) Zone {
	corners := make([]api.Geo, 0, len(c.Polygon))
	for _, p := range c.Polygon {
		g, err := api.ParseGeo(p)
		if err != nil {
			return Zone{Area: contradiction}
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
		return Zone{Area: contradiction}
	}
	return Zone{Circle: &g, Radius: c.Threshold}
}

// PortsOf returns the node ports that an instance of the service publishes.
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

// RuntimeName returns the canonical name of a runtime. Oakestra's documents use "docker" and
// "container" for the same runtime.
func RuntimeName(virtualization string) string {
	if virtualization == "docker" {
		return "container"
	}
	return virtualization
}

// contradiction is the only name left by contradicting constraints. No machine can have it, and
// explanations show it.
const contradiction = "(contradicting constraints)"

func restrict(have, by []string) []string {
	if len(by) == 0 {
		return have
	}
	if len(have) == 0 {
		return by
	}
	both := slices.DeleteFunc(slices.Clone(have), func(h string) bool { return !slices.Contains(by, h) })
	if len(both) == 0 {
		return []string{contradiction}
	}
	return both
}

func splitNames(list string) []string {
	var out []string
	for n := range strings.SplitSeq(list, ";") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}
