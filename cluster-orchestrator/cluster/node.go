package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// node is what the cluster knows of one node.
type node struct {
	info     api.NodeInfo
	said     api.Digest // of info
	joined   time.Time
	cordoned bool
	draining bool

	heard     bool // in this life
	silent    bool
	suspect   bool // its connection ended without a goodbye
	lastAlive time.Time

	boot      uint64
	reportSeq uint64
	aliveSeq  uint64
	synced    bool           // a whole report was taken in this boot and life
	must      api.Generation // that it must hold before its report counts: a broker may hand it an older one first
	complete  bool           // no report of this boot is missing: what it did not say is not there
	awaited   bool           // the time after our start lasts until it has reported
	ack       api.Generation // the newest that it said it holds
	cpu, mem  uint8

	gen      api.Generation // of its desired set
	from     api.Generation // before this step's changes
	wanted   api.Digest
	assigned map[api.InstanceID]*instance
	leaving  map[api.InstanceID]bool          // vacated, and perhaps still running
	booked   map[api.InstanceID]api.Resources // room that is taken; used is its sum
	drop     map[api.InstanceID]bool          // taken away in this step
	put      map[api.InstanceID]bool          // given or changed in this step
	used     api.Resources
	leased   int // assigned instances that stop when cut off
	sentAt   time.Time

	observed map[api.InstanceID]api.Observed
	room     map[api.InstanceID]api.Resources // needs of what it was ever seen with, while it is
	unknown  map[api.InstanceID]bool          // that it has and nobody remembers how large
	known    api.Digest
	differ   int // signs of life in a row whose digest was not ours

	at int // its candidate
}

type nodeRecord struct {
	Info     api.NodeInfo `json:"info"`
	Joined   time.Time    `json:"joined"`
	Cordoned bool         `json:"cordoned,omitempty"`
	Draining bool         `json:"draining,omitempty"`
}

func newNode(info api.NodeInfo) *node {
	return &node{
		info:     info,
		said:     info.Digest(),
		assigned: map[api.InstanceID]*instance{},
		leaving:  map[api.InstanceID]bool{},
		booked:   map[api.InstanceID]api.Resources{},
		unknown:  map[api.InstanceID]bool{},
		drop:     map[api.InstanceID]bool{},
		put:      map[api.InstanceID]bool{},
		observed: map[api.InstanceID]api.Observed{},
		room:     map[api.InstanceID]api.Resources{},
	}
}

func (c *Core) saveNode(n *node) {
	c.journal.Put(kindNode, string(n.info.ID), nodeRecord{n.info, n.joined, n.cordoned, n.draining})
}

func (c *Core) restoreNode(d store.Doc) error {
	var r nodeRecord
	if err := json.Unmarshal(d.Data, &r); err != nil {
		return err
	}
	n := newNode(r.Info)
	n.joined, n.cordoned, n.draining = r.Joined, r.Cordoned, r.Draining
	c.addNode(n)
	return nil
}

func (c *Core) addNode(n *node) {
	n.at = len(c.cands)
	c.cands = append(c.cands, sched.Candidate{})
	c.nodes[n.info.ID] = n
	c.refresh(n)
}

// joinNode takes a node in. What it says of itself later comes with its reports.
func (c *Core) joinNode(info api.NodeInfo) {
	if n := c.nodes[info.ID]; n != nil {
		c.nodeInfo(n, info)
		// It may have lost its store, and with it the count of its starts.
		n.boot = 0
		c.newLife(n)
		for _, in := range n.sorted() {
			if in.State == api.Completed {
				c.unassign(in, false) // or it would run again there
				c.changed(in)
			}
		}
		return
	}
	n := newNode(info)
	n.joined, n.lastAlive = c.wall, c.now
	c.addNode(n)
	c.rescale()
	c.saveNode(n)
	c.touch(n)
	c.timers.Set(timerKey{timerDead, info.ID}, c.now.Add(c.dead()))
	c.aggregateChanged()
}

