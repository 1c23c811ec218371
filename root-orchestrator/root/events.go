package root

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// events are the newest EventsKept. Where there is no room for another, the oldest
// of the cluster that most of them are about makes way: none pushes out what is
// told of others.
type events struct {
	all  []api.Event                   // oldest first; of those that made way the number is left
	of   map[api.ClusterID][]keptEvent // those that are kept, by their cluster, oldest first; "": of none
	kept int
	free []int // slots in the store that were used before
	next int   // and the first that was not
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
	es.of[e.Cluster] = append(es.of[e.Cluster], keptEvent{e.Seq, slot})
	es.kept++
}

// makeWay forgets the oldest event of whom most are about.
func (c *Core) makeWay() {
	es := &c.events
	var most api.ClusterID
	for id, of := range es.of {
		if n := cmp.Compare(len(of), len(es.of[most])); n > 0 || n == 0 && id < most {
			most = id
		}
	}
	oldest := es.of[most][0]
	if es.of[most] = es.of[most][1:]; len(es.of[most]) == 0 {
		delete(es.of, most)
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
		slices.SortFunc(of, func(a, b keptEvent) int { return cmp.Compare(a.seq, b.seq) })
	}
	for es.kept > c.cfg.EventsKept {
		c.makeWay()
	}
	for _, slot := range es.free { // nobody may ever come to write over it
		c.journal.Delete(kindEvent, strconv.Itoa(slot))
	}
	taken := map[int]bool{}
	for _, of := range es.of {
		for _, k := range of {
			taken[k.slot] = true
		}
	}
	es.free, es.next = nil, c.cfg.EventsKept
	for slot := range es.next {
		if !taken[slot] {
			es.free = append(es.free, slot)
		}
	}
}
