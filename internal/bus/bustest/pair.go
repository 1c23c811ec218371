package bustest

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
)

// Serve accepts connections for a broker until ctx ends, as a cluster's port does.
func Serve(ctx context.Context, b *broker.Broker, l net.Listener, o gate.Options) error {
	serve := func(ctx context.Context, c *tls.Conn) { _ = b.ServeConn(ctx, c) } // the broker logs the error
	o.Protos = map[string]func(context.Context, *tls.Conn){"": serve, "mqtt": serve}
	return gate.New(l, o).Run(ctx)
}

// Pair starts an embedded broker and returns the cluster's bus and a node's, both
// connected. They end with the test.
func Pair(t *testing.T, node api.NodeID) (cluster, end bus.Bus) {
	t.Helper()
	l, err := freeport.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{CA: NewCA(t), Addr: l.Addr().String()}
	b, err := broker.New(broker.Options{
		Log: Quiet(),
		Identify: func(s tls.ConnectionState) (api.NodeID, error) {
			return api.NodeID(s.PeerCertificates[0].Subject.CommonName), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- Serve(ctx, b, l, gate.Options{TLS: w.CA.Server(t), Log: Quiet()}) }()
	end = w.Node(t, Node{ID: node})
	t.Cleanup(func() {
		_ = end.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("the broker ended with %v", err)
		}
		_ = b.Close()
	})
	for up := range end.Up() {
		if up {
			break
		}
	}
	return b.Bus(), end
}
