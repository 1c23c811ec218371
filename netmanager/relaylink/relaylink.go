// Package relaylink keeps a node reachable through its cluster's relay. It binds the tunnel's UDP socket
// at the relay, gets the address that the relay sees and the kind of NAT from the answers, and renews the
// binding as rarely as the NAT allows. If the relay does not answer, UDP is blocked. The link then keeps
// a TLS connection to the cluster's port until UDP works again.
//
// It does not read relayed datagrams. Package netmanager/overlay/paths decides which relays are used.
//
//	l := relaylink.New(relaylink.Options{Dial: dial})
//	l.SetLease(ctx, lease.Relay, lease.Secret)
//	err := l.Run(ctx, tunnel) // the engine's Raw hook calls l.Receive
package relaylink

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
)

// Options configure a link.
type Options struct {
	// Dial connects to the cluster's port (host:port) by TLS, with this node's certificate and
	// relaywire.Proto. nil: TLS is not used.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Resolve returns a host's addresses. nil: the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Probe opens a UDP socket to the relay, other than the tunnel's. nil: net.DialUDP.
	Probe func(relay netip.AddrPort) (net.Conn, error)
	Log   *slog.Logger // nil discards
}

// Tunnel is the part of the tunnel that a link uses. Its methods are called from goroutines of Run and
// must not block.
type Tunnel interface {
	// Send sends a datagram from the tunnel's UDP socket.
	Send(to netip.AddrPort, datagram []byte) error
	// Deliver handles a datagram that came from the relay over TLS. It must not keep it.
	Deliver(relay netip.AddrPort, datagram []byte)
	// Changed handles a new state of the link.
	Changed(State)
}

// State is the state of a link.
type State struct {
	UDP      bool             // the slot is bound over UDP
	TLS      bool             // the TLS connection is up
	Relays   []netip.AddrPort // addresses of the relay, the one in use first
	Mapped   netip.AddrPort   // this node's address as the relay sees it; zero: not known
	NAT      paths.NAT
	Lifetime time.Duration // least time for which the NAT keeps a mapping; 0: not known
	RTT      time.Duration // of the last binding
}

func (s State) equal(o State) bool {
	return s.UDP == o.UDP && s.TLS == o.TLS && s.Mapped == o.Mapped && s.NAT == o.NAT && s.Lifetime == o.Lifetime && slices.Equal(s.Relays, o.Relays)
}

// Link is a node's link to its relay. Its methods are safe for concurrent use.
type Link struct {
	opt      Options
	in       chan func(*owner) // functions for Run to call
	received chan packet

	mu     sync.RWMutex // guards the fields below
	state  State
	stream *relaywire.Outbox // nil: no TLS connection
}

type packet struct {
	from netip.AddrPort
	msg  []byte
}

// New returns a link without a lease.
func New(o Options) *Link {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Probe == nil {
		o.Probe = func(relay netip.AddrPort) (net.Conn, error) {
			return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(relay))
		}
	}
	return &Link{opt: o, in: make(chan func(*owner), 16), received: make(chan packet, 64)}
}

// owner is the state that Run owns.
type owner struct {
	l         *Link
	t         Tunnel
	ctx       context.Context
	all       sync.WaitGroup
	b         binder
	addr      string             // host:port of the relay
	cancelTLS context.CancelFunc // ends the goroutine that keeps the TLS connection; nil: there is none
	resolving bool               // a look-up of addr is running
}

// SetLease sets the relay and this node's slot there. It blocks until Run accepts it or ctx ends.
func (l *Link) SetLease(ctx context.Context, r api.Relay, secret []byte) error {
	if _, _, err := net.SplitHostPort(r.Addr); err != nil {
		return fmt.Errorf("relay address %q: %w", r.Addr, api.ErrInvalid)
	}
	return l.do(ctx, func(v *owner) {
		if v.addr == r.Addr && v.b.slot == r.Slot && slices.Equal(v.b.secret, secret) {
			return
		}
		if v.addr != r.Addr {
			v.addr, v.b.relays, v.b.up = r.Addr, nil, false
			v.stopTLS()
		}
		v.b.lease(r.Slot, slices.Clone(secret))
		v.resolve()
	})
}

