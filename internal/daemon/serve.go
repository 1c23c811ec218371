package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/gate"
)

// drainTime is how long requests may take to end after ctx. Watches and streams are closed then.
const drainTime = 3 * time.Second

var connStreams = fairshare.Declare(fairshare.Bound{
	Resource: "HTTP/2 streams of a connection", Total: 100, Per: "connection",
	Beyond: "the stream is refused; a connection with 400 more that were opened and reset while their requests wait is closed. " +
		"A connection buffers at most 1 MiB, a stream 256 KiB, and headers have at most 64 KiB. " +
		"With a certificate a stream buffers 512 KiB and a connection 50 MiB, so that streams that are not read block no other",
	Attack: "TestStreamsThatAreResetDoNotPileUp",
})

// limits bounds how long a request or connection occupies the server. net/http's own timeouts
// apply to whole requests and would end streams, which last for hours.
type limits struct {
	header time.Duration // for a request's headers to arrive, HTTP/1
	idle   time.Duration // without a request; also for the first headers of HTTP/2
	body   time.Duration // for a request's body to arrive, unless the handler sets a deadline
	write  time.Duration // for the client to receive the data of one Write or Flush
}

var defaultLimits = limits{header: 10 * time.Second, idle: 2 * time.Minute, body: time.Minute, write: 30 * time.Second}

// Serve serves HTTP on the listener until ctx ends, over TLS if tc is not nil. The contexts of
// requests end with ctx, so that streams can close. A request ends if its body does not arrive
// within a minute, unless its handler sets a read deadline, or if its client does not read a Write
// within 30 s. Serve closes the listener.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, tc *tls.Config) error {
	return serve(ctx, ln, h, tc, defaultLimits)
}

const (
	connBuffer   = 1 << 20
	streamBuffer = 256 << 10
	// peerBuffer is for a stream of a peer: 100 Mbit/s with a round trip of 40 ms.
	peerBuffer = 512 << 10

	pingEvery = 20 * time.Second // of a silent connection of a peer
	pingTime  = 15 * time.Second // for its answer
)

func serve(ctx context.Context, ln net.Listener, h http.Handler, tc *tls.Config, lim limits) error {
	sorted := &sorter{Listener: ln, peers: make(chan net.Conn), closed: make(chan struct{})}
	s, peers := server(ctx, h, tc, lim, connBuffer, streamBuffer), server(ctx, h, tc, lim, connStreams.Total*peerBuffer, peerBuffer)
	peers.HTTP2.SendPingTimeout, peers.HTTP2.PingTimeout = pingEvery, pingTime // a silent peer must not hold its streams
	done, peersDone := make(chan error, 1), make(chan struct{})
	go func() {
		if tc != nil {
			done <- s.ServeTLS(sorted, "", "")
		} else {
			done <- s.Serve(sorted)
		}
	}()
	go func() {
		defer close(peersDone)
		_ = peers.Serve(peerListener{sorted})
	}()
	defer func() { <-peersDone }()
	select {
	case err := <-done:
		sorted.end()
		_ = peers.Close()
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	var both sync.WaitGroup
	for _, s := range []*http.Server{s, peers} {
		both.Go(func() {
			if s.Shutdown(drain) != nil {
				_ = s.Close()
			}
		})
	}
	both.Wait()
	<-done
	return nil
}

// sorter is a listener without the connections of peers, which peerListener accepts: nodes and
// clusters, whose certificates the listener has verified.
type sorter struct {
	net.Listener
	peers  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (s *sorter) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if secure, ok := c.(*tls.Conn); !ok || len(secure.ConnectionState().PeerCertificates) == 0 {
			return c, nil
		}
		select {
		case s.peers <- c:
		case <-s.closed:
			_ = c.Close()
		}
	}
}

func (s *sorter) end() { s.once.Do(func() { close(s.closed) }) }

// peerListener accepts the connections of peers.
type peerListener struct{ *sorter }

// Accept implements net.Listener.
func (p peerListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.peers:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It leaves the sorter open.
func (p peerListener) Close() error {
	p.end()
	return nil
}

// server returns a server whose connections and streams buffer at most so many bytes that were not read.
func server(ctx context.Context, h http.Handler, tc *tls.Config, lim limits, conn, stream int) *http.Server {
	return &http.Server{
		Handler: lim.wrap(h), TLSConfig: tc.Clone(), // net/http writes to it
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       gate.Context,
		ReadHeaderTimeout: lim.header,
		IdleTimeout:       lim.idle,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          connStreams.Total,
			MaxReceiveBufferPerConnection: conn,
			MaxReceiveBufferPerStream:     stream,
			WriteByteTimeout:              lim.write,
		},
		ErrorLog: log.New(serverLog{slog.Default()}, "", 0),
	}
}

// serverLog logs the messages of net/http at level debug, because clients can cause any number of
// them, and panics at level error.
type serverLog struct{ log *slog.Logger }

// Write implements io.Writer; net/http writes one message at a time.
func (l serverLog) Write(p []byte) (int, error) {
	level, text := slog.LevelDebug, strings.TrimSpace(string(p))
	if strings.Contains(text, "panic serving") {
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, "HTTP server", "message", text)
	return len(p), nil
}

// wrap sets the deadlines of each request.
func (l limits) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			_ = rc.SetReadDeadline(time.Now().Add(l.body))
			body := &timedBody{ReadCloser: r.Body, rc: rc}
			r.Body = body
			defer body.end()
		}
		out := &timedWriter{w, rc, l.write}
		defer out.begin() // the server still writes its buffer
		next.ServeHTTP(out, r)
	})
}

// timedBody clears the read deadline at the end of the body. Over HTTP/1 the deadline would end a
// request whose answer takes longer. Spliced streams may read it when the handler has returned, and so its
// controller can no longer be used.
type timedBody struct {
	io.ReadCloser
	rc *http.ResponseController

	mu   sync.Mutex // guards over
	over bool
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.over {
			_ = b.rc.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

func (b *timedBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// timedWriter sets a write deadline while it writes, and none between writes: over HTTP/2 an
// expired deadline resets an idle stream.
type timedWriter struct {
	http.ResponseWriter
	rc   *http.ResponseController
	wait time.Duration
}

func (w *timedWriter) begin() { _ = w.rc.SetWriteDeadline(time.Now().Add(w.wait)) }
func (w *timedWriter) end()   { _ = w.rc.SetWriteDeadline(time.Time{}) }

func (w *timedWriter) Write(p []byte) (int, error) {
	w.begin()
	defer w.end()
	return w.ResponseWriter.Write(p)
}

func (w *timedWriter) FlushError() error {
	w.begin()
	defer w.end()
	return w.rc.Flush()
}

func (w *timedWriter) Flush() { _ = w.FlushError() }

func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