func (c *Core) nodeInfo(n *node, info api.NodeInfo) {
	info.ID = n.info.ID
	said := info.Digest()
	if said == n.said {
		return
	}
	n.info, n.said = info, said
	c.saveNode(n)
	c.refresh(n)
}

// book sets how much room an instance takes.
func (n *node) book(id api.InstanceID, room api.Resources) {
	n.used = n.used.Minus(n.booked[id]).Plus(room)
	if n.booked[id] = room; room == (api.Resources{}) {
		delete(n.booked, id)
	}
}

// take gives the node an instance. What it has of an earlier placement may be
// larger and is there until the node reports the new one: so long the larger of
// both is booked.
func (n *node) take(in *instance) {
	id := in.id()
	delete(n.leaving, id)
	n.assigned[id] = in
	n.room[id] = n.room[id].Max(in.needs())
	n.wanted = n.wanted.Toggle(in.assignment().Digest())
	if in.State != api.Completed {
		n.book(id, n.booked[id].Max(in.needs()))
	}
	if in.Want.Spec.StopsWhenCutOff() {
		n.leased++
	}
}

// lose takes the instance away; its room stays booked where it may still run.
func (n *node) lose(in *instance, held bool) {
	id := in.id()
	delete(n.assigned, id)
	n.wanted = n.wanted.Toggle(in.assignment().Digest())
	if in.Want.Spec.StopsWhenCutOff() {
		n.leased--
	}
	if held {
		n.leaving[id] = true
		return
	}
	n.release(id)
}

// hold books room for something that the node has and should not.
func (n *node) hold(id api.InstanceID, room api.Resources) {
	if n.assigned[id] == nil && !n.leaving[id] {
		n.leaving[id] = true
		n.book(id, room)
	}
}

// stopsLeased reports whether something that stops when cut off is on its way
// off the node: it keeps its lease for as long as its stop_grace takes.
func (n *node) stopsLeased(c *Core) bool {
	for id := range n.leaving {
		if in := c.instances[id]; in != nil && in.Want.Spec.StopsWhenCutOff() {
			return true
		}
	}
	return false
}

func (n *node) release(id api.InstanceID) {
	delete(n.leaving, id)
	delete(n.unknown, id)
	if n.assigned[id] != nil {
		return
	}
	n.book(id, api.Resources{})
	if _, still := n.observed[id]; !still {
		delete(n.room, id)
	}
}

func (n *node) sorted() []*instance {
	out := make([]*instance, 0, len(n.assigned))
	for _, id := range sortedKeys(n.assigned) {
		out = append(out, n.assigned[id])
	}
	return out
}

// out says why the node takes no new work, or nothing.
func (n *node) out() string {
	switch {
	case n.silent:
		return "silent"
	case !n.heard:
		return "not heard yet"
	case !n.synced:
		return "has not reported yet" // what it still runs takes room
	case len(n.unknown) > 0:
		return "still has instances of an earlier time" // and nobody knows how large they are
	case n.suspect:
		return "connection lost"
	case n.draining:
		return "draining"
	case n.cordoned:
		return "cordoned"
	case n.info.RuntimeError != "":
		return "runtime: " + n.info.RuntimeError
	}
	return ""
}

