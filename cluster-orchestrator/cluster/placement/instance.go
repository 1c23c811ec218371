package placement

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/runs"
	"github.com/treeline-edge/treeline/internal/cron"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Record is the document of an instance.
type Record struct {
	Desired       wire.Assignment `json:"want"`  // the root's desired state
	Epoch         api.Epoch       `json:"epoch"` // of the newest placement here
	Node          api.NodeID      `json:"node,omitempty"`
	State         api.State       `json:"state"`
	Reason        api.Reason      `json:"reason,omitempty"`
	Detail        string          `json:"detail,omitempty"`
	Restarts      int             `json:"restarts,omitempty"`
	Failures      int             `json:"failures,omitempty"` // see api.Observed.Failures
	ExitCode      *int            `json:"exit_code,omitempty"`
	Address       netip.Addr      `json:"address,omitzero"`      // on the overlay network, as its node reported last
	Ready         bool            `json:"ready,omitempty"`       // it listens on its address
	Leaving       bool            `json:"leaving,omitempty"`     // no longer desired; removed once no node has it
	Local         bool            `json:"local,omitempty"`       // added by the operator, not yet adopted by the root
	Withdrawn     bool            `json:"withdrawn,omitempty"`   // removed by the operator, unacknowledged by the root
	HandedBack    bool            `json:"handed_back,omitempty"` // handed back: the root may place it elsewhere
	AwaitsOffer   bool            `json:"bound,omitempty"`       // handed back; not placed here until offered again
	Moving        bool            `json:"moving,omitempty"`      // it leaves its node as soon as it fits on another
	GivenUp       bool            `json:"given_up,omitempty"`    // it failed on every node that fits; handed back next
	OldPlacements []oldPlacement  `json:"vacancies,omitempty"`
	Violated      string          `json:"violated,omitempty"` // the constraint that its placement violates
	NoBetterNode  bool            `json:"strained,omitempty"` // violated too long, and it fits on no better node
	Moves         []time.Time     `json:"moves,omitempty"`    // because of violations in the last hour, wall clock
	// VolumeNode is the node of the last placement with local volumes, until the node confirms that
	// nothing of the placement is left.
	VolumeNode api.NodeID    `json:"volume_node,omitempty"`
	Reserved   api.NodeID    `json:"reserved,omitempty"`   // node where others are preempted for it
	OldClaim   account.Claim `json:"before,omitzero"`      // what an earlier placement may still take on its node
	OldReport  report        `json:"reported,omitzero"`    // of that placement
	Runs       *runs.Log     `json:"runs,omitempty"`       // of a scheduled instance
	Move       *moves.Move   `json:"move,omitempty"`       // with its local volumes
	OldCopies  []moves.Copy  `json:"copies,omitempty"`     // of its volumes, to be deleted
	Moved      string        `json:"moved,omitempty"`      // how its placement moved there, or why it did not move away
	ByRequest  bool          `json:"by_request,omitempty"` // its newest placement began because its move was requested
	Disruption *disruption   `json:"disruption,omitempty"` // voluntary, of a service with a disruption budget
}

type instance struct {
	Record

	cron          *cron.Spec       // of its schedule; nil: it has none, or one that this release cannot read
	demand        demand           // of Want
	limits        api.Resources    // on its node, where its SLA names none
	assignedGen   api.Generation   // generation of its node's desired set that placed it there
	lostReason    api.Reason       // why it lost its last place
	woken         string           // why it was woken; empty once it has a node
	searchUntil   time.Time        // end of the search for a node; zero: the search has not begun
	fetchFailed   bool             // its node runs an earlier placement, because it cannot fetch the image; Reason says why
	allStopped    bool             // it is leaving, and its nodes report that all its processes have ended
	shownPosition *api.Position    // last position that was reported to the root
	positions     uint64           // relations.Machine.LastMove at the last attempt to place it
	avoid         []string         // nodes that it failed on under the root's present epoch
	why           *api.Explanation // why it fits nowhere
	shownDigest   api.Digest       // of its last observation, as toggled into the digest of all observations
	needs         []wire.ValueRef  // counted in Machine.values
	volumes       bool             // a node reports local volumes of it
	scaleFault    string           // why something that its service scales by is not known
	listed        bool             // it counts in the digest of all observations
	notMoved      string           // why its requested move failed when it was stopped already; empty once it has a node
	moveFailed    []string         // nodes to which its volumes could not be copied since the drain
	shownMove     string           // its tasks that are in Machine.moving
}

