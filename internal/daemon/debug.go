package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof" // registers with http.DefaultServeMux, which no server uses
	"os"
)

// toggleLevel switches between the level and debug at each signal, until ctx ends.
func toggleLevel(ctx context.Context, level *slog.LevelVar, log *slog.Logger, signals <-chan os.Signal) {
	configured := level.Level()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		// The line is logged at the lower of both levels.
		if level.Level() == slog.LevelDebug {
			log.Info("log level changed", "log_level", configured)
			level.Set(configured)
		} else {
			level.Set(slog.LevelDebug)
			log.Info("log level changed", "log_level", slog.LevelDebug)
		}
	}
}

// serveProfiles serves the profiles of package runtime/pprof at a unix socket, which only the daemon's user can connect
// to: a profile of the heap has secrets in it, and a port of loopback is open to every user and many workloads. stop ends it.
func serveProfiles(at string, log *slog.Logger) (stop func(), _ error) {
	if at == "" {
		return func() {}, nil
	}
	ln, err := listenSocket(at)
	if err != nil {
		return nil, fmt.Errorf("listen for pprof: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, mux, nil) }()
	log.Info("profiles are served", "pprof_socket", at)
	return func() {
		cancel()
		if err := <-done; err != nil {
			log.Warn("profiles not served", "err", err)
		}
	}, nil
}
