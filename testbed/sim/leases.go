package sim

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
)

// An exclusive instance must end with its node's lease, even if no other instance was
// started. The guarantee that it never runs twice depends on this, but a late end alone
// rarely violates it, so that it is checked separately.

// beat is a heartbeat that a node sent.
type beat struct {
	boot, seq uint64
	at        moment
}

const (
	lease     = 5 * time.Second // of both tiers, unless configured
	leaseOver = 3 * time.Second // for a kill, and a start that was under way
)

// answered records when the heartbeat was sent that a lease answers.
func (m *NodeMachine) answered(l wire.Lease) {
	if b := m.beats[l.Seq%uint64(len(m.beats))]; b.boot == l.Boot && b.seq == l.Seq {
		m.leased = max(m.leased, b.at)
	}
}

// checkLeases checks that no exclusive workload outlives its lease.
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
		w.violate("lease", string(late.Instance), "runs as %s on %s after the lease, whose last renewal was at %s", late.Epoch, m.name, m.leased)
	}
}
