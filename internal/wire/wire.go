package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Addresses that are no machine.
const (
	ToRoot     api.Addr = "root"
	ToCluster  api.Addr = "cluster"  // the node's own cluster
	ToRuntime  api.Addr = "runtime"  // the node's own runtime
	ToWatchers api.Addr = "watchers" // whoever watches the root's objects
	// ToScheduler is the scheduler outside of the core that the operator chose.
	ToScheduler api.Addr = "scheduler"
)

// Envelope is a message on its way from a core. Delivery is never trusted: it
// may be lost, doubled or late, and what heals is repetition.
type Envelope struct {
	To  api.Addr
	Msg any
	// Volatile says that the message promises nothing of what its step saves, so that
	// it may go out while the store is full: a sign of life, a lease's end.
	Volatile bool
}

// Assignment is one instance that the level below should have.
type Assignment struct {
	Instance api.InstanceID   `json:"instance"`
	Epoch    api.Epoch        `json:"epoch"`
	SpecRev  api.Revision     `json:"spec_revision"`
	Spec     api.Microservice `json:"spec"`
	// Addresses are those of the service and of this instance's number; they change with SpecRev only.
	Addresses api.ServiceAddresses `json:"addresses,omitzero"`
	// Targets are what its SLA is measured against and is not in the cluster, as the
	// root knows it. A later one replaces an earlier one; it is no news by itself.
	Targets []api.Target `json:"targets,omitempty"`
	// Watched asks for the instance's position: another service's SLA is measured
	// against it.
	Watched bool `json:"watched,omitempty"`
	// Searched says that the root has searched for as long as the instance's links to other
	// services say: it is placed in this cluster where they are broken least. It is constant
	// within an epoch.
	Searched bool `json:"searched,omitempty"`
	// Moves are when it moved because its place broke its SLA, whoever moved it: what
	// it may yet move within MovesWindow is less by these. They are no news by themselves.
	Moves []time.Time `json:"moves,omitempty"`
	// Restarts and Failures are the counts of earlier placements of this SLA revision, so
	// that they, and the bound on attempts, survive a move. A change of these alone is not
	// sent.
	Restarts int `json:"restarts,omitempty"`
	Failures int `json:"failures,omitempty"`
}

// Digest is a fingerprint of a; the spec counts by its revision.
func (a Assignment) Digest() api.Digest {
	return api.DigestOf(string(a.Instance), strconv.Itoa(int(a.Epoch)), strconv.Itoa(int(a.SpecRev)))
}

// Desired is what a cluster or a node should have, as a whole (From is 0) or as
// the change from one generation to another. Whoever does not hold generation
// From drops a change and says so by the generation and digest it reports.
type Desired struct {
	Gen    api.Generation   `json:"gen"`
	From   api.Generation   `json:"from,omitempty"`
	Put    []Assignment     `json:"put,omitempty"`
	Drop   []api.InstanceID `json:"drop,omitempty"`
	Digest api.Digest       `json:"digest"` // of the whole set at Gen
	Timing *Timing          `json:"timing,omitempty"`
	// Brokers are for a node: where its cluster's broker is now and may be next, in
	// the order in which to try them. Empty: nothing is said, and what was said holds.
	Brokers []string `json:"brokers,omitempty"`
	// Purge tells a node that its operator removes it with its data. It deletes nothing by
	// this alone: once it has stopped everything, it asks its cluster over HTTPS, with its
	// certificate, whether it is to purge itself (NodePurge).
	Purge bool `json:"purge,omitempty"`
}

// EmbeddedBroker stands in Desired.Brokers for the broker within the cluster
// orchestrator, which a node reaches at the URL that it joined by.
const EmbeddedBroker = "embedded"

// MaxBrokers bounds Desired.Brokers; a node ignores those beyond it.
const MaxBrokers = 4

// Timing is what a cluster tells its nodes about time; all of it is measured on
// monotonic clocks.
type Timing struct {
	Heartbeat time.Duration `json:"beat"`  // between two signs of life
	Lease     time.Duration `json:"lease"` // from an answered sign of life to the stop of what must not outlive it
}

// Hello opens or resumes the stream of desired state: the cluster has Since
// with Digest and wants all that came later. A digest that does not fit, or a
// Since that is too old, is answered with the whole.
type Hello struct {
	Cluster api.ClusterID  `json:"cluster"`
	Since   api.Generation `json:"since"`
	Digest  api.Digest     `json:"digest"`
}

// Report is what a cluster tells the root: its aggregate always, observations
// that changed since the last acknowledged report, or all of them.
type Report struct {
	Cluster   api.ClusterID  `json:"cluster"`
	Boot      uint64         `json:"boot"` // counts the orchestrator's starts
	Seq       uint64         `json:"seq"`  // counts reports within a boot, from 1
	Gen       api.Generation `json:"gen"`  // the desired set it holds
	Desired   api.Digest     `json:"desired"`
	Known     api.Digest     `json:"known"` // digest of all its observations
	Whole     bool           `json:"whole,omitempty"`
	Aggregate api.Aggregate  `json:"aggregate"`
	Observed  []api.Observed `json:"observed,omitempty"`
	// Notices are those that no acknowledged report has carried, oldest first, few.
	Notices []Notice `json:"notices,omitempty"`
	// Net is nil where no node of the cluster has an overlay network.
	Net *ClusterNet `json:"net,omitempty"`
}

