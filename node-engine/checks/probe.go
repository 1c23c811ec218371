package checks

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/inside"
)

// probe is a check by TCP that is due.
type probe struct {
	t        *target
	kind     api.CheckKind
	check    api.Check
	answered bool
	err      error // of the connection, if answered
}

// probesAtOnce limits the probes after which other users of the thread get their turn.
const probesAtOnce = 64

// probe carries out the checks by TCP that are due in a round. The port of a workload accepts or refuses a
// connection while the node begins it, so that all are done in one visit of the thread that enters namespaces:
// a change of threads and a goroutine for each check cost more than the connections. A check without an answer at
// once is carried out like the others, which wait in turns.
func (c *Checks) probe(round []probe) {
	for some := range slices.Chunk(round, probesAtOnce) {
		err := c.sockets.Do(func(th *inside.Thread) {
			for i := range some {
				p := &some[i]
				p.answered, p.err = p.t.place.probe(th, p.check.TCP.Port)
			}
		})
		if err != nil {
			return // Run has ended
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range round {
		if p.answered {
			c.finish(p.t, p.kind, resultOf(p.t, p.err, time.Duration(p.check.Timeout)*time.Second))
			continue
		}
		c.wg.Go(func() { c.run(p.t, p.kind, p.check) })
	}
}

// probe begins a connection to a port of the workload. Without an answer at once, or if it does not know yet where
// the workload is reached, the result is not known. It does not block.
func (p *place) probe(th *inside.Thread, port int) (answered bool, err error) {
	if !p.mu.TryLock() {
		return false, nil // another check finds it
	}
	defer p.mu.Unlock()
	if p.closed || !p.address.IsValid() {
		return false, nil
	}
	if fd, err := th.Create(p.ns); err == nil {
		return inside.Probe(fd, p.address, port)
	}
	return false, nil // the check fails again in its turn, and reports it
}
