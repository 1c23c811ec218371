package root

import (
	"maps"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
)

// What a cluster and the root have to tell each other may be too much for one
// message. Then it is told part by part, the next when the one before has arrived,
// and each part is good by itself: see api.Span.

// recount is how far a cluster was told all, part by part.
type recount struct {
	on    bool
	part  api.Span                // the one that was told last
	asked *interest.Run[api.Want] // what the cluster is asked for, behind the records
}

// recount adds to what a cluster is told a part of all that it should have, if it is
// told all and has the part before, and reports whether it did.
func (c *Core) recount(cl *cluster, m *api.RootNet) bool {
	id, k := cl.Info.ID, &cl.net
	a := &k.all
	switch {
	case a.on && k.took < k.sent: // it is lost
	case a.on && !a.part.Last():
		a.part = api.Span{After: a.part.To}
	case a.on: // whether it helped, the next report says
		*a = recount{}
		c.net.book.Recounted(id)
	}
	if !a.on {
		if !k.behind || k.midway || c.now.Before(k.toldAll.Add(k.pause())) {
			return false
		}
		*a = recount{on: true, asked: interest.NewRun(api.WantName, interest.CompareWants)}
		k.behind, k.toldAll = false, c.now
		k.tries++
		clear(k.news)
		c.net.book.Recount(id)
	}
	more, of, vol := c.net.book.Span(id, a.part.After, api.PartSize, elsewhere{c, cl})
	if of.Last() {
		of = a.asked.Part(of.After, maps.Keys(k.asked), func(w api.Want) bool {
			if k.asked[w] {
				m.Asked = append(m.Asked, w)
				vol.Want(w)
			}
			return vol.Bytes < api.PartSize
		})
	}
	a.part = of
	if m.Whole = !k.unsure && c.net.book.Open(id) == 0; m.Whole {
		m.Of = of
	} else {
		k.behind = true
	}
	if a.on = of != (api.Span{}); !a.on { // it names all that changed
		m.Records, a.asked = m.Removals(), nil
		c.net.book.Recounted(id)
	}
	m.Append(more)
	return true
}

// saidAll reports whether a cluster has said, with this report, all that it has, in
// whatever parts: those before it may have been said to an earlier life of ours.
func (k *clusterNet) saidAll(n *api.ClusterNet) bool {
	if !n.Whole || n.Of.After != "" && (!k.midway || n.Of.After > k.reached) {
		k.midway = false
		return false
	}
	k.midway, k.reached = !n.Of.Last(), n.Of.To
	return n.Of.Last()
}
