package streams

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
)

// twoTiers is a requesting tier with an HTTP/2 server, and a client that dials it.
type twoTiers struct {
	t      *testing.T
	reg    Registry
	srv    *httptest.Server
	client *http.Client
}

func newTwoTiers(t *testing.T) *twoTiers {
	d := &twoTiers{t: t}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /streams/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") == "application/problem+json" {
			text, _ := io.ReadAll(r.Body)
			if err := d.reg.Fail(r.PathValue("id"), "n", call.ParseProblem("application/problem+json", 503, text)); err != nil {
				call.Write(w, err)
			}
			return
		}
		end := NewEnd(w, r)
		err := d.reg.Deliver(r.Context(), r.PathValue("id"), "n", end)
		if !end.Finish(err) {
			call.Write(w, err)
		}
	})
	mux.HandleFunc("GET /streams/{id}", func(w http.ResponseWriter, r *http.Request) {
		end := NewEnd(w, r)
		err := d.reg.DeliverDown(r.Context(), r.PathValue("id"), "n", end)
		if !end.Finish(err) {
			call.Write(w, err)
		}
	})
	d.srv = httptest.NewUnstartedServer(mux)
	d.srv.EnableHTTP2 = true
	d.srv.Config.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 256 << 10}
	d.srv.StartTLS()
	d.client = d.srv.Client()
	t.Cleanup(d.srv.Close)
	return d
}

// open requests a stream that serve serves, and returns the requester's end and the result of the dial.
func (d *twoTiers) open(serve Serve) (io.ReadWriteCloser, chan error) {
	d.t.Helper()
	w, err := d.reg.Expect("n", wire.StreamRequest{Kind: "exec"})
	if err != nil {
		d.t.Fatal(err)
	}
	dialled := make(chan error, 1)
	go func() {
		dialled <- DialDuplex(d.t.Context(), d.client, d.srv.URL+"/streams", w.ID(), func(context.Context) (Serve, error) { return serve, nil })
	}()
	conn, err := w.Duplex(d.t.Context(), time.Minute)
	if err != nil {
		d.t.Fatal(err)
	}
	return conn, dialled
}

