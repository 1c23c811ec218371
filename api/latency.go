package api

import "time"

// LatencyBy is how a round trip is known.
type LatencyBy string

const (
	ByConnections LatencyBy = "connections" // the kernels' measurements of TCP connections
	ByNode        LatencyBy = "node"        // both ends are on one node
	ByCoordinates LatencyBy = "coordinates" // estimated by the nodes' coordinates
)

// LinkStatus is the round trip between a running instance and the nearest instance of a service that
// its SLA bounds the latency to.
type LinkStatus struct {
	Instance InstanceID    `json:"instance"`
	To       string        `json:"to" doc:"The other service, as the SLA names it."`
	Limit    time.Duration `json:"limit_ns" doc:"The round trip that the SLA demands at most."`
	RTT      time.Duration `json:"rtt_ns"`
	By       LatencyBy     `json:"by" enum:"connections,node,coordinates" doc:"connections: measured by TCP; node: both are on one node; coordinates: estimated."`
}

// ClusterLatencies are those of one cluster.
type ClusterLatencies struct {
	Links []LinkStatus `json:"links"`
}

// Latencies are the round trips of an application's links. Links whose round trip is unknown are left out.
type Latencies struct {
	Links  []LinkStatus `json:"links"`
	Silent []ClusterID  `json:"silent,omitempty" doc:"Clusters with such instances that did not answer."`
}

// MaxLatencies bounds the links in an answer.
const MaxLatencies = 1024
