package ports

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var (
	ssh    = api.HostPort{Port: 22, Protocol: "tcp"}
	db     = api.HostPort{Port: 5432, Protocol: "tcp"}
	client = api.HostPort{Port: 40000, Protocol: "udp"}

	publish = []api.PortRange{{First: 1024, Last: 65535}}
)

// machine is one whose ports a test chooses.
type machine struct {
	mu   sync.Mutex // guards the fields below
	has  []api.HostPort
	fail error
}

func (m *machine) own() ([]api.HostPort, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.has, m.fail
}

func (m *machine) becomes(fail error, has ...api.HostPort) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.has, m.fail = has, fail
}

func (m *machine) options() Options {
	return Options{Publish: publish, Own: m.own, Log: slog.New(slog.DiscardHandler)}
}

func TestPortsThatStayAreTheNodesOwn(t *testing.T) {
	m := &machine{has: []api.HostPort{ssh, db}}
	p := New(m.options())
	if got := p.Says(); !slices.Equal(got.Own, []api.HostPort{db}) || !slices.Equal(got.Publish, publish) { // nobody may publish 22 anyway
		t.Fatalf("at first it says %+v", got)
	}
	for i, x := range []struct {
		now, says []api.HostPort
		news      bool
	}{
		{[]api.HostPort{ssh, db}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, db, client}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, db}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, client}, nil, true},
		{[]api.HostPort{ssh, client}, []api.HostPort{client}, true},
	} {
		m.becomes(nil, x.now...)
		if news := p.look(); news != x.news || !slices.Equal(p.Says().Own, x.says) {
			t.Errorf("look %d at %v: news %v, own %v", i, x.now, news, p.Says().Own)
		}
	}
}

func TestALookThatFailsChangesNothing(t *testing.T) {
	blind := errors.New("no /proc")
	m := &machine{fail: blind}
	p := New(m.options())
	if got := p.Says(); got == nil || len(got.Own) > 0 || !slices.Equal(got.Publish, publish) {
		t.Fatalf("blind from the first, it says %+v", got)
	}
	m.becomes(nil, db)
	if !p.look() || !slices.Equal(p.Says().Own, []api.HostPort{db}) {
		t.Errorf("at its first sight it says %+v", p.Says())
	}
	m.becomes(nil, db, client)
	p.look()
	m.becomes(blind)
	if p.look() || !slices.Equal(p.Says().Own, []api.HostPort{db}) {
		t.Errorf("blind again it says %+v", p.Says())
	}
}

func TestNoMoreOwnPortsAreSaidThanTheClusterTakes(t *testing.T) {
	m := &machine{}
	for i := range api.MaxOwnPorts + 1 {
		m.has = append(m.has, api.HostPort{Port: uint16(2000 + i), Protocol: "tcp"})
	}
	if n := len(New(m.options()).Says().Own); n != api.MaxOwnPorts {
		t.Errorf("%d are said", n)
	}
}

func TestNewsIsToldWhileItRuns(t *testing.T) {
	m := &machine{}
	o := m.options()
	o.Every = time.Microsecond
	p := New(o)
	ctx, stop := context.WithCancel(t.Context())
	told, ended := make(chan []api.HostPort), make(chan error)
	go func() { ended <- p.Run(ctx, func() { told <- p.Says().Own }) }()
	for _, has := range [][]api.HostPort{{db}, {}, {client}} {
		m.becomes(nil, has...)
		if got := <-told; !slices.Equal(got, has) {
			t.Errorf("of %v is told %v", has, got)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
