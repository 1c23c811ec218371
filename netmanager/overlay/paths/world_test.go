package paths

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// kind is the behaviour of a NAT, in terms of RFC 4787.
type kind int

const (
	none           kind = iota // a public address
	fullCone                   // endpoint-independent mapping and filtering
	restricted                 // address-dependent filtering
	portRestricted             // address- and port-dependent filtering
	symmetric                  // address- and port-dependent mapping and filtering
	double                     // port-restricted behind port-restricted
	blocked                    // no UDP passes
	kinds
)

func (k kind) String() string {
	return [...]string{"none", "full cone", "restricted", "port-restricted", "symmetric", "double", "UDP blocked"}[k]
}

// nat is one NAT device. Its table is its only state.
type nat struct {
	kind   kind
	outer  netip.Addr
	port   uint16                    // the last port assigned
	out    map[string]netip.AddrPort // inner (and destination, where that matters) → mapping
	in     map[netip.AddrPort]netip.AddrPort
	sent   map[string]time.Time // time of the last packet by "mapping|remote" and "mapping|remote address"
	used   map[netip.AddrPort]time.Time
	expire time.Duration
}

func newNAT(k kind, outer string) *nat {
	return &nat{
		kind: k, outer: netip.MustParseAddr(outer), port: 20000, out: map[string]netip.AddrPort{}, expire: 30 * time.Second,
		in: map[netip.AddrPort]netip.AddrPort{}, sent: map[string]time.Time{}, used: map[netip.AddrPort]time.Time{},
	}
}

// leave returns the source address of a packet after the NAT.
func (n *nat) leave(now time.Time, src, dst netip.AddrPort) netip.AddrPort {
	key := src.String()
	if n.kind == symmetric {
		key += "|" + dst.String()
	}
	m, ok := n.out[key]
	if !ok || now.Sub(n.used[m]) > n.expire {
		delete(n.in, m)
		n.port++
		m = netip.AddrPortFrom(n.outer, n.port)
		n.out[key], n.in[m] = m, src
	}
	n.used[m] = now
	n.sent[m.String()+"|"+dst.String()], n.sent[m.String()+"|"+dst.Addr().String()] = now, now
	return m
}

// enter returns the destination of a packet from outside; ok is false if it is dropped.
func (n *nat) enter(now time.Time, src, dst netip.AddrPort) (inner netip.AddrPort, ok bool) {
	inner, ok = n.in[dst]
	if !ok || now.Sub(n.used[dst]) > n.expire {
		return inner, false
	}
	key := dst.String() + "|"
	switch n.kind {
	case fullCone:
		n.used[dst] = now
		return inner, true
	case restricted:
		key += src.Addr().String()
	default:
		key += src.String()
	}
	t, ok := n.sent[key]
	if !ok || now.Sub(t) > n.expire {
		return inner, false
	}
	n.used[dst], n.sent[key] = now, now
	return inner, true
}

// host is a node: its machine, its NATs (the innermost first) and counters.
type host struct {
	name     string
	kind     kind
	addr     netip.AddrPort
	nats     []*nat
	m        *Machine
	peer     *host
	wake     time.Time
	got      int       // data packets
	last     time.Time // when the last one arrived
	gap      time.Duration
	sending  bool // sends data, if active is set
	active   bool
	sent     bool // data since the last Traffic
	received map[Path]bool
	probes   map[netip.AddrPort]int // sent to each address
	sentCtl  int
	dead     bool
	life     int // number of restarts
	session  int // the life of the peer that can decrypt what this host sends
}