// refresh brings the node's candidate up to date, and remembers whether there is
// more room than before for those that wait.
func (c *Core) refresh(n *node) {
	capacity := bounded(n.info.Capacity)
	old := &c.cands[n.at]
	free := capacity.Minus(n.used)
	out := n.out()
	rooms := old.Rooms
	other := len(rooms) != 1 || !slices.Equal(rooms[0].Runtimes, n.info.Runtimes) ||
		rooms[0].Arch != n.info.Arch || rooms[0].Privileged != n.info.Privileged
	more := other || old.Out != "" || free.MilliCPU > old.Free.MilliCPU || free.MemoryMB > old.Free.MemoryMB
	if more && out == "" {
		c.grown[n.info.ID] = true
	}
	if other || old.Out != out || old.Free != free || old.Capacity != capacity {
		c.aggregateChanged()
	}
	if other {
		rooms = []sched.Room{{Runtimes: n.info.Runtimes}}
	}
	rooms[0].Arch, rooms[0].Privileged = n.info.Arch, n.info.Privileged
	rooms[0].Free, rooms[0].Largest = free, free
	*old = sched.Candidate{
		ID: string(n.info.ID), Level: sched.Nodes, Out: out, Capacity: capacity, Free: free,
		Rooms: rooms, Load: len(n.assigned),
	}
}

// The most that a node may say it has, so that no lie overflows a sum.
const (
	mostMilliCPU = 1 << 30 // a million vCPUs
	mostMemoryMB = 1 << 30 // a pebibyte
)

func bounded(r api.Resources) api.Resources {
	return api.Resources{
		MilliCPU: min(max(r.MilliCPU, 0), mostMilliCPU),
		MemoryMB: min(max(r.MemoryMB, 0), mostMemoryMB),
	}
}

// touch begins a new generation of the node's desired set, once a step.
func (c *Core) touch(n *node) {
	if c.touched[n.info.ID] {
		return
	}
	c.touched[n.info.ID] = true
	n.from = n.gen
	n.gen = max(c.nextGen(), n.gen+1)
}

// flushNodes sends what this step changed of the nodes' desired sets.
func (c *Core) flushNodes() {
	for _, id := range sortedKeys(c.touched) {
		n := c.nodes[id]
		if n == nil {
			continue
		}
		if len(n.assigned) <= largeSet || n.from == 0 || len(n.put)+len(n.drop) > len(n.assigned)/2 {
			c.sendWhole(n)
		} else {
			timing := c.timing()
			d := api.Desired{Gen: n.gen, From: n.from, Digest: n.wanted, Timing: &timing}
			for _, i := range sortedKeys(n.put) {
				d.Put = append(d.Put, n.assigned[i].assignment())
			}
			d.Drop = sortedKeys(n.drop)
			n.sentAt = c.now
			c.emit(id.Addr(), d)
		}
		clear(n.put)
		clear(n.drop)
	}
	clear(c.touched)
}

func (c *Core) sendWhole(n *node) {
	timing := c.timing()
	d := api.Desired{Gen: n.gen, Digest: n.wanted, Timing: &timing}
	for _, in := range n.sorted() {
		d.Put = append(d.Put, in.assignment())
	}
	n.sentAt = c.now
	c.emit(n.info.ID.Addr(), d)
}

// timing and dead grow together with the number of nodes, so that signs of life
// cost a large cluster no more than a small one.
func (c *Core) timing() api.Timing {
	t := c.cfg.Timing
	return api.Timing{Beat: t.Beat * time.Duration(c.scale), Lease: t.Lease * time.Duration(c.scale)}
}

func (c *Core) dead() time.Duration { return c.cfg.Dead * time.Duration(c.scale) }

func (c *Core) rescale() {
	// It never shrinks: a node may still hold the longer lease.
	if s := 1 + len(c.nodes)/nodesAtBase; s > c.scale {
		c.scale = s
		c.saveMeta()
		for _, id := range sortedKeys(c.nodes) {
			c.touch(c.nodes[id])
		}
	}
}

