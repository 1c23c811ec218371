package daemon

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// ServeFor is Serve with other timeouts for idle connections, bodies and writes.
func ServeFor(ctx context.Context, ln net.Listener, h http.Handler, tc *tls.Config, idle, body, write time.Duration) error {
	return serve(ctx, ln, h, tc, limits{header: defaultLimits.header, idle: idle, body: body, write: write})
}
