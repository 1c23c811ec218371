// Package ports observes which ports the machine itself uses, so that workloads do not publish them.
// internal/hostports lists them, and the cluster does not place workloads that publish them here.
//
//	p := ports.New(ports.Options{Publish: ranges, Own: hostports.Own, Log: log})
//	err := p.Run(ctx, changed)
package ports

import (
	"cmp"
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
)

type Options struct {
	Publish []api.PortRange                // that workloads may publish; none: no port
	Own     func() ([]api.HostPort, error) // returns the machine's own ports, each once
	Every   time.Duration                  // interval of observations; default 30 s
	Log     *slog.Logger
}

// Ports has the machine's own ports. It is safe for concurrent use.
type Ports struct {
	o Options

	mu       sync.Mutex // guards the fields below
	observed bool       // an observation succeeded
	last     []api.HostPort
	current  *api.NodePorts // replaced, never changed
}

// New returns the ports after a first observation.
func New(o Options) *Ports {
	o.Every = cmp.Or(o.Every, 30*time.Second)
	p := &Ports{o: o, current: &api.NodePorts{Publish: o.Publish}}
	p.observe()
	return p
}

// Get returns the node's ports. The caller must not change them.
func (p *Ports) Get() *api.NodePorts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Run observes until ctx ends, and calls changed when the result of Get changes.
func (p *Ports) Run(ctx context.Context, changed func()) error {
	return daemon.Every(p.o.Every, func(context.Context) {
		if p.observe() {
			changed()
		}
	})(ctx)
}

// observe reports whether the result of Get changed. An observation that fails changes nothing. After
// the first observation, a port counts only if the previous one had it too, because most others belong
// to clients that end soon.
func (p *Ports) observe() (changed bool) {
	own, err := p.o.Own()
	if err != nil {
		p.o.Log.Warn("the machine's own ports are unknown: workloads may be placed here that cannot publish theirs", "err", err)
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &api.NodePorts{Publish: p.o.Publish}
	for _, o := range own {
		stays := !p.observed || slices.Contains(p.last, o)
		if stays && len(next.Own) < api.MaxOwnPorts && next.Refuses(o) == "" {
			next.Own = append(next.Own, o)
		}
	}
	p.observed, p.last = true, own
	changed = !reflect.DeepEqual(next, p.current)
	p.current = next
	return changed
}
