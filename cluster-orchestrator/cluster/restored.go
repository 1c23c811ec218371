package cluster

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// AcceptRestored lets a cluster that was restored from a snapshot continue: it sends nodes their desired sets, and
// they stop what the cluster and the root have no record of. Refused with ErrConflict if the cluster does not wait for
// it, and with ErrUnavailable until leases from before the start have ended and nodes have had the time to report.
type AcceptRestored struct{ By string }

func (in AcceptRestored) apply(*Core) error {
	return fmt.Errorf("accept the restore: the cluster is not restored from a snapshot, or it has continued already: %w", api.ErrConflict)
}

// stepHeld is Step until a restored cluster continues. Nodes act as if the cluster were away, except that they get leases,
// and the root as if nothing had changed here.
func (c *Core) stepHeld(in Input) (err error) {
	held, check := c.restored, false // check: the cluster may be able to continue now
	switch in := in.(type) {
	case Start:
		c.startHeld()
	case Tick:
		check = c.heldTimers()
	case NodeAlive:
		return takeBounded(c, in.Node, in.Alive, func(a wire.Alive) {
			if _, ok := c.members.Node(in.Node); !ok {
				return
			}
			if l, ok := held.Alive(in.Node, a, c.fx.Now, c.members.IDs); ok {
				c.fx.ToNode(in.Node, l)
			}
		})
	case NodeReport:
		err = takeBounded(c, in.Node, in.NodeReport, func(r wire.NodeReport) {
			if _, ok := c.members.Node(r.Node); !ok {
				return
			}
			if r.Info != nil {
				c.members.SetInfo(r.Node, *r.Info)
			}
			held.Report(r)
			check = true
		})
	case JoinNode:
		if err := in.apply(c); err != nil {
			return err
		}
		held.Forget(in.Info.ID)
	case Desired:
		if check = held.Desire(in.Desired, c.fx.Now); !check {
			c.uplink.RequestWhole()
		}
		c.uplink.Due()
	case RootLink:
		if c.setRoot(in.Up); in.Up {
			c.uplink.RequestWhole()
		}
	case Ack:
		c.uplink.AckHeld(in.ReportAck)
	case Accessed:
		return in.apply(c)
	case AcceptRestored:
		if left := held.Until().Sub(c.fx.Now); left > 0 && len(held.Silent(c.members.IDs())) > 0 {
			return fmt.Errorf("accept the restore: nodes have %s left to report what they run; try again then: %w", left.Round(time.Second), api.ErrUnavailable)
		}
		if left := held.LeasesEnd().Sub(c.fx.Now); left > 0 {
			return fmt.Errorf("accept the restore: nodes that joined after the snapshot may have leases for %s; try again at %s: %w",
				left.Round(time.Millisecond), c.fx.Real(held.LeasesEnd()).Format(time.RFC3339), api.ErrUnavailable)
		}
		c.leaveHeld("accepted by " + in.By)
		return nil
	case NodeWill, NetUp, RootNet, NodeProbed, Ranked, Queried:
		// Nodes and the root repeat what the cluster has not taken.
	default:
		return fmt.Errorf("the cluster was restored from a snapshot and changes nothing until its root has sent its assignments and all nodes have reported; wait for that, or run treeline snapshot accept: %w", api.ErrConflict)
	}
	if check && held.Ready(c.fx.Now, c.members.IDs, c.recorded) {
		c.leaveHeld("all that nodes run has a record")
	}
	return err
}

func (c *Core) startHeld() {
	c.begin()
	c.place.SkipGenerations()
	c.restored.Start(c.fx.Now, c.cfg.Return+c.members.Dead(), c.members.Dead())
	c.fx.Timers.Set(effects.Key{Kind: effects.Settle}, c.restored.LeasesEnd())
	c.uplink.StartHeld()
	c.uplink.Notice(api.ReasonRestored, fmt.Sprintf("restored from a snapshot of %s: nodes keep what they run until the root has sent what it wants and all nodes have reported, or until the restore is accepted",
		c.restored.Of().Taken.Format(time.RFC3339)))
}

// heldTimers takes the place of expire, and reports whether leases from before the start have ended now.
func (c *Core) heldTimers() (ended bool) {
	for {
		k, ok := c.fx.Timers.Pop(c.fx.Now)
		if !ok {
			return ended
		}
		switch k.Kind {
		case effects.Report:
			c.uplink.Due()
		case effects.Settle:
			ended = true
		}
	}
}

// endHeldStep takes the place of what Step does after an input.
func (c *Core) endHeldStep() {
	if c.uplink.IsDue() {
		gen, desired := c.restored.Gen()
		c.uplink.ReportHeld(gen, desired, len(c.restored.Silent(c.members.IDs())) == 0, c.restored.Observed())
	}
}

// recorded returns the latest placement of an instance that the cluster has a record of, apart from the root's desired set.
// After the root's desired set has arrived, only local instances count.
func (c *Core) recorded(id api.InstanceID) (api.Epoch, bool) {
	if c.restored.Root() && !c.place.IsLocal(id) {
		return 0, false
	}
	return c.place.EpochOf(id)
}

// leaveHeld starts the cluster, and takes over the placements that nodes have reported.
func (c *Core) leaveHeld(why string) {
	held := c.restored
	stop := len(held.Unknown(c.recorded))
	c.restored = nil
	c.uplink.EndHeld()
	c.fx.Journal.Delete(store.KindRestored, store.KeyRestored)
	for _, n := range c.members.All() {
		c.place.DescribeNode(n)
	}
	c.start()
	if held.Root() {
		_ = Desired{held.Desired()}.apply(c)
	}
	silent := map[api.NodeID]bool{}
	for _, id := range held.Silent(c.members.IDs()) {
		silent[id] = true
	}
	c.place.TakeOver(func(id api.InstanceID) (all []placement.Found) {
		for _, f := range held.Claims(id) {
			all = append(all, placement.Found(f))
		}
		return all
	}, func(id api.NodeID) bool { return !silent[id] })
	c.settleIfAllReported()
	c.fx.Emit(placement.ToMoves, c.place.Tasks())
	c.uplink.Notice(api.ReasonNone, fmt.Sprintf("the restored cluster continues: %s; %d instances without a record stop", why, stop))
}

// Restored returns the state after a restore from a snapshot.
func (c *Core) Restored() (s api.RestoreState) {
	held := c.restored
	if held == nil {
		return s
	}
	of := held.Of()
	s = api.RestoreState{Held: true, Taken: of.Taken, Restored: of.Restored, AwaitsRoot: !held.Root(), SilentNodes: held.Silent(c.members.IDs())}
	for _, id := range held.Unknown(c.recorded) {
		s.Unknown = append(s.Unknown, api.UnknownInstance{Cluster: c.cfg.ID, Instance: id, Node: held.Claims(id)[0].Node})
	}
	return s
}
