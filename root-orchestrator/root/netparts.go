package root

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// What a cluster and the root have to tell each other may be too much for one
// message. Then it is told part by part, the next when the one before has arrived,
// and each part is good by itself: see api.Span.

// recount is how far a cluster was told all, part by part.
type recount struct {
	on   bool
	part api.Span // the one that was told last
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
	default:
		a.on = false // whether it helped, the next report says
	}
	if !a.on {
		if !k.behind || k.midway || c.now.Before(k.toldAll.Add(k.pause())) {
			return false
		}
		*a = recount{on: true}
		k.behind, k.toldAll = false, c.now
		k.tries++
		clear(k.news)
		c.net.book.Recount(id)
	}
	more, of, vol := c.net.book.Span(id, a.part.After, api.PartSize, elsewhere{c, cl})
	if of.Last() {
		var asked []namedWant
		for w := range k.asked {
			if name := api.WantName(w); name > of.After {
				asked = append(asked, namedWant{name, w})
			}
		}
		slices.SortFunc(asked, func(x, y namedWant) int { return cmp.Compare(x.name, y.name) })
		for i, w := range asked {
			m.Asked = append(m.Asked, w.want)
			if vol.Want(w.want); vol.Bytes >= api.PartSize && i+1 < len(asked) && asked[i+1].name != w.name {
				of.To = w.name
				break
			}
		}
	}
	a.part = of
	if m.Whole = !k.unsure && c.net.book.Open(id) == 0; m.Whole {
		m.Of = of
	} else {
		k.behind = true
	}
	if a.on = of != (api.Span{}); !a.on { // it names all that changed
		m.Records = m.Removals()
	}
	m.Append(more)
	return true
}

type namedWant struct {
	name string
	want api.Want
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
