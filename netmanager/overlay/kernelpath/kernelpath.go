// Package kernelpath agrees with each peer on kernel paths: a plain route or VXLAN between two nodes in
// one network that the operators of both declared unencrypted. Each end sends the other, inside their
// session, the paths on which it accepts packets (peermsg.Terms), and sends only on paths that the other
// end accepts. An end accepts packets on all of these paths at once, so that the other can switch at any
// time. A firewall may still drop the packets. An end that sends on a kernel path therefore requests from
// its peer how much arrived (peermsg.TrafficProbe), and falls back to the tunnel if nothing did.
//
// The package does no I/O: the core passes what the tunnel observed and what the plane counted, and
// carries out the Effects.
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

// Kind is the kind of the documents: the agreement with a peer, by its key.
const Kind = "path"

const (
	// withdrawalPeriod is how long withdrawn paths are still accepted: until the peer has received the new terms,
	// possibly after repetitions, and its last packets have arrived.
	withdrawalPeriod = 3 * time.Second
	// termsLifetime is how long terms of an earlier session are valid in a new one. The peer repeats them after
	// it has configured its kernel, which can take seconds on a busy machine.
	termsLifetime = 10 * time.Second
	// settling is how long a relayed path, or one through a possible NAT, is not used as evidence of the
	// peer's address, because sessions begin on such paths.
	settling = 5 * time.Second
	// firstRepeat is when terms that the peer did not confirm are repeated. The wait doubles, up to
	// maxTerms messages. After that they are repeated once per slowRepeat, with a report of the tunnel.
	firstRepeat = 100 * time.Millisecond
	maxTerms    = 7
	slowRepeat  = 30 * time.Second
)

// Path is the tunnel's report on the path to a peer.
type Path struct {
	Key  api.PeerKey
	Kind api.PathKind // direct, relay, relay-tls or none
	Addr netip.AddrPort
	// NoNAT means that there is no NAT: each end sees the other at an address of one of its interfaces.
	NoNAT bool
	RTT   time.Duration
	Loss  float64
	MTU   int // inner
	// Idle means that the tunnel does not look for better paths, because there was no traffic for long. A
	// Kind other than direct is then no evidence of the peer's address.
	Idle bool
	// Silent means that traffic is unanswered for so long that the peer is probably dead.
	Silent bool
}

// Unproven reports whether the tunnel is in use on a path that may lead through a NAT.
func (p Path) Unproven() bool {
	return p.Kind != api.PathNone && !p.Idle && (p.Kind != api.PathDirect || !p.NoNAT)
}

// Self describes this node.
type Self struct {
	Known       bool // this node's addresses and networks are known
	Addresses   []netip.Addr
	OnLink      []netip.Prefix // networks of the node's devices
	Leased      bool
	Unencrypted []netip.Prefix // networks that the operator declared unencrypted
}

// Effects lists what the core has to do.
type Effects struct {
	Orders  []Order
	Terms   []Terms       // to send after the plane's change
	Count   bool          // request the plane's counters of kernel paths, after its change
	Changed []api.PeerKey // peers whose plane entry changed
}

// Order is a message to a peer. A nil Message means that traffic passed on the kernel path of the peer.
type Order struct {
	Key     api.PeerKey
	Message peermsg.Message
	Connect bool // start a session if there is none
}

// Terms are terms to send to a peer.
type Terms struct {
	Key api.PeerKey
	peermsg.Terms
}

// agreement is the agreement with a peer. It is saved, so that a restart of the netmanager interrupts no
// flow.
type agreement struct {
	Path    api.PathKind  `json:"path,omitempty"` // of packets to the peer: route, vxlan or "" for the tunnel
	Via     netip.Addr    `json:"via,omitzero"`   // the peer's address
	Accepts plane.Paths   `json:"takes,omitzero"` // on which the peer's packets are accepted
	Terms   peermsg.Terms `json:"terms,omitzero"` // the peer's terms, without serials
}

// peer is the state of one peer. A zero time means that its condition does not hold.
type peer struct {
	key      api.PeerKey
	path     Path
	reported time.Time // when path was reported; zero: never in this process
	agreement

	sent           peermsg.Terms // this node's last terms
	peerSerial     uint64        // Serial of the peer's last terms in this session
	unconfirmed    bool          // the peer has not confirmed sent
	tries          int           // how often sent was repeated
	sentAt         time.Time
	termsEnd       time.Time   // when the peer's terms of an earlier session expire
	withdrawn      plane.Paths // withdrawn paths, accepted until withdrawnUntil
	withdrawnUntil time.Time
	settled        time.Time // when a relayed path becomes evidence of the peer's address
	avoidUntil     time.Time // packets take the tunnel until then, because of reason
	reason         string
	failures       int // consecutive

	proof proof
}

// Machine keeps the agreements with all peers.
type Machine struct {
	vxlan          uint16
	boot           uint64 // 0 before Start
	self           Self
	peers          map[api.PeerKey]*peer
	countRequested time.Time // when the pending count was requested; zero: none is pending
	probes         uint64    // serial of the last TrafficProbe
	journal        step.Journal
	timers         step.Timers[timer]
	eff            Effects
	now            time.Time
}

type timer struct {
	peer api.PeerKey
	kind timerKind
}

type timerKind uint8

