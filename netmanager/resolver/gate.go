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

// gate bounds the concurrent queries and the rate of queries, in all and per client.
type gate struct {
	room  *fairshare.Pool
	rates *fairshare.Rates
	local func(netip.Addr) bool
}

// maxClients bounds the clients whose rates are kept; a node has fewer instances.
const maxClients = 1024

func newGate(c Config) gate {
	room, clients := queries, queries
	room.Total, room.Share = c.InFlight, []int{c.PerClient}
	clients.Total = maxClients
	return gate{
		room:  fairshare.NewPool(room, fairshare.Policy{Fixed: true}),
		rates: fairshare.NewRates(clients, float64(c.Rate), 2*c.Rate), local: c.Overlay.Local,
	}
}

// enter admits a query if there is room. The caller calls leave after the answer.
func (g *gate) enter(a netip.Addr, now time.Time) (leave func() bool, ok bool) {
	place, err := g.room.Take(now, []string{a.String()}, nil)
	if err != nil {
		return nil, false
	}
	if g.rates.Allow(now, "", a.String()) != nil {
		place.Release()
		return nil, false
	}
	return place.Release, true
}

// reader drops packets that are not from an instance on this node before they are parsed.
func (g *gate) reader(r dns.Reader) dns.Reader {
	return packetReader{r.(dns.PacketConnReader), g.local}
}

type packetReader struct {
	dns.PacketConnReader
	local func(netip.Addr) bool
}

// ReadUDP reads the next packet from an instance on this node.
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

// listener accepts only connections from instances on this node, within their bounds.
func (g *gate) listener(ln net.Listener) net.Listener {
	l := &listener{Listener: ln, local: g.local, room: fairshare.NewPool(connections, fairshare.Keep), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

type listener struct {
	net.Listener
	local func(netip.Addr) bool
	room  *fairshare.Pool

	close  func()
	closed chan struct{}
}

// The pauses after an Accept that failed because the process is out of resources.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// Accept waits for a connection. If the process is out of file descriptors or memory, it pauses, because
// the caller would retry at once.
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

// Close closes the listener and ends a pause in Accept.
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
