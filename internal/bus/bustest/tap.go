package bustest

import (
	"encoding/pem"
	"path/filepath"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
)

// Tap receives all messages of a broker, as its operator can.
type Tap struct {
	mu  sync.Mutex // guards all
	all []bus.Message
}

// Messages returns the messages so far.
func (p *Tap) Messages() []bus.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]bus.Message(nil), p.all...)
}

// Tap admits a further client, which subscribes to everything. It restarts the broker.
func (m *Mosquitto) Tap(t testing.TB) *Tap {
	t.Helper()
	authority := NewCA(t)
	m.Stop(t)
	cas, acl := filepath.Join(m.dir, "ca.crt"), filepath.Join(m.dir, "acl")
	write(t, cas, read(t, cas)+string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw})))
	write(t, acl, "user tap\ntopic read #\n\n"+read(t, acl))
	m.Start(t)
	conf := authority.Client(t, "tap")
	conf.InsecureSkipVerify = true // the broker's certificate is of another authority
	c, err := mqtt.Dial(mqtt.Options{Addr: m.Addr, ClientID: "tap", TLS: conf, Log: Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := &Tap{}
	err = c.Subscribe(t.Context(), "#", 1, func(msg bus.Message) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all = append(p.all, msg)
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