// oldPlacement is a node that may still run an earlier placement. The placement's claim stays
// booked until the node has acknowledged generation Gen or a later one and no longer reports
// the instance.
type oldPlacement struct {
	Node  api.NodeID     `json:"node"`
	Epoch api.Epoch      `json:"epoch,omitempty"` // of that placement; 0: an earlier release saved it
	Gen   api.Generation `json:"gen"`
	account.Claim
	// Kept is the earlier placement if the node keeps it until the new one runs (make before
	// break); nil: it is no longer in the node's desired set.
	Kept   *wire.Assignment `json:"stays,omitempty"`
	Report report           `json:"reported,omitzero"`
}

// report is what a node reported last of a placement that ran and was replaced or withdrawn. After a
// restart of the cluster it counts until the node reports again: routes and sources without the
// placement would end its flows.
type report struct {
	Epoch   api.Epoch  `json:"epoch,omitempty"`
	Address netip.Addr `json:"address,omitzero"`
	Ready   bool       `json:"ready,omitempty"`
	Ends    bool       `json:"ends,omitempty"` // the node replaces it
}

func (in *instance) id() api.InstanceID { return in.Desired.Instance }

// setAssignment stores the root's desired state of the instance.
func (m *Machine) setAssignment(in *instance, a wire.Assignment) {
	old := in.demand.users
	in.Desired, in.demand, in.limits = a, m.demandOf(a.Instance, &a.Spec), m.cfg.Workload.Limit
	in.cron = nil
	if s := a.Spec.Schedule; s == nil {
		in.Runs = nil
		m.schedules.at.Clear(in.id())
	} else if spec, err := cron.Of(s); err == nil {
		in.cron = spec
	}
	m.need(in, a.Values)
	m.relate(in)
	m.latency.Unrefer(slices.DeleteFunc(slices.Clone(old), func(t string) bool { return slices.Contains(in.demand.users, t) }), in.id())
}

// ended reports whether the instance has ended for good, or until it wakes, and needs no place.
func (in *instance) ended() bool { return api.Ended(in.State, in.Reason) || in.dormant() }

// exclusive reports whether the instance must never run twice: a new placement waits until
// the old one has ended.
func (in *instance) exclusive() bool { return in.Desired.Spec.Exclusive }

// assignment returns the entry of the instance in its node's desired set.
func (in *instance) assignment() wire.Assignment {
	a := in.Desired
	a.Epoch, a.Targets, a.Watched, a.Searched, a.Decided = in.Epoch, nil, false, false, time.Time{} // between cluster and root only
	a.MaxUnavailable, a.Disrupts = nil, 0
	a.Restarts, a.Failures = in.Restarts, in.Failures
	a.Spec = filled(a.Spec, in.limits)
	return a
}

func (m *Machine) save(in *instance) {
	in.noteDisruption()
	m.noteChanged(in)
	m.noteMove(in)
	m.fx.Journal.Put(KindInstance, string(in.id()), in)
}

// Restore adds the instance of a document. The nodes must have been added before.
func (m *Machine) Restore(data []byte) error {
	in := new(instance)
	if err := json.Unmarshal(data, in); err != nil {
		return err
	}
	m.setAssignment(in, in.Desired)
	if in.Local {
		m.local = max(m.local, in.id().Number()-m.cfg.LocalNumbers+1) // the counter may not have been saved
	}
	if !in.Local {
		m.toggleDesired(in)
	}
	if in.Leaving && !in.Local {
		m.toggleDesired(in)
	}
	for _, v := range in.OldPlacements {
		if n := m.nodes[v.Node]; n != nil {
			n.bookUnassigned(in.id(), v.Claim)
			if v.Kept != nil {
				n.set.Keep(*v.Kept)
			}
		}
	}
	if n := m.nodes[in.Node]; n != nil {
		n.book(in.id(), in.OldClaim)
		n.assign(in)
		m.countPlaced(in)
	} else {
		in.Node = ""
	}
	if n := m.nodes[in.VolumeNode]; n != nil {
		m.placeVolumes(n, in) // the node's document may not have been saved
	}
	if n := m.nodes[in.Reserved]; n != nil && in.Reserved != in.Node {
		m.bookReservation(in, n)
	} else {
		in.Reserved = ""
		if in.Move.Holds() {
			in.Move = nil
		}
	}
	m.noteMove(in)
	m.publish(in)
	return nil
}

