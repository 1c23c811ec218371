// Package topic names the MQTT topics between a cluster and its nodes, with
// their quality of service and retention. A node reads and writes its own
// subtree, nodes/<id>/, and nothing else; the broker's ACL is made from Up and Down.
package topic

import (
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Leaf is what a topic carries.
type Leaf struct {
	Name   string
	QoS    byte
	Retain bool
	Up     bool // the node writes and the cluster reads; else the other way round
}

// The leaves of a node's subtree.
var (
	Desired  = Leaf{Name: "desired", QoS: 1, Retain: true} // the whole desired set: api.Desired
	Delta    = Leaf{Name: "delta", QoS: 1}                 // a change of a large desired set, or a whole in parts: api.Desired
	Lease    = Leaf{Name: "lease", QoS: 0}                 // api.Lease
	Stream   = Leaf{Name: "stream", QoS: 1}                // asks the node to dial a stream out: api.StreamRequest
	Observed = Leaf{Name: "observed", QoS: 1, Up: true}    // api.NodeReport
	Alive    = Leaf{Name: "alive", QoS: 0, Up: true}       // api.Alive, binary
	Will     = Leaf{Name: "will", QoS: 1, Up: true}        // the last will, empty
	Routes   = Leaf{Name: "routes", QoS: 1}                // for the node's netmanager: api.NetDown, whole or in parts
	Interest = Leaf{Name: "interest", QoS: 1, Up: true}    // of the node's netmanager: api.NetUp, whole or in parts
	Probe    = Leaf{Name: "probe", QoS: 0}                 // asks for a round trip to a user: api.ProbeOrder
	Probed   = Leaf{Name: "probed", QoS: 0, Up: true}      // answers it: api.Probed
)

// All are the leaves, for subscriptions and access lists.
var All = []Leaf{Desired, Delta, Lease, Stream, Observed, Alive, Will, Routes, Interest, Probe, Probed}

const root = "nodes/"

// Of is the topic of node n for the leaf.
func (l Leaf) Of(n api.NodeID) string { return root + string(n) + "/" + l.Name }

// Every is the filter that matches the leaf of every node; only a cluster may use it.
func (l Leaf) Every() string { return root + "+/" + l.Name }

// Parse takes a topic apart. ok is false for a topic that is none of ours.
func Parse(topic string) (n api.NodeID, l Leaf, ok bool) {
	rest, found := strings.CutPrefix(topic, root)
	if !found {
		return "", Leaf{}, false
	}
	id, name, found := strings.Cut(rest, "/")
	if !found || !api.ValidMachineName(id) {
		return "", Leaf{}, false
	}
	for _, l := range All {
		if l.Name == name {
			return api.NodeID(id), l, true
		}
	}
	return "", Leaf{}, false
}

// MayPublish reports whether node n may write to the topic.
func MayPublish(n api.NodeID, topic string) bool {
	id, l, ok := Parse(topic)
	return ok && id == n && l.Up
}

// MaySubscribe reports whether node n may read with the filter. Wildcards and
// shared subscriptions are refused: a node names the topics it reads.
func MaySubscribe(n api.NodeID, filter string) bool {
	id, l, ok := Parse(filter)
	return ok && id == n && !l.Up
}
