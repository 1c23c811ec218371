package root

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// events are the newest EventsKept. Where there is no room for another, the cluster
// that most of them are about loses the oldest of the tenant that has most of its:
// neither a cluster nor a tenant pushes out what is told of others.
type events struct {
	all  []api.Event                      // oldest first; of those that made way the number is left
	of   map[api.ClusterID]*clusterEvents // those that are kept, by their cluster; "": of none
	kept int
	free []int // slots in the store that were used before
	next int   // and the first that was not
}

// clusterEvents are the events about one cluster.
type clusterEvents struct {
	kept int
	by   map[api.Tenant][]keptEvent // the topmost tenant whose they are, oldest first; "": nobody's
}

type keptEvent struct {
	seq  api.Revision
	slot int
}

// event tells the story of a change, durably. What comes of a cluster's word is
// told as often as a cluster may say something.
func (c *Core) event(e api.Event) {
	if c.dry {
		return
	}
	cl := c.clusters[c.speaker]
	if cl != nil && (e.Cluster == c.speaker || e.Cluster == "" && e.Instance != "") && !c.mayTell(cl, e, 1) {
		return
	}
	c.tellEvent(e)
}

func (c *Core) tellEvent(e api.Event) {
	e.Seq, e.Time, e.Tier = c.nextRev(), c.wall, "root"
	slot := c.freeSlot()
	c.events.keep(e, slot)
	c.journal.Put(kindEvent, strconv.Itoa(slot), e)
	c.show(api.Change{Kind: "event", ID: strconv.FormatUint(uint64(e.Seq), 10), Tenant: e.Tenant, Revision: e.Seq, Object: e})
}

// freeSlot is where the next event is stored.
func (c *Core) freeSlot() int {
	es := &c.events
	if es.kept == c.cfg.EventsKept {
		c.makeWay()
	}
	if len(es.free) == 0 {
		es.next++
		return es.next - 1
	}
	slot := es.free[len(es.free)-1]
	es.free = es.free[:len(es.free)-1]
	return slot
}

func (es *events) keep(e api.Event, slot int) {
	es.all = append(es.all, e)
	of := es.of[e.Cluster]
	if of == nil {
		of = &clusterEvents{by: map[api.Tenant][]keptEvent{}}
		es.of[e.Cluster] = of
	}
	of.kept++
	of.by[e.Tenant.Top()] = append(of.by[e.Tenant.Top()], keptEvent{e.Seq, slot})
	es.kept++
}

// makeWay forgets the oldest event of whom most are about.
func (c *Core) makeWay() {
	es := &c.events
	id := most(es.of, func(of *clusterEvents) int { return of.kept })
	of := es.of[id]
	tenant := most(of.by, func(by []keptEvent) int { return len(by) })
	oldest := of.by[tenant][0]
	if of.by[tenant] = of.by[tenant][1:]; len(of.by[tenant]) == 0 {
		delete(of.by, tenant)
	}
	if of.kept--; of.kept == 0 {
		delete(es.of, id)
	}
	es.kept--
	if i, ok := slices.BinarySearchFunc(es.all, oldest.seq, bySeq); ok {
		es.all[i] = api.Event{Seq: oldest.seq}
	}
	if oldest.slot < c.cfg.EventsKept {
		es.free = append(es.free, oldest.slot)
	} else { // an earlier life kept more
		c.journal.Delete(kindEvent, strconv.Itoa(oldest.slot))
	}
	if len(es.all) > 2*c.cfg.EventsKept {
		es.all = slices.DeleteFunc(slices.Clone(es.all), madeWay)
	}
}

// most is the key whose value has the largest size, of several the least.
func most[K cmp.Ordered, V any](of map[K]V, size func(V) int) (key K) {
	largest := -1
	for k, v := range of {
		if n := size(v); n > largest || n == largest && k < key {
			key, largest = k, n
		}
	}
	return key
}

func bySeq(e api.Event, seq api.Revision) int { return cmp.Compare(e.Seq, seq) }

func madeWay(e api.Event) bool { return e.Kind == "" }

func (c *Core) restoreEvent(d store.Doc) error {
	var e api.Event
	if err := json.Unmarshal(d.Data, &e); err != nil {
		return err
	}
	slot, err := strconv.Atoi(d.Key)
	if err != nil {
		return err
	}
	c.events.keep(e, slot)
	return nil
}

// orderEvents ends the restoring. What is more than EventsKept, as an earlier life
// kept, makes way.
func (c *Core) orderEvents() {
	es := &c.events
	slices.SortFunc(es.all, func(a, b api.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, of := range es.of {
		for _, by := range of.by {
			slices.SortFunc(by, func(a, b keptEvent) int { return cmp.Compare(a.seq, b.seq) })
		}
	}
	for es.kept > c.cfg.EventsKept {
		c.makeWay()
	}
	for _, slot := range es.free { // nobody may ever come to write over it
		c.journal.Delete(kindEvent, strconv.Itoa(slot))
	}
	taken := map[int]bool{}
	for _, of := range es.of {
		for _, by := range of.by {
			for _, k := range by {
				taken[k.slot] = true
			}
		}
	}
	es.free, es.next = nil, c.cfg.EventsKept
	for slot := range es.next {
		if !taken[slot] {
			es.free = append(es.free, slot)
		}
	}
}
