package resolver

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

var queries = fairshare.Declare(fairshare.Bound{
	Resource: "DNS queries under way at a node", Total: 512, Share: []int{64}, Per: "instance",
	Beyond: "the query is dropped, over TCP refused; so is what is beyond 200 queries/s and 400 at once per instance. " +
		"An instance gets a further place only while more are free than it holds",
	Attack: "TestClientsWithSlowServersLeaveRoomForOthers",
})

var connections = fairshare.Declare(fairshare.Bound{
	Resource: "DNS connections over TCP at a node", Total: 256, Share: []int{8}, Per: "instance",
	Beyond: "the new connection is closed; when all are taken, the newest of the instance with most is",
	Attack: "TestDNSConnectionsOfOneInstanceAreBounded",
})

// gate bounds what clients may ask: all of them together, each at the same time,
// and each over time.
type gate struct {
	rate, perClient int
	all             *share
	local           func(netip.Addr) bool

	mu      *sync.Mutex // guards clients
	clients map[netip.Addr]*client
}

// client is one of this node's instances, so that there are not many.
type client struct {
	left   float64 // queries that it may ask at once
	at     time.Time
	asking int
}

// maxClients is when those that are quiet are forgotten; a node has fewer instances.
const maxClients = 1024

func newGate(c Config) gate {
	return gate{
		rate: c.Rate, perClient: c.PerClient, all: newShare(c.InFlight), local: c.Overlay.Local,
		mu: &sync.Mutex{}, clients: map[netip.Addr]*client{},
	}
}

// enter lets a query in, if there is room; leave is called when it is answered.
func (g *gate) enter(a netip.Addr, now time.Time) (leave func(), ok bool) {
	give, ok := g.all.take(a)
	if !ok {
		return nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.client(a, now)
	if d := now.Sub(c.at).Seconds(); d > 0 {
		c.left = min(float64(2*g.rate), c.left+d*float64(g.rate))
		c.at = now
	}
	if c.left < 1 || c.asking >= g.perClient {
		give()
		return nil, false
	}
	c.left--
	c.asking++
	return func() {
		give()
		g.mu.Lock()
		defer g.mu.Unlock()
		c.asking--
	}, true
}

func (g *gate) client(a netip.Addr, now time.Time) *client {
	c := g.clients[a]
	if c == nil {
		if len(g.clients) >= maxClients {
			for k, o := range g.clients {
				if o.asking == 0 {
					delete(g.clients, k)
				}
			}
		}
		c = &client{left: float64(2 * g.rate), at: now}
		g.clients[a] = c
	}
	return c
}

// reader drops, before anything is done for it, what does not come from an
// instance of this node.
func (g *gate) reader(r dns.Reader) dns.Reader {
	return packetReader{r.(dns.PacketConnReader), g.local}
}

type packetReader struct {
	dns.PacketConnReader
	local func(netip.Addr) bool
}

// ReadUDP reads a packet that is to be served.
func (p packetReader) ReadUDP(conn *net.UDPConn, timeout time.Duration) ([]byte, *dns.SessionUDP, error) {
	for {
		b, s, err := p.PacketConnReader.ReadUDP(conn, timeout)
		if err != nil {
			return b, s, err
		}
		if a, err := netip.ParseAddrPort(s.RemoteAddr().String()); err == nil && p.local(a.Addr().Unmap()) {
			return b, s, nil
		}
	}
}

// listener bounds connections, and takes those of instances of this node alone.
func (g *gate) listener(ln net.Listener, local func(netip.Addr) bool) net.Listener {
	l := &listener{Listener: ln, gate: g, local: local, room: fairshare.NewPool(connections, fairshare.Keep), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

type listener struct {
	net.Listener
	gate  *gate
	local func(netip.Addr) bool
	room  *fairshare.Pool

	close  func()
	closed chan struct{}
}

// The pauses after an Accept that failed and may go well again.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// Accept waits for a connection that is to be served. While the process has no file
// descriptor left, it pauses: whoever calls would at once try again.
func (l *listener) Accept() (net.Conn, error) {
	for pause := minPause; ; {
		c, err := l.Listener.Accept()
		if scarce(err) {
			select {
			case <-time.After(pause):
				pause = min(2*pause, maxPause)
				continue
			case <-l.closed:
			}
		}
		if err != nil {
			return nil, err
		}
		a, err := netip.ParseAddrPort(c.RemoteAddr().String())
		from := a.Addr().Unmap()
		if err != nil || !l.local(from) {
			c.Close()
			continue
		}
		place, err := l.room.Take(time.Now(), []string{from.String()}, func() { go c.Close() })
		if err != nil {
			c.Close()
			continue
		}
		return &conn{Conn: c, place: place}, nil
	}
}

func scarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// Close ends a pause, too.
func (l *listener) Close() error {
	l.close()
	return l.Listener.Close()
}

type conn struct {
	net.Conn
	place *fairshare.Place
}

func (c *conn) Close() error {
	defer c.place.Release()
	return c.Conn.Close()
}
