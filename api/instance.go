package api

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// State is an instance's state in its lifecycle (Oakestra paper §3.3). internal/lifecycle has
// the transitions.
type State string

const (
	Registered       State = "registered"        // recorded by the root, no place requested yet
	Requested        State = "requested"         // waits for a cluster
	ClusterScheduled State = "cluster_scheduled" // a cluster has it and looks for a node
	NodeScheduled    State = "node_scheduled"    // a node has it and fetches its image
	Created          State = "created"           // the workload exists and does not run yet
	Running          State = "running"           // the workload runs
	Completed        State = "completed"         // a one-shot workload exited with 0
	Dormant          State = "dormant"           // its cluster keeps it without a node, and starts it by itself when it is due
	Failed           State = "failed"            // the workload ended or could not start; a restart or a re-placement follows, unless Ended
	Terminated       State = "terminated"        // withdrawn from above and stopped
)

// Reason is a constant that explains an instance's state to programs. The detail explains it to
// people.
type Reason string

// The reasons.
const (
	ReasonNone          Reason = ""
	ReasonNoCluster     Reason = "no_cluster"          // no cluster could take it
	ReasonNoCapacity    Reason = "no_capacity"         // no node of the cluster could take it
	ReasonNodeLost      Reason = "node_lost"           // its node fell silent
	ReasonClusterLost   Reason = "cluster_lost"        // its cluster fell silent
	ReasonDrained       Reason = "drained"             // its node was drained
	ReasonMoved         Reason = "moved"               // its move to another node was requested
	ReasonDisruption    Reason = "disruption_budget"   // it runs and is to move, and its service's disruption budget does not permit that now
	ReasonLeaseExpired  Reason = "lease_expired"       // the node lost its cluster and stopped it
	ReasonImageNotFound Reason = "image_not_found"     // the registry has no such image
	ReasonImageDenied   Reason = "image_denied"        // the registry refuses the credentials
	ReasonImageBad      Reason = "image_bad"           // digest mismatch, wrong platform or a broken archive
	ReasonRegistryDown  Reason = "registry_down"       // the registry cannot be reached
	ReasonNoRuntime     Reason = "runtime_missing"     // the node no longer has the runtime
	ReasonRuntimeDown   Reason = "runtime_unavailable" // the runtime does not answer
	ReasonPrivilege     Reason = "privilege_denied"    // the node's operator does not allow it
	ReasonStartFailed   Reason = "start_failed"        // the workload could not be started
	ReasonExited        Reason = "exited"              // the workload exited, see the exit code
	ReasonOutOfMemory   Reason = "out_of_memory"       // the kernel killed it at its memory limit
	ReasonDiskFull      Reason = "disk_full"           // the node's disk is full
	ReasonNetworkDown   Reason = "network_unavailable" // the node's netmanager does not answer or has no lease yet
	ReasonNetworkFull   Reason = "network_full"        // the node has no free address on the overlay network, or its netmanager no space on disk
	ReasonNoNetwork     Reason = "network_missing"     // it needs the overlay network, which the node does not have
	ReasonTooManyFails  Reason = "too_many_failures"   // it failed repeatedly on this node
	ReasonAttemptsSpent Reason = "attempts_exhausted"  // a one-shot failed max_attempts times; it is not started again
	ReasonScheduled     Reason = "scheduled"           // dormant until its schedule is due
	ReasonUndelivered   Reason = "undelivered"         // of an event: a webhook could not deliver an event, which is tried again or a dead letter now
	ReasonNoMetrics     Reason = "no_metrics"          // of an event: what its service scales by is not known
	ReasonIdle          Reason = "idle"                // dormant until it is needed
	ReasonDeadline      Reason = "deadline"            // it took longer than its deadline; it is not started again
	ReasonExpired       Reason = "expired"             // its time to live is over
	ReasonUpdated       Reason = "updated"             // a new SLA replaced it
	ReasonScaledDown    Reason = "scaled_down"         // the service has fewer replicas now
	ReasonCreated       Reason = "created"             // of an event: a custom kind or resource is new
	ReasonDeleted       Reason = "deleted"             // its application was deleted
	ReasonScaledLocally Reason = "scaled_locally"      // the cluster's operator scaled without the root
	ReasonViolated      Reason = "sla_violated"        // its place violated its SLA for longer than tolerated
	ReasonPreempted     Reason = "preempted"           // a more urgent instance took its place
	ReasonNoDevice      Reason = "device_missing"      // the node no longer has the device
	ReasonNoFiles       Reason = "files_unavailable"   // a config or secret of its files does not exist or cannot be fetched, or a file cannot be written
	ReasonNotReady      Reason = "not_ready"           // it runs and gets no flows: its start-up or readiness check has not passed
	ReasonUnhealthy     Reason = "unhealthy"           // its start-up or liveness check failed
	ReasonVolume        Reason = "volume_unavailable"  // a volume of it cannot be mounted now
	ReasonVolumeDriver  Reason = "volume_driver"       // the driver of a CSI volume does not answer, or refuses to attach or mount it
	ReasonNotAdmitted   Reason = "not_admitted"        // its cluster may no longer run services of its tenant
	ReasonRestored      Reason = "restored"            // of an event: the cluster was restored from a snapshot, or continues after that
	ReasonOutOfBounds   Reason = "out_of_bounds"       // of an event: values from a cluster or a node were out of range and were refused
	ReasonCapped        Reason = "capped"              // of an event: values above caps were reported and limited
	ReasonAccess        Reason = "access"              // of an event: a user reached a workload or volume, or changed something through an API, or was refused
	ReasonRolledBack    Reason = "rolled_back"         // a new SLA failed; the last healthy one replaced it
	ReasonNoScheduler   Reason = "scheduler_failed"    // of an event: the external scheduler failed or its answer was invalid; the built-in one decided
)

