package root

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/clusters"
	"github.com/treeline-edge/treeline/root-orchestrator/root/rollouts"
)

// Copy answers reads of applications, services, their versions, and instances as the core does that saves the
// documents. It decides nothing. It does not know which clusters report: an instance is stale if the core has saved
// that its cluster is lost. A Copy is not safe for concurrent use.
type Copy struct {
	state
	owners   map[api.ClusterID]api.Tenant // of clusters, also of removed ones
	revision api.Revision
}

// NewCopy returns a Copy without documents.
func NewCopy() *Copy {
	return &Copy{
		state: state{
			copies: true, apps: applications.New(), rollouts: rollouts.New(applications.VersionChanges), clusters: clusters.New(clusters.Config{}),
		},
		owners: map[api.ClusterID]api.Tenant{},
	}
}

// Revision returns a revision up to which the copy has all changes. The core may have a higher one.
func (c *Copy) Revision() api.Revision { return c.revision }

// Owners returns the tenants of clusters, also of removed ones. The map changes with the copy.
func (c *Copy) Owners() map[api.ClusterID]api.Tenant { return c.owners }

// Adopt adds or replaces a document, or forgets one without Data. The order of documents with different keys does not
// matter. It ignores kinds that it does not show.
func (c *Copy) Adopt(d store.Doc) error {
	if err := c.adopt(d); err != nil {
		return fmt.Errorf("adopt %s %s: %w", d.Kind, d.Key, err)
	}
	return nil
}

func (c *Copy) adopt(d store.Doc) error {
	if d.Data == nil {
		switch d.Kind {
		case kindApp:
			c.apps.ForgetApp(api.AppID(d.Key))
		case kindInstance:
			c.apps.ForgetInstance(api.InstanceID(d.Key))
		case kindRollOut:
			c.rollouts.Remove(api.ServiceID(d.Key))
		}
		return nil
	}
	switch d.Kind {
	case kindApp:
		return restoreAs(d, func(a applications.App) {
			c.apps.RestoreApp(&a)
			c.reach(a.Revision)
		})
	case kindInstance:
		return restoreAs(d, func(in applications.Instance) {
			c.apps.CopyInstance(&in)
			c.reach(in.Revision)
		})
	case kindRollOut:
		return restoreAs(d, c.rollouts.Restore)
	case kindCluster:
		return restoreAs(d, func(r clusters.Record) {
			c.owners[r.Info.ID] = r.Info.Tenant
			c.reach(r.Revision)
		})
	case kindMeta:
		if d.Key != metaCounter {
			return nil
		}
		used, err := step.Used(d.Data)
		c.reach(api.Revision(used))
		return err
	}
	return nil
}

func (c *Copy) reach(r api.Revision) { c.revision = max(c.revision, r) }