// relate stores the instance and passes its SLA to the other sub-machines.
func (m *Machine) relate(in *instance) {
	id := in.id()
	m.instances[id] = in
	in.volumes = m.hasVolumes(in)
	m.relations.SetInstance(id, in.demand.sla, in.Desired.Targets)
	for _, n := range m.latency.SetLinks(id.Service(), in.demand.sla.Links) {
		m.changes.Remeasure[n] = true
	}
	m.latency.Refer(in.demand.users, id, in.Node)
	m.changes.Watch[id] = in.demand.checked
}

func (m *Machine) count(in *instance, by int) {
	if u := in.demand.request.Urgency; u >= 0 && u < len(m.placed) {
		m.placed[u] += by
	}
}

// countPlaced records in the counters and other sub-machines that the instance is on its node.
// unsettle undoes it.
func (m *Machine) countPlaced(in *instance) {
	m.count(in, +1)
	m.latency.Refer(in.demand.users, in.id(), in.Node)
	if m.relations.Place(in.id(), in.Node) {
		m.latency.SetRunning(in.id().Service(), in.Node, true)
	}
}

func (m *Machine) uncountPlaced(in *instance) {
	m.count(in, -1)
	m.latency.Refer(in.demand.users, in.id(), "")
	if m.relations.Unplace(in.id()) {
		m.latency.SetRunning(in.id().Service(), in.Node, false)
	}
}

// applyEvent applies an event of the lifecycle table to the instance and reports the change to
// the root.
func (m *Machine) applyEvent(in *instance, e lifecycle.Event, reason api.Reason, detail string) {
	in.State = lifecycle.Must(in.State, e)
	in.Reason, in.Detail = reason, detail
	m.changed(in)
}

func (m *Machine) changed(in *instance) {
	m.save(in)
	m.publish(in)
}

// serving reports whether the instance takes requests. One that is not on the overlay network does
// as soon as it runs.
func (in *instance) serving() bool {
	unchecked := !in.Address.IsValid() && in.Reason != api.ReasonNotReady && in.Reason != api.ReasonUnhealthy
	return in.State == api.Running && (in.Ready || unchecked)
}

// view returns the observation that is reported to the root. It names no nodes.
func (in *instance) view() api.Observed {
	o := api.Observed{
		Instance: in.id(), Epoch: in.Epoch, State: in.State, Reason: in.Reason, Detail: in.Detail,
		Restarts: in.Restarts, Failures: in.Failures, ExitCode: in.ExitCode, HandedBack: in.HandedBack, Local: in.Local, Address: in.Address,
		Ready: in.serving(),
	}
	o.Violated, o.Moves = in.Violated, slices.Clone(in.Moves) // they are pruned in place
	if in.NoBetterNode && in.Violated != "" {
		o.Reason, o.Detail = api.ReasonViolated, in.Violated
	}
	o.Volumes, o.ScaleFault = in.volumes, in.scaleFault
	switch running := in.State == api.Running && o.Detail == ""; {
	case running && in.Move != nil:
		o.Detail = in.Move.Text()
	case running:
		o.Detail = in.Moved
	}
	if text := in.disruptionText(); text != "" && in.State == api.Running {
		if o.Detail = cmp.Or(in.Detail, text); in.Disruption.Reason != api.ReasonMoved {
			o.Reason = cmp.Or(o.Reason, api.ReasonDisruption)
		}
	}
	if in.Disruption != nil {
		o.Disruption = in.Disruption.Number
	}
	if text := in.requestedMove(); text != "" {
		o.Reason = cmp.Or(o.Reason, api.ReasonMoved)
		if o.Detail != "" && o.Detail != requestedDetail {
			text += ": " + o.Detail
		}
		o.Detail = text
	}
	if in.HandedBack && in.Node == "" {
		o.State = api.Requested
	}
	o.Ended = in.Leaving && in.allStopped
	if in.Runs != nil {
		o.Runs, o.Decided = in.Runs.Runs(), in.Runs.Decided
	}
	if in.Withdrawn {
		o.State, o.Reason, o.Stopped = api.Terminated, api.ReasonScaledLocally, in.Node == "" && len(in.OldPlacements) == 0
	}
	if in.HandedBack {
		o.Why = in.why
	}
	return o
}