// Ended reports whether an instance has ended for good: it completed, or it is a one-shot that
// has failed max_attempts times or has exceeded its deadline. Only a new SLA revision or a withdrawal changes that.
func Ended(s State, r Reason) bool {
	return s == Completed || s == Failed && (r == ReasonAttemptsSpent || r == ReasonDeadline)
}

// Observed is the observed state of one instance, reported by a lower tier. It replaces earlier
// reports of the instance.
type Observed struct {
	Instance InstanceID `json:"instance"`
	Epoch    Epoch      `json:"epoch"`
	State    State      `json:"state"`
	Reason   Reason     `json:"reason,omitempty"`
	Detail   string     `json:"detail,omitempty"`
	Restarts int        `json:"restarts,omitempty"` // since the first placement of the SLA revision, including Assignment.Restarts
	// Failures counts failures caused by the workload itself, including
	// Assignment.Failures. It is not part of the digest: it changes only with State or
	// Restarts.
	Failures int        `json:"failures,omitempty"`
	ExitCode *int       `json:"exit_code,omitempty"`
	Node     NodeID     `json:"node,omitempty"`
	Address  netip.Addr `json:"address,omitzero"` // on the overlay network, IPv4; zero: it is not on it
	Ready    bool       `json:"ready,omitempty"`  // it takes requests: it listens on Address, or it has none (to the root only)
	// Stopped says that no workload of this epoch runs or will run.
	Stopped bool `json:"stopped,omitempty"`
	// Ended is set for a withdrawn instance whose processes have all ended, while its
	// remains are still being removed. It is not part of the digest, because earlier
	// releases compute the digest without it. Between cluster and root only.
	Ended bool `json:"ended,omitempty"`
	// HandedBack says that the cluster cannot place the instance under this epoch, and does not try
	// again until the root offers it again.
	HandedBack bool `json:"handed_back,omitempty"`
	// Local marks an instance that the cluster's operator added while the root was unreachable. The
	// root adopts it.
	Local bool `json:"local,omitempty"`
	// Why explains a hand-back: how many nodes each constraint excluded, and the nearest miss.
	Why *Explanation `json:"why,omitempty"`
	// Violated is the part of its SLA that its place violates: "latency 34.9 ms, at most 20 ms to
	// pre.prod". Between cluster and root only.
	Violated string `json:"violated,omitempty"`
	// Moves are Assignment.Moves and the cluster's later ones. A change of them alone does not
	// cause a report. Between cluster and root only.
	Moves []time.Time `json:"moves,omitempty"`
	// Position is where it runs, if another service's SLA refers to it. A change of it alone
	// does not cause a report. Between cluster and root only.
	Position *Position `json:"position,omitempty"`
	// Volumes says that a node of the cluster has local volumes of the instance. It is not part of the
	// digest, because earlier releases compute the digest without it. Between cluster and root only.
	Volumes bool `json:"volumes,omitempty"`
	// Devices are the ids of its devices on its node.
	Devices []string `json:"devices,omitempty"`
	// Runs are the last runs of a scheduled instance, the newest last. Decided is the scheduled time
	// up to which all have run or never will. Between cluster and root only.
	Runs    []Run     `json:"runs,omitempty"`
	Decided time.Time `json:"decided,omitzero"`
	// ScaleFault is why something that its service scales by is not known. One instance of the service
	// has it. Between cluster and root only.
	ScaleFault string `json:"scale_fault,omitempty"`
	// Disruption is the number of the voluntary disruption that waits for the disruption budget of its
	// service, or is under way; 0: none. Between cluster and root only.
	Disruption Generation `json:"disruption,omitempty"`
}

