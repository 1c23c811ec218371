// Package relaylink keeps a node reachable through its cluster's relay. It binds
// the tunnel's UDP socket at the relay, learns from the answers where the node is
// seen and what its NAT does, and renews the binding as seldom as the NAT allows;
// where no answer comes, UDP is blocked, and it keeps a TLS connection to the
// cluster's port instead, until UDP works again.
//
// What is relayed it does not look into. Which relay a peer has, and whether it is
// used, is netmanager/overlay/paths' to say.
//
//	l := relaylink.New(relaylink.Options{Send: engine.SendRaw, Deliver: deliver, Dial: dial, Changed: changed})
//	l.SetLease(lease.Relay, lease.Secret)
//	err := l.Run(ctx) // and l.Receive from the engine's Raw hook
package relaylink

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
)

// Options are what a link is made of.
type Options struct {
	// Send sends a datagram from the tunnel's socket.
	Send func(to netip.AddrPort, datagram []byte) error
	// Deliver gets datagrams that came over TLS, as if from the relay at that
	// address. It must not keep them.
	Deliver func(relay netip.AddrPort, datagram []byte)
	// Dial connects to the cluster's port (host:port) by TLS, as this node, with
	// relaywire.Proto; nil: never.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Resolve finds a host's addresses; nil asks the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Probe opens a UDP socket to the relay beside the tunnel's; nil asks the system.
	Probe func(relay netip.AddrPort) (net.Conn, error)
	// Changed is told what is new, from the link's goroutine. nil: nobody is.
	Changed func(State)
	Log     *slog.Logger // nil discards
}

// State is where the node stands.
type State struct {
	UDP    bool             // the slot is bound over UDP
	TLS    bool             // the TLS connection carries
	Relays []netip.AddrPort // addresses of the own relay, the one in use first
	Mapped netip.AddrPort   // where the relay sees us; zero: not known
	NAT    paths.NAT
	Life   time.Duration // that the NAT is known to keep a mapping; 0: not known
	RTT    time.Duration // of the last binding
}

func (s State) equal(o State) bool {
	return s.UDP == o.UDP && s.TLS == o.TLS && s.Mapped == o.Mapped && s.NAT == o.NAT && s.Life == o.Life && slices.Equal(s.Relays, o.Relays)
}

// Link is a node's link to its relay. Its methods are safe for concurrent use.
type Link struct {
	opt   Options
	in    chan func(*life) // what the owner, Run, shall do
	heard chan heard
	dial  dialer

	mu     sync.RWMutex // guards the fields below
	state  State
	stream *stream // nil: no TLS connection
}

type heard struct {
	from netip.AddrPort
	msg  []byte
}

// New returns a link that has no lease.
func New(o Options) *Link {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Probe == nil {
		o.Probe = func(relay netip.AddrPort) (net.Conn, error) {
			return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(relay))
		}
	}
	if o.Changed == nil {
		o.Changed = func(State) {}
	}
	l := &Link{opt: o, in: make(chan func(*life), 16), heard: make(chan heard, 64)}
	return l
}

// life is what Run owns.
type life struct {
	l      *Link
	ctx    context.Context
	all    sync.WaitGroup
	b      binder
	addr   string // host:port of the relay
	asking bool   // for its address
}

// SetLease gives the link its slot.
func (l *Link) SetLease(ctx context.Context, r api.Relay, secret []byte) error {
	if _, _, err := net.SplitHostPort(r.Addr); err != nil {
		return fmt.Errorf("relay address %q: %w", r.Addr, api.ErrInvalid)
	}
	return l.do(ctx, func(v *life) {
		if v.addr == r.Addr && v.b.slot == r.Slot && slices.Equal(v.b.secret, secret) {
			return
		}
		if v.addr != r.Addr {
			v.addr, v.b.relays, v.b.up = r.Addr, nil, false
			l.dial.stop()
		}
		v.b.lease(r.Slot, slices.Clone(secret))
		v.resolve()
	})
}

// SetOwn tells the link the addresses of the node's interfaces with the tunnel's
// port; a change has it bind anew.
func (l *Link) SetOwn(ctx context.Context, own []netip.AddrPort) error {
	return l.do(ctx, func(v *life) {
		if !slices.Equal(own, v.b.own) {
			v.b.own = slices.Clone(own)
			v.b.again()
		}
	})
}

