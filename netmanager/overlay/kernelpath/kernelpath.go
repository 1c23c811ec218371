// Package kernelpath agrees with each peer on the kernel's paths that need no tunnel:
// a plain route or VXLAN between two nodes in one network that the operators of both
// declared unencrypted. Each end sends the other, inside their session, the paths by
// which it accepts packets (peermsg.Terms), and uses only paths that the other end
// accepts. It accepts all named paths at once, so that each end can change its own path
// at any time. Because a firewall may still drop the packets, an end that sends by a
// kernel path requests from its peer what arrived (peermsg.TrafficProbe), and falls back to the tunnel.
//
// It is pure: the core passes what the tunnel observed and what the plane counted,
// and carries out the Effects.
package kernelpath

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Kind is the kind of the documents: what is agreed with a peer, by its key.
const Kind = "path"

const (
	// linger is how long paths are accepted after they were withdrawn: the peer has to
	// learn of it, which may take repetitions, and its last packets have to arrive.
	linger = 3 * time.Second
	// lapse is how long terms of an earlier session are valid in a new one. The peer
	// repeats them once its kernel is configured, which can take a busy machine seconds.
	lapse = 10 * time.Second
	// settling is how long a relayed path, or one not known to be free of NAT, is not taken
	// as evidence of where the peer is: sessions begin like that.
	settling = 5 * time.Second
	// firstRepeat is when terms that the peer did not confirm are repeated. The wait
	// doubles with each repetition, up to maxTerms messages. While reports of the peer come,
	// they are sent once more per laterRepeat.
	firstRepeat = 100 * time.Millisecond
	maxTerms    = 7
	laterRepeat = 30 * time.Second
)

// Path is what the tunnel observes of the path to a peer.
type Path struct {
	Key  api.PeerKey
	Kind api.PathKind // direct, relay, relay-tls or none
	Addr netip.AddrPort
	// Plain means that there is no NAT: the peer is seen at an address of its own, and
	// sees this node at one of ours.
	Plain bool
	RTT   time.Duration
	Loss  float64
	MTU   int // inner
	// Idle means that the tunnel does not look for better paths, because nothing passed
	// for long. Then a Kind other than direct is no evidence of where the peer is.
	Idle bool
	// Silent means that traffic waits and that nothing came back for so long that the
	// peer is probably dead.
	Silent bool
}

// Unproven reports whether the tunnel is in use and its path may lead through a NAT.
func (p Path) Unproven() bool {
	return p.Kind != api.PathNone && !p.Idle && (p.Kind != api.PathDirect || !p.Plain)
}

// Self is what the machine has to know about its own node.
type Self struct {
	Known       bool // the node described itself
	Addresses   []netip.Addr
	OnLink      []netip.Prefix // networks of the node's devices
	Leased      bool
	Unencrypted []netip.Prefix // networks that the operator declared so
}

// Effects are what the core has to do.
type Effects struct {
	Orders  []Order
	Terms   []Terms       // to send once the plane follows
	Count   bool          // after its changes, the plane should count what passes by kernel paths
	Changed []api.PeerKey // what the plane should have of these peers changed
}

// Order is a message to a peer. Without a message it reports that traffic passed by the
// peer's kernel path.
type Order struct {
	Key     api.PeerKey
	Message peermsg.Message
	Connect bool // begin a session if there is none
}

// Terms are terms to send to a peer.
type Terms struct {
	Key api.PeerKey
	peermsg.Terms
}

// agreement is the document: what is agreed with a peer. It is kept, so that a restart
// of the netmanager interrupts no flow.
type agreement struct {
	Path    api.PathKind  `json:"path,omitempty"` // that our packets take: route, vxlan or "" for the tunnel
	Via     netip.Addr    `json:"via,omitzero"`
	Accepts plane.Paths   `json:"takes,omitzero"` // by which we accept the peer's packets
	Terms   peermsg.Terms `json:"terms,omitzero"` // the peer's, without serials
}

