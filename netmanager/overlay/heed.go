package overlay

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
)

// believe is how long a peer's word is believed that nobody repeats. It is not
// forgotten with the record that it is about, which may come back as old as it was,
// from a cluster that was restarted.
const believe = 15 * time.Minute

// mark is what a peer said of a placement at an address of its own.
type mark struct {
	Of    notice.Placement `json:"of"`
	Gone  bool             `json:"gone,omitempty"`
	Named bool             `json:"named,omitempty"` // by the peer; else it was said of whatever we believed to be there
	Until time.Time        `json:"until"`
}

// marksRecord is what is kept of one peer's words.
type marksRecord struct {
	Serial uint64              `json:"serial"`
	Marks  map[netip.Addr]mark `json:"marks"`
}

// noticed takes in what a peer says of its instances.
func (c *Core) noticed(in Noticed) {
	q := c.peers[in.Key]
	if q == nil || c.lease == nil || in.Key == c.self.Key || in.Serial < q.serial {
		return
	}
	changed := false
	for _, w := range in.Words[:min(len(in.Words), notice.MaxWords)] {
		changed = c.mark(q, w) || changed
	}
	q.serial = in.Serial
	if changed {
		c.saveMarks(q)
	}
	c.emitLate(ToTunnel, TunnelHeed{in.Key, in.Serial})
}

// mark takes one word in, and reports whether it is news. A peer speaks of its own
// subnets alone.
func (c *Core) mark(q *peer, w notice.Word) (news bool) {
	if k, ok := c.peerAt(w.Address); !ok || k != q.record.Key {
		return false
	}
	s, b := c.backendAt(w.Address)
	known := notice.Placement(0) // that we believe to be there
	if b != nil {
		known = notice.Of(api.Key{Instance: b.Instance, Epoch: b.Epoch})
	}
	old, had := q.marks[w.Address]
	is := mark{w.Of, w.State == notice.Gone, w.Of != 0, c.now.Add(believe)}
	if !is.Named {
		is.Of = known
		is.Named = old.Named && old.Of == is.Of && old.Gone == is.Gone
	}
	switch {
	case is.Of == 0, !had && w.State == notice.Takes:
		return false
	case w.State == notice.Takes:
		delete(q.marks, w.Address)
	case had && old.Of == is.Of && old.Gone == is.Gone && old.Named == is.Named && old.Until.Sub(c.now) > believe/2:
		return false
	default:
		if !had && len(q.marks) >= notice.MaxWords {
			c.forgetMark(q, firstMark(q.marks))
		}
		if q.marks == nil {
			q.marks = map[netip.Addr]mark{}
		}
		q.marks[w.Address] = is
		c.timers.SetEarlier(timerKey{what: timerMark, peer: q.record.Key}, is.Until)
	}
	c.reconsider(s)
	if w.State == notice.Leaving && is.Of == known {
		c.retryLater(w.Address)
	}
	if is.Gone && is.Of == known && !(old.Gone && old.Of == is.Of) {
		c.end(w.Address)
		c.doubt(s)
	}
	return true
}

// reconsider has it worked out anew which backends of the service take flows.
func (c *Core) reconsider(s *service) {
	if s != nil {
		c.touch(s.id)
		c.weigh(s, api.PeerKey{}, false)
	}
}

// marked is what the backend's node says of it, if it speaks of that placement.
func (p *peer) marked(b api.Backend) (m mark, ok bool) {
	m, ok = p.marks[b.Address]
	return m, ok && m.Of == notice.Of(api.Key{Instance: b.Instance, Epoch: b.Epoch})
}

// backendAt is the backend that a record has at an address, and its service.
func (c *Core) backendAt(a netip.Addr) (*service, *api.Backend) {
	s := c.services[c.owners[a]]
	if s == nil || s.route == nil {
		return nil, nil
	}
	if i := slices.IndexFunc(s.route.Backends, func(b api.Backend) bool { return b.Address == a }); i >= 0 {
		return s, &s.route.Backends[i]
	}
	return nil, nil
}

// firstMark is the one that ends first.
func firstMark(marks map[netip.Addr]mark) netip.Addr {
	return slices.MinFunc(sortedKeys(marks), func(a, b netip.Addr) int { return marks[a].Until.Compare(marks[b].Until) })
}

func (c *Core) forgetMark(q *peer, a netip.Addr) {
	delete(q.marks, a)
	s, _ := c.backendAt(a)
	c.reconsider(s)
}

// unmark forgets what the peer said too long ago.
func (c *Core) unmark(q *peer) {
	for _, a := range sortedKeys(q.marks) {
		if !q.marks[a].Until.After(c.now) {
			c.forgetMark(q, a)
		}
	}
	c.saveMarks(q)
	c.awaitMarks(q)
}

// awaitMarks has the first of the marks end in time, also where the clock was set back.
func (c *Core) awaitMarks(q *peer) {
	for a, m := range q.marks {
		if last := c.now.Add(believe); m.Until.After(last) {
			m.Until = last
			q.marks[a] = m
		}
	}
	if len(q.marks) > 0 {
		c.timers.Set(timerKey{what: timerMark, peer: q.record.Key}, q.marks[firstMark(q.marks)].Until)
	}
}

func (c *Core) saveMarks(q *peer) {
	if len(q.marks) == 0 {
		c.journal.Delete(kindMarks, q.record.Key.String())
		return
	}
	c.journal.Put(kindMarks, q.record.Key.String(), marksRecord{q.serial, q.marks})
}
