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
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/gate"
)

// drainTime is how long requests may take to end after ctx. Watches and streams are closed then.
const drainTime = 3 * time.Second

var connStreams = fairshare.Declare(fairshare.Bound{
	Resource: "HTTP/2 streams of a connection", Total: 100, Per: "connection",
	Beyond: "the stream is refused; a connection with 400 more that were opened and reset while their requests wait is closed. " +
		"A connection buffers at most 1 MiB, a stream 256 KiB, and headers have at most 64 KiB",
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

func serve(ctx context.Context, ln net.Listener, h http.Handler, tc *tls.Config, lim limits) error {
	s := &http.Server{
		Handler: lim.wrap(h), TLSConfig: tc,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       gate.Context,
		ReadHeaderTimeout: lim.header,
		IdleTimeout:       lim.idle,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          connStreams.Total,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
			WriteByteTimeout:              lim.write,
		},
		ErrorLog: log.New(serverLog{slog.Default()}, "", 0),
	}
	done := make(chan error, 1)
	go func() {
		if tc != nil {
			done <- s.ServeTLS(ln, "", "")
		} else {
			done <- s.Serve(ln)
		}
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if s.Shutdown(drain) != nil {
		_ = s.Close()
	}
	<-done
	return nil
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
			r.Body = &timedBody{r.Body, rc}
		}
		out := &timedWriter{w, rc, l.write}
		defer out.begin() // the server still writes its buffer
		next.ServeHTTP(out, r)
	})
}

// timedBody clears the read deadline at the end of the body. Over HTTP/1 the deadline would end a
// request whose answer takes longer.
type timedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
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
