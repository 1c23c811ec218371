package root

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Input is what can happen to the root. The zero Revision of an IfMatch sets no
// condition.
type Input interface{ input() }

type (
	// Start comes first, once, after Restore: the core repairs what a crash left half done.
	Start struct{}
	// Tick comes when the Wake of the last step is reached.
	Tick struct{}

	// Apply makes the application what Spec says; it must have been validated.
	// Refused with ErrPrecondition (IfMatch, MustNotExist) or ErrConflict (it is being deleted).
	Apply struct {
		Tenant       api.Tenant
		Spec         api.Application
		IfMatch      api.Revision
		MustNotExist bool
		By           string
	}
	// Scale sets how many instances a service should have. Refused with
	// ErrNotFound, ErrPrecondition, ErrInvalid (out of 0..MaxReplicas) or ErrConflict (being deleted).
	Scale struct {
		Service  api.ServiceID
		Replicas int
		IfMatch  api.Revision
		By       string
	}
	// DeleteApp withdraws all instances and forgets the application when they are gone.
	// Refused with ErrNotFound or ErrPrecondition.
	DeleteApp struct {
		App     api.AppID
		IfMatch api.Revision
		By      string
	}

	// JoinCluster makes a cluster known, or renews what it says of itself. Its
	// credentials were checked outside. Open says whether a cluster that is not known
	// yet gets the services of all tenants; nil: if the installation owns it.
	JoinCluster struct {
		Info api.ClusterInfo
		Open *bool
	}
	// SetGrant replaces what a cluster is granted. Instances of tenants that it admits
	// no more are taken off it at once and placed elsewhere. Refused with ErrNotFound,
	// ErrInvalid or ErrPrecondition.
	SetGrant struct {
		ID      api.ClusterID
		Grant   api.Grant
		IfMatch api.Revision
		By      string
	}
	// ForgetCluster removes a cluster for good; its instances go elsewhere, exclusive ones too.
	ForgetCluster struct{ ID api.ClusterID }

	// Hello is a cluster that opened its stream of desired state.
	Hello struct{ api.Hello }
	// Report is a cluster's report.
	Report struct{ api.Report }

	// Ranked is the answer of a scheduler outside to a sched.Ask. One to a question
	// that is no longer open does nothing.
	Ranked struct{ sched.Answer }
)

func (Start) input()         {}
func (Tick) input()          {}
func (Apply) input()         {}
func (Scale) input()         {}
func (DeleteApp) input()     {}
func (JoinCluster) input()   {}
func (SetGrant) input()      {}
func (ForgetCluster) input() {}
func (Hello) input()         {}
func (Report) input()        {}
func (Ranked) input()        {}
