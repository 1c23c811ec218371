package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Addresses of receivers that are not machines.
const (
	ToRoot      api.Addr = "root"
	ToCluster   api.Addr = "cluster"   // the node's cluster
	ToRuntime   api.Addr = "runtime"   // the node's runtime
	ToWatchers  api.Addr = "watchers"  // the watches of the objects of a root or a cluster
	ToScheduler api.Addr = "scheduler" // the external scheduler
)

// Envelope is a message that a core sends. It may be lost, duplicated or delayed, so that cores
// repeat messages until they are acknowledged or obsolete.
type Envelope struct {
	To  api.Addr
	Msg any
	// Volatile messages do not depend on what their step saves: they are sent even if the store
	// is full. Examples: a heartbeat, the end of a lease.
	Volatile bool
}

// Assignment is one instance that the tier below should have.
type Assignment struct {
	Instance api.InstanceID   `json:"instance"`
	Epoch    api.Epoch        `json:"epoch"`
	SpecRev  api.Revision     `json:"spec_revision"`
	Spec     api.Microservice `json:"spec"`
	// Addresses are the addresses of the service and of this instance. They change with SpecRev only.
	Addresses api.ServiceAddresses `json:"addresses,omitzero"`
	// Targets are the targets of its SLA's constraints outside the cluster, as last reported to
	// the root. They replace earlier ones. A change of these alone is not sent.
	Targets []api.Target `json:"targets,omitempty"`
	// Watched requests the instance's position, because another service's SLA refers to it.
	Watched bool `json:"watched,omitempty"`
	// Searched means that the convergence time of the instance's links is over at the root: the
	// cluster places the instance where its links are violated least. Constant within an epoch.
	Searched bool `json:"searched,omitempty"`
	// Moves are the times of its moves because of violations, by any tier. They count towards the
	// limit on moves within MovesWindow. A change of these alone is not sent.
	Moves []time.Time `json:"moves,omitempty"`
	// Restarts and Failures count those of earlier placements of this SLA revision, so that the
	// bound on attempts survives a move. A change of these alone is not sent.
	Restarts int `json:"restarts,omitempty"`
	Failures int `json:"failures,omitempty"`
	// Decided is the scheduled time up to which an earlier cluster has decided its runs. A change of
	// this alone is not sent.
	Decided time.Time `json:"decided,omitzero"`
	// Values are the configs and secrets that its files need and that exist. Other versions of them
	// change the running instance; a new epoch is not needed.
	Values []ValueRef `json:"values,omitempty"`
	// MaxUnavailable is the disruption budget of its service; nil: none. A change of it alone is not a
	// new version: it has no part in Digest.
	MaxUnavailable *int `json:"max_unavailable,omitempty"`
	// Disrupts is the Observed.Disruption that the disruption budget permits; 0: none. It has no part in
	// Digest. Between root and cluster only.
	Disrupts api.Generation `json:"disrupts,omitempty"`
	// Trace is the W3C traceparent of what caused the placement, only a few minutes before; see package
	// tracing. It is no part of the state: adapters add and remove it.
	Trace string `json:"trace,omitempty"`
}

// Digest returns the digest of the instance, its epoch, the revision of its spec, and the versions of
// the values in its files.
func (a Assignment) Digest() api.Digest {
	if values := valuesDigest(a.Values); values != "" {
		return api.DigestOf(string(a.Instance), strconv.Itoa(int(a.Epoch)), strconv.Itoa(int(a.SpecRev)), values)
	}
	return api.DigestOf(string(a.Instance), strconv.Itoa(int(a.Epoch)), strconv.Itoa(int(a.SpecRev)))
}

