package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

// Serve serves a stream that carries bytes in both directions, until it returns or ctx ends. Its error
// breaks the stream.
type Serve func(ctx context.Context, conn *Conn) error

// DialDuplex is Dial for a stream that carries bytes in both directions: those to the requester are the
// body of a POST as in Dial, and those from it the answer to a GET of the same path. They are two
// requests because Go's HTTP/2 server does not acknowledge the body of one while its answer is blocked.
// If open fails, the requester gets its error. The end of one direction ends the stream: an end of
// input within the stream is for its users.
func DialDuplex(ctx context.Context, c *http.Client, base, id string, open func(context.Context) (Serve, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	serve, err := open(ctx)
	if err != nil {
		return refuse(ctx, c, base, id, err)
	}
	body, out := io.Pipe()
	defer body.Close()
	posted := make(chan error, 1)
	go func() {
		err := Dial(ctx, c, base, id, func(context.Context) (io.ReadCloser, error) { return body, nil })
		if err == nil {
			err = errClosed
		}
		cancel(err) // Serve may neither read nor write at the moment
		_ = body.CloseWithError(io.ErrClosedPipe)
		posted <- err
	}()
	err = serveDuplex(ctx, c, base+"/"+url.PathEscape(id), out, serve)
	if err != nil {
		_ = out.CloseWithError(err) // resets the stream, so that the requester does not regard it as complete
		cancel(err)
		<-posted
		return err
	}
	_ = out.Close()
	if err := <-posted; err != errClosed { // when the requester has read everything and closes its end
		return err
	}
	return nil
}

// errClosed is the cause of the end of Serve's context when the requester has closed the stream.
var errClosed = errors.New("the requester has closed the stream")

func serveDuplex(ctx context.Context, c *http.Client, url string, out *io.PipeWriter, serve Serve) error {
	get, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := call.Do(c, get)
	if err != nil {
		return err
	}
	conn := NewConn(out, resp.Body)
	defer resp.Body.Close()
	return serve(ctx, conn)
}

// refuse sends an error to the requester instead of a stream.
func refuse(ctx context.Context, c *http.Client, base, id string, why error) error {
	return Dial(ctx, c, base, id, func(context.Context) (io.ReadCloser, error) { return nil, why })
}

// Conn is the dialling tier's end of a stream. It is safe for concurrent use.
type Conn struct {
	out *io.PipeWriter
	in  io.ReadCloser
}

// NewConn returns a connection that writes to out and reads from in.
func NewConn(out *io.PipeWriter, in io.ReadCloser) *Conn { return &Conn{out: out, in: in} }

// Read implements io.Reader.
func (c *Conn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite ends the stream at the requester, after what was written. The requester then closes it,
// which ends Read.
func (c *Conn) CloseWrite() error { return c.out.Close() }

// Abort breaks the stream, so that the requester does not regard it as complete, and interrupts Read
// and Write.
func (c *Conn) Abort(why error) {
	_ = c.out.CloseWithError(why)
	_ = c.in.Close()
}

// Close implements io.Closer, for the end of Serve's users.
func (c *Conn) Close() error {
	c.Abort(io.ErrClosedPipe)
	return nil
}

// End is the requester's end of a request of the dialling tier: of its body for Deliver, of its answer
// for DeliverDown.
type End struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	r   *http.Request
	raw http.ResponseWriter // without the server's deadlines: a slow reader may block a Write for long

	mu    sync.Mutex // held while writing
	begun bool
	over  bool
}

// NewEnd returns the end for the answer to a request. Its reads have no deadline.
func NewEnd(w http.ResponseWriter, r *http.Request) *End {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	raw := w
	for {
		inner, ok := raw.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		raw = inner.Unwrap()
	}
	return &End{w: w, rc: rc, r: r, raw: raw}
}

// Read implements io.Reader.
func (e *End) Read(p []byte) (int, error) { return e.r.Body.Read(p) }

// begin sends the header of the answer.
func (e *End) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begun = true
	e.w.Header().Set("Content-Type", "application/octet-stream")
	e.w.WriteHeader(http.StatusOK)
	_ = e.rc.Flush()
	_ = e.rc.SetWriteDeadline(time.Time{})
}