// nodeAlive takes a sign of life. It costs the same whatever the cluster's size.
func (c *Core) nodeAlive(id api.NodeID, a api.Alive) {
	n := c.nodes[id]
	if n == nil || a.Boot < n.boot {
		return
	}
	c.boots(n, a.Boot)
	if a.Seq <= n.aliveSeq {
		return
	}
	n.aliveSeq, n.lastAlive = a.Seq, c.now
	n.cpu, n.mem = a.CPUUsed, a.MemUsed
	n.ack = max(n.ack, a.Gen)
	c.back(n)
	if a.Gen > n.gen {
		// It holds a generation that this cluster never reached: the store was restored
		// from an older copy. Go on above it.
		n.gen = a.Gen
		c.touch(n)
	}
	if (a.Gen != n.gen || a.Desired != n.wanted) && !c.touched[id] && c.now.Sub(n.sentAt) >= resend {
		c.sendWhole(n)
	}
	want := !n.synced
	if a.Observed == n.known.Toggle(n.said) {
		n.differ, n.complete = 0, true
		if a.Gen == n.gen {
			c.settleLeaving(n)
		}
	} else if n.differ++; n.differ >= 2 {
		n.differ, want = 0, true
	}
	if n.leased > 0 || want || n.stopsLeased(c) {
		c.emit(id.Addr(), api.Lease{Boot: n.boot, Seq: a.Seq, Gen: n.gen, WantWhole: want})
	}
}

// boots begins a new life of the node's engine in our books.
func (c *Core) boots(n *node, boot uint64) {
	if boot > n.boot {
		n.boot = boot
		c.newLife(n)
	}
}

func (c *Core) newLife(n *node) {
	n.reportSeq, n.aliveSeq, n.ack, n.synced, n.complete = 0, 0, 0, false, false
	c.refresh(n)
}

// nodeReport takes what a node observed. A report that is older than one that
// was taken changes nothing; what it alone said comes again with a whole one.
func (c *Core) nodeReport(r api.NodeReport) {
	n := c.nodes[r.Node]
	if n == nil || r.Boot < n.boot {
		return
	}
	c.boots(n, r.Boot)
	if r.Seq <= n.reportSeq {
		return
	}
	n.complete = r.Whole || n.complete && r.Seq == n.reportSeq+1
	n.reportSeq = r.Seq
	n.ack = max(n.ack, r.Gen)
	if r.Info != nil {
		c.nodeInfo(n, *r.Info)
	}
	if r.Whole {
		n.synced, n.differ = r.Gen >= n.must, 0
		present := make(map[api.InstanceID]bool, len(r.Observed))
		for _, o := range r.Observed {
			present[o.Instance] = true
		}
		for _, id := range sortedKeys(n.observed) {
			if !present[id] {
				n.forget(id)
			}
		}
	}
	for _, o := range r.Observed {
		c.nodeObserved(n, o)
	}
	if r.Gen == n.gen && n.complete {
		c.settleLeaving(n)
	}
	c.refresh(n)
	if n.synced && n.awaited {
		c.noLongerAwaited(n)
	}
}

func (c *Core) noLongerAwaited(n *node) {
	n.awaited = false
	if c.unheard--; c.unheard <= 0 {
		c.settle()
	}
}

// strangers bounds what a node may report beyond what it was given.
const strangers = 1000

func (c *Core) nodeObserved(n *node, o api.Observed) {
	if n.assigned[o.Instance] == nil && !n.leaving[o.Instance] && len(n.observed) > len(n.assigned)+strangers {
		return
	}
	if o.Stopped {
		n.forget(o.Instance)
	} else {
		if old, ok := n.observed[o.Instance]; ok {
			n.known = n.known.Toggle(old.Digest())
		}
		n.observed[o.Instance] = o
		n.known = n.known.Toggle(o.Digest())
		c.holdStranger(n, o.Instance)
	}
	// What a silent node said arrives late; it counts when the node is back.
	if in := n.assigned[o.Instance]; in != nil && in.Epoch == o.Epoch && !o.Stopped && !n.silent {
		c.observed(n, in, o)
	}
}

// emptied notes, for a restart too, that what leaves the node takes no room there
// any more.
func (c *Core) emptied(n *node, id api.InstanceID) {
	in := c.instances[id]
	if in == nil {
		return
	}
	for i := range in.Vacancies {
		if v := &in.Vacancies[i]; v.Node == n.info.ID && v.Room != (api.Resources{}) {
			v.Room = api.Resources{}
			c.save(in)
		}
	}
}

