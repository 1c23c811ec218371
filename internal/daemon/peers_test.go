package daemon_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/daemon"
)

// handshaken accepts connections after their handshake, as the gate does.
type handshaken struct {
	net.Listener
	conf *tls.Config
}

// Accept implements net.Listener.
func (h handshaken) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	secure := tls.Server(c, h.conf)
	return secure, secure.Handshake()
}

// zeros is an endless body.
type zeros struct{ ctx context.Context }

// Read implements io.Reader.
func (z zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), z.ctx.Err()
}

// TestStreamsThatAreNotReadBlockNoOther: users who do not read their streams must not stop those of
// others, which share a node's or cluster's connection.
func TestStreamsThatAreNotReadBlockNoOther(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ca := bustest.NewCA(t)
	conf := ca.Server(t)
	conf.NextProtos = []string{"h2"}
	const stuck = 50
	began := make(chan struct{}, stuck)
	remotes := make(chan string, stuck+1)
	h := func(w http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
		if r.URL.Path == "/stuck" {
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
			began <- struct{}{}
			<-r.Context().Done()
			return
		}
		_, _ = io.Copy(w, r.Body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- daemon.ServeFor(ctx, handshaken{ln, conf}, http.HandlerFunc(h), nil, never, never, never)
	}()
	tr := &http.Transport{TLSClientConfig: ca.Client(t, "n1"), Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP2(true)
	c := &http.Client{Transport: tr}
	url := "https://" + ln.Addr().String()
	bodies, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range stuck {
		all.Go(func() {
			req, err := http.NewRequestWithContext(bodies, http.MethodPost, url+"/stuck", zeros{bodies})
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := c.Do(req); err == nil {
				resp.Body.Close()
			}
		})
	}
	for range stuck {
		<-began
	}
	text := bytes.Repeat([]byte("x"), 2<<20)
	quick, stop := context.WithTimeout(t.Context(), fail)
	defer stop()
	req, err := http.NewRequestWithContext(quick, http.MethodPost, url+"/quick", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("a stream beside those that are not read: %v", err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("a stream beside those that are not read: %d bytes, %v, want %d", len(got), err, len(text))
	}
	first := <-remotes
	for range stuck {
		if r := <-remotes; r != first {
			t.Errorf("the streams use the connections %s and %s, want one", first, r)
		}
	}
	end()
	all.Wait()
	tr.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
