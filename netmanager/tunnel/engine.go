package tunnel

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// DefaultMTU is the inner MTU for an outer MTU of 1500 bytes. It leaves room for IPv6 and a relay's
// header.
const DefaultMTU = 1400

// MaxControl is the longest payload of SendControl in bytes: MTU probes have up to 9000 bytes.
const MaxControl = 9000 - 48 - relayHeader - session.Overhead

// Config configures an engine.
type Config struct {
	Device tun.Device     // the engine closes it
	Key    [32]byte       // private, X25519
	Listen netip.AddrPort // of the UDP socket; zero: any port, both families
	Hooks  Hooks
	Rand   io.Reader // crypto/rand where nil
}

// Lease is this node's part of the overlay. The engine drops packets from peers to addresses outside
// Subnet.
type Lease struct {
	Ranges wire.NetRanges
	Subnet netip.Prefix
	Relays []netip.AddrPort // source addresses of relayed datagrams
}

// Engine is the tunnel of a node. Its methods are safe for concurrent use, also before Run.
type Engine struct {
	cfg  Config
	id   session.Identity
	conn *udp.Conn

	// Read on the data path. Writers hold mu and replace the whole value.
	lease   atomic.Pointer[lease]
	routes  atomic.Pointer[routes]
	local   atomic.Pointer[map[uint32]struct{}] // addresses of instances on this node; nil: not known
	indexes atomic.Pointer[map[uint32]*keys]

	// For the keeper.
	initiations chan handshake // those that passed the gate
	answers     chan handshake // other handshake messages
	cookies     chan cookieReply
	asked       [session.Slots]atomic.Bool // sources for which a cookie waits
	wake        chan struct{}              // capacity 1

	rx    *receiver
	drops drops

	fragments atomic.Uint32 // last identification of a fragmented packet

	mu        sync.Mutex // guards the fields below, and the fields of peer that are marked so
	peers     map[api.PeerKey]*peer
	active    map[*peer]struct{}       // peers with timers
	tries     map[uint32]*peer         // by the receiver index of the response
	strangers map[api.PeerKey]stranger // initiations of unknown peers
	stamp     uint64                   // of the last initiation
	events    []Event
	removed   Total // totals of removed peers
}

// New opens the socket. Run carries packets.
func New(cfg Config) (*Engine, error) {
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if !cfg.Listen.IsValid() {
		cfg.Listen = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	id, err := session.NewIdentity(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("tunnel key: %w", err)
	}
	conn, err := udp.Listen(cfg.Listen)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, id: id, conn: conn, wake: make(chan struct{}, 1),
		initiations: make(chan handshake, maxWaiting), answers: make(chan handshake, maxWaiting), cookies: make(chan cookieReply, maxWaiting),
		peers: map[api.PeerKey]*peer{}, active: map[*peer]struct{}{}, strangers: map[api.PeerKey]stranger{},
		tries: map[uint32]*peer{},
	}
	e.fragments.Store(uint32(time.Now().UnixNano())) // fragments of an earlier process may still arrive
	e.lease.Store(&lease{})
	e.routes.Store(&routes{})
	e.indexes.Store(&map[uint32]*keys{})
	e.rx = newReceiver(e)
	return e, nil
}

