package api

// SLA is the document a developer hands in: Oakestra's SLA v2.0, and the few
// fields that Treeline adds (replicas, exclusive, on_disconnect, stop_grace).
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
	Memory         int64        `json:"memory,omitempty"` // MiB; 0 reserves and limits nothing
	VCPUs          float64      `json:"vcpus,omitempty"`  // vCPUs, thousandths count; 0 reserves and limits nothing
	Cmd            []string     `json:"cmd,omitempty"`
	Environment    []string     `json:"environment,omitempty"` // "KEY=value"
	OneShot        bool         `json:"one_shot,omitempty"`
	Privileged     bool         `json:"privileged,omitempty"`
	Arch           []string     `json:"arch,omitempty"`     // GOARCH names; any of them
	Platform       string       `json:"platform,omitempty"` // the image's platform, "linux/amd64"
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
}

// OnDisconnect says what a node does with an instance when it loses its cluster.
type OnDisconnect string

// The ways of OnDisconnect; the empty value means keep.
const (
	KeepRunning     OnDisconnect = "keep"
	StopWhenCutOff  OnDisconnect = "stop"
	constraintKinds              = "direct, clusters"
)

// Constraint narrows where a service may run.
type Constraint struct {
	Type    string   `json:"type"`              // "direct" or "clusters"
	Cluster string   `json:"cluster,omitempty"` // direct: one name, or several separated by ";"
	Node    string   `json:"node,omitempty"`    // direct: one name, or several separated by ";"
	Allowed []string `json:"allowed,omitempty"` // clusters: names
}

// Addresses are the semantic addresses that a service asks for: "auto", or one
// of the services' range. A round-robin address it gets anyway. What it has got
// is in Service.Addresses and travels with each Assignment.
type Addresses struct {
	RoundRobin string         `json:"rr_ip,omitempty"`
	Closest    string         `json:"closest_ip,omitempty"`
	Instances  []AddressRange `json:"instances,omitempty"`
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
	return Resources{MilliCPU: int64(m.VCPUs*1000 + 0.5), MemoryMB: m.Memory}
}

// StopsWhenCutOff reports whether a node that lost its cluster stops the
// instance when its lease ends.
func (m Microservice) StopsWhenCutOff() bool {
	return m.Exclusive || m.OnDisconnect == StopWhenCutOff
}
