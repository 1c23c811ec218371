// Package effects has what the sub-machines of a cluster's core share during a step: the
// time, and the sink for saves, messages and timers. Effects are in the order of the calls.
package effects

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Sink collects the effects of one step. The core owns it; sub-machines write to it.
// It is not safe for concurrent use.
type Sink struct {
	Boot    uint64    // the cluster's boot number
	Wall    time.Time // wall clock time of the step, for people and documents
	Now     time.Time // time of the step without pauses of this process, for silence and leases
	Journal step.Journal
	Timers  step.Timers[Key] // on the clock of Now

	clock step.Clock
	send  []wire.Envelope
}

// Key names a timer. Kind decides which of the other fields are set.
type Key struct {
	Kind     Kind
	Node     api.NodeID
	Instance api.InstanceID
	Name     string // a target of latency constraints, or the key of a question to an external scheduler
}

// Kind is what a timer is for.
type Kind uint8

// The kinds of timers.
const (
	Dead     Kind = iota // check whether the node is silent
	Report               // report to the root
	Pace                 // place the next instances that lost their nodes
	Settle               // stop waiting for nodes that have not reported since the start
	Ack                  // ask the node for the digest of its network records
	Interest             // drop expired subscriptions of the node
	Lease                // give subnets to nodes that have reported none since the start
	Listen               // a new placement has run too long without listening
	Check                // check the next tenth of the watched instances against their SLAs
	Relieve              // move the next instances whose SLA is violated
	Violated             // a violation has lasted as long as the SLA allows
	Search               // placement has searched for as long as the SLA allows
	User                 // a user's measurement ends, or the next begins
	Ask                  // deadline of an answer of the external scheduler
	Peers                // choose other nodes for the node to measure
	Pairs                // drop old measurements between services
	Accept               // check whether the node accepted the placement
	Scale                // decide the numbers of instances
	Run                  // runs of schedules are due
	Move                 // try again the nodes to which an instance's volumes could not be copied
	Routes               // save the root's routes that changed meanwhile
)

func (s *Sink) Begin(now time.Time) {
	s.Wall, s.Now, s.send = now, s.clock.Observe(now, s.Timers.Next()), nil
}

func (s *Sink) End() step.Effects {
	return step.Effects{Save: s.Journal.Take(), Send: s.send, Wake: s.Real(s.Timers.Next())}
}

// Real converts a moment on the clock of Now to one on the clock of Wall. The zero time
// stays zero.
func (s *Sink) Real(t time.Time) time.Time { return s.clock.Real(t) }

// ToNode sends a message to a node at the end of the step.
func (s *Sink) ToNode(id api.NodeID, m wire.ClusterToNode) { s.Emit(id.Addr(), m) }

// ToRoot sends a message to the root at the end of the step.
func (s *Sink) ToRoot(m wire.ClusterToRoot) { s.Emit(wire.ToRoot, m) }

// Emit sends a message to an address at the end of the step.
func (s *Sink) Emit(to api.Addr, msg any) {
	s.send = append(s.send, wire.Envelope{To: to, Msg: msg})
}
