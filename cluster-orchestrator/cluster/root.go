package cluster

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/wire"
)

// desired applies the root's desired set, the most urgent instances first.
func (c *Core) desired(d wire.Desired) {
	if !c.uplink.Accept(d) {
		return
	}
	put := make(map[api.InstanceID]bool, len(d.Put))
	puts := slices.Clone(d.Put)
	slices.SortStableFunc(puts, func(a, b wire.Assignment) int { return cmp.Compare(b.Spec.Urgency(), a.Spec.Urgency()) })
	for _, a := range puts {
		put[a.Instance] = true
		c.place.Want(a)
	}
	if d.From != 0 {
		for _, id := range d.Drop {
			c.place.Unwant(id)
		}
	} else {
		c.place.UnwantOthers(put)
	}
	c.route()
	c.uplink.Taken(d)
	c.saveMeta()
}

// acked handles the root's acknowledgement of a report. Instances that the operator added
// are reported until the root has adopted or refused them.
func (c *Core) acked(a wire.ReportAck) {
	if c.uplink.Ack(a, c.place.IsLocal) {
		c.netbook.Acked(a.Seq)
	}
}

// report sends the changes since the last report to the root.
func (c *Core) report() {
	seq, whole, ok := c.uplink.Begin(c.netbook.HasNews())
	if !ok {
		return
	}
	f := uplink.Facts{Observe: c.place.Observed, Aggregate: c.Aggregate()}
	if whole {
		f.All = c.place.IDs()
	}
	f.Net, f.NetNews = c.netbook.Report(seq, whole)
	f.Room = roomOf(c.place.Sums()) // Observe and Report do not change it
	c.uplink.Send(f)
}

func roomOf(s placement.Sums) uplink.Room {
	return uplink.Room{Capacity: s.Capacity, Free: s.Capacity.Minus(s.Used)}
}

// Aggregate returns what the cluster offers the root.
func (c *Core) Aggregate() api.Aggregate {
	return c.uplink.Aggregate(c.place.Version(), func() uplink.Supply {
		share, left := c.place.Offered()
		return uplink.Supply{
			Candidates: c.place.Candidates(), Nodes: c.members.Len(), Capacity: c.place.Sums().Capacity,
			Share: share, Left: left, Yields: c.place.Yields(),
		}
	})
}
