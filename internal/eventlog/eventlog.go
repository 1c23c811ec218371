// Package eventlog keeps the events of the root, and the access records of a cluster, within a capacity.
// The caller stores what Log returns.
package eventlog

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Log keeps the newest events, up to a capacity. When it is full, a new event replaces the oldest
// event of the topmost tenant with the most events on the cluster with the most events. So neither
// a cluster nor a tenant can evict the events of others.
//
// Each event has a slot, the key of its document in the store. Slots are reused, so that the store
// has no more events than the log. Log is not safe for concurrent use.
type Log struct {
	capacity int
	events   []stored // ascending by Seq
	kept     int
	clusters map[api.ClusterID]*clusterEvents // "": events about no cluster
	free     []int                            // slots of evicted events
	next     int                              // the first slot that was never used
}

type stored struct {
	api.Event
	slot int // or evicted; then only Seq is set
}

const evicted = -1

// clusterEvents has the Seq of the events about one cluster, by topmost tenant ("": none).
type clusterEvents struct {
	kept    int
	tenants map[api.Tenant][]api.Revision // ascending
}

func NewLog(capacity int) *Log {
	return &Log{capacity: capacity, clusters: map[api.ClusterID]*clusterEvents{}}
}

// Add appends an event. Its Seq must be above those of all earlier events. It returns the slot to
// store the event in, and the slots to delete from the store.
func (l *Log) Add(e api.Event) (slot int, deleted []int) {
	if l.kept == l.capacity {
		if slot := l.evict(); slot < l.capacity {
			l.free = append(l.free, slot)
		} else { // restored from a log with a greater capacity
			deleted = []int{slot}
		}
	}
	if n := len(l.free); n > 0 {
		slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		slot, l.next = l.next, l.next+1
	}
	l.events = append(l.events, stored{e, slot})
	l.index(e)
	return slot, deleted
}

func (l *Log) index(e api.Event) {
	of := l.clusters[e.Cluster]
	if of == nil {
		of = &clusterEvents{tenants: map[api.Tenant][]api.Revision{}}
		l.clusters[e.Cluster] = of
	}
	top := e.Tenant.Top()
	of.tenants[top] = append(of.tenants[top], e.Seq)
	of.kept++
	l.kept++
}

func (l *Log) evict() (slot int) {
	id := largest(l.clusters, func(of *clusterEvents) int { return of.kept })
	of := l.clusters[id]
	tenant := largest(of.tenants, func(seqs []api.Revision) int { return len(seqs) })
	oldest := of.tenants[tenant][0]
	if of.tenants[tenant] = of.tenants[tenant][1:]; len(of.tenants[tenant]) == 0 {
		delete(of.tenants, tenant)
	}
	if of.kept--; of.kept == 0 {
		delete(l.clusters, id)
	}
	l.kept--
	i, _ := slices.BinarySearchFunc(l.events, oldest, func(e stored, seq api.Revision) int { return cmp.Compare(e.Seq, seq) })
	slot = l.events[i].slot
	l.events[i] = stored{api.Event{Seq: oldest}, evicted}
	if len(l.events) > 2*l.capacity {
		l.events = slices.DeleteFunc(slices.Clone(l.events), func(e stored) bool { return e.slot == evicted })
	}
	return slot
}

// largest returns the key whose value has the largest size; among equals, the smallest key.
func largest[K cmp.Ordered, V any](m map[K]V, size func(V) int) (key K) {
	most := -1
	for k, v := range m {
		if n := size(v); n > most || n == most && k < key {
			key, most = k, n
		}
	}
	return key
}

// Restore adds an event from the store, in any order. Restored has to be called after the last one.
func (l *Log) Restore(slot int, e api.Event) { l.events = append(l.events, stored{e, slot}) }

// Restored completes the restore. It evicts the events above the capacity, which may have been
// greater before, and returns the slots to delete from the store.
func (l *Log) Restored() (deleted []int) {
	slices.SortFunc(l.events, func(a, b stored) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, e := range l.events {
		l.index(e.Event)
	}
	for l.kept > l.capacity {
		deleted = append(deleted, l.evict())
	}
	used := map[int]bool{}
	for _, e := range l.events {
		used[e.slot] = true
	}
	l.free, l.next = nil, l.capacity
	for slot := range l.capacity {
		if !used[slot] {
			l.free = append(l.free, slot)
		}
	}
	return deleted
}

// Filter selects events. The zero value of a field selects all.
type Filter struct {
	Instance api.InstanceID
	Since    api.Revision // only events after it
}

// List returns the selected events, oldest first.
func (l *Log) List(f Filter) (out []api.Event) {
	for _, e := range slices.Backward(l.events) {
		if e.Seq <= f.Since {
			break
		}
		if e.slot != evicted && (f.Instance == "" || e.Instance == f.Instance) {
			out = append(out, e.Event)
		}
	}
	slices.Reverse(out)
	return out
}