// Run carries packets until ctx ends or the device fails. It closes the device and the socket.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.transmit(ctx) })
	g.Go(func() error { return e.receive(ctx) })
	g.Go(func() error { return e.keep(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		return errors.Join(e.cfg.Device.Close(), e.conn.Close())
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("tunnel: %w", err)
	}
	return nil
}

// Public returns the public key, which identifies this node to peers.
func (e *Engine) Public() api.PeerKey { return e.id.Public() }

// Local returns the address of the UDP socket.
func (e *Engine) Local() netip.AddrPort { return e.conn.Local() }

// SetSelf sets the node's lease.
func (e *Engine) SetSelf(l Lease) { e.lease.Store(newLease(l)) }

// SetLocal sets which addresses of the node's subnet are in use. Packets to other addresses are reported
// as Stray, and still written to the device.
func (e *Engine) SetLocal(addresses []netip.Addr) {
	m := make(map[uint32]struct{}, len(addresses))
	for _, a := range addresses {
		b := a.As4()
		m[binary.BigEndian.Uint32(b[:])] = struct{}{}
	}
	e.local.Store(&m)
}

// SetPeer adds a peer, or changes its subnets and endpoints. The caller has verified its proof. Until
// SetTries, handshakes are tried at its endpoints.
func (e *Engine) SetPeer(p api.Peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.peers[p.Key]
	if q == nil {
		if p.Key == e.id.Public() {
			return
		}
		q = newPeer(p.Key)
		e.peers[p.Key] = q
	}
	subnets := make([]prefix4, 0, len(p.Subnets))
	for _, s := range p.Subnets {
		if s.Addr().Is4() {
			subnets = append(subnets, newPrefix4(s))
		}
	}
	q.subnets.Store(&subnets)
	q.endpoints = slices.Clone(p.Endpoints)
	e.reroute()
	if _, ok := e.strangers[p.Key]; ok {
		e.wakeKeeper()
	}
}

// DropPeer removes a peer, its keys and its queued packets.
func (e *Engine) DropPeer(key api.PeerKey) {
	e.with(key, func(p *peer) {
		delete(e.peers, key)
		e.removed.add(&p.traffic)
		delete(e.active, p)
		p.send.Store(nil)
		p.dropped = true
		e.endTry(p)
		e.removeKeys(append(p.older[:], p.current, p.next)...)
		e.reroute()
	})
}

// with calls fn with a known peer while it holds mu.
func (e *Engine) with(key api.PeerKey, fn func(p *peer)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[key]; p != nil {
		fn(p)
	}
}

// SetPath sets the path of data to a peer. With the zero Path the engine chooses it.
func (e *Engine) SetPath(key api.PeerKey, path Path) {
	e.with(key, func(p *peer) {
		p.fixed = path != Path{}
		if p.fixed {
			p.path.Store(&path)
			e.activate(p)
		}
	})
}

// SetTries sets the paths on which handshakes with a peer are tried, all at once.
func (e *Engine) SetTries(key api.PeerKey, paths ...Path) {
	e.with(key, func(p *peer) {
		p.tries = slices.Clone(paths)
		if p.try != nil { // try the new paths at once
			p.try.at = time.Time{}
			e.wakeKeeper()
		}
	})
}

// SetMTU sets the longest inner packet to a peer in bytes, at least minMTU; 0 means DefaultMTU. A longer
// packet is answered with an ICMP error. The engine lowers the MTU when a device of this host refuses a
// datagram as too long.
func (e *Engine) SetMTU(key api.PeerKey, n int) {
	e.with(key, func(p *peer) { p.mtu.Store(int32(max(cmp.Or(n, DefaultMTU), minMTU))) })
}

// Connect starts a handshake with a peer that has no session or an old one.
func (e *Engine) Connect(key api.PeerKey) {
	e.with(key, func(p *peer) {
		if s := p.send.Load(); s == nil || s.Old(time.Now()) {
			e.startHandshake(p)
		}
	})
}

// ErrNoSession means that a handshake with the peer has to complete first.
var ErrNoSession = errors.New("no session")

// SendControl sends payload to a peer on a path. It arrives once and unchanged, or not at all. A payload
// that is too long for the path fails with udp.ErrTooLong if a device of this host refuses it; otherwise
// it is lost.
func (e *Engine) SendControl(key api.PeerKey, via Path, payload []byte) error {
	if len(payload) == 0 || len(payload) > MaxControl {
		return fmt.Errorf("control message of %d bytes: %w", len(payload), api.ErrInvalid)
	}
	e.mu.Lock()
	p := e.peers[key]
	e.mu.Unlock()
	if p == nil {
		return fmt.Errorf("peer %s: %w", key, api.ErrNotFound)
	}
	s := p.send.Load()
	if s == nil || !s.Usable(time.Now()) {
		return fmt.Errorf("peer %s: %w", key, ErrNoSession)
	}
	b := make([]byte, 0, relayHeader+session.Overhead+len(payload))
	if b = s.Seal(via.header(b), session.Control, payload); b == nil {
		return fmt.Errorf("peer %s: %w", key, ErrNoSession)
	}
	return e.sendOne(via, b)
}

// SendRaw sends a datagram whose first byte is RawType or more.
func (e *Engine) SendRaw(to netip.AddrPort, datagram []byte) error {
	if len(datagram) == 0 || datagram[0] < RawType {
		return fmt.Errorf("raw datagram must begin with a type of at least %#x: %w", RawType, api.ErrInvalid)
	}
	return e.sendOne(Path{Kind: api.PathDirect, Addr: to}, datagram)
}

// sendOne sends a datagram that begins with the header of its path.
func (e *Engine) sendOne(via Path, b []byte) error {
	if via.Kind == api.PathRelayTLS {
		if h := e.cfg.Hooks.SendTLS; h != nil {
			h(via, b)
		}
		return nil
	}
	return e.conn.NewSender().Send(via.Addr, b, len(b))
}

// Receive handles a datagram that came over a relay's TLS connection. It may modify the datagram.
func (e *Engine) Receive(from Path, datagram []byte) {
	e.rx.take(from, udp.Message{Data: datagram, Each: len(datagram)})
}

func (e *Engine) wakeKeeper() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// maxEvents bounds the events that wait for a slow hook.
const maxEvents = 4096

// post queues an event for the keeper. mu is held.
func (e *Engine) post(ev Event) {
	if e.cfg.Hooks.Event != nil && len(e.events) < maxEvents {
		e.events = append(e.events, ev)
		e.wakeKeeper()
	}
}

// report is post for callers that do not hold mu.
func (e *Engine) report(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.post(ev)
}