const (
	timerLapse timerKind = iota // one of the times in peer has come
	timerTerms                  // the peer has not confirmed the terms
	timerCount                  // request the plane's counters
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

// takeEffects returns the accumulated effects.
func (m *Machine) takeEffects() Effects {
	eff := m.eff
	m.eff = Effects{}
	return eff
}

// Restore loads a document of an earlier process. It deletes the document if the peer is not known any
// more.
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

// Next returns when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Start begins a process lifetime. Packets of peers are accepted as in the last process, and terms are
// exchanged again.
func (m *Machine) Start(now time.Time, boot uint64) {
	m.now, m.boot = now, boot
	for _, k := range m.keys() {
		q := m.peers[k]
		if q.Accepts == none && q.agreement.Terms.Paths == none {
			continue
		}
		q.sent = peermsg.Terms{Serial: boot << 32, Paths: q.Accepts, From: q.Via}
		q.settled = now.Add(settling)
		if q.Path != "" {
			m.scheduleCount()
		}
	}
}

func (m *Machine) keys() []api.PeerKey {
	return sorted.Peers(m.peers)
}

// SetSelf describes this node. Refresh applies it.
func (m *Machine) SetSelf(s Self) { m.self = s }

// Refresh chooses the paths to and from a peer again.
func (m *Machine) Refresh(now time.Time, k api.PeerKey) Effects {
	m.now = now
	if q := m.peers[k]; q != nil {
		m.choose(q)
	}
	return m.takeEffects()
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
	return m.takeEffects()
}

// Report stores the tunnel's report on a peer.
func (m *Machine) Report(now time.Time, p Path) Effects {
	m.now = now
	q := m.peer(p.Key)
	if p.Unproven() && !q.path.Unproven() {
		q.settled = now.Add(settling)
	}
	q.path, q.reported = p, now
	m.choose(q)
	if q.unconfirmed && now.Sub(q.sentAt) >= slowRepeat {
		m.send(q)
	}
	return m.takeEffects()
}

// send sends the node's terms to the peer, and schedules the repetition until the peer confirms them.
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
	t.Ack = q.peerSerial
	m.eff.Terms = append(m.eff.Terms, Terms{q.key, t})
}

// Agreed stores a peer's terms.
func (m *Machine) Agreed(now time.Time, k api.PeerKey, t peermsg.Terms) Effects {
	m.now = now
	q := m.peer(k)
	if t.Serial < q.peerSerial {
		return m.takeEffects()
	}
	newer := t.Serial > q.peerSerial
	if q.unconfirmed && t.Ack == q.sent.Serial {
		q.unconfirmed = false
		m.timers.Clear(timer{k, timerTerms})
	}
	if newer {
		next := q.agreement
		next.Terms, q.peerSerial, q.termsEnd = t, t.Serial, time.Time{}
		next.Terms.Serial, next.Terms.Ack = 0, 0
		m.set(q, next)
		m.choose(q)
	}
	if newer || t.Ack != q.sent.Serial {
		m.send(q)
	}
	return m.takeEffects()
}

// Session handles the start of a session: terms are exchanged again, because the peer may have restarted
// without its store.
func (m *Machine) Session(now time.Time, k api.PeerKey) Effects {
	m.now = now
	q := m.peer(k)
	if q.agreement.Terms.Paths != none {
		q.termsEnd = now.Add(termsLifetime)
	}
	if q.peerSerial == 0 && q.sent.Serial == 0 {
		return m.takeEffects() // neither end has ever sent terms
	}
	q.peerSerial, q.unconfirmed, q.tries = 0, true, 0
	m.choose(q)
	m.send(q)
	return m.takeEffects()
}

// Remove ends the agreement with a peer.
func (m *Machine) Remove(now time.Time, k api.PeerKey) Effects {
	m.now = now
	if q := m.peers[k]; q != nil {
		if q.sent.Paths != none {
			m.eff.Orders = append(m.eff.Orders, Order{Key: k, Message: peermsg.Terms{Serial: q.sent.Serial + 1, Ack: q.peerSerial}})
		}
		m.timers.Clear(timer{k, timerLapse})
		m.timers.Clear(timer{k, timerTerms})
		m.set(q, agreement{})
		delete(m.peers, k)
	}
	return m.takeEffects()
}

func (m *Machine) set(q *peer, next agreement) {
	if reflect.DeepEqual(q.agreement, next) {
		return
	}
	if next.Path != q.Path || next.Via != q.Via {
		q.proof = proof{}
		if next.Path != "" {
			m.scheduleCount()
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

// Status is the agreement with a peer, for the plane and operators.
type Status struct {
	Path    api.PathKind // of packets to the peer; "" for the tunnel
	Via     netip.Addr
	Accepts plane.Paths // on which the peer's packets are accepted, including withdrawn paths
	Reason  string      // why the tunnel is used although both nodes are in an unencrypted network
}

// Status returns the agreement with a peer.
func (m *Machine) Status(k api.PeerKey) (s Status) {
	q := m.peers[k]
	if q == nil {
		return s
	}
	s = Status{Path: q.Path, Via: q.Via, Accepts: q.Accepts.Or(q.withdrawn)}
	switch {
	case q.Path != "" || q.Accepts == none:
	case q.reason != "":
		s.Reason = q.reason
	case q.agreement.Terms.Paths == none:
		s.Reason = "it accepts no unencrypted packets from here"
	default:
		s.Reason = "no unencrypted path that both accept"
	}
	return s
}
