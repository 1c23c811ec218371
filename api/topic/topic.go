// Package topic defines the MQTT topics between a cluster and its nodes, with their quality of
// service and retention. A node may use only its own subtree nodes/<id>/. The broker's access list
// is derived from Up.
package topic

import (
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Leaf is the last part of a topic.
type Leaf struct {
	Name   string
	QoS    byte
	Retain bool
	Up     bool // from node to cluster; otherwise from cluster to node
}

var (
	Desired  = Leaf{Name: "desired", QoS: 1, Retain: true} // the whole desired set: wire.Desired
	Delta    = Leaf{Name: "delta", QoS: 1}                 // a change or a part of a large desired set: wire.Desired
	Lease    = Leaf{Name: "lease", QoS: 0}                 // wire.Lease
	Stream   = Leaf{Name: "stream", QoS: 1}                // requests a stream from the node: wire.StreamRequest
	Observed = Leaf{Name: "observed", QoS: 1, Up: true}    // wire.NodeReport
	Alive    = Leaf{Name: "alive", QoS: 0, Up: true}       // wire.Alive, binary
	Will     = Leaf{Name: "will", QoS: 1, Up: true}        // the last will, empty
	Routes   = Leaf{Name: "routes", QoS: 1}                // for the node's netmanager: wire.NetDown, whole or in parts
	Interest = Leaf{Name: "interest", QoS: 1, Up: true}    // from the node's netmanager: wire.NetUp
	Probe    = Leaf{Name: "probe", QoS: 0}                 // orders a probe of a user: wire.ProbeOrder
	Probed   = Leaf{Name: "probed", QoS: 0, Up: true}      // the result of a probe: wire.Probed
)

// All lists the leaves.
var All = []Leaf{Desired, Delta, Lease, Stream, Observed, Alive, Will, Routes, Interest, Probe, Probed}

const root = "nodes/"

// Of returns the leaf's topic for node n.
func (l Leaf) Of(n api.NodeID) string { return root + string(n) + "/" + l.Name }

// Every returns the filter for the leaf's topics of all nodes. Only a cluster may use it.
func (l Leaf) Every() string { return root + "+/" + l.Name }

// Parse returns the node and the leaf of a topic. ok is false if the topic is unknown.
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

// MaySubscribe reports whether node n may subscribe to the filter. It refuses wildcards and shared
// subscriptions.
func MaySubscribe(n api.NodeID, filter string) bool {
	id, l, ok := Parse(filter)
	return ok && id == n && !l.Up
}