// Nudge has the slot bound, a second after it was bound last at the earliest: the
// cluster may have been restarted, or the NAT before us. It never waits.
func (l *Link) Nudge() {
	select {
	case l.in <- func(v *life) { v.b.nudge() }:
	default: // what the link is busy with will bind it
	}
}

func (l *Link) do(ctx context.Context, f func(*life)) error {
	select {
	case l.in <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Receive takes a datagram of the tunnel's socket whose first byte is a relay's;
// others are not its. It never waits: what floods is dropped, and asked for again.
func (l *Link) Receive(from netip.AddrPort, datagram []byte) {
	if len(datagram) != relaywire.AnswerLen {
		return
	}
	select {
	case l.heard <- heard{from, slices.Clone(datagram)}:
	default:
	}
}

// State is how things are.
func (l *Link) State() State {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state
}

// SendTLS sends a datagram to a slot over the TLS connection: our relay's (whose
// address may be left out), or another's, which our relay passes on. False: there
// is no connection, or no room.
func (l *Link) SendTLS(relay netip.AddrPort, slot uint32, ticket uint64, datagram []byte) bool {
	l.mu.RLock()
	st, own := l.stream, !relay.IsValid() || slices.Contains(l.state.Relays, relay)
	l.mu.RUnlock()
	if st == nil {
		return false
	}
	var head [64]byte
	b := head[:0]
	if !own {
		b = relaywire.AppendTo(b, relay)
	}
	return st.out.Put(relaywire.AppendFrame(b, relaywire.Header{Slot: slot, Ticket: ticket}), datagram)
}

// Run keeps the link until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	v := &life{l: l, ctx: ctx}
	defer v.all.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			l.dial.stop()
			return nil
		case f := <-l.in:
			f(v)
		case h := <-l.heard:
			// From anywhere: only the relay can have made it.
			if ans, err := relaywire.ParseAnswer(h.msg, v.b.secret); err == nil {
				v.b.answer(time.Now(), ans)
			}
		case <-timer.C:
		}
		v.act(timer)
	}
}

// act carries out what the binder wants.
func (v *life) act(timer *time.Timer) {
	for {
		a := v.b.step(time.Now())
		for _, o := range a.send {
			if err := v.l.opt.Send(o.to, o.req.Append(nil, v.b.secret)); err != nil {
				v.l.opt.Log.Debug("binding not sent", "relay", o.to, "err", err)
			}
		}
		if a.resolve {
			v.resolve()
		}
		if a.test > 0 {
			v.test(a.test)
		}
		if a.wake.IsZero() {
			timer.Stop()
		} else if d := time.Until(a.wake); d > 0 {
			timer.Reset(d)
		} else {
			continue
		}
		break
	}
	v.keepTLS()
	v.tell()
}

// tell publishes the state.
func (v *life) tell() {
	s := State{
		UDP: v.b.up, Relays: slices.Clone(v.b.relays), Mapped: v.b.mapped, NAT: v.b.nat, Life: v.b.life, RTT: v.b.rtt,
	}
	v.l.mu.Lock()
	s.TLS = v.l.stream != nil
	changed := !s.equal(v.l.state)
	v.l.state = s
	v.l.mu.Unlock()
	if changed {
		v.l.opt.Changed(s)
	}
}

// resolve asks for the relay's addresses, unless that is under way.
func (v *life) resolve() {
	if v.asking || v.addr == "" {
		return
	}
	v.asking = true
	addr := v.addr
	v.all.Go(func() {
		found, err := v.l.lookup(v.ctx, addr)
		if err != nil {
			v.l.opt.Log.Warn("relay not found", "relay", addr, "err", err)
			pause(v.ctx, resolveAgain)
		}
		_ = v.l.do(v.ctx, func(v *life) {
			v.asking = false
			if addr == v.addr && err == nil {
				v.b.resolved(found)
			} else {
				v.resolve()
			}
		})
	})
}

// resolveAgain is how long a name that is not found is left alone.
const resolveAgain = 10 * time.Second

func (l *Link) lookup(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	ips, err := []netip.Addr(nil), error(nil)
	if ip, bad := netip.ParseAddr(host); bad == nil {
		ips = []netip.Addr{ip}
	} else if ips, err = l.opt.Resolve(ctx, host); err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, ip := range ips {
		if ap := netip.AddrPortFrom(ip.Unmap(), uint16(n)); !slices.Contains(list, ap) {
			list = append(list, ap)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address: %w", host, api.ErrNotFound)
	}
	return list, nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