// Desired is the desired set of a cluster or node, complete (From is 0) or as the change from
// generation From to Gen. A receiver that does not have generation From drops the change; the
// sender detects this by the generation and digest in the receiver's reports.
type Desired struct {
	Gen    api.Generation   `json:"gen"`
	From   api.Generation   `json:"from,omitempty"`
	Put    []Assignment     `json:"put,omitempty"`
	Drop   []api.InstanceID `json:"drop,omitempty"`
	Digest api.Digest       `json:"digest"` // of the whole set at Gen
	Timing *Timing          `json:"timing,omitempty"`
	// Brokers are the current and future addresses of the cluster's broker, for a node, in the
	// order in which to try them. Empty: as before.
	Brokers []string `json:"brokers,omitempty"`
	// Replicas are the URLs of all replicas of a node's cluster, at most 8. Empty: as before. They are no
	// part of the state: adapters add and remove them.
	Replicas []string `json:"replicas,omitempty"`
	// Purge means that the operator removes the node with its data. The node first stops all
	// workloads, then asks its cluster over HTTPS with its certificate whether to delete its data
	// (NodePurge).
	Purge bool `json:"purge,omitempty"`
}

// EmbeddedBroker in Desired.Brokers is the broker within the cluster orchestrator, at the URL
// with which the node joined.
const EmbeddedBroker = "embedded"

// MaxBrokers bounds Desired.Brokers; a node ignores further ones.
const MaxBrokers = 4

// MaxBoot is the highest boot number of a node or netmanager that a cluster accepts. The numbers follow the wall clock in seconds.
const MaxBoot = 1 << 40

// Timing has the durations that a cluster sets for its nodes, measured with monotonic clocks.
type Timing struct {
	Heartbeat time.Duration `json:"beat"`  // interval of heartbeats
	Lease     time.Duration `json:"lease"` // from an answered heartbeat to the stop of exclusive instances
}

// Hello opens or resumes the stream of desired state after generation Since. Digest is that of the
// cluster's set at Since. If the digest differs or Since is too old, the root sends the whole set.
type Hello struct {
	Cluster api.ClusterID  `json:"cluster"`
	Since   api.Generation `json:"since"`
	Digest  api.Digest     `json:"digest"`
}

// Report is a cluster's report to the root: its aggregate, and the observations that changed since
// the last acknowledged report, or all of them.
type Report struct {
	Cluster api.ClusterID  `json:"cluster"`
	Boot    uint64         `json:"boot"` // counts the orchestrator's starts
	Seq     uint64         `json:"seq"`  // counts reports within a boot, from 1
	Gen     api.Generation `json:"gen"`  // the desired set it holds
	Desired api.Digest     `json:"desired"`
	Known   api.Digest     `json:"known"` // digest of all its observations
	Whole   bool           `json:"whole,omitempty"`
	// Readiness says that Observed.Ready is reported. Earlier releases report it between node and
	// cluster only.
	Readiness bool           `json:"readiness,omitempty"`
	Aggregate api.Aggregate  `json:"aggregate"`
	Observed  []api.Observed `json:"observed,omitempty"`
	// Notices are those that are not acknowledged yet, oldest first.
	Notices []Notice `json:"notices,omitempty"`
	// Net is nil if no node of the cluster is on the overlay network.
	Net *ClusterNet `json:"net,omitempty"`
}

// Notice is an event of a cluster that does not belong to one instance, such as a failure of its
// scheduler. The root records it as an event for the cluster's operator.
type Notice struct {
	No     uint64     `json:"no"` // counts notices within a boot, from 1; the root records each once
	Reason api.Reason `json:"reason"`
	Text   string     `json:"text"`  // "scheduler http://…: no answer within 5s"
	Times  int        `json:"times"` // how often this or a similar event happened since the last notice
	// Dropped is how often earlier events happened whose notices were not kept, because the root had not
	// acknowledged them and there were too many.
	Dropped int `json:"dropped,omitempty"`
}

// ReportAck answers a report once it is durable. RequestWhole requests all observations, because
// the digests differ.
type ReportAck struct {
	Boot         uint64         `json:"boot"`
	Seq          uint64         `json:"seq"`
	Gen          api.Generation `json:"gen"` // the root's generation for this cluster
	RequestWhole bool           `json:"want_whole,omitempty"`
	// Dead is the cluster's dead time; 0: unknown. The cluster reports several times within it,
	// even without changes.
	Dead time.Duration `json:"dead,omitempty"`
	// Runs has the scheduled instances in the report that decided more than the report says: the
	// cluster's store is an older copy.
	Runs []RunMark `json:"runs,omitempty"`
}

