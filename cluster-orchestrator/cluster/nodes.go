package cluster

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/latency"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/wire"
)

// sync copies a node's state from membership to placement and latency.
func (c *Core) sync(id api.NodeID) {
	if n, ok := c.members.Node(id); ok {
		c.place.SetNode(n)
		c.latencyFacts(id)
	}
}

// refresh calls sync and makes placement evaluate the node again.
func (c *Core) refresh(id api.NodeID) {
	c.sync(id)
	c.place.RefreshNode(id)
}

func (c *Core) latencyFacts(id api.NodeID) {
	if n, ok := c.members.Node(id); ok {
		c.latency.SetNode(latency.Node{
			ID: id, Coord: c.place.Coord(id), Silent: n.Silent, Probes: n.Heard && !n.Silent && !n.Suspect,
			Overlay: c.netbook.Subnet(id).IsValid() && c.netbook.Self(id) != nil,
		})
	}
}

// saveNode saves a node's document, which combines the state of three sub-machines.
func (c *Core) saveNode(id api.NodeID) {
	c.members.Save(id, membership.Extra{Subnet: c.netbook.Subnet(id), Net: c.netbook.Self(id), Must: c.place.Must(id), Placed: c.place.VolumesPlaced(id)})
}

func (c *Core) restoreNode(data []byte) error {
	n, kept, err := c.members.Restore(data)
	if err != nil {
		return err
	}
	id := n.Info.ID
	c.netbook.RestoreNode(id, kept.Net, kept.Subnet)
	c.place.AddNode(n, c.netbook.Subnet(id), kept.Must, kept.Placed)
	if kept.Net != nil {
		c.place.MoveNode(id, kept.Net.Coord)
	}
	c.latencyFacts(id)
	return nil
}

func (in JoinNode) apply(c *Core) error {
	info, bad, _ := bounds.Apply(in.Info)
	if err := bad.Err(); err != nil {
		return fmt.Errorf("join node: %w", err)
	}
	id := info.ID
	if !c.members.Join(info, in.Token) {
		c.rejoinNode(info, in.Token)
		return nil
	}
	n, _ := c.members.Node(id)
	c.place.AddNode(n, c.netbook.Subnet(id), 0, nil)
	c.latencyFacts(id)
	c.rescale()
	c.saveNode(id)
	c.place.TouchNode(id)
	c.noticeCaps(id)
	return nil
}

func (c *Core) rejoinNode(info api.NodeInfo, token string) {
	id := info.ID
	before, _ := c.members.Node(id)
	info.Volumes = before.Info.Volumes // until it reports; a join does not name them
	if c.members.Rejoin(id, token) {
		c.sync(id)
		if before.Purging {
			c.place.TouchNode(id)
		}
		c.saveNode(id)
	}
	c.nodeInfo(info)
	c.members.ForgetBoot(id) // the node may have lost its store with the boot number
	c.sync(id)
	c.netbook.Rejoined(id) // so may its netmanager
	c.place.RejoinNode(id)
}

// rescale sends all nodes the new timing if it has grown.
func (c *Core) rescale() {
	grown := c.members.Rescale()
	if grown {
		c.saveMeta()
	}
	c.place.SetTiming(c.members.Timing(), c.members.Dead(), grown)
}

func (c *Core) nodeInfo(info api.NodeInfo) {
	if c.members.SetInfo(info.ID, info) {
		c.described(info.ID)
	}
}

// described handles a change of a node's effective resources or labels.
func (c *Core) described(id api.NodeID) {
	n, _ := c.members.Node(id)
	c.place.DescribeNode(n)
	for _, in := range c.place.ConstrainedOn(id) {
		if c.place.On(in, id) {
			c.judge(in)
		}
	}
	c.place.ShowPositions(id)
	c.noticeCaps(id)
}

// noticeCaps notifies the operator of a node that claims more than its caps.
func (c *Core) noticeCaps(id api.NodeID) {
	if text := c.members.CapsNotice(id); text != "" {
		c.uplink.Notice(api.ReasonCapped, text)
	}
}

// acceptBoot handles the boot number in a message of a node. It returns false if the message is
// of an earlier boot or of an unknown node.
func (c *Core) acceptBoot(id api.NodeID, boot uint64) bool {
	fresh, ok := c.members.Boot(id, boot)
	if fresh {
		c.sync(id)
		c.place.RestartNode(id)
	}
	return ok
}

