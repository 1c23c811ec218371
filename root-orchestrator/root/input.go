package root

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Input is an input of the core. In all inputs, the zero IfMatch sets no condition.
type Input interface{ apply(*Core) error }

type (
	// Start is the first input, after Restore. The core repairs changes that a crash interrupted.
	Start struct{}
	// Tick handles expired timers. It is due at the Wake of the last step.
	Tick struct{}

	// Apply creates or updates an application. Spec must be valid. Errors: ErrPrecondition
	// (IfMatch, MustNotExist), ErrConflict (the application is being deleted), and those of
	// addresses.Registry.Assign.
	Apply applications.Request
	// Scale sets the number of a service's instances. Errors: ErrNotFound, ErrPrecondition,
	// ErrInvalid (not in 0..MaxReplicas), ErrConflict (the application is being deleted).
	Scale struct {
		Service  api.ServiceID
		Replicas int
		IfMatch  api.Revision
		By       string
	}
	// RollOut acts on the roll-out of a service: it is paused, resumed, promoted beyond its
	// canaries, or undone, which applies an earlier version (To; 0: the last healthy one). Errors:
	// ErrNotFound, ErrConflict, and for an undo those of Apply.
	RollOut struct {
		Service api.ServiceID
		Action  RollOutAction
		To      api.Revision
		By      string
	}
	// DeleteApp withdraws all instances of an application and removes it when they are gone.
	// Errors: ErrNotFound, ErrPrecondition.
	DeleteApp struct {
		App     api.AppID
		IfMatch api.Revision
		By      string
	}

	// Accessed records that a user got access to the workload of an instance, or that it ended.
	// Text says what, by whom, and the result. Error: ErrNotFound.
	Accessed struct {
		Instance api.InstanceID
		Text, By string
	}
	// AcceptRestored ends the state after a restore: clusters get assignments again, and stop what the root does not
	// know. Refused with ErrConflict in another state.
	AcceptRestored struct{ By string }
	// Operated records what a user changed through the API, or got of the installation itself, where no
	// other event says it: the operation, the user and the result.
	Operated struct {
		Tenant       api.Tenant // of the object
		Kind, Object string
		Text, By     string
	}
	// WebhookNoted records that a webhook cannot deliver an event, or delivers again.
	WebhookNoted struct {
		Tenant api.Tenant
		ID     string
		Reason api.Reason
		Text   string
	}
	// VolumeAccessed is Accessed for a volume.
	VolumeAccessed struct {
		ID       api.VolumeID
		Text, By string
	}

	// JoinCluster adds a cluster, or replaces its info. The caller has checked its credentials.
	// Open says whether a new cluster takes the services of all tenants; nil means only if it
	// belongs to no tenant. Error: ErrConflict (the cluster belongs to another tenant).
	JoinCluster struct {
		Info api.ClusterInfo
		Open *bool
	}
	// SetGrant replaces a cluster's grant. Instances of tenants that the cluster no longer admits
	// are withdrawn at once and placed elsewhere. Errors: ErrNotFound, ErrInvalid, ErrPrecondition.
	SetGrant struct {
		ID      api.ClusterID
		Grant   api.Grant
		IfMatch api.Revision
		By      string
	}
	// RemoveCluster removes a cluster. Its instances, including exclusive ones, are placed
	// elsewhere. Error: ErrNotFound.
	RemoveCluster struct{ ID api.ClusterID }

	// Hello is sent by a cluster that opens its stream of desired state.
	Hello struct{ wire.Hello }
	// Report is a cluster's report.
	Report struct{ wire.Report }

	// Ranked is the external scheduler's answer to a sched.Ask. It is ignored if the question is no
	// longer open.
	Ranked struct{ sched.Answer }
)

// RollOutAction is what RollOut does.
type RollOutAction string

// The actions of RollOut.
const (
	PauseRollOut   RollOutAction = "pause"
	ResumeRollOut  RollOutAction = "resume"
	PromoteRollOut RollOutAction = "promote"
	UndoRollOut    RollOutAction = "undo"
)

func (Start) apply(c *Core) error {
	c.start()
	return nil
}

func (in Accessed) apply(c *Core) error {
	i, ok := c.apps.Instance(in.Instance)
	if !ok {
		return fmt.Errorf("instance %s: %w", in.Instance, api.ErrNotFound)
	}
	e := i.Event(api.ReasonAccess, step.Clip(in.Text))
	e.By = in.By
	c.event(e)
	return nil
}

func (in Operated) apply(c *Core) error {
	// Without the cluster, so that its own events do not replace the record.
	c.event(api.Event{Tenant: in.Tenant, Kind: in.Kind, Object: in.Object, Reason: api.ReasonAccess, Detail: step.Clip(in.Text), By: in.By})
	return nil
}

func (in WebhookNoted) apply(c *Core) error {
	c.event(api.Event{Tenant: in.Tenant, Kind: "webhook", Object: in.ID, Reason: in.Reason, Detail: step.Clip(in.Text)})
	return nil
}

func (in VolumeAccessed) apply(c *Core) error {
	v, ok := c.Volume(in.ID)
	if !ok {
		return fmt.Errorf("volume %s: %w", in.ID, api.ErrNotFound)
	}
	c.event(api.Event{
		Tenant: v.Tenant, Kind: "volume", Object: in.ID.Name(), Cluster: v.Cluster, Reason: api.ReasonAccess, Detail: step.Clip(in.Text), Instance: in.ID.Instance(), By: in.By,
	})
	return nil
}

func (in JoinCluster) apply(c *Core) error {
	info, bad, _ := bounds.Apply(in.Info)
	if err := bad.Err(); err != nil {
		return fmt.Errorf("join cluster: %w", err)
	}
	return c.joinCluster(info, in.Open)
}

func (in Hello) apply(c *Core) error {
	h, bad, ok := bounds.Apply(in.Hello)
	if c.refuseValues(in.Hello.Cluster, bad); !ok {
		return bad.Err()
	}
	if err := c.clusters.Check(h.Cluster); err != nil {
		return err
	}
	c.catchUp(h.Cluster, h.Since, h.Digest)
	return nil
}

func (in Report) apply(c *Core) error {
	c.reporter = in.Report.Cluster
	r, bad, ok := bounds.Apply(in.Report)
	if c.refuseValues(in.Report.Cluster, bad); !ok {
		return bad.Err()
	}
	return c.report(&r)
}

func (in Ranked) apply(c *Core) error {
	if id, ok := c.placement.Question(in.Key); ok {
		d, fault := c.placement.Answered(c.facts(id), in.Answer)
		c.answered(id, d, fault)
	}
	return nil
}

func (Tick) apply(*Core) error { return nil }
