package root

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// awaitStop keeps an exclusive instance from running elsewhere until the cluster
// that it was taken off has confirmed that nothing of it is left.
func (c *Core) awaitStop(in *instance, cl *cluster) {
	in.Vacating = cl.Info.ID
	if !slices.Contains(in.Stopping, cl.Info.ID) {
		in.Stopping = append(in.Stopping, cl.Info.ID)
	}
	c.rehosted(in.ID.Service())
	cl.leaving[in.ID] = cl.gen
	c.changed(in)
}

// stopsBeside reports whether an exclusive placement of the instance may still run in a
// cluster other than cl: the instance may have been updated and moved since, while it was
// not exclusive.
func (in *instance) stopsBeside(cl *cluster) bool {
	return slices.ContainsFunc(in.Stopping, func(id api.ClusterID) bool { return id != cl.Info.ID })
}

// stopped notes that no earlier exclusive placement of the instance in the cluster can
// run beside a later one.
func (c *Core) stopped(in *instance, cl *cluster) {
	delete(cl.leaving, in.ID)
	if i := slices.Index(in.Stopping, cl.Info.ID); i >= 0 {
		in.Stopping = slices.Delete(in.Stopping, i, i+1)
		c.changed(in)
	}
}

// nothingLeft takes that the cluster has nothing of a withdrawn instance any more, or is
// forgotten. The instance is placed if it waited for that, and removed if it leaves and
// no other cluster has to confirm.
func (c *Core) nothingLeft(id api.InstanceID, cl *cluster) {
	delete(cl.leaving, id)
	in := c.instances[id]
	if in == nil {
		return
	}
	c.stopped(in, cl)
	waited := in.Vacating == cl.Info.ID
	if waited {
		in.Vacating = ""
		c.rehosted(id.Service())
		c.changed(in)
	}
	switch {
	case in.Leaving && in.Cluster != cl.Info.ID:
	case in.Leaving && len(in.Stopping) > 0:
		in.Cluster = in.Stopping[0]
		in.Detail = "an exclusive placement in cluster " + string(in.Cluster) + " has not been confirmed to have ended"
		c.rehosted(id.Service())
		c.changed(in)
	case in.Leaving:
		c.remove(in)
		c.reconcileSoon(id.Service())
	case waited:
		c.tryPlace(in)
	}
}

// restoreStopping has the clusters confirm again that the instance's exclusive placements
// ended. Earlier releases saved the last such cluster alone, as Vacating.
func (c *Core) restoreStopping(in *instance) {
	if in.Vacating != "" && !slices.Contains(in.Stopping, in.Vacating) {
		in.Stopping = append(in.Stopping, in.Vacating)
	}
	in.Stopping = slices.DeleteFunc(in.Stopping, func(id api.ClusterID) bool { return c.clusters[id] == nil })
	for _, id := range in.Stopping {
		c.clusters[id].leaving[in.ID] = 0 // start sets the generation
	}
	if c.clusters[in.Vacating] == nil {
		in.Vacating = ""
	}
}
