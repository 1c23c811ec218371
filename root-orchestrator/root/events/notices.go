package events

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	maxNotices   = 8 // events per noticePeriod for the notices of one cluster
	noticePeriod = time.Minute
	maxTimes     = 1_000_000 // occurrences in one event
)

// notices is the state of a cluster's notices. It is not saved: if an acknowledgement was lost
// before a restart of the root, the notice causes a second event.
type notices struct {
	boot, no uint64    // of the newest notice
	since    time.Time // when the present period began
	events   int       // in the present period
	omitted  int       // occurrences without an event; the next event counts them
	dropped  int       // occurrences that the cluster dropped; the next event counts them
}

// Notices returns the events for the notices in a report that a cluster sent in the given boot. A
// repeated notice, or one above the limit, has no event.
func (l *Limiter) Notices(now time.Time, id api.ClusterID, boot uint64, all []wire.Notice) (out []api.Event) {
	cl := l.clusters[id]
	if cl == nil {
		return nil
	}
	n := &cl.notices
	if n.boot != boot {
		n.boot, n.no = boot, 0
	}
	for _, notice := range all {
		if notice.No <= n.no {
			continue
		}
		n.no = notice.No
		if n.since.IsZero() || now.Sub(n.since) >= noticePeriod {
			n.since, n.events = now, 0
		}
		n.dropped = min(n.dropped+min(notice.Dropped, maxTimes), maxTimes)
		n.omitted = min(n.omitted+min(max(notice.Times, 1), maxTimes), maxTimes)
		if n.events == maxNotices {
			continue
		}
		e := api.Event{Kind: "cluster", Object: string(id), Cluster: id, Detail: step.Clip(notice.Text)}
		switch notice.Reason {
		case api.ReasonNoScheduler, api.ReasonOutOfBounds, api.ReasonCapped, api.ReasonAccess, api.ReasonRestored:
			e.Reason = notice.Reason
		}
		if n.omitted > 1 {
			e.Detail += fmt.Sprintf(" (%d times)", n.omitted)
		}
		if n.dropped > 0 {
			e.Detail += fmt.Sprintf("; %d earlier notices were dropped while the root did not answer the cluster", n.dropped)
			n.dropped = 0
		}
		n.events, n.omitted = n.events+1, 0
		out = append(out, e)
	}
	return out
}
