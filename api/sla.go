package api

import (
	"maps"
	"slices"
)

// SLA is the document a developer hands in: Oakestra's SLA v2.0, and the few
// fields that Treeline adds (replicas, exclusive, callers, devices, priority, …).
// What happens to each field today is in Fields; ParseSLA honours or refuses
// every one of them.
type SLA struct {
	Version      string        `json:"sla_version"`
	CustomerID   string        `json:"customerID,omitempty"`
	Applications []Application `json:"applications"`
}

// Application is a set of services that belong together.
type Application struct {
	ID          string         `json:"applicationID,omitempty"`
	Name        string         `json:"application_name"`
	Namespace   string         `json:"application_namespace"`
	Description string         `json:"application_desc,omitempty"`
	Services    []Microservice `json:"microservices"`
}

// Microservice describes one service and what it needs of the place it runs in.
type Microservice struct {
	ID             string       `json:"microserviceID,omitempty"`
	Name           string       `json:"microservice_name"`
	Namespace      string       `json:"microservice_namespace"`
	Virtualization string       `json:"virtualization"`
	Code           string       `json:"code"`
	Memory         int64        `json:"memory,omitempty"` // MiB; 0: what the cluster's operator sets
	VCPUs          float64      `json:"vcpus,omitempty"`  // vCPUs, thousandths count; 0: what the cluster's operator sets
	Cmd            []string     `json:"cmd,omitempty"`
	Environment    []string     `json:"environment,omitempty"` // "KEY=value"
	OneShot        bool         `json:"one_shot,omitempty"`
	MaxAttempts    int          `json:"max_attempts,omitempty"` // of a one-shot; 0 means DefaultAttempts
	Privileged     bool         `json:"privileged,omitempty"`
	Arch           []string     `json:"arch,omitempty"`     // GOARCH names; any of them
	Platform       string       `json:"platform,omitempty"` // the image's platform, "linux/amd64"
	Network        string       `json:"network,omitempty"`  // NetworkOverlay or NetworkAny; empty: see NeedsNetwork
	Port           string       `json:"port,omitempty"`     // "6080:80/tcp;5353:53/udp", see Ports
	Addresses      *Addresses   `json:"addresses,omitempty"`
	BandwidthIn    int64        `json:"bandwidth_in,omitempty"`  // Mbit/s to each instance; 0 bounds nothing
	BandwidthOut   int64        `json:"bandwidth_out,omitempty"` // Mbit/s from each instance
	Constraints    []Constraint `json:"constraints,omitempty"`

	Replicas     *int         `json:"replicas,omitempty"`      // instances wanted; absent keeps what is, 1 at first
	Exclusive    bool         `json:"exclusive,omitempty"`     // never twice at once, at the price of a stop when cut off
	OnDisconnect OnDisconnect `json:"on_disconnect,omitempty"` // what a cut-off node does
	StopGrace    int          `json:"stop_grace,omitempty"`    // seconds between SIGTERM and SIGKILL; 0 means 10
	Callers      []string     `json:"callers,omitempty"`       // who may call it; absent: all of the tenant's, see Access
	Calls        []string     `json:"calls,omitempty"`         // services of other tenants that it calls

	Storage      int64          `json:"storage,omitempty"`  // MiB of the node's disk; 0 reserves nothing
	VGPUs        int            `json:"vgpus,omitempty"`    // whole GPUs, see Devices
	VTPUs        int            `json:"vtpus,omitempty"`    // whole TPUs
	Devices      []Device       `json:"devices,omitempty"`  // devices of any other kind; none twice
	Priority     string         `json:"priority,omitempty"` // one of Priorities; empty: "normal"
	Connectivity []Connectivity `json:"connectivity,omitempty"`
}

// NetworkAny is the value of `network` of a service that may also run on nodes without
// an overlay network. The other value is NetworkOverlay.
const NetworkAny = "any"

// OnDisconnect says what a node does with an instance when it loses its cluster.
type OnDisconnect string

// The ways of OnDisconnect; the empty value means keep.
const (
	KeepRunning    OnDisconnect = "keep"
	StopWhenCutOff OnDisconnect = "stop"
)

// Priorities are the classes of `priority`, the least urgent first.
var Priorities = []string{"low", "normal", "high", "urgent"}

// The types of constraints.
const (
	ConstrainDirect   = "direct"   // to clusters or nodes by name
	ConstrainClusters = "clusters" // to clusters by name
	ConstrainAddons   = "addons"   // to nodes that have them
	ConstrainGeo      = "geo"      // to a circle (Location, Threshold), an Area or a Polygon
	ConstrainLatency  = "latency"  // to an Area, a Service or a Target (a user), within Threshold
	ConstrainLabels   = "labels"   // to nodes whose labels match
	ConstrainSpread   = "spread"   // at most Limit instances of the service per By
	ConstrainApart    = "apart"    // from the instances of other Services, per By
)

