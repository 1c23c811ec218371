// Package moves has the states of the move of an instance with its local volumes, from one node to another one.
//
//	copying    the volumes are copied while the earlier placement runs
//	stopping   the earlier placement is being stopped
//	finishing  nothing runs, and what has changed is copied
//	starting   the target has the volumes, and the new placement starts
//
// A move is part of its instance's document, so that both change together. It ends when the new placement is ready. Before
// starting it may be given up: the source has everything. Copies that are no longer needed are deleted afterwards.
package moves

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Phase is a state of a move, or what a Task is for.
type Phase string

const (
	Copying   Phase = "copying"
	Stopping  Phase = "stopping"
	Finishing Phase = "finishing"
	Starting  Phase = "starting"
	// Discarding is that of the tasks for copies that are not needed.
	Discarding Phase = "discarding"
)

// Move is the move of one instance.
type Move struct {
	Phase  Phase      `json:"phase"`
	From   api.NodeID `json:"from"`
	To     api.NodeID `json:"to"`
	Epoch  api.Epoch  `json:"epoch"` // of the placement at From
	Reason api.Reason `json:"reason"`
	Only   bool       `json:"only,omitempty"` // no other target than To is wanted

	First   int64     `json:"first,omitempty"`  // bytes that were copied while it ran
	Last    int64     `json:"last,omitempty"`   // bytes that were copied after its stop
	Stopped time.Time `json:"stopped,omitzero"` // when its stop was ordered, wall clock
	Running time.Time `json:"running,omitzero"` // when the new placement was running
	Fault   string    `json:"fault,omitempty"`  // why the last attempt to copy failed
}

// Copy is a copy of an instance's volumes that is not needed. Epoch is that of the placement that had the volumes at the
// source of the move.
type Copy struct {
	Node  api.NodeID `json:"node"`
	Epoch api.Epoch  `json:"epoch"`
}

// Task is what an adapter carries out, and repeats until it has succeeded or is no longer wanted.
type Task struct {
	Instance api.InstanceID
	Epoch    api.Epoch // see Move.Epoch
	Phase    Phase     // Copying, Finishing or Discarding
	From, To api.NodeID
	Spec     api.Microservice
	Values   []wire.ValueRef // with Copying: the account of its image's registry
}

// Same reports whether two tasks are the same, apart from the SLA.
func (t Task) Same(o Task) bool {
	return t.Instance == o.Instance && t.Epoch == o.Epoch && t.Phase == o.Phase && t.From == o.From && t.To == o.To
}

// Result is the result of an attempt at a Task.
type Result struct {
	Task
	Bytes    int64
	Fault    string // why it failed; empty: it has succeeded
	Failures int    // attempts that have failed in a row
}

// The attempts at a task that fail in a row before the move is given up. The instance runs in the first pass.
const (
	maxFirst = 3
	maxLast  = 5
)

// Step is what follows from a Result.
type Step int

const (
	Nothing Step = iota // it was for another move or phase
	Stop                // the first pass is complete: stop the placement
	Start               // the last pass is complete: start the new placement
	Wait                // an attempt has failed; the next one follows
	Other               // several have failed: try another node, and go on with this one if there is none
	GiveUp              // several have failed while nothing runs: start the instance at the source
)

// Begin returns a move whose first pass is to be done.
func Begin(from, to api.NodeID, e api.Epoch, r api.Reason) *Move {
	return &Move{Phase: Copying, From: from, To: to, Epoch: e, Reason: r}
}

// Holds reports whether the source is the one that has the volumes. Capacity is reserved at the target.
func (m *Move) Holds() bool { return m != nil && m.Phase != Starting }

// Apply applies a result.
func (m *Move) Apply(r Result, now time.Time) Step {
	if m == nil || r.Phase != m.Phase || r.Epoch != m.Epoch || r.From != m.From || r.To != m.To {
		return Nothing
	}
	if r.Fault != "" {
		m.Fault = r.Fault
		switch {
		case m.Phase == Copying && r.Failures >= maxFirst:
			return Other
		case m.Phase == Finishing && r.Failures >= maxLast:
			return GiveUp
		}
		return Wait
	}
	m.Fault = ""
	switch m.Phase {
	case Copying:
		m.Phase, m.First, m.Stopped = Stopping, r.Bytes, now
		return Stop
	case Finishing:
		m.Phase, m.Last = Starting, r.Bytes
		return Start
	}
	return Nothing
}

// Ended records that nothing of the earlier placement runs. It reports whether this is news.
func (m *Move) Ended(now time.Time) bool {
	if m.Phase != Copying && m.Phase != Stopping {
		return false
	}
	if m.Stopped.IsZero() {
		m.Stopped = now
	}
	m.Phase = Finishing
	return true
}

// Runs records that the new placement runs. It reports whether this is news.
func (m *Move) Runs(now time.Time) bool {
	if m.Phase != Starting || !m.Running.IsZero() {
		return false
	}
	m.Running = now
	return true
}

// Summary describes a move whose new placement is available since a time.
func (m *Move) Summary(since time.Time) string {
	return fmt.Sprintf("moved with its volumes: not available for %d ms; %s were copied while it ran, and %s after its stop",
		max(0, since.Sub(m.Stopped)).Milliseconds(), size(m.First), size(m.Last))
}

// Text describes the present phase, without names of nodes.
func (m *Move) Text() string {
	text := map[Phase]string{
		Copying:   "its volumes are being copied to another node, while it runs",
		Stopping:  "is being stopped, to move with its volumes",
		Finishing: "what has changed in its volumes is being copied to another node",
		Starting:  "its volumes are on their new node",
	}[m.Phase]
	if m.Fault != "" {
		text += "; the last attempt failed: " + m.Fault
	}
	return text
}

func size(bytes int64) string {
	if bytes < 10<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return api.MiB(bytes >> 20)
}