func (in NodeAlive) apply(c *Core) error {
	return takeBounded(c, in.Node, in.Alive, func(a wire.Alive) { c.nodeAlive(in.Node, a) })
}

// nodeAlive handles a heartbeat. Its cost does not depend on the cluster's size.
func (c *Core) nodeAlive(id api.NodeID, a wire.Alive) {
	if !c.acceptBoot(id, a.Boot) {
		if n, ok := c.members.Node(id); ok {
			c.fx.ToNode(id, wire.Lease{Boot: n.Boot}) // a late heartbeat, or the node lost its store and its clock went back
		}
		return
	}
	r, ok := c.members.Alive(id, a)
	if !ok {
		return
	}
	n, _ := c.members.Node(id)
	c.place.SetNode(n)
	if r.Changed {
		c.latencyFacts(id)
	}
	c.networkChanged(c.netbook.SetLoad(id, n.CPUUsed))
	if r.First || r.Silent {
		c.netbook.Heard(id)
	}
	c.place.Alive(id, a, r, c.members.Digest(id))
}

func (in NodeReport) apply(c *Core) error {
	return takeBounded(c, in.Node, in.NodeReport, c.nodeReport)
}

func (c *Core) nodeReport(r wire.NodeReport) {
	if !c.acceptBoot(r.Node, r.Boot) || !c.place.Acknowledge(r) {
		return
	}
	if r.Info != nil {
		info := *r.Info
		info.ID = r.Node
		c.nodeInfo(info)
	}
	if r.Whole {
		c.members.SetAnswers(r.Node, r.AnswersLease)
		c.sync(r.Node)
	}
	if c.place.Observe(r) && c.members.Reported(r.Node) {
		c.sync(r.Node)
		c.place.NoteNode(r.Node)
		c.settleIfAllReported()
	}
	c.usage(r.Node, r.Usage)
}

func (c *Core) settleIfAllReported() {
	if c.members.Awaited() == 0 {
		c.place.Settle()
	}
}

// apply marks the node as suspect; it may reconnect soon.
func (in NodeWill) apply(c *Core) error {
	c.suspect(in.Node)
	return nil
}

// suspect keeps new work off the node until its next heartbeat.
func (c *Core) suspect(id api.NodeID) {
	if c.members.Suspect(id) {
		c.refresh(id)
	}
}

// checkSilence checks whether the node was heard since the timer was set.
func (c *Core) checkSilence(id api.NodeID) {
	if _, ok := c.members.Node(id); !ok {
		return
	}
	silent, roll := c.members.CheckSilence(id, c.place.Assigned(id) > 0)
	c.place.CallRoll(roll)
	if !silent {
		return
	}
	c.sync(id)
	c.place.Unsync(id)
	c.networkChanged(c.netbook.Silent(id))
	suspects, overdue := c.members.SuspectLate()
	for _, id := range suspects {
		c.refresh(id)
	}
	doubt := c.members.DoubtsItself(overdue)
	c.place.Silent(id, doubt, doubt || c.members.CutOff(overdue))
}

// unaccepted handles a node that did not acknowledge a placement in time: it marks the node
// as suspect and places the instance elsewhere.
func (c *Core) unaccepted(id api.InstanceID) {
	if on, ok := c.place.Unaccepted(id); ok {
		c.suspect(on)
		c.place.PlaceElsewhere(id)
	}
}

// removeNode removes a node. deleted means that the node has deleted its workloads, so
// that the checks against running an instance twice are not needed.
func (c *Core) removeNode(id api.NodeID, deleted bool) error {
	if err := c.checkKnown(id); err != nil {
		return err
	}
	if !deleted {
		held, leased := c.place.Held(id)
		if err := c.members.CheckRemove(id, held, leased); err != nil {
			return err
		}
	}
	orphans := c.place.RemoveNode(id)
	awaited := c.members.Remove(id)
	c.networkChanged(c.netbook.Remove(id))
	c.latency.DropNode(id)
	if awaited {
		c.settleIfAllReported()
	}
	c.fx.Journal.Delete(membership.Kind, string(id))
	c.place.PlaceOrphans(orphans)
	return nil
}

