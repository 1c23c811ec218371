package root

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// stuck is what was found out in this step: that no cluster takes an instance of
// the service, and why. The next of them has no need to look.
type stuck struct {
	service api.ServiceID
	rev     api.Revision
	late    bool          // its search is over
	search  time.Duration // 0: it has none
	detail  string
}

// noteStuck notes that the instance fits nowhere, if that is true of its siblings.
func (c *Core) noteStuck(in *instance, detail string, search time.Duration) {
	own := in.Cluster != "" && !slices.ContainsFunc(c.refusedBy(in, in.Cluster), func(r refusal) bool { return r.holds(c.clusters[in.Cluster], c.now) })
	if c.common(in) != nil && len(in.refusals) == 0 && !own && in.Reason != api.ReasonViolated && !c.dry {
		c.stuck = stuck{in.ID.Service(), in.SpecRev, c.late(in), search, detail}
	}
}

func (c *Core) isStuck(in *instance) bool {
	return c.stuck.service == in.ID.Service() && c.stuck.rev == in.SpecRev && c.stuck.late == c.late(in)
}
