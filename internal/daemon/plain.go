package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
)

// ServePlain serves HTTP without TLS at an address until ctx ends, with the gate's bounds. ready is called with
// the address once it is bound.
func ServePlain(ctx context.Context, at string, h http.Handler, log *slog.Logger, ready func(address string) error) error {
	ln, err := freeport.Listen(at)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer ln.Close()
	if err := ready(ln.Addr().String()); err != nil {
		return err
	}
	port := gate.New(ln, gate.Options{Log: log})
	return RunAll(ctx,
		Part{Name: "port", Run: port.Run},
		Part{Name: "http", Run: func(ctx context.Context) error { return Serve(ctx, port, h, nil) }},
	)
}
