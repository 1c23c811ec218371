package api

import (
	"maps"
	"slices"
)

// SLA is a developer's document: Oakestra's SLA v2.0 and the fields that Treeline adds (replicas,
// exclusive, callers, devices, priority, …). Fields lists all of them. ParseSLA refuses those that
// are not enforced.
type SLA struct {
	Version      string        `json:"sla_version"`
	CustomerID   string        `json:"customerID,omitempty"`
	Applications []Application `json:"applications"`
}

type Application struct {
	ID          string         `json:"applicationID,omitempty"`
	Name        string         `json:"application_name"`
	Namespace   string         `json:"application_namespace"`
	Description string         `json:"application_desc,omitempty"`
	Labels      Labels         `json:"labels,omitempty"`
	Services    []Microservice `json:"microservices"`
}

// Labels are what people select applications and services by.
type Labels map[string]string

// Microservice describes one service and its requirements.
type Microservice struct {
	ID             string       `json:"microserviceID,omitempty"`
	Name           string       `json:"microservice_name"`
	Namespace      string       `json:"microservice_namespace"`
	Virtualization string       `json:"virtualization"`
	Code           string       `json:"code"`
	Memory         int64        `json:"memory,omitempty"` // MiB; 0: the cluster's default
	VCPUs          float64      `json:"vcpus,omitempty"`  // with up to 3 decimals; 0: the cluster's default
	VCPU           float64      `json:"vcpu,omitempty"`   // another name of VCPUs; 0 after ParseSLA
	Cmd            []string     `json:"cmd,omitempty"`
	Environment    []string     `json:"environment,omitempty"` // "KEY=value"
	OneShot        bool         `json:"one_shot,omitempty"`
	MaxAttempts    int          `json:"max_attempts,omitempty"` // of a one-shot; 0 means DefaultAttempts
	Deadline       int          `json:"deadline,omitempty"`     // s, of a one-shot on its node; 0: no limit
	TimeToLive     int          `json:"time_to_live,omitempty"` // s, after all instances have ended; 0: they are kept
	Completions    int          `json:"completions,omitempty"`  // another name of Replicas; the parser sets both
	Parallelism    int          `json:"parallelism,omitempty"`  // instances that have not ended; 0: all
	Schedule       *Schedule    `json:"schedule,omitempty"`     // the parser sets Exclusive too
	Privileged     bool         `json:"privileged,omitempty"`
	Arch           []string     `json:"arch,omitempty"`     // allowed GOARCH names
	Platform       string       `json:"platform,omitempty"` // the image's platform, "linux/amd64"
	Network        string       `json:"network,omitempty"`  // NetworkOverlay or NetworkAny; empty: see NeedsNetwork
	Port           string       `json:"port,omitempty"`     // "6080:80/tcp;5353:53/udp", see Ports
	Addresses      *Addresses   `json:"addresses,omitempty"`
	BandwidthIn    int64        `json:"bandwidth_in,omitempty"`  // Mbit/s to each instance; 0: no limit
	BandwidthOut   int64        `json:"bandwidth_out,omitempty"` // Mbit/s from each instance
	Constraints    []Constraint `json:"constraints,omitempty"`
	Labels         Labels       `json:"labels,omitempty"` // in addition to those of its application; read by the root only

	Replicas     *int         `json:"replicas,omitempty"`      // absent: the present number, 1 for a new service
	Exclusive    bool         `json:"exclusive,omitempty"`     // never runs twice; stops if its node loses its cluster
	OnDisconnect OnDisconnect `json:"on_disconnect,omitempty"` // when the node loses its cluster
	StopGrace    int          `json:"stop_grace,omitempty"`    // seconds between SIGTERM and SIGKILL; 0 means 10
	Update       *Update      `json:"update,omitempty"`        // how a new version replaces the one before; read by the root only
	Disruption   *Disruption  `json:"disruption,omitempty"`    // nil: moves are not limited; read by the root only, which tells clusters the budget
	Callers      []string     `json:"callers,omitempty"`       // see Access; absent: all services of the tenant
	Calls        []string     `json:"calls,omitempty"`         // services of other tenants that it calls

	Files      []File `json:"files,omitempty"`
	AddedFiles []File `json:"added_files,omitempty"` // another name of Files; the parser appends them to it

	Storage      int64          `json:"storage,omitempty"`  // MiB of the node's disk; 0 reserves nothing
	VGPUs        int            `json:"vgpus,omitempty"`    // whole GPUs, see Devices
	VTPUs        int            `json:"vtpus,omitempty"`    // whole TPUs
	Devices      []Device       `json:"devices,omitempty"`  // devices of any other kind; none twice
	Priority     string         `json:"priority,omitempty"` // one of Priorities; empty: "normal"
	Connectivity []Connectivity `json:"connectivity,omitempty"`
	Health       *Health        `json:"health,omitempty"` // nil: the image's HEALTHCHECK, if it has one
	Stdin        bool           `json:"stdin,omitempty"`  // its input is open, for attach
	TTY          bool           `json:"tty,omitempty"`    // it runs in a terminal
	Volumes      []Volume       `json:"volumes,omitempty"`
	Move         string         `json:"move,omitempty"`  // MoveVolume; empty: an instance stays with its local volumes
	Scale        *Scale         `json:"scale,omitempty"` // nil: Replicas instances run
}

