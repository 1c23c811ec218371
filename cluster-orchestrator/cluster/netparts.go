package cluster

import "github.com/treeline-edge/treeline/api"

// What a node should hold may be too much for one message. Then it is told part by
// part, the next when the node has the one before: see api.Span.

// recount is how far a node was told all, part by part.
type recount struct {
	on    bool
	whole bool     // all was known with every part so far
	part  api.Span // the next one, or the one that was told last
	sent  uint64   // the message that told it and is not acknowledged; 0: none
}

// recount adds to what a node is told a part of all that it should hold, if it is
// told all and has the part before, and reports whether it did. What the node should
// not have is taken away only when all is known that it should.
func (c *Core) recount(n *node, rec *api.Records, d *api.NetDown) bool {
	s, id := &n.net, n.info.ID
	a := &s.all
	switch {
	case a.on && s.took < a.sent:
		return false // it is on its way
	case a.on && s.took > a.sent: // it is lost, or what the node said of it
	case a.on && !a.part.Last():
		a.part = api.Span{After: a.part.To}
	case a.on: // whether it helped, compare has seen
		a.on = false
		c.net.book.Recounted(id)
	}
	if !a.on {
		if !s.lost || c.now.Before(s.toldAll.Add(s.pause())) {
			return false
		}
		*a = recount{on: true, whole: true}
		s.lost, s.toldAll = false, c.now
		s.tries++
		c.net.book.Recount(id)
	}
	more, of := c.net.book.Span(id, a.part.After)
	a.part = of
	if d.Whole = c.net.book.Open(id) == 0; d.Whole {
		d.Of = of
	}
	if a.whole = a.whole && d.Whole; of.Last() {
		s.lost = !a.whole
	}
	if a.on = of != (api.Span{}); !a.on { // it names all that changed
		*rec = rec.Removals()
		c.net.book.Recounted(id)
	}
	rec.Append(more)
	return true
}
