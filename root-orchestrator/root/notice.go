package root

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// How many events one cluster's notices may make, whatever it sends.
const (
	mostNotices = 8
	noticeSpan  = time.Minute
	mostTimes   = 1_000_000 // that a notice may count
)

// noticed is what the root took of a cluster's notices. A root that was restarted
// may tell one again that its cluster had no answer for.
type noticed struct {
	boot, no uint64    // the newest
	since    time.Time // when the span began
	told     int       // in the span
	untold   int       // times that the next event counts: there was no room for theirs
}

// notices makes events of what a cluster says of itself. What it calls them
// counts only where it is known here.
func (c *Core) notices(cl *cluster, r api.Report) {
	n := &cl.noticed
	if n.boot != r.Boot {
		n.boot, n.no = r.Boot, 0
	}
	for _, notice := range r.Notices {
		if notice.No <= n.no {
			continue // its answer was lost
		}
		n.no = notice.No
		if n.since.IsZero() || c.now.Sub(n.since) >= noticeSpan {
			n.since, n.told = c.now, 0
		}
		n.untold = min(n.untold+min(max(notice.Times, 1), mostTimes), mostTimes)
		if n.told == mostNotices {
			continue
		}
		e := api.Event{Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Detail: step.Clip(notice.Text)}
		if notice.Reason == api.ReasonNoScheduler || notice.Reason == api.ReasonOutOfBounds || notice.Reason == api.ReasonCapped {
			e.Reason = notice.Reason
		}
		if n.untold > 1 {
			e.Detail += fmt.Sprintf(" (%d times)", n.untold)
		}
		n.told, n.untold = n.told+1, 0
		c.event(e)
	}
}