// maxCounted limits the restarts that a lower tier may report.
const maxCounted = 1_000_000

// Counts returns the restarts and failures after o, given those before it. The results never
// decrease and are limited, because a lower tier reports o.
func (o Observed) Counts(restarts, failures int) (int, int) {
	return max(restarts, min(o.Restarts, maxCounted)), max(failures, min(o.Failures, MaxAttempts))
}

// Digest returns a fingerprint of o, to compare sets before they are sent.
func (o Observed) Digest() Digest {
	exit := "-"
	if o.ExitCode != nil {
		exit = itoa(*o.ExitCode)
	}
	parts := []string{
		string(o.Instance), itoa(int(o.Epoch)), string(o.State), string(o.Reason),
		itoa(o.Restarts), exit, strconv.FormatBool(o.HandedBack), addrText(o.Address), strconv.FormatBool(o.Ready),
		o.Violated, strings.Join(o.Devices, ","),
	}
	if !o.Decided.IsZero() {
		parts = append(parts, strconv.FormatInt(o.Decided.UnixNano(), 10))
	}
	if n := len(o.Runs); n > 0 {
		parts = append(parts, strconv.FormatInt(o.Runs[n-1].At.UnixNano(), 10), string(o.Runs[n-1].Result))
	}
	if o.ScaleFault != "" {
		parts = append(parts, "scale", o.ScaleFault)
	}
	if o.Disruption != 0 { // only of a service with a disruption budget, which earlier releases do not have
		parts = append(parts, "disruption", strconv.FormatUint(uint64(o.Disruption), 10))
	}
	return DigestOf(parts...)
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// Instance is an instance in the API: desired and observed state.
type Instance struct {
	ID       InstanceID `json:"id"`
	Service  ServiceID  `json:"service"`
	Number   int        `json:"number"`
	State    State      `json:"state"`
	Reason   Reason     `json:"reason,omitempty"`
	Detail   string     `json:"detail,omitempty"`
	Cluster  ClusterID  `json:"cluster,omitempty"`
	Node     NodeID     `json:"node,omitempty"` // empty unless the user may see nodes
	Epoch    Epoch      `json:"epoch"`
	Restarts int        `json:"restarts"`           // of this SLA revision, on all nodes and clusters that had it
	Failures int        `json:"failures,omitempty"` // caused by the workload itself, including failed starts
	ExitCode *int       `json:"exit_code,omitempty"`
	Spec     Revision   `json:"spec_revision"`      // the SLA revision that it runs or will run
	Leaving  bool       `json:"leaving,omitempty"`  // it is being withdrawn
	Since    time.Time  `json:"since"`              // when it reached its state, root's clock
	Created  time.Time  `json:"created"`            // root's clock
	Revision Revision   `json:"revision"`           // ETag
	Tries    int        `json:"placements"`         // how often the root placed it
	Stale    bool       `json:"stale,omitempty"`    // its cluster is silent; this is its last reported state
	Address  netip.Addr `json:"address,omitzero"`   // on the overlay network, IPv4
	Ready    bool       `json:"ready,omitempty"`    // it takes requests, as its cluster reports
	Violated string     `json:"violated,omitempty"` // the part of its SLA that its place violates
	Devices  []string   `json:"devices,omitempty"`  // its devices; empty unless the user may see nodes
	Runs     []Run      `json:"runs,omitempty"`     // of a schedule, the newest last, at most MaxRuns
}

// Standing returns the instance's state, reason and detail as text.
func (i Instance) Standing() string {
	s := string(i.State)
	if i.Reason != "" {
		s += " (" + string(i.Reason) + ")"
	}
	if i.Detail != "" {
		s += ", " + i.Detail
	}
	return s
}

type Service struct {
	ID       ServiceID    `json:"id"`
	App      AppID        `json:"app"`
	Spec     Microservice `json:"spec"`
	Labels   Labels       `json:"labels,omitempty"` // its own and those of its application
	Replicas int          `json:"replicas"`
	Running  int          `json:"running"`
	// Completed and Failed count the instances that have ended for good, see Ended.
	Completed int      `json:"completed,omitempty"`
	Failed    int      `json:"failed,omitempty"`
	Dormant   int      `json:"dormant,omitempty"`
	SpecRev   Revision `json:"spec_revision"`
	// Versions lists the SLA revisions of its instances during a roll-out, the newest
	// first. It is empty while all instances have the same revision.
	Versions []Version `json:"versions,omitempty"`
	// RollOut is the state of the newest roll-out; empty if it has ended well.
	RollOut  RollOutState `json:"rollout,omitempty"`
	Revision Revision     `json:"revision"`
	// Addresses are its semantic addresses.
	Addresses ServiceAddresses `json:"addresses,omitzero"`
}

// Version counts the instances of one SLA revision of a service.
type Version struct {
	SpecRev   Revision `json:"spec_revision"`
	Code      string   `json:"code"`
	Instances int      `json:"instances"`
	Running   int      `json:"running"`
}

type App struct {
	ID       AppID       `json:"id"`
	Tenant   Tenant      `json:"tenant"`
	Spec     Application `json:"spec"`
	Services []ServiceID `json:"services"`
	Wanted   int         `json:"wanted"`
	Running  int         `json:"running"`
	// Completed and Failed count the instances that have ended for good, see Ended.
	Completed int       `json:"completed,omitempty"`
	Failed    int       `json:"failed,omitempty"`
	Dormant   int       `json:"dormant,omitempty"`
	Leaving   bool      `json:"leaving,omitempty"`
	Created   time.Time `json:"created"`
	By        string    `json:"by,omitempty"` // the user who applied it last
	Revision  Revision  `json:"revision"`
}

// Event is a stored event. `treeline events` prints it.
type Event struct {
	Seq      Revision   `json:"seq"`
	Time     time.Time  `json:"time"`
	Tenant   Tenant     `json:"tenant,omitempty"`
	Tier     string     `json:"tier"` // "root", "cluster <id>", "node <id>"
	Kind     string     `json:"kind"` // "instance", "app", "cluster"
	Object   string     `json:"object"`
	State    State      `json:"state,omitempty"`
	Reason   Reason     `json:"reason,omitempty"`
	Detail   string     `json:"detail,omitempty"`
	Cluster  ClusterID  `json:"cluster,omitempty"`
	Epoch    Epoch      `json:"epoch,omitempty"`
	Instance InstanceID `json:"instance,omitempty"`
	By       string     `json:"by,omitempty"` // the user, of what a user did or was refused at the tier
}
