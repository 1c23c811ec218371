package api

import (
	"encoding/json"
	"net/netip"
	"time"
)

// NodeInfo describes a node. The node sends it when it joins and when it starts.
type NodeInfo struct {
	ID       NodeID    `json:"id"`
	Hostname string    `json:"hostname,omitempty"`
	Address  string    `json:"address,omitempty"` // IP address or name at which its published ports are reached, as the node says; empty: unknown
	Arch     string    `json:"arch"`              // GOARCH
	OS       string    `json:"os"`                // GOOS
	Capacity Resources `json:"capacity"`
	// BandwidthUnknown is set if the node cannot determine its bandwidth. Capacity.InMbit
	// and Capacity.OutMbit are 0 then, which means unknown.
	BandwidthUnknown bool              `json:"bandwidth_unknown,omitempty"`
	Runtimes         []string          `json:"runtimes"`             // values for `virtualization`: "container", "process", handlers such as "runsc"
	Privileged       bool              `json:"privileged,omitempty"` // its operator allows privileged workloads
	Labels           map[string]string `json:"labels,omitempty"`
	Version          string            `json:"version,omitempty"`
	RuntimeError     string            `json:"runtime_error,omitempty"` // why the runtime does not work now
	Network          string            `json:"network,omitempty"`       // of its containers: NetworkOverlay, NetworkHost or NetworkNone
	NetworkError     string            `json:"network_error,omitempty"` // why the overlay network is not ready; the node gets no new instances then
	Devices          []NodeDevice      `json:"devices,omitempty"`       // in the order of their ids
	Addons           []string          `json:"addons,omitempty"`        // names of its addons, sorted
	Location         *Geo              `json:"location,omitempty"`      // nil: not known
	Areas            []string          `json:"areas,omitempty"`         // names of places and its country's code, lower case, sorted
	Ports            *NodePorts        `json:"ports,omitempty"`         // what workloads may publish; nil: any port
	Brokers          []string          `json:"brokers,omitempty"`       // of its cluster, as received in Desired.Brokers; empty: the one that it joined with
	Volumes          []NodeVolume      `json:"volumes,omitempty"`       // local volumes on it, in the order of their ids
	CSI              []NodeCSI         `json:"csi,omitempty"`           // its CSI drivers, sorted by name; each has a feature, too
	Features         []string          `json:"features,omitempty"`      // of SLAs that it supports, such as FeatureHealth, sorted; earlier releases report none
}

const (
	NetworkOverlay = "overlay" // each has an address, which the node's netmanager assigns
	NetworkHost    = "host"    // the network of the node
	NetworkNone    = "none"    // only loopback
)

// Digest returns a fingerprint of i for heartbeats, so that the cluster detects a lost
// NodeInfo.
func (i NodeInfo) Digest() Digest {
	b, err := json.Marshal(i)
	if err != nil {
		panic("encode a node's info: " + err.Error()) // all fields can be encoded
	}
	return DigestOf(string(b))
}

type NodeStatus string

const (
	NodeReady    NodeStatus = "ready"
	NodeJoining  NodeStatus = "joining" // not connected yet
	NodeSilent   NodeStatus = "silent"  // no heartbeat for the dead time
	NodeCordoned NodeStatus = "cordoned"
	NodeDraining NodeStatus = "draining"
)

// Node is a node in the API of its cluster.
type Node struct {
	NodeInfo
	Cluster   ClusterID  `json:"cluster"`
	Status    NodeStatus `json:"status"`
	Allocated Resources  `json:"allocated"` // to instances that run on it or may still run
	Instances int        `json:"instances"`
	CPUUsed   int        `json:"cpu_used_percent"`
	MemUsed   int        `json:"memory_used_percent"`
	Heard     time.Time  `json:"heard,omitzero"` // last heartbeat, cluster's clock
	Joined    time.Time  `json:"joined"`
	// Reserved is kept for instances that wait until others have stopped. It is not part of
	// Allocated; until then, the sum of both may exceed the capacity.
	Reserved Resources `json:"reserved,omitzero"`
	// Subnet is the node's part of the instance network; zero: none.
	Subnet netip.Prefix `json:"subnet,omitzero"`
	// Coord is its coordinate in the latency space; nil: not measured yet.
	Coord *Coordinate `json:"coord,omitempty"`
	// Remaining lists the first MaxRemaining instances that a draining node still has,
	// and why. Instances that have ended for good are not in it. Lists of nodes omit it.
	Remaining []Remaining `json:"remaining,omitempty"`
	// Caps were set by `treeline cap node`. For each value, the lower one of these and the
	// cluster's configuration applies.
	Caps Caps `json:"caps,omitzero"`
	// Capped lists the values that the node reports above its caps. NodeInfo has the capped values.
	Capped []Capped `json:"capped,omitempty"`
	// Purging is set while the node has to delete its workloads, keys and data. The node is removed
	// when it acknowledges that. PurgeError is why its last attempt failed.
	Purging    bool   `json:"purging,omitempty"`
	PurgeError string `json:"purge_error,omitempty"`
}

