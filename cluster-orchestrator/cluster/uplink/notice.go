package uplink

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToOperator is the address of the cluster's operator, who gets wire.Notices.
const ToOperator api.Addr = "operator"

const (
	noticeEvery = 10 * time.Second // minimum time between two notices of one reason
	maxNotices  = 8                // unacknowledged notices that are kept; older ones are dropped and counted
)

// notices are messages for the cluster's operator, also shown at the root. They are kept
// until the root acknowledges them, but not over a restart.
type notices struct {
	last     uint64 // number of the newest notice
	byReason map[api.Reason]lastNotice
	unacked  []unackedNotice
}

// lastNotice is the newest notice of a reason.
type lastNotice struct {
	at    time.Time
	times int // events since then
}

// unackedNotice is a notice that the root has not acknowledged.
type unackedNotice struct {
	wire.Notice
	seq uint64 // the report that last carried it; 0: none
}

// Notice sends a notice to the operator. Within noticeEvery of the last one of its reason, it is only
// counted.
func (m *Machine) Notice(reason api.Reason, text string) {
	n := &m.notices
	last, known := n.byReason[reason]
	last.times++
	if known && m.fx.Now.Sub(last.at) < noticeEvery {
		n.byReason[reason] = last
		return
	}
	n.last++
	notice := wire.Notice{No: n.last, Reason: reason, Text: step.Clip(text), Times: last.times}
	if n.byReason == nil {
		n.byReason = map[api.Reason]lastNotice{}
	}
	n.byReason[reason] = lastNotice{at: m.fx.Now}
	if len(n.unacked) == maxNotices {
		oldest := n.unacked[0]
		n.unacked = slices.Delete(n.unacked, 0, 1)
		n.unacked[0].Dropped += oldest.Dropped + oldest.Times
	}
	n.unacked = append(n.unacked, unackedNotice{Notice: notice})
	m.fresh = true
	m.fx.Emit(ToOperator, notice)
}

// Notices returns the notices that the root has not acknowledged, oldest first.
func (m *Machine) Notices() (out []wire.Notice) {
	for _, o := range m.notices.unacked {
		out = append(out, o.Notice)
	}
	return out
}

// attach returns all unacknowledged notices for the report seq.
func (n *notices) attach(seq uint64) (out []wire.Notice) {
	for i := range n.unacked {
		n.unacked[i].seq = seq
		out = append(out, n.unacked[i].Notice)
	}
	return out
}

// acked drops the notices in reports up to seq.
func (n *notices) acked(seq uint64) {
	n.unacked = slices.DeleteFunc(n.unacked, func(o unackedNotice) bool { return o.seq != 0 && o.seq <= seq })
}
