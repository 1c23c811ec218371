package daemon_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/daemon"
)

const (
	never = time.Hour
	soon  = 300 * time.Millisecond
	fail  = 30 * time.Second // until a test fails
)

// http2Port is a server of HTTP/2 for hostile clients.
type http2Port struct {
	t    *testing.T
	ca   *bustest.CA
	addr string
}

func openHTTP2(t *testing.T, h http.HandlerFunc, idle, body, write time.Duration) *http2Port {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &http2Port{t: t, ca: bustest.NewCA(t), addr: ln.Addr().String()}
	conf := p.ca.Server(t)
	conf.NextProtos = []string{"h2", "http/1.1"}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.ServeFor(ctx, ln, h, conf, idle, body, write) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return p
}

// client makes a well-behaved client of the protocol.
func (p *http2Port) client(proto string) *http.Client {
	conf := p.ca.Client(p.t, "n1")
	t := &http.Transport{TLSClientConfig: conf, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(proto == "http/1.1")
	t.Protocols.SetHTTP2(proto == "h2")
	p.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: fail}
}

// get fails the test unless the server answers a well-behaved client.
func (p *http2Port) get() {
	p.t.Helper()
	resp, err := p.client("h2").Get("https://" + p.addr + "/quick")
	if err != nil {
		p.t.Fatalf("a request beside the attack: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		p.t.Fatalf("a request beside the attack: %s %s", resp.Proto, resp.Status)
	}
}

// attacker writes frames as it likes.
type attacker struct {
	t      *testing.T
	conn   *tls.Conn
	fr     *http2.Framer
	stream uint32
	limit  uint32         // MAX_CONCURRENT_STREAMS of the server
	resets chan uint32    // streams that the server reset
	ended  chan string    // END_STREAM or why the connection ended, in order
	reads  sync.WaitGroup // the reader
}

func (p *http2Port) attack(settings ...http2.Setting) *attacker {
	p.t.Helper()
	conf := p.ca.Client(p.t, "n1")
	conf.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", p.addr, conf)
	if err != nil {
		p.t.Fatal(err)
	}
	a := &attacker{t: p.t, conn: c, fr: http2.NewFramer(c, c), resets: make(chan uint32, 100_000), ended: make(chan string, 100_000)}
	_ = c.SetDeadline(time.Now().Add(fail))
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		p.t.Fatal(err)
	}
	if err := a.fr.WriteSettings(settings...); err != nil {
		p.t.Fatal(err)
	}
	f, err := a.fr.ReadFrame()
	if err != nil {
		p.t.Fatal(err)
	}
	s, ok := f.(*http2.SettingsFrame)
	if !ok {
		p.t.Fatalf("the first frame is %v", f)
	}
	a.limit, _ = s.Value(http2.SettingMaxConcurrentStreams)
	if err := a.fr.WriteSettingsAck(); err != nil {
		p.t.Fatal(err)
	}
	a.reads.Go(a.read)
	p.t.Cleanup(func() { c.Close(); a.reads.Wait() })
	return a
}

func (a *attacker) read() {
	for {
		f, err := a.fr.ReadFrame()
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			a.resets <- f.StreamID
		case *http2.GoAwayFrame:
			a.ended <- "GOAWAY " + f.ErrCode.String()
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				a.ended <- "END_STREAM"
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				a.ended <- "END_STREAM"
			}
		}
		if err != nil {
			a.ended <- "closed"
			return
		}
	}
}

func header(method, path string, more ...string) []byte {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	pairs := append([]string{":method", method, ":scheme", "https", ":path", path, ":authority", "x"}, more...)
	for i := 0; i < len(pairs); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return b.Bytes()
}

// open opens a stream and returns the error of the connection.
func (a *attacker) open(method, path string, endStream, endHeaders bool) error {
	a.stream += 2
	return a.fr.WriteHeaders(http2.HeadersFrameParam{
		StreamID: a.stream - 1, BlockFragment: header(method, path), EndStream: endStream, EndHeaders: endHeaders,
	})
}

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(fail):
		t.Fatalf("%s: nothing in %s", what, fail)
		panic("unreachable")
	}
}

