package uplink

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToOperator is the cluster's operator, who gets wire.Notices.
const ToOperator api.Addr = "operator"

const (
	noticeEvery = 10 * time.Second // at most one
	maxNotices  = 8                // that wait for the root: the newest
)

// notices are for the cluster's operator, here and at the root. They are kept until the root
// has them, but not over a restart.
type notices struct {
	last  uint64    // the newest one's number
	at    time.Time // when that was
	times int       // since then
	owed  []owedNotice
}

// owedNotice is one that the root may not have yet.
type owedNotice struct {
	wire.Notice
	seq uint64 // the report that last carried it; 0: none
}

// Notice tells the operator what happened. Soon after another notice it is only counted.
func (m *Machine) Notice(reason api.Reason, text string) {
	n := &m.notices
	n.times++
	if !n.at.IsZero() && m.fx.Now.Sub(n.at) < noticeEvery {
		return
	}
	n.last++
	notice := wire.Notice{No: n.last, Reason: reason, Text: step.Clip(text), Times: n.times}
	n.at, n.times = m.fx.Now, 0
	if len(n.owed) == maxNotices {
		n.owed = slices.Delete(n.owed, 0, 1)
	}
	n.owed = append(n.owed, owedNotice{Notice: notice})
	m.fresh = true
	m.fx.Emit(ToOperator, notice)
}

// Notices returns those that the root may not have yet, oldest first.
func (m *Machine) Notices() (out []wire.Notice) {
	for _, o := range m.notices.owed {
		out = append(out, o.Notice)
	}
	return out
}

// carry returns all notices that the root may not have, for the report with that number.
func (n *notices) carry(seq uint64) (out []wire.Notice) {
	for i := range n.owed {
		n.owed[i].seq = seq
		out = append(out, n.owed[i].Notice)
	}
	return out
}

// acked drops what the root has with the report of that number.
func (n *notices) acked(seq uint64) {
	n.owed = slices.DeleteFunc(n.owed, func(o owedNotice) bool { return o.seq != 0 && o.seq <= seq })
}
