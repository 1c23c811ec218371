package bustest

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
)

// Wire connects the nodes of a System whose broker listens on a port, each over TLS with its
// own certificate and link.
type Wire struct {
	Addr string
	CA   *CA

	mu    sync.Mutex // guards links
	links map[api.NodeID][]*Link
}

// Quiet is a logger for tests that provoke errors.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Node connects a node.
func (w *Wire) Node(t testing.TB, n Node) bus.Bus {
	l := &Link{Addr: w.Addr}
	w.mu.Lock()
	if w.links == nil {
		w.links = map[api.NodeID][]*Link{}
	}
	w.links[n.ID] = append(w.links[n.ID], l)
	w.mu.Unlock()
	return w.Dial(t, string(n.ID), string(n.ID), n.Will, l)
}

// Dial connects a client with a certificate for name.
func (w *Wire) Dial(t testing.TB, name, clientID string, will *bus.Message, l *Link) *mqtt.Client {
	t.Helper()
	b, err := mqtt.Dial(mqtt.Options{
		ClientID: clientID, TLS: w.CA.Client(t, name), Dialer: l.Dial, Will: will, Log: Quiet(),
		MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Cut resets a node's connections and refuses new ones.
func (w *Wire) Cut(id api.NodeID) { w.each(id, (*Link).Cut) }

// Mend ends Cut.
func (w *Wire) Mend(id api.NodeID) { w.each(id, (*Link).Mend) }

func (w *Wire) each(id api.NodeID, do func(*Link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links[id] {
		do(l)
	}
}
