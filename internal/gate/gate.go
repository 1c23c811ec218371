// Package gate accepts TLS connections so that clients that have not authenticated cannot exhaust
// a port. Each connection has a place in one of four pools, which are divided fairly (package
// fairshare):
//
//   - strangers, by subnet and address: connections that have not authenticated. When the pool is
//     full, the oldest of the largest subnet is closed. A silent connection costs some kilobytes.
//   - reserve: strangers at addresses from which a client has authenticated in the last hour.
//   - peers, by certificate; the nodes of another cluster count together.
//   - people, by tenant and user: connections with a request that had a valid token (see MarkAuthenticated).
//
// Handshakes are computed in turns per address, so that a flood of them does not take all
// processors.
//
//	g := gate.New(ln, gate.Options{TLS: conf, Peers: 2000})
//	go g.Run(ctx)
//	daemon.Serve(ctx, g, handler, nil)
package gate

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity"
)

const (
	handshakeTime = 10 * time.Second
	knownFor      = time.Hour
	renewAfter    = time.Second // age at which a subnet's newcomer may replace the subnet's oldest
	peerShare     = 32          // connections of one identity, or of all nodes of another cluster
)

const (
	byAddress   = "subnet, then address; of each port"
	reserveTest = "TestKnownAddressesHaveAReserve"
)

var (
	strangerPlaces = fairshare.Bound{
		Per:    byAddress,
		Beyond: "the oldest of the largest subnet is closed; a newcomer of the largest subnet is closed itself while its subnet's are younger than 1 s",
		Attack: "TestSilentConnectionsLeaveRoomForOthers",
	}.Declare("connections that have not authenticated", 2048)
	reservePlaces = fairshare.Bound{Per: byAddress, Beyond: "as for connections that have not authenticated, among which they go first", Attack: reserveTest}.
			Declare("reserve for connections from addresses known for an hour", 512)
	knownAddresses = fairshare.Bound{Per: "subnet; of each port", Beyond: "the least recently seen of the largest subnet is forgotten", Attack: reserveTest}.
			Declare("addresses that are remembered as known", 16384, 1024)
	peerPlaces = fairshare.Bound{
		Per:    "cluster that issued it to a node, then certificate's identity; of each port. A cluster, and a node of the port's own, is counted by its identity alone",
		Beyond: "the oldest connection of the identity is closed, or of the identity of that cluster that has most; the total is lower where max_nodes is",
		Attack: "TestNodesOfOneClusterShareItsConnections",
	}.Declare("connections with a certificate", 65536, peerShare, peerShare)
	peoplePlaces = fairshare.Bound{
		Per: "tenant, then person; of each port", Beyond: "it stays a connection that has not authenticated", Attack: "TestConnectionsOfAPersonLeaveTheStrangers",
	}.Declare("connections with a person's token", 4096, 1024, 128)
	handshakeTurns = fairshare.Bound{
		Per:    byAddress,
		Beyond: "as many compute as there are processors, known addresses first; the newest of the largest subnet is closed",
		Attack: "TestAFloodOfHandshakesLeavesTurnsForOthers",
	}.Declare("handshakes that wait for a processor", 4096)
)

type Options struct {
	TLS *tls.Config // nil: connections have no TLS, and none is a peer's

	// Protos serve the connections with a protocol chosen by ALPN and close them, at the latest
	// soon after ctx ends. Accept returns all other connections.
	Protos map[string]func(context.Context, *tls.Conn)

	// Own is the cluster of this port; empty: none. Its nodes count individually, those of another
	// cluster together.
	Own api.ClusterID

	Peers     int           // maximum number of connections with a certificate; default 65,536
	Handshake time.Duration // for the TLS handshake; default 10 s
	Log       *slog.Logger  // default slog.Default()
}

// Gate is a listener of connections that have completed their TLS handshake.
type Gate struct {
	ln   net.Listener
	opt  Options
	conf *tls.Config

	strangers, reserve, peers, people *fairshare.Pool
	turns                             *fairshare.Turns
	recent                            *fairshare.Known // addresses from which a client has authenticated
	http                              chan net.Conn
	closed                            chan struct{}
	once                              sync.Once
}

// New makes a gate that accepts from ln while Run runs.
func New(ln net.Listener, o Options) *Gate {
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Handshake <= 0 {
		o.Handshake = handshakeTime
	}
	peers := peerPlaces
	if o.Peers > 0 {
		peers.Total = o.Peers
	}
	early := fairshare.Policy{Renew: true, RenewAfter: renewAfter}
	g := &Gate{
		ln: ln, opt: o,
		strangers: fairshare.NewPool(strangerPlaces, early), reserve: fairshare.NewPool(reservePlaces, early),
		peers: fairshare.NewPool(peers, fairshare.Replace), people: fairshare.NewPool(peoplePlaces, fairshare.Keep),
		turns:  fairshare.NewTurns(handshakeTurns, runtime.GOMAXPROCS(0), 0),
		recent: fairshare.NewKnown(knownAddresses, knownFor),
		http:   make(chan net.Conn), closed: make(chan struct{}),
	}
	if o.TLS == nil {
		return g
	}
	g.conf = o.TLS.Clone()
	choose := o.TLS.GetConfigForClient
	g.conf.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if err := h.Conn.(*conn).takeTurn(h.Context()); err != nil {
			return nil, err
		}
		if choose == nil {
			return nil, nil
		}
		return choose(h)
	}
	return g
}

