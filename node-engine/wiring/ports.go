package wiring

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/hostports"
)

const portsEvery = 30 * time.Second

// ports is what workloads may publish here, for the node's cluster.
type ports struct {
	publish []api.PortRange
	own     func() ([]api.HostPort, error)
	log     *slog.Logger

	mu   sync.Mutex     // guards the fields below
	last []api.HostPort // seen at the last look
	says *api.NodePorts
}

// newPorts looks once. What the configuration says has been validated.
func newPorts(cfg Config, log *slog.Logger) *ports {
	p := &ports{own: hostports.Own, log: log}
	p.publish, _ = api.ParsePortRanges(cfg.Publish)
	p.look()
	return p
}

// Says is what the node says of its ports.
func (p *ports) Says() *api.NodePorts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.says
}

// Run looks again every now and then, and calls changed when there is news.
func (p *ports) Run(ctx context.Context, changed func()) error {
	tick := time.NewTicker(portsEvery)
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

// look reports whether the node says something else now. A port that was not there
// at the look before is a passing client's, mostly, and does not count yet; but
// for the first look, which has none before.
func (p *ports) look() bool {
	own, err := p.own()
	if err != nil {
		p.log.Warn("the machine's own ports are not known: workloads may be placed here that cannot publish theirs", "err", err)
		own = p.last
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	says := &api.NodePorts{Publish: p.publish}
	for _, o := range own {
		stays := p.says == nil || slices.Contains(p.last, o)
		if stays && len(says.Own) < api.MaxOwnPorts && says.Refuses(o) == "" {
			says.Own = append(says.Own, o)
		}
	}
	p.last = own
	if reflect.DeepEqual(says, p.says) {
		return false
	}
	p.says = says
	return true
}
