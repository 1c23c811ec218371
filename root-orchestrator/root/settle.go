package root

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// A root may be back on an older copy of its store, and cannot see that by itself:
// what it gave since is in use, and only the clusters know of it. So after a start
// it gives no new address and no new share until every cluster that it knows has
// said all that it has, which takes as long as they take to connect again, or has
// been silent for the time after which it counts as lost. What services have, they
// keep meanwhile, and what rests for them they get back: nobody else was given it.

// awaitAll begins the wait.
func (c *Core) awaitAll() {
	c.net.awaited, c.net.awaitedUntil = map[api.ClusterID]bool{}, c.now.Add(c.cfg.Dead)
	for id := range c.clusters {
		c.net.awaited[id] = true
	}
}

// settle ends the wait once it is over, and gives what was not given in it. Each
// cluster's silence is looked at when the wait's time is over, so that there is a
// step then.
func (c *Core) settle() {
	n := &c.net
	if n.awaited == nil {
		return
	}
	for id := range n.awaited {
		if cl := c.clusters[id]; cl == nil || cl.heard && !cl.net.speaks {
			delete(n.awaited, id) // it is gone, or has no part in the network
		}
	}
	if len(n.awaited) > 0 && c.now.Before(n.awaitedUntil) {
		return
	}
	n.awaited = nil
	c.completeAddresses()
	for _, id := range step.Keys(c.clusters) {
		if cl := c.clusters[id]; cl.net.speaks {
			c.grant(cl, cl.net.needs)
		}
	}
}

// notYet says what is waited for before anything new is given, ErrUnavailable, or
// nil.
func (c *Core) notYet(what string) error {
	n := &c.net
	if len(n.awaited) == 0 {
		return nil
	}
	var names []string
	for _, id := range step.Keys(n.awaited) {
		names = append(names, string(id))
	}
	if len(names) > 3 {
		names = append(slices.Clip(names[:3]), fmt.Sprintf("%d more", len(names)-3))
	}
	return fmt.Errorf("%s: the root has just started, and gives no new addresses before it knows which are in use. It waits for cluster %s, at most %s more; try again then: %w",
		what, strings.Join(names, ", "), n.awaitedUntil.Sub(c.now).Round(time.Second), api.ErrUnavailable)
}

// completeAddresses gives services addresses that have none: those of an earlier
// version, or of an application whose saving was cut off.
func (c *Core) completeAddresses() {
	for _, id := range step.Keys(c.apps) {
		plans, err := c.planAddresses(id, c.apps[id].Spec)
		switch {
		case err == nil:
			c.commit(c.apps[id], plans)
		case len(c.net.awaited) == 0:
			c.event(api.Event{Tenant: id.Tenant(), Kind: "app", Object: id.Name(), Detail: err.Error()})
		}
	}
}
