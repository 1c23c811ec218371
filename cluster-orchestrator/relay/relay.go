// Package relay is a cluster's relay: it forwards datagrams to nodes that others cannot reach
// directly. A node binds its slot to its present address over UDP or, where UDP is blocked,
// over TLS on the cluster's port. A sender sends the slot's ticket, which it has from a route.
// Nodes encrypt datagrams end to end; the relay only sees lengths and addresses.
//
// The cluster's core assigns slots to nodes (Set, Drop) and decides which other relays occur
// in routes (Options.Allow). Nothing is stored. After a restart, nodes bind again within two
// minutes, or as soon as they reconnect to the cluster.
//
//	r, err := relay.New(relay.Options{Listen: at, Identify: members.Node, Allow: allow})
//	r.Set(7, relay.Slot{Node: "n1", Ticket: ticket, Secret: secret})
//	err = r.Run(ctx)
package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/udp"
)

// Options configure a relay.
type Options struct {
	// Listen is the UDP address on which the relay receives: the number of the cluster's TLS
	// port.
	Listen netip.AddrPort
	// Identify returns the node of a TLS connection. nil: no TLS.
	Identify func(tls.ConnectionState) (api.NodeID, error)
	// Allow reports whether nodes that have only TLS may send to another relay. It should
	// only allow relays in routes of the cluster. nil allows none.
	Allow func(netip.AddrPort) bool
	// Rate limits the traffic to a slot, and the traffic that a node sends over TLS, each in
	// bytes per second with bursts of a tenth of a second. 0 means DefaultRate.
	Rate float64
	Log  *slog.Logger // nil discards
}

// DefaultRate is 10 Gbit/s. It limits floods but no ordinary service.
const DefaultRate = 1.25e9

// Slot is the assignment of a slot to a node.
type Slot struct {
	Node   api.NodeID
	Ticket uint64 // that senders must send
	Secret []byte // authenticates the node's bindings
}

// Relay forwards datagrams. Its methods are safe for concurrent use.
type Relay struct {
	opt  Options
	main *udp.Conn
	alt  *udp.Conn // a second port, with which a node detects a symmetric NAT
	n    counters

	answers           sync.Mutex // guards the use of the fields below
	sender, altSender *udp.Sender

	mu    sync.RWMutex // guards the fields below
	slots map[uint32]*slot
	nodes map[api.NodeID]*slot
}

// New opens the relay's sockets: Options.Listen and another port of the same address.
func New(o Options) (*Relay, error) {
	o.Rate, o.Log = cmp.Or(o.Rate, DefaultRate), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	main, err := udp.Listen(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("open the relay: %w", err)
	}
	alt, err := udp.Listen(netip.AddrPortFrom(main.Local().Addr(), 0))
	if err != nil {
		_ = main.Close()
		return nil, fmt.Errorf("open the relay's second port: %w", err)
	}
	return &Relay{
		opt: o, main: main, alt: alt, sender: main.NewSender(), altSender: alt.NewSender(),
		slots: map[uint32]*slot{}, nodes: map[api.NodeID]*slot{},
	}, nil
}

func (r *Relay) Addr() netip.AddrPort { return r.main.Local() }

// Run forwards datagrams until ctx ends, and then closes the sockets. Serve handles TLS
// connections.
func (r *Relay) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.receive(ctx, r.main) })
	g.Go(func() error { return r.receive(ctx, r.alt) })
	g.Go(func() error {
		<-ctx.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, s := range r.slots {
			s.stop()
		}
		return errors.Join(r.main.Close(), r.alt.Close())
	})
	return g.Wait()
}

func (r *Relay) receive(ctx context.Context, c *udp.Conn) error {
	in, out := c.NewReceiver(), c.NewSender()
	for {
		n, err := in.Receive()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case ctx.Err() != nil:
			return nil
		case err != nil: // for example, an ICMP error for an earlier datagram
			r.opt.Log.Debug("relay cannot receive", "err", err)
			continue
		}
		for i := range n {
			r.take(c, out, in.Message(i))
		}
	}
}

// take handles a run of datagrams from one sender. It forwards consecutive datagrams to the
// same slot as one run.
func (r *Relay) take(c *udp.Conn, out *udp.Sender, m udp.Message) {
	for rest := m.Data; len(rest) > 0; {
		first := rest[:min(m.Each, len(rest))]
		h, _, ok := relaywire.ParseFrame(first)
		switch {
		case ok && c == r.main:
			n := runOf(rest, m.Each)
			r.forward(out, h, rest[:n], m.Each)
			rest = rest[n:]
			continue
		case first[0] == relaywire.TypeRequest:
			r.bind(c, m.From, first)
		default:
			r.n[Malformed].Add(1)
		}
		rest = rest[len(first):]
	}
	if len(m.Data) == 0 {
		r.n[Malformed].Add(1)
	}
}

// runOf returns the number of bytes at the start of data that are datagrams with the same
// header as the first. Each datagram has each bytes; the last may be shorter.
func runOf(data []byte, each int) int {
	n := min(each, len(data))
	for n < len(data) {
		next := data[n:min(n+each, len(data))]
		if len(next) <= relaywire.HeaderLen || [relaywire.HeaderLen]byte(next) != [relaywire.HeaderLen]byte(data) {
			break
		}
		n += len(next)
	}
	return n
}

// forward sends a run of frames with the same header to a slot, without the header. Each
// frame has each bytes; the last may be shorter.
func (r *Relay) forward(out *udp.Sender, h relaywire.Header, run []byte, each int) {
	count := (len(run) + each - 1) / each
	bytes := len(run) - count*relaywire.HeaderLen
	s := r.slot(h.Slot)
	if s == nil {
		r.n[Unknown].Add(1)
		return
	}
	addr, conn, drop := s.target(h.Ticket, bytes)
	switch {
	case drop != Datagrams:
		r.n[drop].Add(1)
		return
	case conn != nil:
		for rest := run; len(rest) > 0; rest = rest[min(each, len(rest)):] {
			if datagram := rest[relaywire.HeaderLen:min(each, len(rest))]; !conn.out.Put(datagram) {
				r.n[Full].Add(1)
				count, bytes = count-1, bytes-len(datagram)
			}
		}
	default:
		if err := out.SendTails(addr, run, each, relaywire.HeaderLen); err != nil {
			r.n[Failed].Add(1)
			return
		}
	}
	r.n[Datagrams].Add(int64(count))
	r.n[Bytes].Add(int64(bytes))
}
