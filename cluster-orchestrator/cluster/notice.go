package cluster

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// ToOperator is whoever runs the cluster, to whom go api.Notices.
const ToOperator api.Addr = "operator"

const (
	noticeEvery = 10 * time.Second // at the most
	maxNotices  = 8                // that wait for the root: the newest, for all of them were said here
)

// notices are what whoever runs the cluster should know of. They are said here at
// once and kept until the root has them; a restart forgets those.
type notices struct {
	last  uint64    // the newest one's number
	said  time.Time // when that was
	times int       // since then
	owed  []owedNotice
}

// owedNotice is one that the root may not have yet.
type owedNotice struct {
	api.Notice
	seq uint64 // the report that last carried it; 0: none did
}

// notice says what happened, or counts it where something was said just now.
func (c *Core) notice(reason api.Reason, text string) {
	n := &c.notices
	n.times++
	if !n.said.IsZero() && c.now.Sub(n.said) < noticeEvery {
		return
	}
	n.last++
	said := api.Notice{No: n.last, Reason: reason, Text: step.Clip(text), Times: n.times}
	n.said, n.times = c.now, 0
	if len(n.owed) == maxNotices {
		n.owed = slices.Delete(n.owed, 0, 1)
	}
	n.owed = append(n.owed, owedNotice{Notice: said})
	c.root.fresh = true
	c.emit(ToOperator, said)
}

// carry gives all that the root may not have to the report of that number.
func (n *notices) carry(seq uint64) (out []api.Notice) {
	for i := range n.owed {
		n.owed[i].seq = seq
		out = append(out, n.owed[i].Notice)
	}
	return out
}

// taken forgets what the root has with the report of that number.
func (n *notices) taken(seq uint64) {
	n.owed = slices.DeleteFunc(n.owed, func(o owedNotice) bool { return o.seq != 0 && o.seq <= seq })
}
