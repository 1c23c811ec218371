package network

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// netmanager is a fake of the socket's server, for messages only.
type netmanager struct {
	events chan wire.NetEvent // the events to send; closed: the stream ends
	got    chan string        // the received messages
	srv    *http.Server
}

func serve(t *testing.T, path string) *netmanager {
	t.Helper()
	m := &netmanager{events: make(chan wire.NetEvent, 10), got: make(chan string, 1000)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+netsock.Up, func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case e, ok := <-m.events:
				if !ok {
					return
				}
				_ = json.NewEncoder(w).Encode(e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("POST "+netsock.Link, func(_ http.ResponseWriter, r *http.Request) {
		var l wire.NetLink
		_ = json.NewDecoder(r.Body).Decode(&l)
		m.got <- fmt.Sprint("link ", l.Up)
	})
	mux.HandleFunc("POST "+netsock.Down, func(_ http.ResponseWriter, r *http.Request) {
		var d wire.NetDown
		_ = json.NewDecoder(r.Body).Decode(&d)
		m.got <- fmt.Sprint("down ", d.Seq)
	})
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	m.srv = &http.Server{Handler: mux} //nolint:gosec // a test's
	go m.srv.Serve(ln)
	t.Cleanup(func() { m.srv.Close() })
	return m
}

func (m *netmanager) wants(t *testing.T, want string) {
	t.Helper()
	if got := <-m.got; got != want {
		t.Fatalf("message to the netmanager: got %q, want %q", got, want)
	}
}

func ready(is bool, why string) wire.NetEvent {
	return wire.NetEvent{Ready: &wire.NetReady{Ready: is, Error: why}}
}

func down(n int) []byte { return fmt.Appendf(nil, `{"seq":%d}`, n) }

func TestMessagesInBothDirectionsAcrossRestarts(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // short, because a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "net.sock")
	up, changed := make(chan string, 10), make(chan struct{}, 100)
	n := New(Options{
		Client: netsock.New(path), Subscriptions: func(b []byte) { up <- string(b) },
		Changed: func() { changed <- struct{}{} }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	defer func() { cancel(); <-done }()

	n.Link(true)
	n.Routes(down(1)) // no netmanager is connected: dropped
	first := serve(t, path)
	first.events <- ready(false, "no lease yet")
	first.wants(t, "link true")
	for n.Ready() == nil || n.Ready() == errStarting {
		<-changed
	}
	first.events <- ready(true, "")
	for n.Ready() != nil {
		<-changed
	}
	first.events <- wire.NetEvent{Up: json.RawMessage(`{"boot":7}`)}
	if got := <-up; got != `{"boot":7}` {
		t.Errorf("message to the cluster: got %s, want {\"boot\":7}", got)
	}
	for i := range 100 {
		n.Routes(down(i + 2))
	}
	n.Link(false)
	for i := range 100 {
		first.wants(t, fmt.Sprint("down ", i+2))
	}
	first.wants(t, "link false")

	first.srv.Close()
	for n.Ready() == nil {
		<-changed
	}
	n.Link(true)
	second := serve(t, path)
	second.events <- ready(true, "")
	second.wants(t, "link true")
	for n.Ready() != nil {
		<-changed
	}
}

func TestFullInboxReportsALostConnection(t *testing.T) {
	i := newInbox()
	i.link(true)
	i.open()
	big := make([]byte, maxQueuedBytes/2)
	for range 3 {
		i.put(big)
	}
	for _, want := range []bool{false, true} {
		if m, ok := i.next(); !ok || m.routes != nil || m.up != want {
			t.Fatalf("next message: got link %t with %d bytes, want link %t", m.up, len(m.routes), want)
		}
	}
	if _, ok := i.next(); ok || i.bytes != 0 {
		t.Errorf("inbox: got further messages of %d bytes, want none", i.bytes)
	}
}
