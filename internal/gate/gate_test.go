package gate_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// port is a gate with an HTTP server that authenticates users by a header.
type port struct {
	t    *testing.T
	ca   *bustest.CA
	addr string
	stop func()
}

func open(t *testing.T) *port {
	t.Helper()
	issuer := bustest.NewCA(t)
	conf := issuer.Server(t)
	conf.ClientAuth, conf.NextProtos = tls.VerifyClientCertIfGiven, []string{"h2", "http/1.1"}
	p := openFor(t, gate.Options{TLS: conf})
	p.ca = issuer
	return p
}

// openFor opens a port with the options.
func openFor(t *testing.T, o gate.Options) *port {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &port{t: t, addr: ln.Addr().String()}
	o.Log = bustest.Quiet()
	g := gate.New(ln, o)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = g.Run(ctx) })
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who := r.Header.Get("Person"); who != "" {
			gate.MarkAuthenticated(r.Context(), []string{"acme", who})
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "served")
	})
	all.Go(func() { _ = daemon.Serve(ctx, g, handler, nil) })
	p.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(p.stop)
	return p
}

// dial makes a TCP connection from the address.
func (p *port) dial(from string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute} // the kernel repeats dropped SYNs less and less often
	return d.Dial("tcp", p.addr)
}

// hello makes a TLS connection from the address, with the certificate of the name
// unless that is empty.
func (p *port) hello(from, name string) (*tls.Conn, error) {
	conf := p.ca.Client(p.t, "nobody")
	if name == "" {
		conf.GetClientCertificate = nil
	} else {
		conf = p.ca.Client(p.t, name)
	}
	return p.secure(from, conf)
}

// secure makes a TLS connection from the address.
func (p *port) secure(from string, conf *tls.Config) (*tls.Conn, error) {
	raw, err := p.dial(from)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, conf)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if err := c.Handshake(); err != nil {
		raw.Close()
		return nil, err
	}
	return c, nil
}

