// Package sched ranks candidates for a request by the same rules at both tiers: clusters at
// the root, nodes in a cluster. It does no I/O. The same request, candidates, plugin and seed
// give the same answer, so that any decision can be replayed.
//
//	res := sched.Place(req, candidates, rom.Plugin{}, sched.SeedOf(id, epoch))
//	res.Ranked[0].ID
package sched

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Level is the kind of candidates.
type Level string

// The two levels.
const (
	Clusters Level = "cluster"
	Nodes    Level = "node"
)

// Slot describes the resources of one kind of node. A node has one Slot, a cluster has one
// per kind of node. A cluster uses Unreported for values that it does not report.
type Slot struct {
	Runtimes   []string      `json:"runtimes"`
	Arch       string        `json:"arch"`
	Privileged bool          `json:"privileged,omitempty"`
	Network    bool          `json:"network,omitempty"` // it has an overlay network
	Full       bool          `json:"full,omitempty"`    // of nodes: the network has no free address
	Areas      []string      `json:"areas,omitempty"`   // lower case
	Addons     []string      `json:"addons,omitempty"`
	Features   []string      `json:"features,omitempty"` // of SLAs that it supports
	Free       api.Resources `json:"free"`               // in a cluster, the sum over the nodes of this kind
	Largest    api.Resources `json:"largest"`            // the maximum that one instance can get of each resource
	// BandwidthUnknown is the number of nodes of this kind whose bandwidth is unknown. Their
	// bandwidth counts as 0 in Free and Largest.
	BandwidthUnknown int            `json:"bandwidth_unknown,omitempty"`
	Devices          map[string]int `json:"devices,omitempty"` // maximum for one instance, by kind; read-only
}

// Candidate is a node or cluster for a request. External schedulers get it as JSON, without
// Grant, Ports and Own.
type Candidate struct {
	ID       string            `json:"id"`
	Level    Level             `json:"level"`
	Out      string            `json:"out,omitempty"` // why it takes no work ("silent", "cordoned"); empty: it does
	Capacity api.Resources     `json:"capacity"`
	Free     api.Resources     `json:"free"`
	Slots    []Slot            `json:"rooms"`
	Grant    *Grant            `json:"-"`    // of a cluster; nil: it is open to all tenants
	Ports    map[Port]int      `json:"-"`    // number of instances on the node that publish the port
	Own      *api.NodePorts    `json:"-"`    // ports that may be published on the node; nil: all
	Load     int               `json:"load"` // number of instances
	Labels   map[string]string `json:"labels,omitempty"`

	// Geo is a node's location. Coord is a node's coordinate, or the centre of a cluster's.
	Geo   *api.Geo        `json:"geo,omitempty"`
	Coord *api.Coordinate `json:"coord,omitempty"`
	// Of a cluster: Hull contains all nodes except Unplaced ones; Radius is the largest
	// estimated distance of a node from Coord.
	Hull     []api.Geo     `json:"hull,omitempty"`
	Unplaced int           `json:"unplaced,omitempty"`
	Radius   time.Duration `json:"radius,omitempty"`
	// Age is the age of the information. Scores decrease with it; see Facts.Fresh.
	Age time.Duration `json:"age,omitempty"`
	// Spread is the standard deviation of the nodes' free resources; the mean is Free divided
	// by Nodes.
	Spread api.Resources `json:"spread,omitzero"`
	Nodes  int           `json:"nodes,omitempty"`
}

// Grant names the tenants that a cluster is open to.
type Grant struct {
	Owner api.Tenant // "": the installation
	api.Grant
}

func (g *Grant) admits(t api.Tenant) bool { return g == nil || g.Admits(g.Owner, t) }

func (g *Grant) owner() string {
	if g.Owner == "" {
		return "the installation"
	}
	return string(g.Owner)
}

// Port is a port of a node.
type Port struct {
	Protocol string `json:"protocol"`
	Number   uint16 `json:"number"`
}

// Choice is a candidate that fits and its score; a higher score is better.
type Choice struct {
	ID    string  `json:"id"`
	Score float64 `json:"score"`
}

// Result has the candidates that fit, best first, and for each other candidate the constraint
// that excluded it.
type Result struct {
	Ranked   []Choice
	Rejected []api.Rejection
}

// Plugin scores candidates that fit. The filters are the same for all plugins. Score must be
// fast and depend on f only: it may be called for every candidate that fits, or once for
// several candidates with equal facts.
type Plugin interface {
	Name() string
	Score(f Facts) float64
}