func (in RemoveNode) apply(c *Core) error { return c.removeNode(in.Node, false) }

func (in NodeLeft) apply(c *Core) error {
	if c.checkKnown(in.Node) != nil {
		return nil
	}
	return c.removeNode(in.Node, true)
}

// checkKnown returns api.ErrNotFound unless the node exists.
func (c *Core) checkKnown(id api.NodeID) error {
	if _, ok := c.members.Node(id); !ok {
		return c.members.NotFound(id)
	}
	return nil
}

func (in Cordon) apply(c *Core) error {
	if err := c.checkKnown(in.Node); err != nil {
		return err
	}
	purged := c.members.Cordon(in.Node, in.On)
	c.sync(in.Node)
	if purged {
		c.place.TouchNode(in.Node)
	}
	c.place.Cordon(in.Node, in.On)
	return nil
}

func (in CapNode) apply(c *Core) error {
	if err := c.checkKnown(in.Node); err != nil {
		return err
	}
	if err := c.members.SetCaps(in.Node, in.Caps); err != nil {
		return err
	}
	c.described(in.Node)
	return nil
}

func (in Drain) apply(c *Core) error {
	if err := c.checkKnown(in.Node); err != nil {
		return err
	}
	c.members.Drain(in.Node)
	c.sync(in.Node)
	c.place.Drain(in.Node, in.Force)
	return nil
}

func (in MoveInstance) apply(c *Core) error { return c.place.Move(in.Instance, in.To) }

// apply sets Purge in the node's desired set and drains the node by force.
func (in PurgeNode) apply(c *Core) error {
	if err := c.checkKnown(in.Node); err != nil {
		return err
	}
	if c.members.Purge(in.Node) {
		c.sync(in.Node)
		c.place.TouchNode(in.Node)
	}
	_ = Drain{Node: in.Node, Force: true}.apply(c)
	c.place.Vacate(in.Node)
	return nil
}

func (in NodePurging) apply(c *Core) error {
	if err := c.checkKnown(in.Node); err != nil {
		return err
	}
	return takeBounded(c, in.Node, in.NodePurging, func(p wire.NodePurging) {
		c.members.PurgeFailed(in.Node, p.Failed)
		c.sync(in.Node)
	})
}

func (in LocalScale) apply(c *Core) error {
	if c.uplink.Up() {
		return fmt.Errorf("scale %s in the cluster: the root is reachable, use treeline scale there: %w", in.Service, api.ErrConflict)
	}
	if n := c.uplink.Unreported(); n >= placement.MaxLocal {
		return fmt.Errorf("scale %s in the cluster: the root has not been told yet of %d instances that were removed, at most %d are kept for it: %w", in.Service, n, placement.MaxLocal, api.ErrUnavailable)
	}
	return c.place.Scale(in.Service, in.Replicas)
}

func (c *Core) judge(id api.InstanceID) {
	if b, epoch, shown, ok := c.place.Check(id); ok {
		c.place.SetViolated(id, b.Text, c.violations.Judge(id, epoch, b, shown))
	}
}

func (c *Core) checkDue() {
	for id := range c.violations.Due() {
		if epoch, placed := c.place.Recheck(id); placed {
			c.judge(id)
			c.violations.Checked(id, epoch)
		}
	}
}

// relieveDue moves the next instances with violated SLAs, unless the violation has ended.
func (c *Core) relieveDue() {
	for id := range c.violations.Relieve() {
		b, epoch, _, ok := c.place.Check(id)
		switch {
		case !ok || !c.violations.Violated(id, epoch):
		case b.Text == "":
			c.judge(id) // an earlier move of this step ended the violation
		default:
			c.place.Relieve(id)
		}
	}
}

// takeBounded removes the values that are out of bounds from a node's message and passes the rest
// to take. It counts the removed values and notifies the operator at most once a minute. It
// returns api.ErrInvalid for a message that is refused as a whole.
func takeBounded[M bounds.Message](c *Core, id api.NodeID, m M, take func(M)) error {
	m, bad, ok := bounds.Apply(m)
	if text := c.members.Refused(id, bad); text != "" {
		c.uplink.Notice(api.ReasonOutOfBounds, text)
	}
	if !ok {
		return bad.Err()
	}
	take(m)
	return nil
}