// TestStreamsWithoutABodyEnd opens more streams than allowed and sends no bodies. The allowed streams
// are served and ended, the others refused, and the connection stays open.
func TestStreamsWithoutABodyEnd(t *testing.T) {
	var reading, most atomic.Int64
	failed := make(chan error, 10_000)
	p := openHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quick" {
			return
		}
		if n := reading.Add(1); n > most.Load() {
			most.Store(n)
		}
		_, err := io.Copy(io.Discard, r.Body)
		reading.Add(-1)
		failed <- err
	}, never, soon, never)
	a := p.attack()
	if a.limit == 0 || a.limit > 100 {
		t.Fatalf("the server allows %d streams of a connection, want at most 100", a.limit)
	}
	const streams = 3000
	for range streams {
		if err := a.open("POST", "/slow", false, true); err != nil {
			t.Fatal(err)
		}
	}
	p.get()
	refused := map[uint32]bool{}
	for range streams - int(a.limit) {
		refused[wait(t, a.resets, "a stream too many")] = true
	}
	if len(refused) < streams-int(a.limit) {
		t.Errorf("%d of %d streams were refused, want all but %d", len(refused), streams, a.limit)
	}
	for range a.limit {
		if err := wait(t, failed, "a body that does not come"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a body that does not come ends with %v, want a timeout", err)
		}
	}
	if n := most.Load(); n > int64(a.limit) {
		t.Errorf("%d streams were served at once, want at most %d", n, a.limit)
	}
}

// TestStreamsThatAreResetDoNotPileUp opens and resets streams while the handlers of
// the first ones still run ("rapid reset").
func TestStreamsThatAreResetDoNotPileUp(t *testing.T) {
	var serving, most, all atomic.Int64
	hold := make(chan struct{})
	p := openHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quick" {
			return
		}
		all.Add(1)
		if n := serving.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-hold // a handler that does not stop when its client disconnects
		serving.Add(-1)
	}, never, never, never)
	t.Cleanup(sync.OnceFunc(func() { close(hold) }))
	a := p.attack()
	sent := 0
	for ; sent < 200_000; sent++ {
		if a.open("GET", "/work", true, true) != nil || a.fr.WriteRSTStream(a.stream-1, http2.ErrCodeCancel) != nil {
			break
		}
	}
	for end := ""; end != "closed"; {
		end = wait(t, a.ended, "the end of the connection")
		if strings.HasPrefix(end, "GOAWAY") && end != "GOAWAY ENHANCE_YOUR_CALM" {
			t.Errorf("the connection ends with %s", end)
		}
	}
	p.get()
	if n := most.Load(); n == 0 || n > 100 {
		t.Errorf("%d requests of one connection were served at once, want at most 100", n)
	}
	if n := all.Load(); n > 600 {
		t.Errorf("%d requests of %d that were reset were taken on, want at most 600", n, sent)
	}
}

// TestHeadersWithoutEndCostLittle sends headers without an end, fast and slowly.
func TestHeadersWithoutEndCostLittle(t *testing.T) {
	p := openHTTP2(t, func(http.ResponseWriter, *http.Request) {}, soon, never, never)
	fast := p.attack()
	if err := fast.open("GET", "/", true, false); err != nil {
		t.Fatal(err)
	}
	field := header("GET", "/", "x", strings.Repeat("y", 8000))[len(header("GET", "/")):]
	sent := 0
	for ; sent < 100_000; sent++ {
		if fast.fr.WriteContinuation(fast.stream-1, false, field) != nil {
			break
		}
	}
	for wait(t, fast.ended, "the end of a connection with endless headers") != "closed" {
	}
	slow := p.attack()
	if err := slow.open("GET", "/", true, false); err != nil {
		t.Fatal(err)
	}
	p.get()
	for wait(t, slow.ended, "the end of a connection whose headers do not end") != "closed" {
	}
}

