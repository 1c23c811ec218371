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
	keepAlive    = 55 * time.Second // interval of empty messages, which the relay answers
	readTimeout  = 2*keepAlive + 10*time.Second
	dialTimeout  = 15 * time.Second
	minDialPause = time.Second // wait after a failed connection, doubling
	maxDialPause = time.Minute
)

func (v *owner) stopTLS() {
	if v.cancelTLS != nil {
		v.cancelTLS()
		v.cancelTLS = nil
	}
}

// keepTLS starts or ends the TLS connection, as the binder requires.
func (v *owner) keepTLS() {
	switch {
	case v.b.tls && v.cancelTLS == nil && v.l.opt.Dial != nil && v.addr != "":
		v.l.opt.Log.Info("UDP does not reach the relay, using TLS", "relay", v.addr)
		var ctx context.Context
		ctx, v.cancelTLS = context.WithCancel(v.ctx)
		addr := v.addr
		v.all.Go(func() { v.connect(ctx, addr) })
	case v.b.up && v.cancelTLS != nil:
		v.l.opt.Log.Info("UDP reaches the relay again", "relay", v.addr)
		v.stopTLS()
	}
}

// connect keeps a connection until ctx ends. It runs on its own goroutine and reads only fields of the
// owner that do not change.
func (v *owner) connect(ctx context.Context, addr string) {
	wait := minDialPause
	for ctx.Err() == nil {
		began := time.Now()
		if err := v.carry(ctx, addr); err != nil && ctx.Err() == nil {
			v.l.opt.Log.Debug("connect to relay over TLS failed", "relay", addr, "err", err)
		}
		if time.Since(began) > maxDialPause {
			wait = minDialPause
		}
		pause(ctx, wait)
		wait = min(2*wait, maxDialPause)
	}
}

// carry dials and carries datagrams until the connection fails or ctx ends.
func (v *owner) carry(ctx context.Context, addr string) error {
	shake, cancel := context.WithTimeout(ctx, dialTimeout)
	conn, err := v.l.opt.Dial(shake, addr)
	cancel()
	if err != nil {
		return fmt.Errorf("dial %s: %w", addr, err)
	}
	defer conn.Close()
	ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	out := relaywire.NewOutbox()
	var writers sync.WaitGroup
	defer writers.Wait()
	defer cancel()
	writers.Go(func() {
		_ = out.Run(ctx, conn) // the reader returns the error
		_ = conn.Close()
	})
	writers.Go(func() { sendKeepAlives(ctx, out) })
	v.setStream(out)
	defer v.setStream(nil)
	return v.read(conn)
}

// setStream sets the connection, or nil for none, and publishes the state.
func (v *owner) setStream(out *relaywire.Outbox) {
	v.l.mu.Lock()
	v.l.stream = out
	v.l.mu.Unlock()
	_ = v.l.do(v.ctx, func(*owner) {})
}

func sendKeepAlives(ctx context.Context, out *relaywire.Outbox) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		out.Put()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (v *owner) read(conn net.Conn) error {
	in := bufio.NewReaderSize(conn, 16<<10)
	var relay netip.AddrPort
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		relay = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	}
	var buf []byte
	for {
		_ = conn.SetReadDeadline(time.Now().Add(readTimeout))
		msg, err := relaywire.ReadMessage(in, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read from the relay: %w", err)
		}
		buf = msg[:0]
		if len(msg) > 0 {
			v.t.Deliver(relay, msg)
		}
	}
}
