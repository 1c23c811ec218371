package wiring

import (
	"context"
	"errors"
	"net/http"

	"github.com/treeline-edge/treeline/internal/daemon"
)

// serveStatus serves the daemon's health on this machine alone.
func (m *manager) serveStatus(ctx context.Context) error {
	var health daemon.Health
	health.Require("store", func(context.Context) error { return m.loop.Stalled() })
	health.Require("core", func(ctx context.Context) error { return m.loop.Read(ctx, func() {}) })
	health.Watch("network", func(context.Context) error {
		if r := m.uplink.isReady(); !r.Ready {
			return errors.New(r.Error)
		}
		return nil
	})
	return daemon.ServeStatus(ctx, m.cfg.ListenStatus, m.cfg.Data, health.Handler(http.HandlerFunc(m.metrics)))
}