// peer is the state of one peer. Zero times mean that something is not the case.
type peer struct {
	key      api.PeerKey
	path     Path
	reported time.Time // when path was; zero: never in this process
	agreement

	sent        peermsg.Terms // ours
	heard       uint64        // Serial of the peer's last terms in this session
	unconfirmed bool          // the peer has not confirmed ours
	tries       int
	sentAt      time.Time
	unsure      time.Time   // the peer's terms lapse then
	leaving     plane.Paths // withdrawn, accepted until left
	left        time.Time
	settled     time.Time
	avoid       time.Time // our packets take the tunnel until then, because of reason
	reason      string
	failures    int // in a row

	proof proof
}

// Machine keeps the agreements with all peers.
type Machine struct {
	vxlan   uint16
	boot    uint64 // 0 before Start
	self    Self
	peers   map[api.PeerKey]*peer
	asked   time.Time // when a count was requested that has not come; zero: none
	probes  uint64
	journal step.Journal
	timers  step.Timers[timer]
	eff     Effects
	now     time.Time
}

type timer struct {
	peer api.PeerKey
	kind timerKind
}

type timerKind uint8

const (
	timerLapse timerKind = iota // a time in the agreement with the peer has come
	timerTerms                  // the peer has not confirmed ours
	timerCount                  // count what passes by kernel paths
)

// New returns a machine. vxlan is the UDP port of the VXLAN device; 0: there is none.
func New(vxlan uint16) *Machine {
	return &Machine{vxlan: vxlan, peers: map[api.PeerKey]*peer{}}
}

func (m *Machine) peer(k api.PeerKey) *peer {
	q := m.peers[k]
	if q == nil {
		q = &peer{key: k}
		m.peers[k] = q
	}
	return q
}

// done returns the effects of an input.
func (m *Machine) done() Effects {
	eff := m.eff
	m.eff = Effects{}
	return eff
}

// Restore takes a document of an earlier process. known is false if there is no
// record of the peer any more, which deletes the document.
func (m *Machine) Restore(d store.Doc, k api.PeerKey, known bool) error {
	m.journal.Restored(d)
	if !known {
		m.journal.Delete(d.Kind, d.Key)
		return nil
	}
	return json.Unmarshal(d.Data, &m.peer(k).agreement)
}

// Save returns the documents that changed.
func (m *Machine) Save() []store.Doc { return m.journal.Take() }

// Next is when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Start begins a process lifetime. Packets of peers are accepted as in the last one,
// and terms are exchanged anew.
func (m *Machine) Start(now time.Time, boot uint64) {
	m.now, m.boot = now, boot
	for _, k := range m.keys() {
		q := m.peers[k]
		if q.Accepts == none && q.agreement.Terms.Ways == none {
			continue
		}
		q.sent = peermsg.Terms{Serial: boot << 32, Ways: q.Accepts, From: q.Via}
		q.settled = now.Add(settling)
		if q.Path != "" {
			m.awaitCount()
		}
	}
}

func (m *Machine) keys() []api.PeerKey {
	return sorted.Peers(m.peers)
}

// SetSelf sets the facts about the own node. Refresh applies them.
func (m *Machine) SetSelf(s Self) { m.self = s }

// Refresh reconsiders the agreement with a peer.
func (m *Machine) Refresh(now time.Time, k api.PeerKey) Effects {
	m.now = now
	if q := m.peers[k]; q != nil {
		m.choose(q)
	}
	return m.done()
}

// Expire handles the first timer that is due.
func (m *Machine) Expire(now time.Time) Effects {
	m.now = now
	switch t, ok := m.timers.Pop(now); {
	case !ok:
	case t.kind == timerCount:
		m.count()
	case t.kind == timerTerms:
		m.send(m.peers[t.peer])
	default:
		m.choose(m.peers[t.peer])
	}
	return m.done()
}

// Report takes what the tunnel observes of a peer.
func (m *Machine) Report(now time.Time, p Path) Effects {
	m.now = now
	q := m.peer(p.Key)
	if p.Unproven() && !q.path.Unproven() {
		q.settled = now.Add(settling)
	}
	q.path, q.reported = p, now
	m.choose(q)
	if q.unconfirmed && now.Sub(q.sentAt) >= laterRepeat {
		m.send(q)
	}
	return m.done()
}