// world is two hosts, a relay, and the network between.
type world struct {
	t      *testing.T
	now    time.Time
	start  time.Time
	rng    *rand.Rand
	delay  time.Duration
	loss   float64
	queue  events
	seq    int
	hosts  []*host
	mtu    int
	relay  bool // the relay works
	direct bool // packets between the hosts arrive
	cut    map[string]bool
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

var relayAddr = netip.MustParseAddrPort("198.51.100.1:7000")

func newWorld(t *testing.T, seed uint64, a, b kind) *world {
	w := &world{
		t: t, now: time.Unix(1e9, 0), rng: rand.New(rand.NewPCG(seed, 9)), delay: 20 * time.Millisecond, relay: true, direct: true,
		mtu: 1500, cut: map[string]bool{},
	}
	w.start = w.now
	for i, k := range []kind{a, b} {
		w.hosts = append(w.hosts, w.newHost(i, k, seed))
	}
	w.hosts[0].peer, w.hosts[1].peer = w.hosts[1], w.hosts[0]
	return w
}

func (w *world) newHost(i int, k kind, seed uint64) *host {
	h := &host{name: string(rune('A' + i)), kind: k, received: map[Path]bool{}, probes: map[netip.AddrPort]int{}}
	public := fmt.Sprintf("203.0.113.%d", 10+i)
	h.addr = netip.MustParseAddrPort(fmt.Sprintf("192.168.%d.2:7100", i))
	switch k {
	case none:
		h.addr = netip.MustParseAddrPort(public + ":7100")
	case double:
		h.nats = []*nat{newNAT(portRestricted, fmt.Sprintf("100.64.0.%d", 10+i)), newNAT(portRestricted, public)}
	case blocked:
		h.nats = []*nat{newNAT(portRestricted, public)}
	default:
		h.nats = []*nat{newNAT(k, public)}
	}
	h.restart(seed)
	return h
}

// restart gives the host a new machine.
func (h *host) restart(seed uint64) {
	cfg := Config{}
	binary.BigEndian.PutUint64(cfg.Seed[:], seed*2+uint64(h.name[0]))
	h.m = New(cfg)
}

// restarted restarts the host. After where it gets its address, and after session a session, unless an end
// restarts meanwhile.
func (w *world) restarted(h *host, where, session time.Duration) {
	h.life++
	h.dead, h.sent = false, false
	clear(h.received)
	h.restart(w.rng.Uint64())
	w.step(h, Self{})
	w.step(h, Peer{Relay: true, Endpoints: []netip.AddrPort{h.peer.addr}})
	w.after(where, func() { w.bind(h) })
	x, y := h.life, h.peer.life
	w.after(session, func() {
		if h.life != x || h.peer.life != y || h.dead || h.peer.dead {
			return
		}
		h.session, h.peer.session = y, x
		w.step(h, Established{Path{h.peer.addr}})
		w.step(h.peer, Established{Path{h.addr}})
	})
}

// begin gives both machines their inputs, and opens the session through the relay.
func (w *world) begin() {
	for _, h := range w.hosts {
		w.bind(h)
		w.step(h, Peer{Relay: true})
		w.every(20*time.Second, func() { w.bind(h) })
		w.every(100*time.Millisecond, func() { w.report(h) })
	}
	for _, h := range w.hosts {
		w.after(w.delay, func() { w.step(h, Established{}) })
	}
}

// bind does the work of relaylink: it sets the mapped address and the kind of NAT.
func (w *world) bind(h *host) {
	s := Self{Own: []netip.AddrPort{h.addr}, Links: []netip.Prefix{netip.PrefixFrom(h.addr.Addr(), 24).Masked()}, NAT: Open}
	if h.kind == blocked {
		s.NAT = Blocked
	} else if m := h.leave(w.now, relayAddr); m != h.addr {
		s.Mapped = []netip.AddrPort{m}
		s.NAT = Easy
		if h.leave(w.now, netip.AddrPortFrom(relayAddr.Addr(), relayAddr.Port()+1)) != m {
			s.NAT = Hard
		}
	}
	w.step(h, s)
}

func (h *host) leave(now time.Time, dst netip.AddrPort) netip.AddrPort {
	src := h.addr
	for _, n := range h.nats {
		src = n.leave(now, src, dst)
	}
	return src
}

func (h *host) enter(now time.Time, src, dst netip.AddrPort) bool {
	for i := len(h.nats) - 1; i >= 0; i-- {
		var ok bool
		if dst, ok = h.nats[i].enter(now, src, dst); !ok {
			return false
		}
	}
	return dst == h.addr
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now.Add(d), w.seq, do})
}