// publish updates the digest of all observations and schedules a report of the instance.
func (m *Machine) publish(in *instance) {
	v := in.view()
	if in.listed {
		m.changes.Known = m.changes.Known.Toggle(in.shownDigest)
	}
	in.shownDigest, in.listed = v.Digest(), !v.Stopped
	if in.listed {
		m.changes.Known = m.changes.Known.Toggle(in.shownDigest)
	}
	m.changes.Shown[in.id()] = true
}

// finish removes a leaving instance once no node has anything of it.
func (m *Machine) finish(in *instance) {
	if !in.Leaving || in.Node != "" || len(in.OldPlacements) > 0 {
		return
	}
	id := in.id()
	m.noteChanged(in)
	m.need(in, nil)
	m.latency.Unrefer(in.demand.users, id)
	m.changes.Watch[id] = false
	m.cancelQuestion(in)
	m.unreserve(in)
	for _, k := range []effects.Kind{effects.Search, effects.Listen, effects.Accept, effects.Move} {
		m.fx.Timers.Clear(effects.Key{Kind: k, Instance: id})
	}
	m.schedules.at.Clear(id)
	m.noteTurn(in, true)
	in.Move, in.OldCopies = nil, nil
	m.noteMove(in)
	delete(m.instances, id)
	delete(m.aboveShare, id)
	if m.relations.Remove(id) {
		m.latency.SetLinks(id.Service(), nil)
	}
	m.waiting.Remove(id)
	if in.listed {
		m.changes.Known = m.changes.Known.Toggle(in.shownDigest)
	}
	m.fx.Journal.Delete(KindInstance, string(id))
	delete(m.changes.Shown, id)
	m.changes.Removed = append(m.changes.Removed, api.Observed{
		Instance: id, Epoch: in.Epoch, State: api.Terminated, Stopped: true, Local: in.Local,
		Reason: in.Reason, Restarts: in.Restarts, Failures: in.Failures,
	})
}

// endOldPlacement records that the node has nothing of an earlier placement any more. An
// instance that waits for this is placed at the end of the step, when all capacity that the
// step freed is known.
func (m *Machine) endOldPlacement(in *instance, id api.NodeID) {
	n := len(in.OldPlacements)
	in.OldPlacements = slices.DeleteFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Node == id })
	if len(in.OldPlacements) == n {
		return
	}
	m.changed(in)
	if m.finish(in); m.instances[in.id()] != in {
		return
	}
	m.pinSave(in)
	if m.waiting.Has(in.id()) && in.Node == "" {
		m.endedOld[in.id()] = true
	}
}

// pinSave keeps the instance's last save, which releases resources, before later saves of the
// step. Otherwise, after a crash between two saves, two instances could have the resources.
func (m *Machine) pinSave(in *instance) { m.fx.Journal.Pin(KindInstance, string(in.id())) }

// toggleDesired adds the instance to the digest of the root's desired set, or removes it.
func (m *Machine) toggleDesired(in *instance) {
	m.changes.Wanted = m.changes.Wanted.Toggle(in.Desired.Digest())
}

// noteChanged records for the network that an instance may have changed, on any node.
func (m *Machine) noteChanged(in *instance) {
	m.changes.Instances[in.id()] = true
	m.noteTurn(in, false)
	if in.Node != "" {
		m.changes.Places[routes.Place{Node: in.Node, Instance: in.id()}] = true
	}
	for _, v := range in.OldPlacements {
		m.changes.Places[routes.Place{Node: v.Node, Instance: in.id()}] = true
	}
}

// Observed returns the observation of an instance for the root, with its position if the root
// watches it.
func (m *Machine) Observed(id api.InstanceID) (o api.Observed, ok bool) {
	in := m.instances[id]
	if in == nil {
		return o, false
	}
	o = in.view()
	if n := m.nodes[in.Node]; in.Desired.Watched && n != nil {
		at := n.position()
		o.Position, in.shownPosition = &at, &at
	}
	return o, true
}