// RunMark is the scheduled time of an instance up to which all have run or never will.
type RunMark struct {
	Instance api.InstanceID `json:"instance"`
	Decided  time.Time      `json:"decided"`
}

// NodeReport is a node's report to its cluster: observations that changed, or, if Whole, all of
// them and Info. An instance that is absent from a whole report does not exist on the node.
type NodeReport struct {
	Node         api.NodeID     `json:"node"`
	Boot         uint64         `json:"boot"`
	Seq          uint64         `json:"seq"`
	Gen          api.Generation `json:"gen"`
	Whole        bool           `json:"whole,omitempty"`
	Info         *api.NodeInfo  `json:"info,omitempty"`
	Observed     []api.Observed `json:"observed,omitempty"`
	AnswersLease bool           `json:"answers,omitempty"` // the node supports Lease.RequestAlive
	// Usage is the present load of running instances whose services scale. It is not repeated.
	Usage []InstanceUsage `json:"usage,omitempty"`
}

// InstanceUsage is the load of an instance since the last one.
type InstanceUsage struct {
	Key
	MilliCPU    int64 `json:"cpu,omitempty"`         // mean; -1: unknown
	MemoryMB    int64 `json:"memory,omitempty"`      // MiB, at the moment; -1: unknown
	Connections int   `json:"connections,omitempty"` // open TCP connections to it
	// Idle is for how long it had no open connection to it and received no packet. Below 0: unknown.
	Idle time.Duration `json:"idle,omitempty"`
	// Requests are thousandths of requests per second, if the service scales by them; -1: unknown, and
	// Fault says why.
	Requests int64  `json:"requests,omitempty"`
	Fault    string `json:"fault,omitempty"`
}

// Alive is a node's heartbeat. It is small, because it causes most of an idle node's traffic.
type Alive struct {
	Boot     uint64
	Seq      uint64
	Gen      api.Generation
	Desired  api.Digest
	Observed api.Digest
	CPUUsed  uint8 // percent
	MemUsed  uint8 // percent
}

// Lease answers a heartbeat if the node has an exclusive instance or the cluster lacks
// observations. It is valid only for a node that has generation Gen or a later one.
type Lease struct {
	// Boot is the highest boot number that the cluster knows of the node. A node with a lower one takes a higher one: it has
	// lost its store and its clock went back.
	Boot         uint64         `json:"boot"`
	Seq          uint64         `json:"seq"` // of the heartbeat that it answers; 0: it grants nothing
	Gen          api.Generation `json:"gen"`
	RequestWhole bool           `json:"want_whole,omitempty"`
	// RequestAlive requests an immediate heartbeat (a roll call), whatever the other fields are.
	// Nodes of earlier releases ignore it.
	RequestAlive bool `json:"answer,omitempty"`
}

const aliveVersion = 1

// MarshalBinary encodes a in 20 to 40 bytes: a version byte, varints and fixed-size fields.
func (a Alive) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, 48)
	b = append(b, aliveVersion)
	b = binary.AppendUvarint(b, a.Boot)
	b = binary.AppendUvarint(b, a.Seq)
	b = binary.AppendUvarint(b, uint64(a.Gen))
	b = binary.BigEndian.AppendUint64(b, uint64(a.Desired))
	b = binary.BigEndian.AppendUint64(b, uint64(a.Observed))
	return append(b, a.CPUUsed, a.MemUsed), nil
}