func (w *world) every(d time.Duration, do func()) {
	w.after(d, func() { do(); w.every(d, do) })
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for {
		var h *host
		for _, x := range w.hosts {
			if !x.wake.IsZero() && (h == nil || x.wake.Before(h.wake)) {
				h = x
			}
		}
		next := end
		if len(w.queue) > 0 && w.queue[0].at.Before(next) {
			next = w.queue[0].at
		}
		if h != nil && h.wake.Before(next) {
			w.now = h.wake
			w.step(h, Tick{})
			continue
		}
		w.now = next
		if next.Equal(end) {
			return
		}
		e := heap.Pop(&w.queue).(event)
		e.do()
	}
}

func (w *world) step(h *host, in Input) {
	if h.dead {
		h.wake = time.Time{}
		return
	}
	out := h.m.Step(w.now, in)
	if !out.Wake.IsZero() && !out.Wake.After(w.now) {
		w.t.Fatalf("%v: %s wants to be woken %v ago after %T; it would spin", w.now.Sub(w.start), h.name, w.now.Sub(out.Wake), in)
	}
	h.wake = out.Wake
	for _, s := range out.Send {
		h.sentCtl++
		if msg, err := Parse(s.Body); err != nil {
			w.t.Fatalf("%s sends %x", h.name, s.Body)
		} else if _, ok := msg.(Probe); ok && !s.Path.Relay() {
			h.probes[s.Path.Addr]++
		}
		reader := h.session
		w.send(h, s.Path, max(s.Size, 100), func(from Path) {
			if h.peer.life == reader {
				w.step(h.peer, Received{from, s.Body})
			}
		})
	}
}

// send delivers a packet on a path, if nothing drops it.
func (w *world) send(h *host, p Path, size int, arrive func(from Path)) {
	if w.rng.Float64() < w.loss || size > w.mtu || w.cut[h.name+p.String()] || h.dead {
		return
	}
	delay := w.delay + time.Duration(w.rng.Int64N(int64(w.delay/4)+1))
	if p.Relay() {
		if w.relay && !h.peer.dead {
			w.after(2*delay, func() { arrive(Path{}) })
		}
		return
	}
	if h.kind == blocked || h.peer.kind == blocked || !w.direct {
		return
	}
	src := h.leave(w.now, p.Addr)
	w.after(delay, func() {
		if p.Addr.Addr().IsPrivate() && (h.kind != none || h.peer.kind != none) && p.Addr.Addr() == h.peer.addr.Addr() && !w.sameLink() {
			return // a private address means nothing outside
		}
		if h.peer.enter(w.now, src, p.Addr) {
			arrive(Path{src})
		}
	})
}

func (w *world) sameLink() bool { return len(w.hosts[0].nats) == 0 && len(w.hosts[1].nats) == 0 }

// talk makes a host send data packets at an interval.
func (w *world) talk(h *host, every time.Duration) {
	h.sending, h.active = true, true
	w.every(every, func() {
		if h.sending && !h.dead {
			w.data(h)
		}
	})
}

func (w *world) data(h *host) {
	first := !h.sent && h.m.Report().Reason == "idle: a direct path is looked for when there is traffic"
	h.sent = true
	w.send(h, h.m.Report().Path, 1280, func(from Path) {
		o := h.peer
		if !o.last.IsZero() {
			o.gap = max(o.gap, w.now.Sub(o.last))
		}
		o.got, o.last, o.received[from] = o.got+1, w.now, true
	})
	if first {
		w.report(h)
	}
}

// report passes the engine's counters to the machine.
func (w *world) report(h *host) {
	received := h.receivedInOrder()
	if h.sent || len(received) > 0 {
		in := Traffic{Sent: h.sent, Received: received}
		h.sent = false
		clear(h.received)
		w.step(h, in)
	}
}

func (h *host) receivedInOrder() []Path {
	var list []Path
	if h.received[Path{}] {
		list = append(list, Path{})
	}
	for p := range h.received {
		if !p.Relay() {
			list = append(list, p)
		}
	}
	return list
}