// TestClientsThatDoNotReadEnd sends responses to a client that does not read: large ones, small ones
// that fit into a buffer, and ones on a connection whose buffers are full.
func TestClientsThatDoNotReadEnd(t *testing.T) {
	for _, size := range []int{100, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			gone := make(chan struct{}, 10)
			p := openHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/quick" {
					return
				}
				context.AfterFunc(r.Context(), func() { gone <- struct{}{} })
				_, _ = w.Write(make([]byte, size))
			}, never, never, soon)
			a := p.attack(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			if err := a.open("GET", "/", true, true); err != nil {
				t.Fatal(err)
			}
			wait(t, gone, "the end of the request")
			wait(t, a.resets, "the end of the stream")
			p.get()
		})
	}
}

// TestQuietStreamsLast: a stream without data for a while stays open, over HTTP/1 and HTTP/2. A machine that stalls has a
// further trial with longer deadlines.
func TestQuietStreamsLast(t *testing.T) {
	for _, proto := range []string{"h2", "http/1.1"} {
		t.Run(proto, func(t *testing.T) {
			err := quietStream(t, proto, soon)
			if err != nil {
				t.Logf("with deadlines of %s: %v", soon, err)
				err = quietStream(t, proto, 10*soon)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// quietStream reads a stream with a pause that is longer than the deadlines of a body and of a write.
func quietStream(t *testing.T, proto string, deadline time.Duration) error {
	next, ended := make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	p := openHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		defer end()
		_, _ = io.Copy(io.Discard, r.Body)
		for i := range 2 {
			fmt.Fprintf(w, "line %d\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	}, never, deadline, deadline)
	resp, err := p.client(proto).Post("https://"+p.addr, "text/plain", strings.NewReader("body"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	line := make([]byte, len("line 0\n"))
	if _, err := io.ReadFull(resp.Body, line); err != nil {
		return err
	}
	time.Sleep(3 * deadline)
	select {
	case next <- struct{}{}:
	case <-ended:
		return errors.New("the request ended during the pause")
	}
	if _, err := io.ReadFull(resp.Body, line); err != nil || string(line) != "line 1\n" {
		return fmt.Errorf("the line after a pause: %q: %w", line, err)
	}
	select {
	case next <- struct{}{}:
	case <-ended:
	}
	return nil
}

// TestClientsDoNotFillTheServersLog: clients cause the errors that net/http logs.
func TestClientsDoNotFillTheServersLog(t *testing.T) {
	var out lockedBuffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(old)
	p := openHTTP2(t, func(http.ResponseWriter, *http.Request) { panic("a fault of ours") }, never, never, never)
	for range 20 {
		conf := p.ca.Client(t, "n1")
		conf.NextProtos = []string{"h2"}
		c, err := tls.Dial("tcp", p.addr, conf)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, strings.Repeat("nonsense", 10))
		_ = c.SetDeadline(time.Now().Add(fail))
		_, _ = io.Copy(io.Discard, c) // until the server closes it
		c.Close()
	}
	if text := out.String(); text != "" {
		t.Errorf("clients wrote to the log:\n%s", text)
	}
	if resp, err := p.client("h2").Get("https://" + p.addr); err == nil {
		resp.Body.Close()
		t.Error("a handler that panics answers")
	}
	// The client may see the end of its stream before the server has logged the panic.
	for end := time.Now().Add(fail); !strings.Contains(out.String(), "a fault of ours"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log is %q, want the panic of the handler", out.String())
		}
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A stream that was passed on may read the end of a body when the handler has returned. Over HTTP/2 its
// controller is then nil, and a panic outside of a handler would end the daemon.
func TestABodyMayEndAfterItsHandler(t *testing.T) {
	bodies := make(chan io.Reader, 1)
	p := openHTTP2(t, func(_ http.ResponseWriter, r *http.Request) { bodies <- r.Body }, never, never, never)
	for _, proto := range []string{"http/1.1", "h2"} {
		c := p.client(proto)
		for range 20 {
			resp, err := c.Post("https://"+p.addr, "text/plain", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			_, _ = io.ReadAll(<-bodies) // an error is right
		}
	}
}
