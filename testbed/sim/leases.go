package sim

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
)

// What must not run twice ends with its node's lease, whoever else is alive: the
// promise that nothing runs twice rests on it, and is broken by it seldom enough.

// beat is a sign of life that a node sent.
type beat struct {
	boot, seq uint64
	at        moment
}

const (
	lease     = 5 * time.Second // of both tiers, unless configured
	leaseOver = 3 * time.Second // for a kill, and a start that was under way
)

// answered notes when the sign of life was sent that a lease answers.
func (m *NodeMachine) answered(l wire.Lease) {
	if b := m.beats[l.Seq%uint64(len(m.beats))]; b.boot == l.Boot && b.seq == l.Seq {
		m.leased = max(m.leased, b.at)
	}
}

// checkLeases holds that nothing outlives its lease that must not.
func (w *World) checkLeases() {
	var late *running
	for _, live := range w.running {
		for _, r := range live {
			if !r.spec.StopsWhenCutOff() || w.now <= r.machine.leased+r.machine.clock.takes(lease)+leaseOver {
				continue
			}
			if late == nil || cmp.Or(cmp.Compare(r.Instance, late.Instance), cmp.Compare(r.Epoch, late.Epoch)) < 0 {
				late = r
			}
		}
	}
	if late != nil {
		m := late.machine
		w.violate("lease", string(late.Instance), "runs as %s on %s, whose last lease is of %s", late.Epoch, m.name, m.leased)
	}
}
