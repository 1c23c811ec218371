// Package remote opens streams to the workloads of instances (exec, attach and port-forward) and to
// volumes (snapshot and restore).
//
//	conn, err := remote.Dial(ctx, client, id, "exec", client.ExecQuery(exec))
//	code, err := remote.Output(conn, os.Stdout, os.Stderr)
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/coder/websocket"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/frames"
)

// Conn is an open stream. Reads and writes may be concurrent, and with Close.
type Conn struct {
	socket *websocket.Conn
	stream io.ReadWriteCloser
	right  *client.Right

	mu  sync.Mutex // guards err
	err error      // of the first failed Read
}

// Dial opens a stream to an instance. Errors are those of client.Upgrade. The stream ends with ctx.
func Dial(ctx context.Context, a *client.Client, id api.InstanceID, kind string, q url.Values) (*Conn, error) {
	return dial(ctx, a, client.AccessPath(client.Instances, id, kind), q)
}

func dial(ctx context.Context, a *client.Client, path string, q url.Values) (*Conn, error) {
	c := &Conn{}
	right, err := a.Upgrade(ctx, path, q, func(hc *http.Client, url string, h http.Header) (*http.Response, error) {
		socket, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
			HTTPClient: hc, HTTPHeader: h, Subprotocols: []string{access.Protocol}, CompressionMode: websocket.CompressionDisabled,
		})
		c.socket = socket
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	c.right = right
	c.stream = websocket.NetConn(ctx, c.socket, websocket.MessageBinary)
	return c, nil
}

// Read implements io.Reader. It fails with io.EOF when the other side has ended the stream,
// ErrUnauthenticated when the right to it has ended, and ErrUnavailable when it broke.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.stream.Read(p)
	if err != nil {
		err = c.reason(err)
		c.mu.Lock()
		if c.err == nil {
			c.err = err
		}
		c.mu.Unlock()
	}
	return n, err
}

func (c *Conn) reason(err error) error {
	var closed websocket.CloseError
	switch {
	case err == io.EOF: //nolint:errorlint // a wrapped one is a connection that broke
		return io.EOF
	case c.right.Expired():
		return fmt.Errorf("stream ended: its token expired and no newer one is available: %w", api.ErrUnauthenticated)
	case !errors.As(err, &closed):
		return fmt.Errorf("stream interrupted: the connection broke: the server ended or cannot be reached; run the command again when it answers: %w", api.ErrUnavailable)
	case closed.Code == websocket.StatusPolicyViolation:
		return fmt.Errorf("stream ended: %s: %w", closed.Reason, api.ErrUnauthenticated)
	}
	if closed.Code == websocket.StatusServiceRestart {
		return fmt.Errorf("stream interrupted: the server ended; run the command again when it answers: %w", api.ErrUnavailable)
	}
	return fmt.Errorf("stream interrupted: %s: its node or cluster ended or cannot be reached; run the command again when it can: %w", closed.Reason, api.ErrUnavailable)
}

// Err returns the error of the first failed Read, io.EOF included; nil while there is none.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) { return c.stream.Write(p) }

// Close ends the stream.
func (c *Conn) Close() error {
	c.right.Close()
	_ = c.socket.Close(websocket.StatusNormalClosure, "")
	return c.socket.CloseNow()
}

// Output copies the output of an exec or attach until its end, and returns the exit code. Errors are
// those of the node and of from; a stream that ends without an exit code is ErrUnavailable.
func Output(from io.Reader, stdout, stderr io.Writer) (code int, err error) {
	r := frames.NewReader(from)
	for {
		kind, payload, err := r.Next()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("stream interrupted: it ended without an exit code: its node or cluster ended or cannot be reached; run the command again when it can: %w", api.ErrUnavailable)
			}
			return 0, err
		}
		switch kind {
		case frames.Stdout:
			_, err = stdout.Write(payload)
		case frames.Stderr:
			_, err = stderr.Write(payload)
		case frames.Exit:
			return frames.Code(payload)
		case frames.Error:
			return 0, frames.Problem(payload)
		}
		if err != nil {
			return 0, fmt.Errorf("write the output: %w", err)
		}
	}
}

// Input sends input as frames, and its end.
func Input(to *frames.Writer, in io.Reader) {
	_, _ = io.Copy(to.Stream(frames.Stdin), in)
	_ = to.Write(frames.EOF, nil)
}