// Write implements io.Writer. It fails once Finish was called.
func (e *End) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return 0, io.ErrClosedPipe
	}
	n, err := e.raw.Write(p)
	if err == nil {
		err = http.NewResponseController(e.raw).Flush()
	}
	return n, err
}

// Finish ends pending reads and writes. The handler calls it with Deliver's error before it returns. It
// reports whether the request is answered, or its client gone, so that the handler must not answer.
func (e *End) Finish(err error) (answered bool) {
	_ = e.rc.SetReadDeadline(time.Unix(1, 0))
	if !e.mu.TryLock() { // a Write is in progress
		_ = http.NewResponseController(e.raw).SetWriteDeadline(time.Unix(1, 0))
		e.mu.Lock()
	}
	defer e.mu.Unlock()
	e.over = true
	switch {
	case e.begun, e.r.Context().Err() != nil:
		return true
	case err == nil:
		e.w.WriteHeader(http.StatusNoContent)
		return true
	}
	return false
}

// DeliverDown lets the requester of stream id write to the answer, and returns when it has closed the
// stream, or with ctx's error. It fails like Deliver.
func (r *Registry) DeliverDown(ctx context.Context, id, from string, end *End) error {
	r.mu.Lock()
	w := r.down[id]
	if w == nil || w.from != from {
		r.mu.Unlock()
		return unknown(id)
	}
	delete(r.down, id)
	r.mu.Unlock()
	fairshare.ReleasePlace(ctx)
	end.begin()
	w.down <- end
	select {
	case <-w.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Duplex is Stream for a stream that carries bytes in both directions.
func (w *Wait) Duplex(ctx context.Context, limit time.Duration) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	up, err := w.Body(ctx)
	if err == nil {
		select {
		case down := <-w.down:
			return duplex{up, down, w}, nil
		case <-w.closed:
			err = errEvicted
		case <-ctx.Done():
			err = fmt.Errorf("wait for a stream from %s: %w: %w", w.from, api.ErrTimeout, ctx.Err())
		}
	}
	w.Close()
	return nil, err
}

type duplex struct {
	io.Reader
	io.Writer
	wait *Wait
}

// Close implements io.Closer.
func (d duplex) Close() error {
	d.wait.Close()
	return nil
}

// Splice copies between a stream of a lower tier and its user in both directions, until one direction
// or ctx ends. It returns the cause of ctx, the error of the lower tier's stream if that broke, and nil
// if either side ended the stream. stop gets this result, and must close the user's end. Splice closes
// the other. seen, if not nil, gets the bytes of the lower tier.
func Splice(ctx context.Context, lower io.ReadWriteCloser, user io.ReadWriter, seen func([]byte), stop func(error)) error {
	up, down := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(up)
		_, _ = io.CopyBuffer(writerOnly{lower}, readerOnly{user}, make([]byte, bufferSize))
		// A lower tier that no longer reads has ended the stream; what it sent before is still to be read.
		_, _ = io.Copy(io.Discard, readerOnly{user})
	}()
	go func() {
		from := io.Reader(readerOnly{lower})
		if seen != nil {
			from = io.TeeReader(from, writerFunc(seen))
		}
		_, err := io.CopyBuffer(writerOnly{user}, from, make([]byte, bufferSize))
		down <- err
	}()
	var err error
	waiting := true
	select {
	case err = <-down:
		waiting = false
	case <-up:
		select { // the lower tier's end may have been the reason
		case err = <-down:
			waiting = false
		default:
		}
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	_ = lower.Close()
	stop(err)
	<-up
	if waiting {
		<-down
	}
	return err
}

// bufferSize is the size of the buffer for each direction of a spliced stream.
const bufferSize = 32 << 10

type (
	// readerOnly and writerOnly hide other methods, with which io.Copy would use another buffer.
	readerOnly struct{ io.Reader }
	writerOnly struct{ io.Writer }
	writerFunc func([]byte)
)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