// Notice is what happened in a cluster and is no instance's alone, such as that
// its scheduler failed. The root makes an event of it, for whoever runs the cluster.
type Notice struct {
	No     uint64     `json:"no"` // counts notices within a boot, from 1, so that none is told twice
	Reason api.Reason `json:"reason"`
	Text   string     `json:"text"`  // "scheduler http://…: no answer within 5s"
	Times  int        `json:"times"` // how often it, or the like of it, happened since the notice before
}

// ReportAck answers a report once it is durable. RequestWhole asks for all
// observations, because the digests differ.
type ReportAck struct {
	Boot         uint64         `json:"boot"`
	Seq          uint64         `json:"seq"`
	Gen          api.Generation `json:"gen"` // the root's generation for this cluster
	RequestWhole bool           `json:"want_whole,omitempty"`
	// Dead is the silence after which the root takes the cluster for lost; 0: not said.
	// However little changes, it reports several times within that.
	Dead time.Duration `json:"dead,omitempty"`
}

// NodeReport is what a node tells its cluster: observations that changed, or
// all of them with what the node is. In a whole report an instance that is
// absent does not exist on the node.
type NodeReport struct {
	Node         api.NodeID     `json:"node"`
	Boot         uint64         `json:"boot"`
	Seq          uint64         `json:"seq"`
	Gen          api.Generation `json:"gen"`
	Whole        bool           `json:"whole,omitempty"`
	Info         *api.NodeInfo  `json:"info,omitempty"`
	Observed     []api.Observed `json:"observed,omitempty"`
	AnswersLease bool           `json:"answers,omitempty"` // the node answers Lease.Answer
}

// Alive is a node's sign of life: small, because it is most of an idle node's
// traffic. Digests tell the cluster whether both hold the same.
type Alive struct {
	Boot     uint64
	Seq      uint64
	Gen      api.Generation
	Desired  api.Digest
	Observed api.Digest
	CPUUsed  uint8 // percent
	MemUsed  uint8 // percent
}

// Lease answers a sign of life, where something hangs on the answer: the node
// holds an instance that must stop when cut off, or the cluster misses
// observations. It counts only for a node that holds generation Gen or later.
type Lease struct {
	Boot         uint64         `json:"boot"`
	Seq          uint64         `json:"seq"` // of the sign of life that it answers
	Gen          api.Generation `json:"gen"`
	RequestWhole bool           `json:"want_whole,omitempty"`
	// Answer asks for a sign of life at once, whatever the other fields say: the
	// cluster is about to choose among the nodes that it hears. Nodes of before ignore it.
	RequestAlive bool `json:"answer,omitempty"`
}

const aliveVersion = 1

// MarshalBinary encodes a as a version byte and varints, 20 to 40 bytes.
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

// Key names one placement of one instance: what a runtime runs at most once.
type Key struct {
	Instance api.InstanceID `json:"instance"`
	Epoch    api.Epoch      `json:"epoch"`
}

func (k Key) String() string {
	return string(k.Instance) + "@" + strconv.FormatUint(uint64(k.Epoch), 10)
}

// The orders of a node's core to its runtime. Each may be given twice.
type (
	// CreateWorkload fetches the image and creates the workload, not started.
	CreateWorkload struct {
		Key
		Attempt   int
		Spec      api.Microservice
		Addresses api.ServiceAddresses // for the overlay network
		Devices   []string             // ids of those that it has to itself, sorted
	}
	// StartWorkload starts a created workload.
	StartWorkload struct {
		Key
		Attempt int
	}
	// StopWorkload ends the workload, if it runs, and removes what is left of it.
	// A Grace of 0 kills at once.
	StopWorkload struct {
		Key
		Grace time.Duration
	}
	// DetachWorkload takes a workload that has ended off the overlay network: its address
	// is free for others, and what it wrote is still there to be read.
	DetachWorkload struct{ Key }
	// GuardWorkload has the workload killed at a moment, by something that lives on
	// when the node engine dies. A zero moment lifts it.
	GuardWorkload struct {
		Key
		Until time.Time
	}
)

// WorkloadPhase says what a runtime knows of a workload.
type WorkloadPhase string

// The phases of a workload. Gone: nothing is left of it.
const (
	WorkloadCreated WorkloadPhase = "created"
	WorkloadRunning WorkloadPhase = "running"
	WorkloadExited  WorkloadPhase = "exited"
	WorkloadFailed  WorkloadPhase = "failed" // an order could not be carried out
	WorkloadGone    WorkloadPhase = "gone"
)

// WorkloadEvent is what the runtime tells the node's core, after an order or by
// itself. One without a phase says that the workload has an address, or is ready, since.
type WorkloadEvent struct {
	Key
	Attempt  int
	Phase    WorkloadPhase
	ExitCode int
	Reason   api.Reason // why it failed, or out_of_memory
	Detail   string
	Address  netip.Addr        // on the overlay network, once it has one
	Ready    bool              // and others' flows may go there
	Spec     *api.Microservice // set where the runtime lists what it found at start
	Devices  []string          // that it was created with, set where Spec is
}
