package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/relaywire"
)

// quiet is how long a node's connection may be idle. Nodes send a keepalive every 55 s.
const quiet = 3 * time.Minute

// stream is a node's TLS connection.
type stream struct {
	conn net.Conn
	out  *relaywire.Outbox
}

// Serve relays for a node over TLS until the connection or ctx ends, and then closes the
// connection. It returns errors of Options.Identify and of the connection, ErrNotFound if the
// node has no slot, and ErrUnavailable without Options.Identify.
func (r *Relay) Serve(ctx context.Context, conn *tls.Conn) error {
	defer conn.Close()
	if r.opt.Identify == nil {
		return fmt.Errorf("relay over TLS: %w", api.ErrUnavailable)
	}
	node, err := r.opt.Identify(conn.ConnectionState())
	if err != nil {
		return fmt.Errorf("relay over TLS: %w", err)
	}
	return r.serve(ctx, node, conn)
}

func (r *Relay) serve(ctx context.Context, node api.NodeID, conn net.Conn) error {
	st := &stream{conn: conn, out: relaywire.NewOutbox()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, st.close)()
	s, err := r.attach(node, st)
	if err != nil {
		return err
	}
	defer s.detach(st)
	r.n[Streams].Add(1)
	defer r.n[Streams].Add(-1)
	written := make(chan error, 1)
	go func() {
		defer st.close()
		written <- st.out.Run(ctx, conn)
	}()
	err = r.read(st, s)
	cancel()
	st.close()
	return errors.Join(err, <-written)
}

func (r *Relay) attach(node api.NodeID, st *stream) (*slot, error) {
	r.mu.RLock()
	s := r.nodes[node]
	r.mu.RUnlock()
	if s == nil {
		return nil, fmt.Errorf("relay for node %s: no slot: %w", node, api.ErrNotFound)
	}
	s.mu.Lock()
	old := s.conn
	s.conn = st
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	return s, nil
}

func (s *slot) detach(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == st {
		s.conn = nil
	}
}

func (r *Relay) read(st *stream, from *slot) error {
	in, out := bufio.NewReaderSize(st.conn, 16<<10), r.main.NewSender()
	var buf []byte
	for {
		_ = st.conn.SetReadDeadline(time.Now().Add(quiet))
		msg, err := relaywire.ReadMessage(in, buf)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("relay for node %s: %w", from.owner(), err)
		}
		buf = msg[:0]
		if len(msg) == 0 { // a keepalive
			st.out.Put()
			continue
		}
		if !from.out.AllowN(time.Now(), len(msg)) {
			r.n[Limited].Add(1)
			continue
		}
		if to, frame, ok := relaywire.ParseTo(msg); ok {
			switch {
			case r.opt.Allow == nil || !r.opt.Allow(to):
				r.n[Denied].Add(1)
			case out.Send(to, frame, len(frame)) != nil:
				r.n[Failed].Add(1)
			default:
				r.n[Datagrams].Add(1)
				r.n[Bytes].Add(int64(len(frame) - relaywire.HeaderLen))
			}
		} else if h, _, ok := relaywire.ParseFrame(msg); ok {
			r.forward(out, h, msg, len(msg))
		} else {
			r.n[Malformed].Add(1)
		}
	}
}

func (st *stream) close() { _ = st.conn.Close() }
