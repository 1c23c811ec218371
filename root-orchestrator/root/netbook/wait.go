package netbook

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// A root whose store was restored from an older copy does not know which addresses and shares were
// given since; only the clusters do. So after each start it gives no new ones until each cluster
// has listed everything that it has, or the wait is over. Services keep their addresses, and get
// back those that rest for them.

func (b *Machine) await(now time.Time) {
	b.awaited, b.waitsUntil = map[api.ClusterID]bool{}, now.Add(b.cfg.Wait)
	for id := range b.clusters {
		b.awaited[id] = true
	}
}

// Waiting reports whether new addresses and shares still have to wait for clusters.
func (b *Machine) Waiting() bool { return len(b.awaited) > 0 }

// EndWait reports whether the wait ends now. GrantAll has to follow.
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

// WaitError returns the ErrUnavailable for a request that has to wait for clusters. what is the
// request.
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
