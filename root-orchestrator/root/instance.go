package root

import (
	"encoding/json"
	"maps"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// instance is what the root knows of one instance. What is exported is saved.
type instance struct {
	ID      api.InstanceID   `json:"id"`
	Cluster api.ClusterID    `json:"cluster,omitempty"`
	Epoch   api.Epoch        `json:"epoch"` // the newest that was observed; its root part is the placement's
	State   api.State        `json:"state"`
	Reason  api.Reason       `json:"reason,omitempty"`
	Detail  string           `json:"detail,omitempty"`
	Spec    api.Microservice `json:"spec"` // that the placement runs; the service may have a newer one
	SpecRev api.Revision     `json:"spec_revision"`
	// Addresses are the service's and its own semantic ones, as they were with Spec.
	Addresses  api.ServiceAddresses `json:"addresses,omitzero"`
	Searched   bool                 `json:"searched,omitempty"` // its placement in Cluster may break its links
	Restarts   int                  `json:"restarts,omitempty"` // of Spec, wherever it ran
	Failures   int                  `json:"failures,omitempty"` // of Spec; see api.Observed
	ExitCode   *int                 `json:"exit_code,omitempty"`
	Address    netip.Addr           `json:"address,omitzero"` // on the overlay network, as its cluster said last
	Leaving    bool                 `json:"leaving,omitempty"`
	Offered    bool                 `json:"handed_back,omitempty"` // its cluster would rather have it elsewhere
	Created    time.Time            `json:"created"`
	Since      time.Time            `json:"since"`
	Revision   api.Revision         `json:"revision"`
	Tries      int                  `json:"tries"`
	Fails      int                  `json:"fails,omitempty"` // clusters that gave it up because it fails
	Placements []api.Placement      `json:"placements,omitempty"`
	// Vacating is the cluster that may still run an exclusive instance; it is placed
	// nowhere else until that cluster has confirmed its end.
	Vacating api.ClusterID `json:"vacating,omitempty"`
	// Stopping are the clusters that have not confirmed the end of an exclusive placement,
	// Vacating among them. The instance may be elsewhere while it is not exclusive.
	Stopping []api.ClusterID `json:"stopping,omitempty"`
	// Next is where it goes on as soon as it runs there; until then it runs in Cluster.
	Next *trial `json:"next,omitempty"`
	// Violated is which part of its SLA its place breaks, as its cluster says.
	Violated string   `json:"violated,omitempty"`
	Devices  []string `json:"devices,omitempty"`
	// Moves are when it moved because of that, within the last hour: from cluster to
	// cluster, and within the one that says so.
	Moves []time.Time `json:"moves,omitempty"`
	// Position is where it runs, if somebody's SLA is measured against it. It is saved
	// with what else changes, so that a restart does not forget where everything was.
	Position *api.Position `json:"position,omitempty"`

	// displaces says that others have to make way where it was placed last.
	displaces bool
	// after is how long a plan has searched a place for it.
	after time.Duration

	spot   *spot         // where it is counted among its service's places
	spotIn api.ClusterID // and as whose; "": it is not

	asked    string                    // the question to the scheduler outside that is open about it
	gen      api.Generation            // of the cluster's desired set, when it was put there
	refusals map[api.ClusterID]refusal // that are about it alone
	refused  int                       // in a row, without a placement that ran
	notUntil time.Time
	until    time.Time // when the search for a place that keeps its links ends; zero: it has not begun

	telling *telling // its events, where a cluster makes them
}

// ended reports whether the instance has ended for good: it needs no place any more.
func (in *instance) ended() bool { return api.Ended(in.State, in.Reason) }

// keptPlacements bounds the history that an instance carries.
const keptPlacements = 8

// forgetRefusals forgets what clusters said of a placement that is over; where it
// violated its SLA, it was the place.
func (in *instance) forgetRefusals() {
	maps.DeleteFunc(in.refusals, func(_ api.ClusterID, r refusal) bool { return !r.violated })
	in.refused, in.notUntil = 0, time.Time{}
}

// assignment is what a cluster is told that has the instance: the root's part of
// the epoch there.
func (in *instance) assignment(at *cluster) api.Assignment {
	return api.Assignment{
		Instance: in.ID, Epoch: api.EpochOf(in.epochAt(at).Root(), 0), SpecRev: in.SpecRev, Spec: in.Spec,
		Addresses: in.Addresses, Searched: in.Searched && in.trialAt(at) == nil, Restarts: in.Restarts, Failures: in.Failures,
	}
}

func (c *Core) enter(in *instance) {
	c.instances[in.ID] = in
	c.service(in.ID.Service()).instances[in.ID] = in
}

func (c *Core) restoreInstance(d store.Doc) error {
	in := new(instance)
	if err := json.Unmarshal(d.Data, in); err != nil {
		return err
	}
	c.enter(in)
	c.restoreStopping(in)
	if in.Next != nil && c.clusters[in.Next.Cluster] == nil {
		in.Next = nil
	}
	if t := in.Next; t != nil && c.clusters[in.Cluster] == nil {
		in.Cluster, in.Epoch, in.State, in.Next, in.Searched = t.Cluster, t.Epoch, api.ClusterScheduled, nil, false
	}
	defer c.locate(in)
	cl := c.clusters[in.Cluster]
	switch {
	case cl == nil:
		if in.Cluster != "" {
			in.Cluster = ""
			if !in.ended() {
				in.State = api.Requested
			}
		}
		if in.Leaving && len(in.Stopping) > 0 {
			in.Cluster = in.Stopping[0]
		}
	case in.Leaving:
		cl.leaving[in.ID] = 0
	default:
		c.assigned(in, cl)
		if in.Next != nil {
			c.assigned(in, c.clusters[in.Next.Cluster])
		}
	}
	return nil
}

// assigned counts the instance as the cluster's.
func (c *Core) assigned(in *instance, cl *cluster) {
	cl.assigned[in.ID] = in
	cl.hosts(in.ID.Tenant(), 1, c.now)
	cl.wanted = cl.wanted.Toggle(in.assignment(cl).Digest())
	c.service(in.ID.Service()).peers[string(cl.Info.ID)]++
	in.putAt(cl)
}

func (c *Core) changed(in *instance) {
	if c.dirty.first("instance", string(in.ID)) {
		c.dirty.instances = append(c.dirty.instances, in.ID)
	}
}

// become notes the instance's new state and tells the story of it.
func (c *Core) become(in *instance, s api.State, r api.Reason, detail string) {
	if in.State != s {
		in.Since = c.wall
	}
	if in.State != s || in.Reason != r {
		c.event(c.about(in, s, r, detail))
	}
	in.State, in.Reason, in.Detail = s, r, detail
	c.changed(in)
}

func (c *Core) about(in *instance, s api.State, r api.Reason, detail string) api.Event {
	return api.Event{
		Tenant: in.ID.Tenant(), Kind: "instance", Object: in.ID.Name(), State: s, Reason: r, Detail: detail,
		Cluster: in.Cluster, Epoch: in.Epoch, Instance: in.ID,
	}
}

// leave withdraws an instance. It is forgotten when its cluster, and every cluster in
// which an exclusive placement of it stops, has confirmed that nothing of it is left.
func (c *Core) leave(in *instance, r api.Reason) {
	if in.Leaving {
		return
	}
	in.Leaving, in.Offered = true, false
	c.locate(in)
	c.stopWaiting(in)
	c.endTrial(in)
	switch cl := c.clusters[in.Cluster]; {
	case cl != nil:
		c.unassign(in, cl)
		cl.leaving[in.ID] = cl.gen
	case len(in.Stopping) > 0:
		in.Cluster = in.Stopping[0] // it was withdrawn there already; the confirmation is missing
	default:
		c.remove(in)
		return
	}
	c.event(c.about(in, in.State, r, "is being stopped"))
	in.Reason, in.Detail = r, ""
	c.changed(in)
}

// remove forgets an instance of which nothing is left.
func (c *Core) remove(in *instance) {
	c.stopWaiting(in)
	id := in.ID
	c.rehosted(id.Service())
	delete(c.instances, id)
	c.journal.Delete(kindInstance, string(id))
	c.event(c.about(in, api.Terminated, in.Reason, ""))
	c.show(api.Change{Kind: "instance", ID: string(id), Tenant: id.Tenant(), Revision: c.nextRev()})
	s := c.service(id.Service())
	delete(s.instances, id)
	switch {
	case s.app == nil:
		if len(s.instances) == 0 {
			delete(c.services, s.id)
		}
	case s.app.Leaving:
		c.finishApp(s.app)
	}
}

func (c *Core) stopWaiting(in *instance) {
	c.waiting.remove(in.ID)
	c.forgetQuestion(in)
	c.timers.Clear(timerKey{what: timerRetry, instance: in.ID})
}
