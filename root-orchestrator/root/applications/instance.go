package applications

import (
	"cmp"
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Instance is the saved state of an instance.
type Instance struct {
	ID      api.InstanceID    `json:"id"`
	Cluster api.ClusterID     `json:"cluster,omitempty"`
	Epoch   api.Epoch         `json:"epoch"` // the newest observed; its root part identifies the placement
	State   api.State         `json:"state"`
	Reason  api.Reason        `json:"reason,omitempty"`
	Detail  string            `json:"detail,omitempty"`
	Spec    *api.Microservice `json:"spec"` // of the placement; the service may have a newer one; only read
	SpecRev api.Revision      `json:"spec_revision"`
	// Addresses are the semantic addresses of the service and the instance according to Spec.
	Addresses  api.ServiceAddresses `json:"addresses,omitzero"`
	Searched   bool                 `json:"searched,omitempty"` // its placement in Cluster may violate its links
	Restarts   int                  `json:"restarts,omitempty"` // under Spec, on all clusters
	Failures   int                  `json:"failures,omitempty"` // under Spec; see api.Observed
	ExitCode   *int                 `json:"exit_code,omitempty"`
	Address    netip.Addr           `json:"address,omitzero"` // on the overlay network
	Ready      bool                 `json:"ready,omitempty"`  // it takes requests
	Leaving    bool                 `json:"leaving,omitempty"`
	HandedBack bool                 `json:"handed_back,omitempty"` // its cluster handed it back, or is silent
	Created    time.Time            `json:"created"`
	Since      time.Time            `json:"since"`
	Revision   api.Revision         `json:"revision"`
	Tries      int                  `json:"tries"`
	Fails      int                  `json:"fails,omitempty"` // clusters that gave it up because it fails
	Placements []api.Placement      `json:"placements,omitempty"`
	// Vacating is a cluster that may still run an earlier exclusive placement. The instance is not
	// placed until that cluster has confirmed the end of it.
	Vacating api.ClusterID `json:"vacating,omitempty"`
	// Stopping has the clusters that have not confirmed the end of an exclusive placement,
	// including Vacating. While the instance is not exclusive, it may run elsewhere.
	Stopping []api.ClusterID `json:"stopping,omitempty"`
	Next     *Trial          `json:"next,omitempty"`
	// Violated is the part of the SLA that its place violates, as reported by its cluster.
	Violated string   `json:"violated,omitempty"`
	Devices  []string `json:"devices,omitempty"`
	// Moves has the times of its moves because of violations in the last hour, between clusters and
	// within the cluster that reports it.
	Moves []time.Time `json:"moves,omitempty"`
	// Position is where it runs, if another service's SLA depends on it. A change of it alone is
	// not saved.
	Position *api.Position `json:"position,omitempty"`
	// Runs and Decided are of a scheduled instance, as its cluster reports; see api.Observed.
	Runs    []api.Run `json:"runs,omitempty"`
	Decided time.Time `json:"decided,omitzero"`
	// ScaleFault is why something that its service scales by is not known; see api.Observed.
	ScaleFault string `json:"scale_fault,omitempty"`
	// Values are the versions of the configs and secrets that its placements have.
	Values []wire.ValueRef `json:"values,omitempty"`
	// Disruption is the number of the voluntary disruption that its cluster requests or carries out, and
	// Permitted the one that the disruption budget of its service permits; 0: none.
	Disruption api.Generation `json:"disruption,omitempty"`
	Permitted  api.Generation `json:"permitted,omitempty"`

	VolumeAt  api.ClusterID `json:"-"` // the cluster that has its local volumes; "": none has
	VolumesMB int64         `json:"-"` // the sum of their sizes

	Preempts bool `json:"-"` // its last placement requires preemption
}

// Trial is a second placement of a running instance that moves. It is in its cluster's desired set
// like any other placement. It replaces the first placement when it runs, or when the first is
// lost. An exclusive instance has none.
type Trial struct {
	Cluster api.ClusterID `json:"cluster"`
	Epoch   api.Epoch     `json:"epoch"`
	At      time.Time     `json:"at"`
	Score   float64       `json:"score,omitempty"`
}

// maxPlacements limits the history of an instance.
const maxPlacements = 8

// Ended reports whether the instance has ended for good and needs no place.
func (in *Instance) Ended() bool { return api.Ended(in.State, in.Reason) }

// TrialAt reports whether the instance's second placement is on the cluster.
func (in *Instance) TrialAt(id api.ClusterID) bool { return in.Next != nil && in.Next.Cluster == id }

// EpochAt returns the epoch of the instance's placement on the cluster.
func (in *Instance) EpochAt(id api.ClusterID) api.Epoch {
	if in.TrialAt(id) {
		return in.Next.Epoch
	}
	return in.Epoch
}

// Clusters returns the clusters of the instance's placements.
func (in *Instance) Clusters() []api.ClusterID {
	if in.Next != nil {
		return []api.ClusterID{in.Cluster, in.Next.Cluster}
	}
	return []api.ClusterID{in.Cluster}
}

// StopsElsewhere reports whether another cluster may still run an exclusive placement of the
// instance. That is possible after the instance was updated and moved while it was not exclusive.
func (in *Instance) StopsElsewhere(id api.ClusterID) bool {
	return slices.ContainsFunc(in.Stopping, func(at api.ClusterID) bool { return at != id })
}

// Digest returns the digest of the instance's assignment to a cluster.
func (in *Instance) Digest(id api.ClusterID) api.Digest {
	return wire.Assignment{Instance: in.ID, Epoch: api.EpochOf(in.EpochAt(id).Root(), 0), SpecRev: in.SpecRev, Values: in.Values}.Digest()
}

// Assignment returns the instance's assignment to a cluster, without the part about links.
func (in *Instance) Assignment(id api.ClusterID, wall time.Time) wire.Assignment {
	return wire.Assignment{
		Instance: in.ID, Epoch: api.EpochOf(in.EpochAt(id).Root(), 0), SpecRev: in.SpecRev, Spec: forInstances(in.Spec),
		Addresses: in.Addresses, Searched: in.Searched && !in.TrialAt(id), Restarts: in.Restarts, Failures: in.Failures,
		Moves: wire.MergeMoves(in.Moves, nil, wall), Values: in.Values, Decided: in.Decided, Disrupts: in.permittedAt(id),
	}
}

func (in *Instance) permittedAt(id api.ClusterID) api.Generation {
	if in.TrialAt(id) {
		return 0
	}
	return in.Permitted
}

func (in *Instance) event(s api.State, r api.Reason, detail string) api.Event {
	return api.Event{
		Tenant: in.ID.Tenant(), Kind: "instance", Object: in.ID.Name(), State: s, Reason: r, Detail: detail,
		Cluster: in.Cluster, Epoch: in.Epoch, Instance: in.ID,
	}
}

// Event returns an event about the instance with its present state.
func (in *Instance) Event(r api.Reason, detail string) api.Event {
	return in.event(in.State, r, detail)
}

// Instance returns a copy of an instance, and whether it exists.
func (m *Machine) Instance(id api.InstanceID) (Instance, bool) {
	if in := m.instances[id]; in != nil {
		return *in, true
	}
	return Instance{}, false
}

// Has reports whether an instance exists.
func (m *Machine) Has(id api.InstanceID) bool { return m.instances[id] != nil }

// Get returns a copy of an instance.
func (m *Machine) Get(id api.InstanceID) Instance { return *m.instances[id] }

// SortByUrgency sorts instances, the most urgent first. The sort is stable.
func (m *Machine) SortByUrgency(ids []api.InstanceID) {
	slices.SortStableFunc(ids, func(a, b api.InstanceID) int {
		return cmp.Compare(m.instances[b].Spec.Urgency(), m.instances[a].Spec.Urgency())
	})
}

// Instances returns the ids of all instances, sorted.
func (m *Machine) Instances() []api.InstanceID { return step.Keys(m.instances) }

// InstancesOf returns the ids of a service's instances, sorted; none if there is no such service.
func (m *Machine) InstancesOf(id api.ServiceID) []api.InstanceID {
	if s := m.services[id]; s != nil {
		return step.Keys(s.instances)
	}
	return nil
}

// Count returns the number of a service's instances; 0 if there is no such service.
func (m *Machine) Count(id api.ServiceID) int {
	if s := m.services[id]; s != nil {
		return len(s.instances)
	}
	return 0
}

// EachOf yields a service's instances in no order; none if there is no such service.
func (m *Machine) EachOf(id api.ServiceID) iter.Seq[Instance] {
	return func(yield func(Instance) bool) {
		if s := m.services[id]; s != nil {
			for _, in := range s.instances {
				if !yield(*in) {
					return
				}
			}
		}
	}
}

func (m *Machine) enter(in *Instance) {
	m.instances[in.ID] = in
	m.service(in.ID.Service()).instances[in.ID] = in
}

// CopyInstance adds a saved instance as it is, or replaces an earlier version of it. It is for copies, which decide
// nothing.
func (m *Machine) CopyInstance(in *Instance) {
	if in.Spec == nil {
		in.Spec = &api.Microservice{}
	}
	m.enter(in)
}

// ForgetInstance is the reverse of CopyInstance. It ignores an unknown instance.
func (m *Machine) ForgetInstance(id api.InstanceID) {
	m.Remove(id)
	if s := m.services[id.Service()]; s != nil {
		m.tidy(s)
	}
}

// RestoreInstance adds a saved instance, without references to clusters that are not known. If it had such, it
// changes in the first step.
func (m *Machine) RestoreInstance(in *Instance, known func(api.ClusterID) bool) {
	m.CopyInstance(in)
	if slices.ContainsFunc(in.Clusters(), func(id api.ClusterID) bool { return id != "" && !known(id) }) {
		m.Change(in.ID)
	}
	// Earlier releases saved only the last cluster of Stopping, as Vacating.
	if in.Vacating != "" && !slices.Contains(in.Stopping, in.Vacating) {
		in.Stopping = append(in.Stopping, in.Vacating)
	}
	in.Stopping = slices.DeleteFunc(in.Stopping, func(id api.ClusterID) bool { return !known(id) })
	if !known(in.Vacating) {
		in.Vacating = ""
	}
	if in.Next != nil && !known(in.Next.Cluster) {
		in.Next = nil
	}
	if known(in.Cluster) {
		return
	}
	if t := in.Next; t != nil {
		in.Cluster, in.Epoch, in.State, in.Next, in.Searched = t.Cluster, t.Epoch, api.ClusterScheduled, nil, false
		return
	}
	if in.Cluster != "" && !in.Ended() {
		in.State = api.Requested
	}
	in.Cluster = ""
	if in.Leaving && len(in.Stopping) > 0 {
		in.Cluster = in.Stopping[0]
	}
}

// Add adds an instance of a service that an application has.
func (m *Machine) Add(id api.InstanceID) {
	s := m.services[id.Service()]
	m.enter(&Instance{
		ID: id, State: api.Registered, Spec: s.spec, SpecRev: s.app.SpecRevs[s.id],
		Addresses: m.AddressesOf(s.id, id.Number()), Created: m.wall, Since: m.wall,
	})
}

// Adopt adds an instance that the operator of a cluster started, and one replica to its service.
func (m *Machine) Adopt(at api.ClusterID, o *api.Observed) {
	m.Add(o.Instance)
	in := m.instances[o.Instance]
	in.Cluster, in.Epoch, in.State, in.Reason, in.Detail, in.Address, in.Tries = at, o.Epoch, o.State, o.Reason, o.Detail, o.Address, 1
	in.Ready = o.Ready
	in.Placements = []api.Placement{{Epoch: o.Epoch, Cluster: at, At: m.wall, Reason: api.ReasonScaledLocally}}
	m.AddReplicas(o.Instance.Service(), 1)
	m.Change(in.ID)
}

// MayAdopt reports whether the operator of a cluster may add the instance. Its number must be in
// the cluster's range, which begins at firstNumber.
func (m *Machine) MayAdopt(id api.InstanceID, firstNumber int) bool {
	const numbers = 100_000
	s, n := m.services[id.Service()], id.Number()
	// Limit leaving instances too: a cluster may never confirm that they ended.
	return s != nil && s.app != nil && !s.app.Leaving && s.instances[id] == nil && n >= firstNumber && n < firstNumber+numbers &&
		s.app.Replicas[s.id] < MaxReplicas && len(s.instances) < 2*MaxReplicas
}

// Change marks an instance to be saved and published at the end of the step.
func (m *Machine) Change(id api.InstanceID) {
	m.changedInstances.Add(id)
	m.budgetDue(id.Service())
}

// Become sets the instance's state. It returns an event, and whether state or reason changed, so
// that the event is due.
func (m *Machine) Become(id api.InstanceID, s api.State, r api.Reason, detail string) (api.Event, bool) {
	in := m.instances[id]
	tell := in.State != s || in.Reason != r
	if in.State != s {
		in.Since = m.wall
	}
	e := in.event(s, r, detail)
	in.State, in.Reason, in.Detail = s, r, detail
	m.Change(id)
	return e, tell
}

// Assign records a new placement.
func (m *Machine) Assign(id api.InstanceID, at api.ClusterID, epoch api.Epoch, score float64, searched, displaces bool) {
	in := m.instances[id]
	in.State, in.Cluster, in.Epoch, in.Searched, in.Preempts = api.Requested, at, epoch, searched, displaces
	in.Tries++
	in.HandedBack = false
	in.forgetObserved()
	in.placed(m.wall, score)
	if in.Vacating == at {
		in.Vacating = "" // the cluster ends the old placement before it begins the new one
	}
}

func (in *Instance) forgetObserved() {
	in.ExitCode, in.Address, in.Ready, in.Violated, in.Devices, in.Position = nil, netip.Addr{}, false, "", nil, nil
	in.Disruption, in.Permitted = 0, 0
}

// placed adds the instance's placement to its history.
func (in *Instance) placed(at time.Time, score float64) {
	in.Placements = append(in.Placements, api.Placement{Epoch: in.Epoch, Cluster: in.Cluster, At: at, Score: score})
	if n := len(in.Placements); n > maxPlacements {
		in.Placements = slices.Clone(in.Placements[n-maxPlacements:])
	}
}

// CountMove records a move of the instance, if its place violates its SLA.
func (m *Machine) CountMove(id api.InstanceID) {
	if in := m.instances[id]; in.Cluster != "" && in.Reason == api.ReasonViolated {
		in.Moves = append(slices.Clip(in.Moves), m.wall)
	}
}

// SetWithdrawn records that the instance was withdrawn from its cluster, for its present reason.
func (m *Machine) SetWithdrawn(id api.InstanceID) {
	in := m.instances[id]
	if n := len(in.Placements); n > 0 {
		in.Placements[n-1].Reason = in.Reason
	}
	in.Cluster, in.HandedBack, in.Disruption, in.Permitted = "", false, 0, 0
}

// StartTrial records a second placement of the instance.
func (m *Machine) StartTrial(id api.InstanceID, at api.ClusterID, epoch api.Epoch, score float64) {
	in := m.instances[id]
	in.Next = &Trial{Cluster: at, Epoch: epoch, At: m.wall, Score: score}
	in.Tries++
	m.Change(id)
}

// EndTrial removes the second placement of the instance.
func (m *Machine) EndTrial(id api.InstanceID) {
	m.instances[id].Next = nil
	m.Change(id)
}

// Promote replaces the placement of the instance by its second one, t.
func (m *Machine) Promote(id api.InstanceID, t Trial) {
	in := m.instances[id]
	in.Next, in.Cluster, in.Epoch, in.Searched = nil, t.Cluster, t.Epoch, false
	in.forgetObserved()
	in.placed(t.At, t.Score)
}

// SetEpoch replaces the epoch of the instance's placement on a cluster.
func (m *Machine) SetEpoch(id api.InstanceID, at api.ClusterID, e api.Epoch) {
	in := m.instances[id]
	if in.TrialAt(at) {
		t := *in.Next
		t.Epoch = e
		in.Next = &t
	} else {
		in.Epoch = e
	}
	m.Change(id)
}

// SetValues sets the configs and secrets of the instance's placements, and reports whether they
// differ from those before.
func (m *Machine) SetValues(id api.InstanceID, refs []wire.ValueRef) bool {
	in := m.instances[id]
	if slices.Equal(in.Values, refs) {
		return false
	}
	in.Values = refs
	m.Change(id)
	return true
}

// SetReason sets the reason of the instance's state without an event.
func (m *Machine) SetReason(id api.InstanceID, r api.Reason) { m.instances[id].Reason = r }

// SetHandedBack records whether the instance's cluster wants it elsewhere or is silent.
func (m *Machine) SetHandedBack(id api.InstanceID, yes bool) { m.instances[id].HandedBack = yes }

// SetVolumes sets which cluster has the local volumes of an instance, and the sum of their sizes.
func (m *Machine) SetVolumes(id api.InstanceID, at api.ClusterID, sizeMB int64) {
	in := m.instances[id]
	in.VolumeAt, in.VolumesMB = at, sizeMB
}

// AddFail records that a cluster gave the instance up because it fails.
func (m *Machine) AddFail(id api.InstanceID) { m.instances[id].Fails++ }

// Update sets the newest SLA of the service and the state Requested.
func (m *Machine) Update(id api.InstanceID) {
	in := m.instances[id]
	s := m.services[id.Service()]
	in.Spec, in.SpecRev, in.Addresses = s.spec, s.app.SpecRevs[s.id], m.AddressesOf(s.id, id.Number())
	in.Fails, in.Restarts, in.Failures = 0, 0, 0
	in.State = api.Requested
}

// AwaitStop records that the instance must not be placed until a cluster has confirmed the end of
// an exclusive placement.
func (m *Machine) AwaitStop(id api.InstanceID, at api.ClusterID) {
	in := m.instances[id]
	in.Vacating = at
	if !slices.Contains(in.Stopping, at) {
		in.Stopping = append(slices.Clip(in.Stopping), at)
	}
	m.Change(id)
}

// Stopped records that no earlier exclusive placement in a cluster can run beside a later one.
func (m *Machine) Stopped(id api.InstanceID, at api.ClusterID) {
	in := m.instances[id]
	if i := slices.Index(in.Stopping, at); i >= 0 {
		in.Stopping = slices.Delete(slices.Clone(in.Stopping), i, i+1)
		m.Change(id)
	}
}

// SkipStops is for dry runs. It records that all exclusive placements of the instance have ended,
// and reports whether the instance waited for one.
func (m *Machine) SkipStops(id api.InstanceID) (waited bool) {
	in := m.instances[id]
	waited = in.Vacating != ""
	in.Vacating, in.Stopping = "", nil
	return waited
}

// Vacated records that a cluster has confirmed the end of an exclusive placement, and reports
// whether the instance waited for it.
func (m *Machine) Vacated(id api.InstanceID, at api.ClusterID) bool {
	in := m.instances[id]
	if in.Vacating != at {
		return false
	}
	in.Vacating = ""
	m.Change(id)
	return true
}

// Leave marks an instance as leaving, and reports whether it was not leaving before.
func (m *Machine) Leave(id api.InstanceID) bool {
	in := m.instances[id]
	first := !in.Leaving
	if first {
		in.Leaving, in.HandedBack = true, false
	}
	return first
}

// LeaveAt sets the cluster that has to confirm the end of a leaving instance.
func (m *Machine) LeaveAt(id api.InstanceID, at api.ClusterID, r api.Reason, detail string) {
	in := m.instances[id]
	in.Cluster, in.Reason, in.Detail = at, r, detail
	m.Change(id)
}

// EndLeaving records that a leaving instance does not run any more. The instance is kept until its
// cluster confirms that nothing is left of it. EndLeaving ignores unknown instances.
func (m *Machine) EndLeaving(id api.InstanceID, at api.ClusterID) {
	in := m.instances[id]
	if in == nil || !in.Leaving || in.Cluster != at || in.State == api.Terminated {
		return
	}
	in.State, in.Since = api.Terminated, m.wall
	in.Detail = "its processes have ended; what is left of it is being removed"
	m.Change(id)
}

// Remove deletes the record of an instance.
func (m *Machine) Remove(id api.InstanceID) {
	delete(m.instances, id)
	m.budgetDue(id.Service())
	if s := m.services[id.Service()]; s != nil {
		delete(s.instances, id)
	}
}

// Observe records an observation by the instance's cluster, except the state. changed reports
// whether anything but the position changed. ok is false if the observation was ignored because the
// instance has ended and a late report must not revive it.
func (m *Machine) Observe(id api.InstanceID, o *api.Observed) (changed, ok bool) {
	in := m.instances[id]
	if in.Ended() && (!api.Ended(o.State, o.Reason) || in.State != o.State) {
		return false, false
	}
	restarts, failures := o.Counts(in.Restarts, in.Failures)
	changed = in.Address != o.Address || in.Ready != o.Ready || in.Epoch != o.Epoch || in.Restarts != restarts || in.Failures != failures ||
		!equal(in.ExitCode, o.ExitCode) || in.Violated != o.Violated || !slices.Equal(in.Devices, o.Devices)
	in.Epoch, in.Restarts, in.Failures, in.ExitCode, in.Address = o.Epoch, restarts, failures, o.ExitCode, o.Address
	in.Ready, in.Violated, in.Devices, in.Moves = o.Ready, o.Violated, o.Devices, wire.MergeMoves(in.Moves, o.Moves, m.wall)
	if o.Position != nil {
		in.Position = o.Position
	}
	if in.ScaleFault != o.ScaleFault {
		in.ScaleFault, changed = o.ScaleFault, true
	}
	if in.Disruption != o.Disruption {
		in.Disruption, in.Permitted, changed = o.Disruption, 0, true
	}
	if in.Spec.Schedule != nil {
		changed = m.observeRuns(in, o) || changed
	}
	return changed, true
}

// maxAhead is how far the clock of a cluster may be ahead of the root's.
const maxAhead = 24 * time.Hour

// observeRuns records the runs that the instance's cluster reports. A cluster cannot take back what it
// has decided.
func (m *Machine) observeRuns(in *Instance, o *api.Observed) (changed bool) {
	if o.Decided.After(in.Decided) && o.Decided.Sub(m.wall) <= maxAhead {
		in.Decided, changed = o.Decided, true
	}
	if o.Decided.Before(in.Decided) || reflect.DeepEqual(in.Runs, o.Runs) {
		return changed
	}
	in.Runs = o.Runs
	return true
}

func equal(a, b *int) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// SavedInstance sets the revision of an instance and returns it to be saved.
func (m *Machine) SavedInstance(id api.InstanceID, rev api.Revision) *Instance {
	in := m.instances[id]
	in.Revision = rev
	return in
}
