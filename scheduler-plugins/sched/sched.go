// Package sched ranks candidates for a request: clusters at the root, nodes in
// a cluster, with the same rules. It is pure; the same request, candidates,
// plugin and seed give the same answer, so that any decision can be replayed.
//
//	res := sched.Place(req, candidates, rom.Plugin{}, sched.SeedOf(id, epoch))
//	res.Ranked[0].ID
package sched

import "github.com/treeline-edge/treeline/api"

// Request is what is to be placed.
type Request struct {
	ID             string
	Needs          api.Resources
	Virtualization string
	Arch           []string // any of them; empty: any
	Privileged     bool
	Network        bool           // it needs an overlay network
	Ports          []Port         // that must be free on the node. Checked where Level is Nodes
	Clusters       []string       // only these; empty: any. Checked where Level is Clusters
	Nodes          []string       // only these; empty: any. Checked where Level is Nodes
	Avoid          []string       // candidates that just refused or failed; ruled out
	Peers          map[string]int // how many instances of the same service each candidate has
}

// Level says what the candidates are.
type Level string

// The two levels.
const (
	Clusters Level = "cluster"
	Nodes    Level = "node"
)

// Room is one kind of place that a candidate has: one for a node, one per kind
// of node for a cluster.
type Room struct {
	Runtimes   []string
	Arch       string
	Privileged bool
	Network    bool          // an overlay network is there
	Free       api.Resources // at a cluster Σ over the nodes of this kind
	Largest    api.Resources // the most that one instance can get, part by part
}

// Candidate is where a request may go.
type Candidate struct {
	ID       string
	Level    Level
	Out      string // why it takes no work at all now ("silent", "cordoned"); empty: it does
	Capacity api.Resources
	Free     api.Resources
	Rooms    []Room
	Ports    map[Port]int // that instances publish on the node, and how many do
	Load     int          // instances that it has
}

// Port is a port of a node, of one protocol.
type Port struct {
	Protocol string
	Number   uint16
}

// Choice is a candidate that fits, with its score; more is better.
type Choice struct {
	ID    string
	Score float64
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
