package notice

import (
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Kind is the kind of the Receiver's documents, one per peer under its key.
const Kind = "marks"

// KeepMark is how long a mark is valid if the peer does not repeat it. It must outlast the route that it
// contradicts, because a cluster that restarts may send an old route again.
const KeepMark = 15 * time.Minute

// Mark is the state of a placement at an address of a peer, as reported by the peer.
type Mark struct {
	Of    peermsg.Placement `json:"of"`
	Gone  bool              `json:"gone,omitempty"`  // otherwise draining
	Named bool              `json:"named,omitempty"` // the peer named the placement; otherwise Of is the one that this node knew
	Until time.Time         `json:"until"`
}

func (m Mark) same(o Mark) bool { return m.Of == o.Of && m.Gone == o.Gone && m.Named == o.Named }

// Received is an entry of a peer's notice for an address in the peer's subnets. Known is the placement
// that this node knows at that address; 0: none.
type Received struct {
	peermsg.Entry
	Known peermsg.Placement
}

// Change is an address whose mark changed.
type Change struct {
	Address  netip.Addr
	Draining bool // the known placement there began to drain
	Gone     bool // the known placement there is gone
}

// Receiver keeps the marks of peers.
type Receiver struct {
	peers   map[api.PeerKey]*marks
	journal step.Journal
	timers  step.Timers[api.PeerKey]
}

type marks struct {
	Serial uint64              `json:"serial"`
	Marks  map[netip.Addr]Mark `json:"marks"`
}

// NewReceiver returns a receiver without marks.
func NewReceiver() *Receiver { return &Receiver{peers: map[api.PeerKey]*marks{}} }

// Restore loads the document of a peer. It deletes the document if the peer is not known any more.
func (r *Receiver) Restore(d store.Doc, k api.PeerKey, known bool) error {
	r.journal.Restored(d)
	if !known {
		r.journal.Delete(d.Kind, d.Key)
		return nil
	}
	p := &marks{}
	r.peers[k] = p
	return json.Unmarshal(d.Data, p)
}

// Start begins a process lifetime. It bounds the marks' remaining time in case the clock was set back.
func (r *Receiver) Start(now time.Time) {
	for k, p := range r.peers {
		r.plan(now, k, p)
	}
}

// Save returns the documents that changed.
func (r *Receiver) Save() []store.Doc { return r.journal.Take() }

// Next returns when Expire has to be called; zero: never.
func (r *Receiver) Next() time.Time { return r.timers.Next() }

// Take applies a notice of a peer. ok is false if the notice is older than the last one.
func (r *Receiver) Take(now time.Time, k api.PeerKey, serial uint64, entries []Received) (changes []Change, ok bool) {
	p := r.peers[k]
	if p == nil {
		p = &marks{}
		r.peers[k] = p
	}
	if serial < p.Serial {
		return nil, false
	}
	for _, e := range entries {
		changes = append(changes, r.take(now, k, p, e)...)
	}
	p.Serial = serial
	if len(changes) > 0 {
		r.save(k, p)
	}
	return changes, true
}

func (r *Receiver) take(now time.Time, k api.PeerKey, p *marks, e Received) (changes []Change) {
	old, had := p.Marks[e.Address]
	m := Mark{Of: e.Of, Gone: e.State == peermsg.Gone, Named: e.Of != 0, Until: now.Add(KeepMark)}
	if !m.Named {
		m.Of = e.Known
		m.Named = old.Named && old.Of == m.Of && old.Gone == m.Gone
	}
	switch {
	case m.Of == 0, !had && e.State == peermsg.Accepting:
		return nil
	case e.State == peermsg.Accepting:
		delete(p.Marks, e.Address)
	case had && old.same(m) && old.Until.Sub(now) > KeepMark/2:
		return nil
	default:
		if !had && len(p.Marks) >= peermsg.MaxEntries {
			first := p.first()
			delete(p.Marks, first)
			changes = append(changes, Change{Address: first})
		}
		if p.Marks == nil {
			p.Marks = map[netip.Addr]Mark{}
		}
		p.Marks[e.Address] = m
		r.timers.SetEarlier(k, m.Until)
	}
	return append(changes, Change{
		Address:  e.Address,
		Draining: e.State == peermsg.Draining && m.Of == e.Known,
		Gone:     m.Gone && m.Of == e.Known && !(old.Gone && old.Of == m.Of),
	})
}

// first returns the address whose mark expires first.
func (p *marks) first() netip.Addr {
	return slices.MinFunc(p.addresses(), func(a, b netip.Addr) int { return p.Marks[a].Until.Compare(p.Marks[b].Until) })
}

func (p *marks) addresses() []netip.Addr {
	return sorted.Addrs(p.Marks)
}

// Expire drops the expired marks of one peer, and returns the changes.
func (r *Receiver) Expire(now time.Time) (changes []Change) {
	k, ok := r.timers.Pop(now)
	if !ok {
		return nil
	}
	p := r.peers[k]
	for _, a := range p.addresses() {
		if !p.Marks[a].Until.After(now) {
			delete(p.Marks, a)
			changes = append(changes, Change{Address: a})
		}
	}
	r.save(k, p)
	r.plan(now, k, p)
	return changes
}

// plan sets the timer of a peer, and bounds the remaining time of its marks to KeepMark.
func (r *Receiver) plan(now time.Time, k api.PeerKey, p *marks) {
	for a, m := range p.Marks {
		if last := now.Add(KeepMark); m.Until.After(last) {
			m.Until = last
			p.Marks[a] = m
		}
	}
	if len(p.Marks) > 0 {
		r.timers.Set(k, p.Marks[p.first()].Until)
	}
}

func (r *Receiver) save(k api.PeerKey, p *marks) {
	if len(p.Marks) == 0 {
		r.journal.Delete(Kind, k.String())
		return
	}
	r.journal.Put(Kind, k.String(), *p)
}

// Mark returns the mark of an address if it is about the placement of.
func (r *Receiver) Mark(k api.PeerKey, a netip.Addr, of wire.Key) (m Mark, ok bool) {
	m, ok = r.Get(k, a)
	return m, ok && m.Of == peermsg.PlacementOf(of)
}

// Get returns the mark of an address.
func (r *Receiver) Get(k api.PeerKey, a netip.Addr) (m Mark, ok bool) {
	if p := r.peers[k]; p != nil {
		m, ok = p.Marks[a]
	}
	return m, ok
}

// Count returns the number of a peer's marks.
func (r *Receiver) Count(k api.PeerKey) int {
	if p := r.peers[k]; p != nil {
		return len(p.Marks)
	}
	return 0
}

// Remove removes a peer with its marks.
func (r *Receiver) Remove(k api.PeerKey) {
	delete(r.peers, k)
	r.timers.Clear(k)
	r.journal.Delete(Kind, k.String())
}
