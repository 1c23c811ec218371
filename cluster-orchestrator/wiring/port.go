package wiring

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/relaywire"
)

const mqttProto = "mqtt"

// newPort returns the cluster's TLS port. ALPN selects HTTP, MQTT or the relay. peers bounds
// the connections with client certificates.
func newPort(ln net.Listener, own api.ClusterID, v *trust.Verifier, cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), peers int,
	mqtt, relay func(context.Context, *tls.Conn) error, log *slog.Logger,
) *gate.Gate {
	web := v.Server(cert, false)
	web.NextProtos = []string{"h2", "http/1.1"}
	bus := v.Server(cert, true)
	bus.NextProtos = []string{mqttProto}
	bus.ClientAuth = tls.RequireAndVerifyClientCert
	relayed := v.Server(cert, true)
	relayed.NextProtos = []string{relaywire.Proto}
	web.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		switch {
		case slices.Contains(h.SupportedProtos, mqttProto):
			// The broker reads the chain that crypto/tls verified. A rotation of the root changes the pool.
			now := bus.Clone()
			now.ClientCAs = v.Pool()
			return now, nil
		case slices.Contains(h.SupportedProtos, relaywire.Proto):
			return relayed, nil
		}
		return nil, nil
	}
	return gate.New(ln, gate.Options{TLS: web, Own: own, Peers: peers, Log: log, Protos: map[string]func(context.Context, *tls.Conn){
		mqttProto: func(ctx context.Context, c *tls.Conn) { _ = mqtt(ctx, c) }, // counted and logged by the broker
		relaywire.Proto: func(ctx context.Context, c *tls.Conn) {
			if err := relay(ctx, c); err != nil {
				log.Debug("a node's relay connection ended", "remote", c.RemoteAddr(), "err", err)
			}
		},
	}})
}
