package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/treeline-edge/treeline/internal/build"
)

// checkTime bounds one round of checks.
const checkTime = 2 * time.Second

// Health serves /livez, /readyz and /version. A daemon is live if it answers, and ready if its
// checks pass. It is safe for concurrent use.
type Health struct {
	mu     sync.Mutex // guards checks
	checks []check
	rounds singleflight.Group
}

type check struct {
	name     string
	required bool
	fn       func(context.Context) error
}

// Require adds a check that must pass for the daemon to be ready, such as that of its store.
func (h *Health) Require(name string, fn func(context.Context) error) {
	h.add(check{name, true, fn})
}

// Watch adds a check that is shown but does not affect readiness, such as a cluster's connection
// to its root.
func (h *Health) Watch(name string, fn func(context.Context) error) {
	h.add(check{name, false, fn})
}

// RequireLoop adds the checks of a core's loop: that saves succeed, and that the loop answers.
func (h *Health) RequireLoop(l interface {
	Stalled() error
	Read(ctx context.Context, fn func()) error
},
) {
	h.Require("store", func(context.Context) error { return l.Stalled() })
	h.Require("core", func(ctx context.Context) error { return l.Read(ctx, func() {}) })
}

func (h *Health) add(c check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, c)
}

// Handler serves /livez, /readyz, /version and, if metrics is not nil, /metrics.
func (h *Health) Handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.ready)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(build.Current())
	})
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	return mux
}

// Check runs all checks concurrently and returns a line for each, and whether the daemon is
// ready.
func (h *Health) Check(ctx context.Context) (lines []string, ready bool) {
	h.mu.Lock()
	checks := slices.Clone(h.checks)
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { errs[i] = c.fn(ctx) })
	}
	wg.Wait()
	ready = true
	for i, c := range checks {
		switch {
		case errs[i] == nil:
			lines = append(lines, "[+] "+c.name+" ok")
		case c.required:
			ready = false
			lines = append(lines, "[-] "+c.name+" failed: "+errs[i].Error())
		default:
			lines = append(lines, "[!] "+c.name+" degraded: "+errs[i].Error())
		}
	}
	return lines, ready
}

type result struct {
	lines []string
	ready bool
}

func (h *Health) ready(w http.ResponseWriter, r *http.Request) {
	// It needs no authentication: concurrent requests share one round of checks.
	round, _, _ := h.rounds.Do("", func() (any, error) {
		lines, ready := h.Check(context.WithoutCancel(r.Context()))
		return result{lines, ready}, nil
	})
	lines, ready := round.(result).lines, round.(result).ready
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	last := "ok"
	if !ready {
		last = "not ready"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if r.URL.Query().Has("verbose") || !ready {
		_, _ = fmt.Fprintln(w, strings.Join(lines, "\n"))
	}
	_, _ = fmt.Fprintln(w, last)
}

// Version returns the version of this program.
func Version() string { return build.Current().Version }