// UnmarshalBinary decodes what MarshalBinary wrote; anything else is ErrInvalid.
func (a *Alive) UnmarshalBinary(b []byte) error {
	bad := fmt.Errorf("alive message of %d bytes is malformed: %w", len(b), api.ErrInvalid)
	if len(b) == 0 || b[0] != aliveVersion {
		return bad
	}
	b = b[1:]
	var v [3]uint64
	for i := range v {
		x, n := binary.Uvarint(b)
		if n <= 0 {
			return bad
		}
		v[i], b = x, b[n:]
	}
	if len(b) != 18 {
		return bad
	}
	*a = Alive{
		Boot: v[0], Seq: v[1], Gen: api.Generation(v[2]),
		Desired:  api.Digest(binary.BigEndian.Uint64(b)),
		Observed: api.Digest(binary.BigEndian.Uint64(b[8:])),
		CPUUsed:  b[16], MemUsed: b[17],
	}
	return nil
}

// Key identifies one placement of one instance. A runtime runs it at most once.
type Key struct {
	Instance api.InstanceID `json:"instance"`
	Epoch    api.Epoch      `json:"epoch"`
}

func (k Key) String() string {
	return string(k.Instance) + "@" + strconv.FormatUint(uint64(k.Epoch), 10)
}

// The orders of a node's core to its runtime. All are idempotent.
type (
	// CreateWorkload fetches the image and creates the workload without starting it.
	CreateWorkload struct {
		Key
		Attempt   int
		Spec      api.Microservice
		Addresses api.ServiceAddresses // for the overlay network
		Devices   []string             // ids of the devices reserved for it, sorted
		Values    []ValueRef           // for its files
	}
	// UpdateFiles rewrites the files of a workload that exists whose values are not these, and
	// signals it as its SLA says.
	UpdateFiles struct {
		Key
		Spec   api.Microservice
		Values []ValueRef
	}
	// FetchWorkload fetches the image of a placement that is created later.
	FetchWorkload struct {
		Key
		Spec   api.Microservice
		Values []ValueRef // the account of its image's registry
	}
	// StartWorkload starts a created workload.
	StartWorkload struct {
		Key
		Attempt int
	}
	// StopWorkload stops and removes the workload. A Grace of 0 kills it at once.
	StopWorkload struct {
		Key
		Grace time.Duration
	}
	// KillWorkload ends the processes of a workload that failed a health check, and keeps its
	// remains, as if it had exited. A Grace of 0 kills it at once.
	KillWorkload struct {
		Key
		Attempt int
		Grace   time.Duration
	}
	// ReadyWorkload sets whether a workload with health checks gets new flows.
	ReadyWorkload struct {
		Key
		Ready bool
	}
	// DetachWorkload detaches a workload that has ended from the overlay network, which frees its
	// address, and keeps its logs.
	DetachWorkload struct{ Key }
	// GuardWorkload sets or, if Until is zero, removes the time at which the guard kills the
	// workload, even without its node engine.
	GuardWorkload struct {
		Key
		Until time.Time
	}
)

// WorkloadPhase is the state of a workload in its runtime.
type WorkloadPhase string

const (
	WorkloadCreated WorkloadPhase = "created"
	WorkloadRunning WorkloadPhase = "running"
	WorkloadExited  WorkloadPhase = "exited"
	WorkloadFailed  WorkloadPhase = "failed" // an order failed
	WorkloadGone    WorkloadPhase = "gone"   // it does not exist any more
	// WorkloadFetched is the result of FetchWorkload. Reason is set if it failed.
	WorkloadFetched WorkloadPhase = "fetched"
)

// WorkloadEvent is an event of the runtime for the node's core. An event without a Phase means
// that the workload got an address or became ready.
type WorkloadEvent struct {
	Key
	Attempt  int
	Phase    WorkloadPhase
	ExitCode int
	Reason   api.Reason // why it failed, or out_of_memory
	Detail   string
	Address  netip.Addr        // on the overlay network, once it has one
	Ready    bool              // flows of others can reach it
	Spec     *api.Microservice // set if the runtime found the workload when it started
	Devices  []string          // the devices that it was created with; set with Spec
	// ImageHealth is the HEALTHCHECK of its image, if its SLA has no health checks. Set when it
	// runs.
	ImageHealth *api.Health
}
