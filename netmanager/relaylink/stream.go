package relaylink

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/relaywire"
)

const (
	aliveEvery = 55 * time.Second // an empty message, which the relay answers
	aliveMost  = 2*aliveEvery + 10*time.Second
	dialTime   = 15 * time.Second
	dialFirst  = time.Second // after a connection that failed; then twice that, and so on
	dialLast   = time.Minute
)

// stream is a TLS connection to the relay.
type stream struct {
	out *relaywire.Outbox
}

// dialer keeps at most one life of connections.
type dialer struct{ cancel context.CancelFunc }

func (d *dialer) stop() {
	if d.cancel != nil {
		d.cancel()
		d.cancel = nil
	}
}

// keepTLS starts and ends the TLS connection as the binder wants it.
func (v *life) keepTLS() {
	d := &v.l.dial
	switch {
	case v.b.tls && d.cancel == nil && v.l.opt.Dial != nil && v.addr != "":
		v.l.opt.Log.Info("UDP does not reach the relay: over TLS", "relay", v.addr)
		ctx, cancel := context.WithCancel(v.ctx)
		d.cancel = cancel
		addr := v.addr
		v.all.Go(func() { v.connect(ctx, addr) })
	case v.b.up && d.cancel != nil:
		v.l.opt.Log.Info("UDP reaches the relay again", "relay", v.addr)
		d.stop()
	}
}

// connect keeps a connection until ctx ends. It runs beside the owner and reads
// nothing of the life that changes.
func (v *life) connect(ctx context.Context, addr string) {
	wait := dialFirst
	for ctx.Err() == nil {
		began := time.Now()
		if err := v.connected(ctx, addr); err != nil && ctx.Err() == nil {
			v.l.opt.Log.Debug("no relay over TLS", "relay", addr, "err", err)
		}
		if time.Since(began) > dialLast {
			wait = dialFirst
		}
		pause(ctx, wait)
		wait = min(2*wait, dialLast)
	}
}

// connected dials and carries until the connection or ctx ends.
func (v *life) connected(ctx context.Context, addr string) error {
	shake, cancel := context.WithTimeout(ctx, dialTime)
	conn, err := v.l.opt.Dial(shake, addr)
	cancel()
	if err != nil {
		return fmt.Errorf("dial %s: %w", addr, err)
	}
	defer conn.Close()
	ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	st := &stream{out: relaywire.NewOutbox()}
	var writers sync.WaitGroup
	defer writers.Wait()
	defer cancel()
	writers.Go(func() {
		_ = st.out.Run(ctx, conn) // the reader says why
		_ = conn.Close()
	})
	writers.Go(func() { st.alive(ctx) })
	v.use(st)
	defer v.use(nil)
	return v.l.read(conn)
}

// use makes a connection, or none, the way out, and has that told.
func (v *life) use(st *stream) {
	v.l.mu.Lock()
	v.l.stream = st
	v.l.mu.Unlock()
	_ = v.l.do(v.ctx, func(*life) {})
}

func (st *stream) alive(ctx context.Context) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		st.out.Put()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *Link) read(conn net.Conn) error {
	in := bufio.NewReaderSize(conn, 16<<10)
	var relay netip.AddrPort
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		relay = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	}
	var buf []byte
	for {
		_ = conn.SetReadDeadline(time.Now().Add(aliveMost))
		msg, err := relaywire.ReadMessage(in, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read from the relay: %w", err)
		}
		buf = msg[:0]
		if len(msg) > 0 {
			l.opt.Deliver(relay, msg)
		}
	}
}