// Constraint narrows where a service may run.
type Constraint struct {
	Type    string   `json:"type"`
	Cluster string   `json:"cluster,omitempty"` // direct: one name, or several separated by ";"
	Node    string   `json:"node,omitempty"`    // direct: one name, or several separated by ";"
	Allowed []string `json:"allowed,omitempty"` // clusters: names
	Needs   []string `json:"needs,omitempty"`   // addons: names, all of them

	Area      string   `json:"area,omitempty"`      // geo, latency: an area's name or a country's code, as nodes have them
	Location  string   `json:"location,omitempty"`  // geo: "latitude,longitude", see ParseGeo
	Polygon   []string `json:"polygon,omitempty"`   // geo: corners as Location; the last joins the first
	Service   string   `json:"service,omitempty"`   // latency: a service of the application, "name.namespace"
	Target    string   `json:"target,omitempty"`    // latency: a user's host name or address, with a port for TCP
	Threshold float64  `json:"threshold,omitempty"` // geo: km; latency: ms of round trip

	// Rigidness is for how many seconds it may be violated before the instance moves;
	// 0 means DefaultRigidness. A document gives it as tolerate, or as rigidness, a share.
	Rigidness float64 `json:"rigidness,omitempty"`
	// Share is the document's rigidness, in (0, 1]: the share of the checks of the last
	// five minutes in which the constraint must be met. 0: Rigidness applies to each
	// violation by itself.
	Share float64 `json:"share,omitempty"`
	// ConvergenceTime is how many seconds placement may search and measure before it
	// takes the best that it found; 0 means DefaultConvergence.
	ConvergenceTime float64 `json:"convergence_time,omitempty"`

	Labels   []string `json:"labels,omitempty"`   // labels: "key=value", "key!=value", "key" or "!key", all of them
	By       string   `json:"by,omitempty"`       // spread, apart: "node" (default), "cluster", or a label's key
	Limit    int      `json:"limit,omitempty"`    // spread; 0 means 1
	Services []string `json:"services,omitempty"` // apart: services of the application, "name.namespace"
}

// Seconds that hold where an SLA does not say.
const (
	DefaultRigidness   = 60.0
	DefaultConvergence = 5.0
)

// Connectivity is what a service needs of its way to another of its application.
type Connectivity struct {
	Target      string           `json:"target_microservice_id"` // "name.namespace"
	Constraints []LinkConstraint `json:"con_constraints"`
}

// The types of a LinkConstraint.
const (
	LinkLatency   = "latency"   // ms of round trip, at most
	LinkBandwidth = "bandwidth" // Mbit/s, each way, at least
	LinkGeo       = "geo"       // km, at most
)

// LinkConstraint is one need of a Connectivity.
type LinkConstraint struct {
	Type            string  `json:"type"`                // LinkLatency, LinkBandwidth or LinkGeo
	Threshold       float64 `json:"threshold"`           // the most latency or distance, the least bandwidth
	Rigidness       float64 `json:"rigidness,omitempty"` // as Constraint.Rigidness
	Share           float64 `json:"share,omitempty"`     // as Constraint.Share
	ConvergenceTime float64 `json:"convergence_time,omitempty"`
}

// Addresses are the semantic addresses that a service asks for: "auto", or one
// of the services' range. A round-robin address it gets anyway. What it has got
// is in Service.Addresses and travels with each Assignment.
type Addresses struct {
	RoundRobin  string         `json:"rr_ip,omitempty"`
	RoundRobin6 string         `json:"rr_ip_v6,omitempty"` // the IPv6 twin of RoundRobin, or empty
	Closest     string         `json:"closest_ip,omitempty"`
	Instances   []AddressRange `json:"instances,omitempty"`
}

// AddressRange gives each instance From to To an address of its own, counted up
// from Start.
type AddressRange struct {
	From  int    `json:"from"`
	To    int    `json:"to"`
	Start string `json:"start,omitempty"` // "auto", or the first address
}

// Needs is what an instance of the service reserves.
func (m Microservice) Needs() Resources {
	r := Resources{
		MilliCPU: int64(m.VCPUs*1000 + 0.5), MemoryMB: m.Memory, StorageMB: m.Storage,
		InMbit: m.BandwidthIn, OutMbit: m.BandwidthOut,
	}
	for _, link := range m.Connectivity {
		for _, k := range link.Constraints {
			if k.Type == LinkBandwidth { // reserved at its own end, whoever else is there
				r.InMbit += int64(k.Threshold + 0.999)
				r.OutMbit += int64(k.Threshold + 0.999)
			}
		}
	}
	return r
}

// NeedsDevices are the devices that an instance of the service has to itself,
// each kind once, in the order of their names.
func (m Microservice) NeedsDevices() []Device {
	count := map[string]int{DeviceGPU: m.VGPUs, DeviceTPU: m.VTPUs}
	for _, d := range m.Devices {
		count[d.Name] += d.Count
	}
	var out []Device
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if count[name] > 0 {
			out = append(out, Device{name, count[name]})
		}
	}
	return out
}

// Urgency is the place of the service's priority in Priorities; a greater one
// goes before a lesser.
func (m Microservice) Urgency() int {
	if i := slices.Index(Priorities, m.Priority); i >= 0 {
		return i
	}
	return slices.Index(Priorities, "normal")
}

// DefaultAttempts is the number of attempts of a one-shot without max_attempts.
const DefaultAttempts = 6

// Attempts returns how often the workload may fail before its instance has failed for
// good. 0: no bound, because the service is not a one-shot.
func (m Microservice) Attempts() int {
	switch {
	case !m.OneShot:
		return 0
	case m.MaxAttempts == 0:
		return DefaultAttempts
	}
	return m.MaxAttempts
}

// StopsWhenCutOff reports whether a node that lost its cluster stops the
// instance when its lease ends.
func (m Microservice) StopsWhenCutOff() bool {
	return m.Exclusive || m.OnDisconnect == StopWhenCutOff
}