// NetworkAny is the value of `network` for services that may also run on nodes without an overlay
// network. The other value is NetworkOverlay.
const NetworkAny = "any"

// OnDisconnect is what a node does with an instance when it loses its cluster.
type OnDisconnect string

// The values of OnDisconnect; empty means keep.
const (
	KeepRunning    OnDisconnect = "keep"
	StopWhenCutOff OnDisconnect = "stop"
)

// Priorities are the classes of `priority`, the least urgent first.
var Priorities = []string{"low", "normal", "high", "urgent"}

// Connectivity is a service's requirements for its path to another service of its application.
type Connectivity struct {
	Target      string           `json:"target_microservice_id"` // "name.namespace"
	Constraints []LinkConstraint `json:"con_constraints"`
}

const (
	LinkLatency   = "latency"   // ms of round trip, at most
	LinkBandwidth = "bandwidth" // Mbit/s, each way, at least
	LinkGeo       = "geo"       // km, at most
)

// LinkConstraint is one requirement of a Connectivity.
type LinkConstraint struct {
	Type            string  `json:"type"`                // LinkLatency, LinkBandwidth or LinkGeo
	Threshold       float64 `json:"threshold"`           // maximum latency or distance, minimum bandwidth
	Rigidness       float64 `json:"rigidness,omitempty"` // as Constraint.Rigidness
	Share           float64 `json:"share,omitempty"`     // as Constraint.Share
	ConvergenceTime float64 `json:"convergence_time,omitempty"`
}

// Addresses are the semantic addresses that a service requests: "auto", or an address in the range
// of services. Every service gets a round-robin address. The assigned addresses are in
// Service.Addresses and in each Assignment.
type Addresses struct {
	RoundRobin  string         `json:"rr_ip,omitempty"`
	RoundRobin6 string         `json:"rr_ip_v6,omitempty"` // the IPv6 form of RoundRobin, or empty
	Closest     string         `json:"closest_ip,omitempty"`
	Instances   []AddressRange `json:"instances,omitempty"`
}

// AddressRange requests consecutive addresses from Start for the instances From to To.
type AddressRange struct {
	From  int    `json:"from"`
	To    int    `json:"to"`
	Start string `json:"start,omitempty"` // "auto", or the first address
}

// Needs returns the resources that an instance of the service reserves.
func (m Microservice) Needs() Resources {
	r := Resources{
		MilliCPU: int64(m.VCPUs*1000 + 0.5), MemoryMB: m.Memory + m.fileMB(),
		InMbit: m.BandwidthIn, OutMbit: m.BandwidthOut,
	}
	if m.Storage > 0 {
		r.StorageMB = max(m.Storage, MinDiskVolumeMB) // what the node takes for the layer that it limits
	}
	for _, v := range m.Volumes {
		switch v.Type {
		case VolumeTmpfs:
			r.MemoryMB += v.SizeMB
		case VolumeLocal, VolumeEphemeral:
			r.StorageMB += v.SizeMB
		}
	}
	for _, link := range m.Connectivity {
		for _, k := range link.Constraints {
			if k.Type == LinkBandwidth { // reserved at this end of the link
				r.InMbit += int64(k.Threshold + 0.999)
				r.OutMbit += int64(k.Threshold + 0.999)
			}
		}
	}
	return r
}

// NeedsDevices returns the devices of an instance of the service, each kind once, sorted by
// name.
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

// Urgency returns the index of the service's priority in Priorities. A higher one is more urgent.
func (m Microservice) Urgency() int {
	if i := slices.Index(Priorities, m.Priority); i >= 0 {
		return i
	}
	return slices.Index(Priorities, "normal")
}

// DefaultAttempts is the number of attempts of a one-shot without max_attempts.
const DefaultAttempts = 6

// Attempts returns how often the workload may fail before its instance has failed for good. 0: no
// limit, because the service is not a one-shot.
func (m Microservice) Attempts() int {
	switch {
	case !m.OneShot:
		return 0
	case m.MaxAttempts == 0:
		return DefaultAttempts
	}
	return m.MaxAttempts
}

// Dormant returns why instance number n of the service begins dormant in its cluster, or ReasonNone
// if it is placed on a node at once.
func (m Microservice) Dormant(n int) Reason {
	switch {
	case m.Schedule != nil:
		return ReasonScheduled
	case m.Scale.Sleeps(n):
		return ReasonIdle
	}
	return ReasonNone
}

// StopsWhenCutOff reports whether a node that lost its cluster stops the instance when the lease
// ends.
func (m Microservice) StopsWhenCutOff() bool {
	return m.Exclusive || m.OnDisconnect == StopWhenCutOff
}
