// Package sched ranks candidates for a request: clusters at the root, nodes in
// a cluster, with the same rules. It is pure; the same request, candidates,
// plugin and seed give the same answer, so that any decision can be replayed.
//
//	res := sched.Place(req, candidates, rom.Plugin{}, sched.SeedOf(id, epoch))
//	res.Ranked[0].ID
package sched

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Request is what is to be placed. It is also what external schedulers are told
// of it, as JSON.
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

	// Convergence is how long a scheduler may search; what it has then counts.
	Convergence time.Duration `json:"convergence,omitempty"`

	// Search is the least Bound.Search of the links that cannot be measured at this level;
	// a lower level may find them broken. 0: there are none.
	Search time.Duration `json:"-"`
}

// Selector is one demand on a node's labels.
type Selector struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	Any   bool   `json:"any,omitempty"` // whatever its value
	Not   bool   `json:"not,omitempty"` // the opposite; a node without the key satisfies it
}

// Zone is a part of the earth that a candidate must be in. Exactly one of Area,
// Circle (with Radius) and Polygon is set. A cluster passes where a node of it may
// be in the zone.
type Zone struct {
	Area    string    `json:"area,omitempty"`   // a name that the candidate has
	Circle  *api.Geo  `json:"circle,omitempty"` // its centre
	Radius  float64   `json:"radius,omitempty"` // km
	Polygon []api.Geo `json:"polygon,omitempty"`
}

// Bound is the most that a candidate may be away from the nearest of some points,
// by round trip or by distance on the earth. Exactly one of RTT and Km is above 0.
type Bound struct {
	To     string         `json:"to"` // for people: "pre.prod", "munich", "198.51.100.7"
	Points []api.Position `json:"points,omitempty"`
	// Places are more points, kept ready for many requests. Checked where Level is Nodes.
	Places []*Places     `json:"-"`
	RTT    time.Duration `json:"rtt,omitempty"`
	Km     float64       `json:"km,omitempty"`
	// Measured are round trips to the nearest point that were measured, by candidate;
	// they count before what coordinates estimate.
	Measured map[string]time.Duration `json:"measured,omitempty"`
	// Unknown says why there are no points ("its position is being measured"); nobody
	// passes then.
	Unknown string `json:"unknown,omitempty"`

	// Search is how long to search for a place that keeps the bound. After that time the
	// instance may be placed where the bound is broken; see Request.Relax. 0: never.
	Search time.Duration `json:"-"`
	Wanted bool          `json:"-"` // another service's link to the instance's own asks for it
}

// Domain is a set of candidates that take no more: By "node" or "cluster" it is
// the one of that name, else all nodes whose label By has the value Name. Where
// candidates are nodes, one By "cluster" is their own cluster, and so all of them;
// where they are clusters, only such By "cluster" count.
type Domain struct {
	By    string `json:"by"`
	Name  string `json:"name"`
	Apart string `json:"apart,omitempty"` // the service that it must be apart from; empty: its own, spread
	Have  int    `json:"have"`            // instances there
	Limit int    `json:"limit"`           // the most that may be
}

// Level says what the candidates are.
type Level string

// The two levels.
const (
	Clusters Level = "cluster"
	Nodes    Level = "node"
)

// Room is one kind of place that a candidate has: one for a node, one per kind
// of node for a cluster. For what a cluster does not tell see Untold.
type Room struct {
	Runtimes   []string      `json:"runtimes"`
	Arch       string        `json:"arch"`
	Privileged bool          `json:"privileged,omitempty"`
	Network    bool          `json:"network,omitempty"` // it has an overlay network
	Full       bool          `json:"full,omitempty"`    // of nodes: the network has no free address
	Areas      []string      `json:"areas,omitempty"`   // lower case
	Addons     []string      `json:"addons,omitempty"`
	Free       api.Resources `json:"free"`    // at a cluster Σ over the nodes of this kind
	Largest    api.Resources `json:"largest"` // the most that one instance can get, part by part
	// BandwidthUnknown is the number of nodes of this kind whose bandwidth is unknown,
	// 1 for such a node. They count as 0 in Free and Largest.
	BandwidthUnknown int            `json:"bandwidth_unknown,omitempty"`
	Devices          map[string]int `json:"devices,omitempty"` // by kind the most that one instance can get; read only
}

// Candidate is where a request may go. It is also what external schedulers are
// told of it, as JSON, without Ports and Own.
type Candidate struct {
	ID       string            `json:"id"`
	Level    Level             `json:"level"`
	Out      string            `json:"out,omitempty"` // why it takes no work at all now ("silent", "cordoned"); empty: it does
	Capacity api.Resources     `json:"capacity"`
	Free     api.Resources     `json:"free"`
	Rooms    []Room            `json:"rooms"`
	Grant    *Grant            `json:"-"`    // of a cluster; nil: it is open to all tenants
	Ports    map[Port]int      `json:"-"`    // that instances publish on the node, and how many do
	Own      *api.NodePorts    `json:"-"`    // what may be published there at all; nil: everything
	Load     int               `json:"load"` // instances that it has
	Labels   map[string]string `json:"labels,omitempty"`

	// Where it is: a node's own place, a cluster's whole extent.
	Geo   *api.Geo        `json:"geo,omitempty"`
	Coord *api.Coordinate `json:"coord,omitempty"`
	// Of clusters: Hull is around all nodes but Unplaced ones; Radius is how far its
	// nodes are from Coord by the estimate.
	Hull     []api.Geo     `json:"hull,omitempty"`
	Unplaced int           `json:"unplaced,omitempty"`
	Radius   time.Duration `json:"radius,omitempty"`
	// Age is how old what is known of it is; scores fade with it.
	Age time.Duration `json:"age,omitempty"`
	// Spread is σ of what its nodes have free; a cluster's μ is Free by Nodes.
	Spread api.Resources `json:"spread,omitzero"`
	Nodes  int           `json:"nodes,omitempty"`
}

// Grant says which tenants a cluster is open to.
type Grant struct {
	Owner api.Tenant // "": the installation
	api.Grant
}

func (g *Grant) admits(t api.Tenant) bool { return g == nil || g.Admits(g.Owner, t) }

// owner returns the owner as text for people.
func (g *Grant) owner() string {
	if g.Owner == "" {
		return "the installation"
	}
	return string(g.Owner)
}

// Port is a port of a node, of one protocol.
type Port struct {
	Protocol string `json:"protocol"`
	Number   uint16 `json:"number"`
}

// Choice is a candidate that fits, with its score; more is better.
type Choice struct {
	ID    string  `json:"id"`
	Score float64 `json:"score"`
}

// Result is the answer to a request: the candidates that fit, best first, and
// for each other the constraint that ruled it out. Every candidate is in one of both.
type Result struct {
	Ranked   []Choice
	Rejected []api.Rejection
}

// Plugin scores a candidate that fits; filters are common to all plugins.
// Score must be pure and cheap: it is called once per fitting candidate.
type Plugin interface {
	Name() string
	Score(req *Request, c *Candidate) float64
}
