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

// machine is a machine whose ports a test sets.
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

func (m *machine) set(fail error, has ...api.HostPort) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.has, m.fail = has, fail
}

func (m *machine) options() Options {
	return Options{Publish: publish, Own: m.own, Log: slog.New(slog.DiscardHandler)}
}

func TestOwnPortsAreThoseObservedTwice(t *testing.T) {
	m := &machine{has: []api.HostPort{ssh, db}}
	p := New(m.options())
	if got := p.Get(); !slices.Equal(got.Own, []api.HostPort{db}) || !slices.Equal(got.Publish, publish) { // 22 cannot be published anyway
		t.Fatalf("Get after New: got %+v, want own port %v", got, db)
	}
	for i, x := range []struct {
		now, want []api.HostPort
		changed   bool
	}{
		{[]api.HostPort{ssh, db}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, db, client}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, db}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, client}, nil, true},
		{[]api.HostPort{ssh, client}, []api.HostPort{client}, true},
	} {
		m.set(nil, x.now...)
		if changed := p.observe(); changed != x.changed || !slices.Equal(p.Get().Own, x.want) {
			t.Errorf("observation %d of %v: got changed %t, own ports %v; want %t, %v", i, x.now, changed, p.Get().Own, x.changed, x.want)
		}
	}
}

func TestFailedObservationChangesNothing(t *testing.T) {
	fail := errors.New("no /proc")
	m := &machine{fail: fail}
	p := New(m.options())
	if got := p.Get(); got == nil || len(got.Own) > 0 || !slices.Equal(got.Publish, publish) {
		t.Fatalf("Get after a failed observation: got %+v, want no own ports", got)
	}
	m.set(nil, db)
	if !p.observe() || !slices.Equal(p.Get().Own, []api.HostPort{db}) {
		t.Errorf("Get after the first successful observation: got %+v, want own port %v", p.Get(), db)
	}
	m.set(nil, db, client)
	p.observe()
	m.set(fail)
	if p.observe() || !slices.Equal(p.Get().Own, []api.HostPort{db}) {
		t.Errorf("Get after another failed observation: got %+v, want own port %v", p.Get(), db)
	}
}

func TestOwnPortsAreLimited(t *testing.T) {
	m := &machine{}
	for i := range api.MaxOwnPorts + 1 {
		m.has = append(m.has, api.HostPort{Port: uint16(2000 + i), Protocol: "tcp"})
	}
	if n := len(New(m.options()).Get().Own); n != api.MaxOwnPorts {
		t.Errorf("own ports: got %d, want %d", n, api.MaxOwnPorts)
	}
}

func TestRunReportsChanges(t *testing.T) {
	m := &machine{}
	o := m.options()
	o.Every = time.Microsecond
	p := New(o)
	ctx, stop := context.WithCancel(t.Context())
	changes, ended := make(chan []api.HostPort), make(chan error)
	go func() { ended <- p.Run(ctx, func() { changes <- p.Get().Own }) }()
	for _, has := range [][]api.HostPort{{db}, {}, {client}} {
		m.set(nil, has...)
		if got := <-changes; !slices.Equal(got, has) {
			t.Errorf("change: got own ports %v, want %v", got, has)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