// send sends our terms to the peer, and plans to repeat them until it confirms them.
func (m *Machine) send(q *peer) {
	if q.sent.Serial == 0 {
		q.sent.Serial = m.boot << 32 // grows with each process
	}
	key := timer{q.key, timerTerms}
	m.timers.Clear(key)
	if q.unconfirmed && q.tries < maxTerms-1 {
		m.timers.Set(key, m.now.Add(firstRepeat<<q.tries))
		q.tries++
	}
	q.sentAt = m.now
	t := q.sent
	t.Ack = q.heard
	m.eff.Terms = append(m.eff.Terms, Terms{q.key, t})
}

// Agreed takes a peer's terms.
func (m *Machine) Agreed(now time.Time, k api.PeerKey, t peermsg.Terms) Effects {
	m.now = now
	q := m.peer(k)
	if t.Serial < q.heard {
		return m.done()
	}
	news := t.Serial > q.heard
	if q.unconfirmed && t.Ack == q.sent.Serial {
		q.unconfirmed = false
		m.timers.Clear(timer{k, timerTerms})
	}
	if news {
		next := q.agreement
		next.Terms, q.heard, q.unsure = t, t.Serial, time.Time{}
		next.Terms.Serial, next.Terms.Ack = 0, 0
		m.set(q, next)
		m.choose(q)
	}
	if news || t.Ack != q.sent.Serial {
		m.send(q)
	}
	return m.done()
}

// Session takes the begin of a session: terms are exchanged anew, because the peer
// may have restarted without its store.
func (m *Machine) Session(now time.Time, k api.PeerKey) Effects {
	m.now = now
	q := m.peer(k)
	if q.agreement.Terms.Ways != none {
		q.unsure = now.Add(lapse)
	}
	if q.heard == 0 && q.sent.Serial == 0 {
		return m.done() // neither end has ever sent terms
	}
	q.heard, q.unconfirmed, q.tries = 0, true, 0
	m.choose(q)
	m.send(q)
	return m.done()
}

// Remove ends the agreement with a peer.
func (m *Machine) Remove(now time.Time, k api.PeerKey) Effects {
	m.now = now
	if q := m.peers[k]; q != nil {
		if q.sent.Ways != none {
			m.eff.Orders = append(m.eff.Orders, Order{Key: k, Message: peermsg.Terms{Serial: q.sent.Serial + 1, Ack: q.heard}})
		}
		m.timers.Clear(timer{k, timerLapse})
		m.timers.Clear(timer{k, timerTerms})
		m.set(q, agreement{})
		delete(m.peers, k)
	}
	return m.done()
}

func (m *Machine) set(q *peer, next agreement) {
	if reflect.DeepEqual(q.agreement, next) {
		return
	}
	if next.Path != q.Path || next.Via != q.Via {
		q.proof = proof{}
		if next.Path != "" {
			m.awaitCount()
		}
	}
	q.agreement = next
	m.eff.Changed = append(m.eff.Changed, q.key)
	if reflect.DeepEqual(next, agreement{}) {
		m.journal.Delete(Kind, q.key.String())
	} else {
		m.journal.Put(Kind, q.key.String(), next)
	}
}

// Status is the agreement with a peer as the plane and operators need it.
type Status struct {
	Path    api.PathKind // that our packets take; "" for the tunnel
	Via     netip.Addr
	Accepts plane.Paths // by which the peer's packets are accepted, withdrawn ones included
	Reason  string      // why the tunnel is used, if both are in an unencrypted network
}

// Status returns the agreement with a peer.
func (m *Machine) Status(k api.PeerKey) (s Status) {
	q := m.peers[k]
	if q == nil {
		return s
	}
	s = Status{Path: q.Path, Via: q.Via, Accepts: q.Accepts.Or(q.leaving)}
	switch {
	case q.Path != "" || q.Accepts == none:
	case q.reason != "":
		s.Reason = q.reason
	case q.agreement.Terms.Ways == none:
		s.Reason = "it accepts no unencrypted packets from here"
	default:
		s.Reason = "no unencrypted path that both accept"
	}
	return s
}
