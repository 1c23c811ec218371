package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/treeline-edge/treeline/internal/gate"
)

// Part is something that lives as long as the daemon.
type Part struct {
	Name string
	Run  func(context.Context) error // blocks; leaves nothing behind
}

// RunAll runs the parts until ctx ends or one of them does, then ends the
// others and waits for them. The error is the first part's that failed; a part
// that just ends, or ends because it was told to, has not failed.
func RunAll(ctx context.Context, parts ...Part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	for _, p := range parts {
		g.Go(func() error {
			defer cancel()
			err := p.Run(ctx)
			if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%s: %w", p.Name, err)
		})
	}
	return g.Wait()
}

// drainTime is what requests get to end in; watches and streams never end by
// themselves and are cut then.
const drainTime = 3 * time.Second

// Serve serves HTTP on the listener until ctx ends, over TLS if there is a
// configuration. Requests see the end of ctx, so that streams can close. The
// listener is closed on return.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, tc *tls.Config) error {
	s := &http.Server{
		Handler: h, TLSConfig: tc,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       gate.Context,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
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