// Run accepts connections until ctx ends, and waits until all are closed. The error is the
// listener's.
func (g *Gate) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = g.ln.Close() })()
	for {
		raw, err := g.ln.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // for example no free descriptor: retry when others have closed
			g.opt.Log.Warn("cannot accept a connection", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		c := &conn{Conn: raw, gate: g, path: fairshare.RemoteOf(raw.RemoteAddr()), gone: make(chan struct{})}
		c.known = g.recent.Has(time.Now(), key(c.path))
		if err := c.enter(); err != nil {
			_ = raw.Close()
			continue
		}
		all.Go(func() { g.handle(ctx, c) })
	}
}

// handle performs the handshake and passes the connection to Accept or to its protocol.
func (g *Gate) handle(ctx context.Context, c *conn) {
	defer func() { <-c.gone }() // another goroutine may close it
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if g.conf == nil {
		g.pass(ctx, c, c)
		return
	}
	secure, err := g.handshake(ctx, c)
	if err != nil {
		g.opt.Log.Debug("handshake failed", "remote", c.RemoteAddr(), "err", err)
		_ = c.Close()
		return
	}
	if serve := g.opt.Protos[secure.ConnectionState().NegotiatedProtocol]; serve != nil {
		if stop() { // serve closes the connection, after it has written everything
			serve(ctx, secure)
		}
		return
	}
	g.pass(ctx, c, secure)
}

// pass passes a connection to Accept, with its TLS if it has one, and waits until it is closed.
func (g *Gate) pass(ctx context.Context, c *conn, to net.Conn) {
	select {
	case g.http <- to:
		<-c.gone
	case <-g.closed:
	case <-ctx.Done():
	}
	_ = c.Close()
}

func (g *Gate) handshake(ctx context.Context, c *conn) (*tls.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(g.opt.Handshake))
	if err := c.peek(); err != nil { // silent connections end here, before TLS allocates memory
		return nil, err
	}
	secure := tls.Server(c, g.conf)
	ctx, cancel := context.WithTimeout(ctx, g.opt.Handshake)
	defer cancel()
	err := secure.HandshakeContext(ctx)
	c.endTurn()
	if err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Time{})
	if certs := secure.ConnectionState().PeerCertificates; len(certs) > 0 { // verified by Options.TLS
		if err := c.promote(g.peers, g.holder(certs[0], c.path)); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.authenticated = true // it stays a peer's, whatever tokens its requests have
		c.mu.Unlock()
		g.remember(c.path)
	}
	return secure, nil
}

// holder returns the path for a certificate's connections. A cluster can create any number of
// nodes, so that they share one group, except at the cluster's own port. Replicas of the root have the
// same identity and are counted by their address.
func (g *Gate) holder(cert *x509.Certificate, from []string) []string {
	id, err := identity.Of(cert)
	if err != nil { // a certificate of another CA
		name := cert.Issuer.String() + "/" + cert.Subject.String()
		return []string{name, name}
	}
	name := id.String()
	if id.Kind == identity.Root {
		name += " at " + key(from)
	}
	if id.Kind == identity.Node && id.Cluster != g.opt.Own {
		return []string{"nodes of " + identity.OfCluster(id.Cluster).String(), name}
	}
	return []string{name, name}
}

func key(path []string) string { return path[len(path)-1] }

// remember makes the address known for knownFor.
func (g *Gate) remember(path []string) { g.recent.Add(time.Now(), path[0], key(path)) }

// Accept implements net.Listener, for the HTTP server: it returns connections that have completed
// their handshake and have no entry in Options.Protos.
func (g *Gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.http:
		return c, nil
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It ends Accept, but not Run.
func (g *Gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

func (g *Gate) Addr() net.Addr { return g.ln.Addr() }

type connKey struct{}

// Context is for http.Server's ConnContext, so that MarkAuthenticated finds the connection.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if own, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

// MarkAuthenticated records that a request on the connection of ctx had a valid token of the person, a path
// of tenant and user. The connection moves from the strangers to the people, if these are not full.
func MarkAuthenticated(ctx context.Context, person []string) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return
	}
	c.mu.Lock()
	was := c.authenticated
	c.authenticated = true
	c.mu.Unlock()
	if was {
		return
	}
	if c.promote(c.gate.people, person) == nil {
		c.gate.remember(c.path)
	}
}

// errClosed is the error of a connection that lost its place.
var errClosed = fmt.Errorf("closed to make room for a new connection: %w", net.ErrClosed)