// holdStranger books room for what the node has and was not given, or was given
// before it fell silent.
func (c *Core) holdStranger(n *node, id api.InstanceID) {
	if n.observed[id].State == api.Completed {
		if n.hold(id, api.Resources{}); n.leaving[id] {
			n.book(id, api.Resources{})
			delete(n.unknown, id)
			c.emptied(n, id)
		}
		return
	}
	room, ok := n.room[id]
	if in := c.instances[id]; !ok && in != nil && in.Epoch.Root() == n.observed[id].Epoch.Root() {
		room, ok = in.needs(), true
	}
	if n.hold(id, room); !ok && n.leaving[id] {
		n.unknown[id] = true
	}
}

// clip bounds what a node may have stored by way of explanation.
func clip(detail string) string {
	const most = 1024
	if len(detail) <= most {
		return detail
	}
	return strings.ToValidUTF8(detail[:most], "") + "…"
}

func (n *node) forget(id api.InstanceID) {
	old, ok := n.observed[id]
	if !ok {
		return
	}
	n.known = n.known.Toggle(old.Digest())
	delete(n.observed, id)
	if n.assigned[id] == nil {
		delete(n.room, id)
	}
}

// settleLeaving frees the room of what has left the node: the node holds the
// generation that took it away, and has nothing of it any more.
func (c *Core) settleLeaving(n *node) {
	if len(n.leaving) == 0 {
		return
	}
	freed := false
	for _, id := range sortedKeys(n.leaving) {
		if _, still := n.observed[id]; still {
			continue
		}
		in := c.instances[id]
		if in != nil && slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Node == n.info.ID && v.Gen > n.ack }) {
			continue
		}
		n.release(id)
		freed = true
		if in != nil {
			c.dropVacancy(in, n.info.ID)
		}
	}
	if freed {
		c.refresh(n)
	}
}

// observed takes what the instance's own node says of its present placement.
func (c *Core) observed(n *node, in *instance, o api.Observed) {
	switch o.State {
	case api.NodeScheduled, api.Created, api.Running, api.Completed, api.Failed:
	default:
		return // not a node's to say
	}
	if in.State != o.State && !lifecycle.Leads(in.State, o.State) {
		return // from outside: not ours to panic about
	}
	if in.State == api.Completed && o.State != api.Completed {
		return // it is over; a late message does not revive it
	}
	// That the node reports this placement means that no earlier one is left.
	delete(n.unknown, in.id())
	n.room[in.id()] = in.needs()
	grew := in.Before != (api.Resources{})
	if in.Before = (api.Resources{}); o.State == api.Completed {
		n.book(in.id(), api.Resources{})
	} else {
		n.book(in.id(), in.needs())
	}
	before := in.view()
	in.State, in.Reason, in.Detail, in.Restarts, in.ExitCode = o.State, o.Reason, clip(o.Detail), o.Restarts, o.ExitCode
	if !in.Moving {
		in.Offered = false
		c.waiting.remove(in.id())
	}
	if now := in.view(); grew || now.Digest() != before.Digest() || now.Detail != before.Detail {
		c.changed(in)
	}
	c.refresh(n)
	if o.State == api.Failed && o.Reason == api.ReasonTooManyFails {
		c.escalate(in)
	}
}

// nodeWill notes that a node's connection ended. It may be back in a moment, so
// it only gets no new work until it is heard again.
func (c *Core) nodeWill(id api.NodeID) {
	if n := c.nodes[id]; n != nil && !n.suspect {
		n.suspect = true
		c.refresh(n)
	}
}

