package root

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// restoredGap is above the number of revisions that the root has used since the snapshot, so that a restored root
// does not use one again for an epoch, a generation or a change. Each start before the restore is accepted takes
// so many.
const restoredGap = 1 << 24

// startRestored skips the revisions since the snapshot.
func (c *Core) startRestored() {
	if c.restored == nil || c.dry {
		return
	}
	if last := c.counter.Last(); last < maxRevision {
		c.counter.Raise(last+restoredGap, &c.journal, kindMeta, metaCounter)
	}
	c.event(api.Event{Kind: "system", Object: "root", Detail: fmt.Sprintf(
		"restored from a snapshot of %s: clusters keep what they run and get no assignments until an admin accepts it", c.restored.Taken.Format(time.RFC3339))})
}

// unknown returns the instances that clusters report and this root has no record of there.
func (c *state) unknown() (all []api.UnknownInstance) {
	for _, at := range c.clusters.IDs() {
		for _, id := range c.clusters.Unassigned(at) {
			all = append(all, api.UnknownInstance{Cluster: at, Instance: id})
		}
	}
	return all
}

// Restored returns the state after a restore from a snapshot. Instances of clusters that have not reported since
// are missing in it.
func (c *Core) Restored() api.RestoreState {
	if c.restored == nil {
		return api.RestoreState{}
	}
	s := api.RestoreState{Held: true, Taken: c.restored.Taken, Restored: c.restored.Restored, Unknown: c.unknown()}
	for _, at := range c.clusters.IDs() {
		if !c.clusters.Live(at) {
			s.Silent = append(s.Silent, at)
		}
	}
	return s
}

func (in AcceptRestored) apply(c *Core) error {
	if c.restored == nil {
		return fmt.Errorf("accept the restore: the root is not restored from a snapshot, or this was accepted before: %w", api.ErrConflict)
	}
	stop := len(c.unknown())
	c.restored = nil
	c.journal.Delete(store.KindRestored, store.KeyRestored)
	for _, at := range c.clusters.IDs() {
		if c.clusters.Live(at) {
			for _, id := range c.clusters.Assigned(at) {
				if !c.clusters.Observes(at, id) {
					// The cluster may have had a later placement of it, and takes no earlier one.
					c.apps.SetEpoch(id, at, api.EpochOf(c.nextRev(), 0))
					in := c.apps.Get(id)
					c.clusters.Put(at, id, in.Digest(at))
				}
			}
		}
		c.touch(at)
		c.clusters.SendWhole(at)
	}
	c.event(api.Event{Kind: "system", Object: "root", Detail: fmt.Sprintf("restore accepted by %s: %d instances without a record stop", in.By, stop), By: in.By})
	return nil
}
