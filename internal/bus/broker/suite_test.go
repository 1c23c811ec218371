package broker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
)

// system is an embedded broker with nodes over real TLS.
type system struct {
	bustest.Wire
	*broker.Broker
	handshake time.Duration
	burst     int // of one node's connections
	stop      context.CancelFunc
	wg        sync.WaitGroup

	mu      sync.Mutex // guards revoked
	revoked map[api.NodeID]bool
}

func start(t testing.TB) *system { return startWith(t, time.Minute) }

// startWith starts a broker with a timeout for TLS handshake and CONNECT.
func startWith(t testing.TB, handshake time.Duration) *system {
	s := &system{handshake: handshake, burst: 10_000, Wire: bustest.Wire{CA: bustest.NewCA(t), Addr: "127.0.0.1:0"}, revoked: map[api.NodeID]bool{}}
	s.Start(t)
	t.Cleanup(s.Close)
	return s
}

func (s *system) Start(t testing.TB) {
	t.Helper()
	l, err := freeport.Listen(s.Addr) // a restart keeps the address
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = l.Addr().String()
	s.Broker, err = broker.New(broker.Options{
		Identify: s.identify, HandshakeTimeout: s.handshake, ConnectBurst: s.burst, Log: bustest.Quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	b, conf := s.Broker, s.CA.Server(t)
	s.wg.Go(func() {
		if err := bustest.Serve(ctx, b, l, gate.Options{TLS: conf, Handshake: s.handshake, Log: bustest.Quiet()}); err != nil {
			t.Error(err)
		}
	})
}

func (s *system) identify(state tls.ConnectionState) (api.NodeID, error) {
	id := api.NodeID(state.PeerCertificates[0].Subject.CommonName)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoked[id] {
		return "", errors.New("revoked")
	}
	return id, nil
}

func (s *system) Cluster(testing.TB) bus.Bus { return s.Bus() }

func (s *system) Stop(testing.TB) {
	s.stop()
	s.wg.Wait()
	s.Broker.Close()
}

func (s *system) Close() { s.Stop(nil) }

func TestEmbedded(t *testing.T) {
	bustest.Run(t, bustest.Deviations{ForgetsRetained: true, ClusterGoes: true}, func(t *testing.T) bustest.System { return start(t) })
}
