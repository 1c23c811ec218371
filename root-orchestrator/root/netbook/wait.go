package netbook

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// The root's store may have been restored from an older copy, which the root cannot
// see. What it gave since is in use, and only the clusters know of it. So after a start
// it gives no new address and no new share until every cluster has listed all that it
// has, or the wait is over. Services keep their addresses meanwhile, and get back those
// that rest for them.

func (b *Machine) await(now time.Time) {
	b.awaited, b.waitsUntil = map[api.ClusterID]bool{}, now.Add(b.cfg.Wait)
	for id := range b.clusters {
		b.awaited[id] = true
	}
}

// Waiting reports whether clusters are awaited before new addresses and shares are given.
func (b *Machine) Waiting() bool { return len(b.awaited) > 0 }

// EndWait reports whether the wait ends now. GrantAll must follow.
func (b *Machine) EndWait(now time.Time) bool {
	if b.awaited == nil {
		return false
	}
	for id := range b.awaited {
		if cl := b.clusters[id]; cl == nil || cl.heard && !cl.networked {
			delete(b.awaited, id)
		}
	}
	if len(b.awaited) > 0 && now.Before(b.waitsUntil) {
		return false
	}
	b.awaited = nil
	return true
}

// WaitError returns the error for a request for something new while clusters are awaited,
// ErrUnavailable.
func (b *Machine) WaitError(now time.Time, what string) error {
	var names []string
	for _, id := range step.Keys(b.awaited) {
		names = append(names, string(id))
	}
	if len(names) > 3 {
		names = append(slices.Clip(names[:3]), fmt.Sprintf("%d more", len(names)-3))
	}
	return fmt.Errorf("%s: the root has just started, and gives no new addresses before it knows which are in use. It waits for cluster %s, at most %s more; try again then: %w",
		what, strings.Join(names, ", "), b.waitsUntil.Sub(now).Round(time.Second), api.ErrUnavailable)
}
