package bustest

import (
	"context"
	"crypto/tls"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/freeport"
)

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
		TLS: w.CA.Server(t), Log: Quiet(),
		Identify: func(s tls.ConnectionState) (api.NodeID, error) {
			return api.NodeID(s.PeerCertificates[0].Subject.CommonName), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- b.Serve(ctx, l) }()
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
