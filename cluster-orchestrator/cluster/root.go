package cluster

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (in RootLink) apply(c *Core) error {
	c.setRoot(in.Up)
	return nil
}

func (c *Core) setRoot(up bool) {
	c.watched.root = c.watched.root || up != c.uplink.Up()
	c.uplink.SetUp(up)
}

// apply places the instances with the highest priority first.
func (in Desired) apply(c *Core) error {
	d := in.Desired
	if !c.uplink.Accept(d) {
		return nil
	}
	put := make(map[api.InstanceID]bool, len(d.Put))
	puts := slices.Clone(d.Put)
	slices.SortStableFunc(puts, func(a, b wire.Assignment) int { return cmp.Compare(b.Spec.Urgency(), a.Spec.Urgency()) })
	for _, a := range puts {
		put[a.Instance] = true
		c.place.SetDesired(a)
	}
	if d.From != 0 {
		for _, id := range d.Drop {
			c.place.RemoveDesired(id)
		}
	} else {
		c.place.RemoveOthers(put)
	}
	c.route()
	c.uplink.Applied(d)
	c.saveMeta()
	return nil
}

// apply keeps reporting instances that the operator added until the root adopts or refuses
// them.
func (in Ack) apply(c *Core) error {
	if c.uplink.Ack(in.ReportAck, c.place.IsLocal) {
		c.netbook.Acked(in.Seq)
		// The first report has all instances, and an answered one all that were not answered before.
		c.place.AdvanceRuns(in.Runs)
		c.place.RootAnswered()
	}
	return nil
}

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
	f.Totals = totalsOf(c.place.Sums()) // Observe and Report do not change the sums
	c.uplink.Send(f)
}

func totalsOf(s placement.Sums) uplink.Totals {
	return uplink.Totals{Capacity: s.Capacity, Free: s.Capacity.Minus(s.Used)}
}

// Aggregate returns the capacity that the cluster offers the root.
func (c *Core) Aggregate() api.Aggregate {
	return c.uplink.Aggregate(c.place.Version(), func() uplink.Supply {
		share, left := c.place.Offered()
		return uplink.Supply{
			Candidates: c.place.Candidates(), Nodes: c.members.Len(), Capacity: c.place.Sums().Capacity,
			Share: share, Left: left, Preemptible: c.place.Preemptible(),
		}
	})
}

func (in Accessed) apply(c *Core) error {
	c.uplink.Notice(api.ReasonAccess, in.Text)
	return nil
}
