// Package ports is what a node says of its ports: those that workloads may publish by
// its operator's word, and those of them on which the machine itself is to be reached.
// It leaves finding these to internal/hostports, and keeping workloads off them to the
// cluster.
//
//	p := ports.New(ports.Options{Publish: ranges, Own: hostports.Own, Log: log})
//	err := p.Run(ctx, tellTheCluster)
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
)

// Options are what Ports needs.
type Options struct {
	Publish []api.PortRange                // what workloads may publish; none is no port at all
	Own     func() ([]api.HostPort, error) // the machine's own ports now, each once
	Every   time.Duration                  // how often it looks; zero: 30 s
	Log     *slog.Logger
}

// Ports knows the machine's own ports. It is for concurrent use.
type Ports struct {
	o Options

	mu     sync.Mutex // guards the fields below
	looked bool       // some look saw the machine's ports
	last   []api.HostPort
	says   *api.NodePorts // replaced, never changed
}

// New looks once: what the node says first is of this moment.
func New(o Options) *Ports {
	o.Every = cmp.Or(o.Every, 30*time.Second)
	p := &Ports{o: o}
	p.look()
	return p
}

// Says is what the node says of its ports. The caller must not change it.
func (p *Ports) Says() *api.NodePorts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.says
}

// Run looks again every now and then until ctx ends, and calls changed when the node
// says something else.
func (p *Ports) Run(ctx context.Context, changed func()) error {
	tick := time.NewTicker(p.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if p.look() {
				changed()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// look reports whether the node says something else now. One that fails changes
// nothing.
func (p *Ports) look() bool {
	own, err := p.o.Own()
	if err != nil {
		p.o.Log.Warn("the machine's own ports are not known: workloads may be placed here that cannot publish theirs", "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		return p.sees(own)
	}
	if p.says == nil {
		p.says = &api.NodePorts{Publish: p.o.Publish}
	}
	return false
}

// sees takes in the machine's ports of a moment. One that was not there at the look
// before is a passing client's, mostly, and does not count yet; but for the first
// look, which has none before.
func (p *Ports) sees(own []api.HostPort) (news bool) {
	says := &api.NodePorts{Publish: p.o.Publish}
	for _, o := range own {
		stays := !p.looked || slices.Contains(p.last, o)
		if stays && len(says.Own) < api.MaxOwnPorts && says.Refuses(o) == "" {
			says.Own = append(says.Own, o)
		}
	}
	p.looked, p.last = true, own
	if reflect.DeepEqual(says, p.says) {
		return false
	}
	p.says = says
	return true
}