// SetOwn sets the addresses of the node's interfaces, with the tunnel's port. A change causes a new
// binding.
func (l *Link) SetOwn(ctx context.Context, own []netip.AddrPort) error {
	return l.do(ctx, func(v *owner) {
		if !slices.Equal(own, v.b.own) {
			v.b.own = slices.Clone(own)
			v.b.rebind()
		}
	})
}

// Nudge renews the binding, at the earliest a second after the last one, because the relay or the NAT may
// have restarted. It does not block.
func (l *Link) Nudge() {
	select {
	case l.in <- func(v *owner) { v.b.rebindSoon() }:
	default: // Run is busy and will bind anyway
	}
}

func (l *Link) do(ctx context.Context, f func(*owner)) error {
	select {
	case l.in <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Receive handles a datagram from the tunnel's socket that begins with a relay's type. It does not block.
// If the queue is full it drops the datagram; requests are repeated.
func (l *Link) Receive(from netip.AddrPort, datagram []byte) {
	if len(datagram) != relaywire.AnswerLen {
		return
	}
	select {
	case l.received <- packet{from, slices.Clone(datagram)}:
	default:
	}
}

// State returns the current state.
func (l *Link) State() State {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state
}

// SendTLS sends a datagram over the TLS connection to a slot of a relay. relay is that relay's address;
// zero means this node's own relay, which also forwards to other relays. It returns false if there is no
// connection or its queue is full.
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
	return st.Put(relaywire.AppendFrame(b, relaywire.Header{Slot: slot, Ticket: ticket}), datagram)
}

// Run keeps the link until ctx ends.
func (l *Link) Run(ctx context.Context, t Tunnel) error {
	ctx, cancel := context.WithCancel(ctx)
	v := &owner{l: l, t: t, ctx: ctx}
	defer v.all.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-l.in:
			f(v)
		case h := <-l.received:
			// Accept any source address: only the relay has the secret.
			if ans, err := relaywire.ParseAnswer(h.msg, v.b.secret); err == nil {
				v.b.answer(time.Now(), ans)
			}
		case <-timer.C:
		}
		v.act(timer)
	}
}

func (v *owner) act(timer *time.Timer) {
	for {
		a := v.b.step(time.Now())
		for _, o := range a.send {
			if err := v.t.Send(o.to, o.req.Append(nil, v.b.secret)); err != nil {
				v.l.opt.Log.Debug("send binding failed", "relay", o.to, "err", err)
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
	v.publish()
}

func (v *owner) publish() {
	s := State{
		UDP: v.b.up, Relays: slices.Clone(v.b.relays), Mapped: v.b.mapped, NAT: v.b.nat, Lifetime: v.b.lifetime, RTT: v.b.rtt,
	}
	v.l.mu.Lock()
	s.TLS = v.l.stream != nil
	changed := !s.equal(v.l.state)
	v.l.state = s
	v.l.mu.Unlock()
	if changed {
		v.t.Changed(s)
	}
}

// resolve looks up the relay's addresses, unless a look-up is running.
func (v *owner) resolve() {
	if v.resolving || v.addr == "" {
		return
	}
	v.resolving = true
	addr := v.addr
	v.all.Go(func() {
		found, err := udp.Resolve(v.ctx, addr, v.l.opt.Resolve)
		if err != nil {
			v.l.opt.Log.Warn("look up relay failed", "relay", addr, "err", err)
			pause(v.ctx, resolvePause)
		}
		_ = v.l.do(v.ctx, func(v *owner) {
			v.resolving = false
			if addr == v.addr && err == nil {
				v.b.resolved(found)
			} else {
				v.resolve()
			}
		})
	})
}

// resolvePause is the pause after a failed look-up.
const resolvePause = 10 * time.Second

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