// back takes a node as alive again.
func (c *Core) back(n *node) {
	if n.heard && !n.silent && !n.suspect {
		return
	}
	first, was := !n.heard, n.silent
	n.heard, n.silent, n.suspect = true, false, false
	if was {
		c.silent--
		c.timers.Set(timerKey{timerDead, n.info.ID}, c.now.Add(c.dead()))
	}
	if was || first { // it may have fallen silent in an earlier life of ours
		c.reclaim(n)
	}
	c.refresh(n)
	if was && n.draining {
		c.evictAll(n)
	}
}

// reclaim takes a returning node's instances as its own again where they were
// not placed elsewhere meanwhile, and holds room for those that were.
func (c *Core) reclaim(n *node) {
	for _, in := range n.sorted() {
		if in.State == api.ClusterScheduled {
			c.waiting.remove(in.id())
			in.Offered = false
			c.become(in, lifecycle.NodeChosen, api.ReasonNone, "its node is back")
			if o, ok := n.observed[in.id()]; ok && o.Epoch == in.Epoch {
				c.observed(n, in, o)
			}
		}
	}
	for _, id := range sortedKeys(n.observed) {
		c.holdStranger(n, id)
	}
}

// checkSilence looks whether the node was heard since the timer was set.
func (c *Core) checkSilence(n *node) {
	if due := n.lastAlive.Add(c.dead()); due.After(c.now) {
		c.timers.Set(timerKey{timerDead, n.info.ID}, due)
		return
	}
	if n.silent {
		return
	}
	n.silent = true
	n.synced, n.complete = false, false // it may return with what it never told of
	c.silent++
	c.refresh(n)
	for _, id := range sortedKeys(n.leaving) {
		n.release(id)
		if in := c.instances[id]; in != nil {
			c.dropVacancy(in, n.info.ID)
		}
	}
	c.refresh(n)
	c.lost(n)
}

// The root is told such details, and it knows no node.
const (
	lostDetail    = "its node has not been heard"
	removedDetail = "its node was removed"
)

func (c *Core) removeNode(id api.NodeID) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	if !n.silent && n.heard && len(n.assigned)+len(n.leaving) > 0 {
		return fmt.Errorf("node %s is alive and has %d instances; drain it first: %w", id, len(n.assigned)+len(n.leaving), api.ErrConflict)
	}
	if !n.silent && c.now.Sub(n.lastAlive) < c.dead() && n.leased+len(n.leaving) > 0 {
		return fmt.Errorf("node %s may still run instances that must not run twice; try again in %s: %w", id, c.dead(), api.ErrConflict)
	}
	for _, lid := range sortedKeys(n.leaving) {
		n.release(lid)
		if in := c.instances[lid]; in != nil {
			c.dropVacancy(in, id)
		}
	}
	lost := n.sorted()
	for _, in := range lost {
		c.unassign(in, false)
	}
	c.timers.Clear(timerKey{timerDead, id})
	if n.silent {
		c.silent--
	}
	delete(c.nodes, id)
	delete(c.grown, id)
	delete(c.touched, id)
	if n.awaited {
		c.noLongerAwaited(n)
	}
	last := len(c.cands) - 1
	if n.at != last {
		c.cands[n.at] = c.cands[last]
		c.nodes[api.NodeID(c.cands[n.at].ID)].at = n.at
	}
	c.cands[last] = sched.Candidate{}
	c.cands = c.cands[:last]
	c.journal.Delete(kindNode, string(id))
	for _, in := range lost {
		if in.State == api.Completed {
			c.changed(in)
			continue
		}
		if in.State != api.ClusterScheduled {
			c.become(in, lifecycle.NodeLost, api.ReasonNodeLost, removedDetail)
		}
		c.tryPlace(in)
	}
	c.aggregateChanged()
	return nil
}

func (c *Core) noNode(id api.NodeID) error {
	known := sortedKeys(c.nodes)
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	return fmt.Errorf("cluster %s has no node %s (it has %s): %w", c.cfg.ID, id, strings.Join(names, ", "), api.ErrNotFound)
}