// Capped is one value of a node that exceeds its cap.
type Capped struct {
	What   string `json:"what"`   // "memory", "privileged", or a kind of device
	Claims string `json:"claims"` // "1048576 MiB"
	Counts string `json:"counts"` // "8192 MiB"
}

// MaxRemaining limits Node.Remaining.
const MaxRemaining = 100

// Remaining is an instance that a drained node still has.
type Remaining struct {
	Instance InstanceID `json:"instance"`
	State    State      `json:"state,omitempty"`
	Why      string     `json:"why"`
	Reason   Reason     `json:"reason,omitempty"` // ReasonDisruption, or none
	Stuck    bool       `json:"stuck,omitempty"`  // it fits on no other node, or its disruption budget never permits a move
}

// ClusterInfo describes a cluster. The cluster sends it when it joins.
type ClusterInfo struct {
	ID       ClusterID `json:"id"`
	Location string    `json:"location,omitempty"`
	Tenant   Tenant    `json:"tenant,omitempty"` // its operator's tenant
	Version  string    `json:"version,omitempty"`
	// Block is a number that the root assigns to the cluster. Instances that the cluster adds
	// itself have numbers from (Block+1)*100000 on.
	Block int `json:"block"`
}

// LocalNumbers returns the first number for instances that the cluster adds itself.
func (c ClusterInfo) LocalNumbers() int { return (c.Block + 1) * 100_000 }

type ClusterStatus string

const (
	ClusterReady   ClusterStatus = "ready"
	ClusterJoining ClusterStatus = "joining" // no report since the root started
	ClusterSilent  ClusterStatus = "silent"  // no report for the dead time
)

// Cluster is a cluster in the API: its aggregate, never its nodes.
type Cluster struct {
	ClusterInfo
	Status    ClusterStatus `json:"status"`
	Aggregate Aggregate     `json:"aggregate"`
	Reserved  Resources     `json:"reserved"` // placed there by the root and not yet in the aggregate
	Instances int           `json:"instances"`
	Heard     time.Time     `json:"heard,omitzero"`
	Joined    time.Time     `json:"joined"`
	Revision  Revision      `json:"revision"`
	// Shares are the cluster's parts of the instance network.
	Shares []netip.Prefix `json:"shares,omitempty"`
	// NetworkError is why it has fewer shares than it needs.
	NetworkError string `json:"network_error,omitempty"`
	// Grant names the tenants whose services the cluster may run, and its caps.
	Grant Grant `json:"grant"`
}

// Aggregate is the distribution of a cluster's free capacity, ⟨Σ, μ, σ⟩ of the Oakestra paper
// §3.2, over its nodes that take work. It names no node.
type Aggregate struct {
	Nodes    int       `json:"nodes"`                   // that take work
	Overlay  *int      `json:"overlay_nodes,omitempty"` // of Nodes, with an overlay network; nil: unknown, from an earlier release
	Capacity Resources `json:"capacity"`                // Σ
	Free     Resources `json:"free"`                    // Σ of the unreserved resources
	Mean     Resources `json:"mean"`                    // μ of free
	StdDev   Resources `json:"std_dev"`                 // σ of free
	Largest  Resources `json:"largest"`                 // per resource the maximum free on one node
	// BandwidthUnknown is the number of these nodes whose bandwidth is unknown. They do not count
	// in the sums, means and deviations of bandwidth.
	BandwidthUnknown int    `json:"bandwidth_unknown,omitempty"`
	Slots            []Slot `json:"slots,omitempty"`
	// Hull is the convex hull of its nodes' locations. The operator may make it coarser, but not
	// smaller. Empty: unknown or hidden.
	Hull []Geo `json:"hull,omitempty"`
	// Unplaced counts the nodes without a location, which the hull does not cover.
	Unplaced int `json:"unplaced,omitempty"`
	// Latency is its nodes' extent in the latency space; nil: unknown or hidden.
	Latency *CoordSpread `json:"latency,omitempty"`
	// Preemptible are the resources that preemption could free, by urgency, if the cluster allows
	// it.
	Preemptible []Preemptible `json:"yields,omitempty"`
	// Features are the features of SLAs that at least one of its nodes supports, sorted. A cluster of
	// an earlier release reports none.
	Features []string `json:"features,omitempty"`
}