// ask sends a request on the connection, as the person unless that is empty.
func ask(c net.Conn, person string) error {
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	head := "GET / HTTP/1.1\r\nHost: x\r\n"
	if person != "" {
		head += "Person: " + person + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "served" {
		return fmt.Errorf("answered %q: %w", text, err)
	}
	return nil
}

// asks makes a connection and a request on it, n times, and returns how long each
// took, in order.
func (p *port) asks(n int, from, name string) []time.Duration {
	p.t.Helper()
	var took []time.Duration
	for range n {
		began := time.Now()
		c, err := p.hello(from, name)
		if err == nil {
			err = ask(c, "")
			c.Close()
		}
		if err != nil {
			p.t.Errorf("a request from %s: %v", from, err)
			continue
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took
}

func p99(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[(len(d)*99+99)/100-1]
}

func files(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// fewOpen waits until hardly more connections are open than the 2048 places for strangers and the
// 512 of the reserve. A client notices a moment later that its connection was closed.
func fewOpen(t *testing.T, before int) {
	t.Helper()
	var n int
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n = (files(t) - before) / 2; n <= 2048+512+500 {
			return
		}
	}
	t.Errorf("%d connections are open, want at most the 2048 places for strangers, the 512 of the reserve and 500", n)
}

// manyFiles lets the test have as many descriptors as the machine allows.
func manyFiles(t *testing.T, want uint64) {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if l.Max < want {
		t.Fatalf("the hard limit of descriptors is %d, the test needs %d: raise RLIMIT_NOFILE", l.Max, want)
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
}

// crowd keeps n connections open from 40 addresses of 4 subnets. It replaces those that the server
// closes, one per renew. start is called on each.
func (p *port) crowd(n int, renew time.Duration, start func(net.Conn) error) (end func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all, ready sync.WaitGroup
	tick := time.NewTicker(renew)
	atOnce := make(chan struct{}, 64)
	var failed atomic.Int64
	ready.Add(n)
	for i := range n {
		from := fmt.Sprintf("127.1.%d.%d", i%4+1, i/4%10+1)
		all.Go(func() {
			up := sync.OnceFunc(ready.Done)
			defer up()
			for ctx.Err() == nil {
				atOnce <- struct{}{}
				c, err := p.dial(from)
				<-atOnce
				if err != nil {
					failed.Add(1)
					return
				}
				if start == nil || start(c) == nil {
					up()
					stop := context.AfterFunc(ctx, func() { c.Close() })
					_, _ = io.Copy(io.Discard, c) // until the server closes it
					stop()
				}
				up()
				c.Close()
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	ready.Wait()
	if f := failed.Load(); f > 0 {
		p.t.Fatalf("%d of %d connections could not be made", f, n)
	}
	return func() { cancel(); all.Wait(); tick.Stop() }
}

// maxWait is how long a request may take under attack. A blocked port would stay blocked for the time
// limit of a handshake, 10 s. The benchmark "flood" measures latencies under attack; here, other
// tests use the processors.
const maxWait = 5 * time.Second

func TestSilentConnectionsLeaveRoomForOthers(t *testing.T) {
	manyFiles(t, 16_000)
	p := open(t)
	before := files(t)
	quiet := p.asks(100, "127.0.0.1", "")
	end := p.crowd(10_000, 2*time.Millisecond, nil)
	// Each connection that the port did not close has a descriptor at both ends.
	if n := (files(t) - before) / 2; n < 1000 {
		t.Errorf("%d of 10,000 silent connections are open, want 1000 at least", n)
	}
	fewOpen(t, before)
	attacked := p.asks(100, "127.0.0.1", "")
	known := p.asks(100, "127.0.0.2", "n1")
	end()
	t.Logf("p99 of a connection with a request: %v before, %v and %v under attack (n = 100)", p99(quiet), p99(attacked), p99(known))
	for who, d := range map[string][]time.Duration{"a stranger's": attacked, "a node's": known} {
		if p99(d) > maxWait {
			t.Errorf("p99 of %s requests went from %v to %v, want at most %v", who, p99(quiet), p99(d), maxWait)
		}
	}
	p.stop()
	if n := files(t); n > before+10 {
		t.Errorf("%d descriptors after, %d before", n, before)
	}
}

// Connections that complete their handshake and then send their request byte by byte, an endless body,
// or ten such requests over HTTP/2, are strangers too.
func TestSlowRequestsLeaveRoomForOthers(t *testing.T) {
	manyFiles(t, 16_000)
	p := open(t)
	conf := p.ca.Client(t, "x")
	conf.GetClientCertificate = nil
	conf2 := conf.Clone()
	conf2.NextProtos = []string{"h2"}
	quiet, before := p.asks(50, "127.0.0.1", ""), files(t)
	var made atomic.Int64
	// A slow machine computes some 100 handshakes per second; those that wait for their turn are not
	// counted by fewOpen.
	end := p.crowd(4000, 20*time.Millisecond, func(c net.Conn) error {
		which := made.Add(1) % 3
		secure := tls.Client(c, conf)
		if which == 2 {
			secure = tls.Client(c, conf2)
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if err := secure.Handshake(); err != nil {
			return err
		}
		_ = c.SetDeadline(time.Time{})
		text := "GET / HTTP/1.1\r\nHost: x\r\nA"
		switch which {
		case 1:
			text = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"
		case 2:
			text = bodiless(10)
		}
		_, err := io.WriteString(secure, text)
		return err
	})
	fewOpen(t, before)
	attacked := p.asks(50, "127.0.0.1", "")
	end()
	if made.Load() < 3000 {
		t.Errorf("%d slow requests were begun, want 3000 at least", made.Load())
	}
	t.Logf("p99 of a connection with a request: %v before, %v under attack (n = 50)", p99(quiet), p99(attacked))
	if p99(attacked) > maxWait {
		t.Errorf("p99 of requests went from %v to %v, want at most %v", p99(quiet), p99(attacked), maxWait)
	}
}

// bodiless is the start of an HTTP/2 connection with n requests whose bodies never arrive.
func bodiless(n int) string {
	var out, block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", "/"}, {":authority", "x"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	out.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&out, nil)
	_ = fr.WriteSettings()
	for i := range n {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndHeaders: true})
	}
	return out.String()
}

// A client that has authenticated from an address can connect from it again, even while others at the
// same address have all places for strangers.
func TestKnownAddressesHaveAReserve(t *testing.T) {
	manyFiles(t, 16_000)
	p := open(t)
	c, err := p.hello("127.0.0.9", "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(c, ""); err != nil { // so that the server has verified the certificate
		t.Fatal(err)
	}
	c.Close()
	end := p.crowd(4000, 2*time.Millisecond, nil)
	defer end()
	p.asks(50, "127.0.0.9", "n1")
	p.asks(50, "127.0.0.9", "")
}

func TestConnectionsOfOneCertificateAreBounded(t *testing.T) {
	p := open(t)
	var held []*tls.Conn
	for range 40 {
		c, err := p.hello("127.0.0.1", "loud")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := ask(c, ""); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	for i, c := range held {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if i < 8 {
			if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
				t.Errorf("connection %d of 40 is open: %v, want the newest 32 only", i, err)
			}
		} else if err := ask(c, ""); err != nil {
			t.Errorf("connection %d of 40: %v, want the newest 32 open", i, err)
		}
	}
	p.asks(1, "127.0.0.1", "quiet")
}

// clusters is an installation of two clusters, one of which creates any number of nodes.
type clusters struct {
	t     *testing.T
	root  *ca.Authority
	byID  map[api.ClusterID]*ca.Authority
	own   map[api.ClusterID]ca.Pair // the clusters' own certificates
	nodes ca.Pair                   // all nodes share its key
	csr   []byte
}

func newClusters(t *testing.T, ids ...api.ClusterID) *clusters {
	t.Helper()
	c := &clusters{t: t, byID: map[api.ClusterID]*ca.Authority{}, own: map[api.ClusterID]ca.Pair{}}
	var err error
	if c.root, err = ca.NewRoot(time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	c.nodes.Key, c.csr = c.request()
	for _, id := range ids {
		key, csr := c.request()
		chain, err := c.root.SignCluster(time.Now().Add(-time.Hour), csr, id)
		if err != nil {
			t.Fatal(err)
		}
		if c.byID[id], err = ca.New(ca.Pair{Key: key, Chain: chain}); err != nil {
			t.Fatal(err)
		}
		c.own[id] = c.signedBy(c.byID[id])
	}
	return c
}

func (c *clusters) request() (crypto.Signer, []byte) {
	c.t.Helper()
	key, csr, err := ca.NewRequest()
	if err != nil {
		c.t.Fatal(err)
	}
	return key, csr
}

// signedBy returns an own certificate of the authority.
func (c *clusters) signedBy(a *ca.Authority) ca.Pair {
	c.t.Helper()
	key, csr := c.request()
	chain, err := a.SignOwn(time.Now(), csr, "localhost")
	if err != nil {
		c.t.Fatal(err)
	}
	return ca.Pair{Key: key, Chain: chain}
}

// conf is the TLS configuration of a port of the installation.
func (c *clusters) conf() *tls.Config {
	own := c.signedBy(c.root).TLS(false)
	conf := trust.New(c.root.Root()).Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }, false)
	conf.NextProtos = []string{"http/1.1"}
	return conf
}

// enter makes a connection with the certificate and sends a request on it.
func (c *clusters) enter(p *port, pair ca.Pair) *tls.Conn {
	c.t.Helper()
	conn, err := p.secure("127.0.0.1", &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{*pair.TLS(false)},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if err := ask(conn, ""); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// crowd makes one connection of each of n nodes of the cluster.
func (c *clusters) crowd(p *port, id api.ClusterID, n int) (held []*tls.Conn) {
	c.t.Helper()
	for i := range n {
		chain, err := c.byID[id].SignNode(time.Now(), c.csr, api.NodeID(fmt.Sprintf("n%d", i)))
		if err != nil {
			c.t.Fatal(err)
		}
		held = append(held, c.enter(p, ca.Pair{Key: c.nodes.Key, Chain: chain}))
	}
	return held
}

// expect checks that the newest of the connections are open and the others closed.
func (c *clusters) expect(who string, held []*tls.Conn, open int) {
	c.t.Helper()
	closed := len(held) - open
	for i, conn := range held[closed:] {
		if err := ask(conn, ""); err != nil {
			c.t.Errorf("%s: connection %d of %d: %v, want the newest %d open", who, closed+i, len(held), err, open)
		}
	}
	for i, conn := range held[:closed] {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			c.t.Fatalf("%s: connection %d of %d is open: %v, want the newest %d only", who, i, len(held), err, open)
		}
	}
}

// The nodes of a cluster share one bound, because the cluster can create any number of them. The
// cluster itself and the nodes of other clusters are not affected.
func TestNodesOfOneClusterShareItsConnections(t *testing.T) {
	c := newClusters(t, "evil", "good")
	p := openFor(t, gate.Options{TLS: c.conf()})
	evil, other := c.enter(p, c.own["evil"]), c.crowd(p, "good", 2)
	nodes := c.crowd(p, "evil", 40)
	c.expect("the nodes", nodes, 32)
	c.expect("their cluster", []*tls.Conn{evil}, 1)
	c.expect("nodes of another cluster", other, 2)
}

// At a cluster's port, each of its own nodes counts individually.
func TestOwnNodesOfAClustersPortAreCountedByThemselves(t *testing.T) {
	c := newClusters(t, "evil", "good")
	p := openFor(t, gate.Options{TLS: c.conf(), Own: "good"})
	own := c.crowd(p, "good", 40)
	nodes := c.crowd(p, "evil", 40)
	c.expect("own nodes", own, 40)
	c.expect("nodes of another cluster", nodes, 32)
}

// A user's connections do not count as strangers, and stay open while those of strangers are evicted.
func TestConnectionsOfAPersonLeaveTheStrangers(t *testing.T) {
	manyFiles(t, 16_000)
	p := open(t)
	c, err := p.hello("127.1.1.1", "") // the attackers' address
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ask(c, "ann"); err != nil {
		t.Fatal(err)
	}
	end := p.crowd(4000, 2*time.Millisecond, nil)
	defer end()
	if err := ask(c, "ann"); err != nil {
		t.Errorf("a person's connection under attack: %v", err)
	}
}

// A flood of complete handshakes from one subnet delays a handshake from another by one turn.
func TestAFloodOfHandshakesLeavesTurnsForOthers(t *testing.T) {
	manyFiles(t, 16_000)
	p := open(t)
	conf := p.ca.Client(t, "x")
	conf.GetClientCertificate = nil
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var made atomic.Int64
	for range 200 {
		all.Go(func() {
			for ctx.Err() == nil {
				raw, err := p.dial("127.1.1.1")
				if err != nil {
					continue
				}
				_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
				if tls.Client(raw, conf).Handshake() == nil {
					made.Add(1)
				}
				raw.Close()
			}
		})
	}
	for made.Load() < 500 {
		time.Sleep(time.Millisecond) // until the flood is under way
	}
	took := p.asks(30, "127.0.0.1", "")
	cancel()
	all.Wait()
	if m := took[len(took)/2]; m > maxWait {
		t.Errorf("half of the requests took %v or more during a flood of handshakes, want at most %v", m, maxWait)
	}
}

// A port without TLS has the same bounds: strangers are evicted, a person's connection stays.
func TestConnectionsWithoutTLSAreBounded(t *testing.T) {
	manyFiles(t, 16_000)
	p := openFor(t, gate.Options{})
	c, err := p.dial("127.1.1.1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ask(c, "ann"); err != nil {
		t.Fatal(err)
	}
	before := files(t)
	end := p.crowd(4000, 2*time.Millisecond, nil)
	defer end()
	fewOpen(t, before)
	if err := ask(c, "ann"); err != nil {
		t.Errorf("a person's connection under attack: %v", err)
	}
	other, err := p.dial("127.0.0.3")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := ask(other, ""); err != nil {
		t.Errorf("a stranger's request under attack: %v", err)
	}
}