// TestBytesGoBothWays also checks that the end of the lower tier's bytes arrives after all of them,
// while the upper tier has not ended its direction.
func TestBytesGoBothWays(t *testing.T) {
	d := newTwoTiers(t)
	long := strings.Repeat("0123456789", 100_000) // beyond all windows
	conn, dialled := d.open(func(_ context.Context, c *Conn) error {
		if _, err := io.Copy(c, io.LimitReader(c, int64(len(long)))); err != nil {
			return err
		}
		_, err := io.WriteString(c, "the end")
		return err
	})
	go func() { _, _ = io.WriteString(conn, long) }()
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != long+"the end" {
		t.Errorf("got %d bytes, %v, want %d and the end", len(got), err, len(long))
	}
	conn.Close()
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

// TestSlowReadersHoldTheWriter: what a reader does not read stays at the writer, in both directions.
func TestSlowReadersHoldTheWriter(t *testing.T) {
	d := newTwoTiers(t)
	block := make([]byte, 64<<10)
	pump := func(w io.Writer, n *atomic.Int64) {
		for {
			k, err := w.Write(block)
			n.Add(int64(k))
			if err != nil {
				return
			}
		}
	}
	var down, up atomic.Int64
	conn, dialled := d.open(func(_ context.Context, c *Conn) error {
		pump(c, &down)
		return nil
	})
	go pump(conn, &up)
	settle := func(n *atomic.Int64) int64 {
		for was := int64(-1); ; time.Sleep(200 * time.Millisecond) {
			now := n.Load()
			if now == was {
				return now
			}
			was = now
		}
	}
	const most = 8 << 20 // the windows of HTTP/2 and the buffers of sockets
	if d, u := settle(&down), settle(&up); d > most || u > most {
		t.Errorf("without a reader %d and %d bytes were accepted, want at most %d", d, u, most)
	}
	if _, err := io.CopyN(io.Discard, conn, 16<<20); err != nil {
		t.Errorf("read after the pause: %v", err)
	}
	conn.Close()
	<-dialled // the writes fail
}

func TestABrokenStreamIsNotComplete(t *testing.T) {
	d := newTwoTiers(t)
	conn, dialled := d.open(func(_ context.Context, c *Conn) error {
		_, _ = io.WriteString(c, "half")
		return errors.New("the process is lost")
	})
	got, err := io.ReadAll(conn)
	if err == nil {
		t.Errorf("read %q without an error, want one", got)
	}
	conn.Close()
	if err := <-dialled; err == nil {
		t.Error("the dial returned no error, want that of the stream")
	}
}

// TestACloseInterruptsTheServer: the requester closes while the lower tier reads and writes.
func TestACloseInterruptsTheServer(t *testing.T) {
	d := newTwoTiers(t)
	reading := make(chan error, 1)
	conn, dialled := d.open(func(_ context.Context, c *Conn) error {
		_, err := c.Read(make([]byte, 1))
		reading <- err
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	})
	conn.Close()
	if err := <-reading; err == nil {
		t.Error("the read returned no error after the requester closed")
	}
	if err := <-dialled; err == nil {
		t.Error("the dial returned no error, want that of the write")
	}
	if _, err := conn.Write([]byte("x")); err == nil {
		t.Error("a write after the close succeeded")
	}
}

// TestACloseEndsAServerThatIsIdle: neither a read nor a write tells the lower tier that the user left.
func TestACloseEndsAServerThatIsIdle(t *testing.T) {
	d := newTwoTiers(t)
	conn, dialled := d.open(func(ctx context.Context, _ *Conn) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	conn.Close()
	if err := <-dialled; !errors.Is(err, errClosed) {
		t.Errorf("got %v, want that the requester closed the stream", err)
	}
}

func TestARefusalReachesTheRequester(t *testing.T) {
	d := newTwoTiers(t)
	w, err := d.reg.Expect("n", wire.StreamRequest{Kind: "exec"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = DialDuplex(t.Context(), d.client, d.srv.URL+"/streams", w.ID(), func(context.Context) (Serve, error) { return nil, api.ErrConflict })
	}()
	if _, err := w.Duplex(t.Context(), time.Minute); !errors.Is(err, api.ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
}

// end is one end of a stream in memory.
type end struct {
	io.Reader
	io.Writer
	close func()
}

func (e end) Close() error {
	e.close()
	return nil
}

func pair() (a, b end) {
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	closing := func() { _, _, _, _ = r1.Close(), w1.Close(), r2.Close(), w2.Close() }
	return end{r1, w2, closing}, end{r2, w1, closing}
}

func TestSpliceEndsWithEitherSide(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(node, user end, cancel context.CancelCauseFunc)
		want error
	}{
		{"the node's stream ends", func(node, _ end, _ context.CancelCauseFunc) { node.Writer.(*io.PipeWriter).Close() }, nil},
		{"the user's stream ends", func(_, user end, _ context.CancelCauseFunc) { user.Close() }, nil},
		{"the right ends", func(_, _ end, cancel context.CancelCauseFunc) { cancel(api.ErrForbidden) }, api.ErrForbidden},
	} {
		lower, node := pair()
		upper, user := pair()
		ctx, cancel := context.WithCancelCause(t.Context())
		var seen bytes.Buffer
		done := make(chan error, 1)
		go func() {
			done <- Splice(ctx, lower, upper, func(p []byte) { seen.Write(p) }, func(error) { upper.Close() })
		}()
		if _, err := io.WriteString(node, "down"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4)
		if _, err := io.ReadFull(user, buf); err != nil || string(buf) != "down" {
			t.Errorf("%s: the user read %q, %v", c.name, buf, err)
		}
		go io.WriteString(user, "up")
		if _, err := io.ReadFull(node, buf[:2]); err != nil || string(buf[:2]) != "up" {
			t.Errorf("%s: the node read %q, %v", c.name, buf[:2], err)
		}
		c.end(node, user, cancel)
		if err := <-done; !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		if seen.String() != "down" {
			t.Errorf("%s: seen %q, want what the node sent", c.name, &seen)
		}
		cancel(nil)
	}
}

// deaf is a lower tier that refuses input, and then sends its answer.
type deaf struct {
	io.Reader
	refused chan struct{}
}

func (d deaf) Write([]byte) (int, error) {
	close(d.refused)
	return 0, io.ErrClosedPipe
}

func (deaf) Close() error { return nil }

// TestTheLastBytesOfAStreamArrive: the lower tier ends a stream to which the user still writes.
func TestTheLastBytesOfAStreamArrive(t *testing.T) {
	answer, send := io.Pipe()
	lower := deaf{answer, make(chan struct{})}
	near, far := net.Pipe()
	go func() {
		_, _ = io.WriteString(far, "input")
		<-lower.refused
		time.Sleep(20 * time.Millisecond) // for a Splice that ends here
		_, _ = io.WriteString(send, "refused")
		_ = send.Close()
	}()
	got := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(far)
		got <- string(b)
	}()
	if err := Splice(t.Context(), lower, near, nil, func(error) { _ = near.Close() }); err != nil {
		t.Errorf("splice: %v", err)
	}
	if s := <-got; s != "refused" {
		t.Errorf("the user got %q, want the answer", s)
	}
}