// Preemptible is the resources that an instance could get if all less urgent ones were evicted. It does
// not include devices and ports.
type Preemptible struct {
	Urgency int       `json:"urgency"` // index in Priorities
	Free    Resources `json:"free"`    // Σ over the nodes that take work
	Largest Resources `json:"largest"` // per resource the maximum on one of these nodes
}

// CoordSpread is the extent of a set of nodes in the latency space: the estimate of each is within
// Radius of Center.
type CoordSpread struct {
	Center Coordinate    `json:"center"`
	Radius time.Duration `json:"radius"`
	Nodes  int           `json:"nodes"` // number of nodes with a coordinate
}

// SlotDevice is a device kind in a Slot.
type SlotDevice struct {
	Name    string `json:"name"`
	Free    int    `json:"free"`    // Σ
	Largest int    `json:"largest"` // maximum on one node
}

// Slot is the largest free slot of one kind of node: the most that one instance could get.
type Slot struct {
	Runtime    string    `json:"runtime"`
	Arch       string    `json:"arch"`
	Privileged bool      `json:"privileged,omitempty"`
	Network    bool      `json:"network,omitempty"`  // with an overlay network
	Areas      []string  `json:"areas,omitempty"`    // common to all of its nodes
	Addons     []string  `json:"addons,omitempty"`   // common to all of its nodes
	Features   []string  `json:"features,omitempty"` // common to all of its nodes, see NodeInfo.Features
	Nodes      int       `json:"nodes"`
	Free       Resources `json:"free"`    // Σ
	Largest    Resources `json:"largest"` // per resource the maximum on one node

	BandwidthUnknown int `json:"bandwidth_unknown,omitempty"` // of Nodes; see Aggregate.BandwidthUnknown

	Devices []SlotDevice `json:"devices,omitempty"` // in the order of their names
}

// Explanation is why an instance has no place: the number of candidates that each constraint
// excluded, and the nearest miss. The counts add up to Considered; candidates that fit count as a
// cause of their own.
type Explanation struct {
	Considered int         `json:"considered"`
	Causes     []Cause     `json:"causes,omitempty"`
	Candidates []Rejection `json:"candidates,omitempty"` // empty unless the user may see them
	Nearest    *Rejection  `json:"nearest,omitempty"`
	// Scale is what scaling does with the instance's service in the cluster that has it.
	Scale *ScaleStanding `json:"scale,omitempty"`
}

// Cause is a constraint and the number of candidates that it excluded.
type Cause struct {
	Constraint string `json:"constraint"`
	Count      int    `json:"count"`
	Detail     string `json:"detail,omitempty"` // "need 512 MiB, best free 310 MiB"
}

// Rejection is the constraint that excluded a candidate, and the shortfall.
type Rejection struct {
	Candidate  string  `json:"candidate"`
	Constraint string  `json:"constraint"`
	Need       string  `json:"need,omitempty"`
	Have       string  `json:"have,omitempty"`
	Short      string  `json:"short,omitempty"`
	Shortfall  float64 `json:"shortfall,omitempty"` // as a fraction of the need; 1 if it has no amount
}

// Why answers `treeline why` for one instance, from both tiers.
type Why struct {
	Instance Instance     `json:"instance"`
	Summary  string       `json:"summary"`
	Root     Explanation  `json:"root"`               // clusters
	Clusters []ClusterWhy `json:"clusters,omitempty"` // the answers of clusters
	NextTry  time.Time    `json:"next_try,omitzero"`
	// SearchingUntil is the end of the search for a place that meets the instance's links to other
	// services. Afterwards the place that violates them least is used.
	SearchingUntil time.Time   `json:"searching_until,omitzero"`
	WouldHelp      []string    `json:"would_help,omitempty"` // changes that would help
	Placements     []Placement `json:"placements,omitempty"`
	// Ranked are the clusters that fit now, best first. The instance's own cluster is scored as if
	// its place were free.
	Ranked []RankedCluster `json:"ranked,omitempty"`
}

// RankedCluster is a cluster with its score; a higher score is better.
type RankedCluster struct {
	Cluster ClusterID `json:"cluster"`
	Score   float64   `json:"score"`
}

// ClusterWhy is one cluster's answer within a Why.
type ClusterWhy struct {
	Cluster ClusterID   `json:"cluster"`
	At      time.Time   `json:"at"`
	Answer  Explanation `json:"answer"`
}

// Placement is a past or present place of an instance.
type Placement struct {
	Epoch   Epoch     `json:"epoch"`
	Cluster ClusterID `json:"cluster"`
	At      time.Time `json:"at"`
	Reason  Reason    `json:"reason,omitempty"` // why the instance left it
	Score   float64   `json:"score,omitempty"`
}
