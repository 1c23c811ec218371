package root

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

// cluster is what the root knows of one cluster. What is exported is saved.
type cluster struct {
	Info     api.ClusterInfo `json:"info"`
	Joined   time.Time       `json:"joined"`
	Revision api.Revision    `json:"revision"`
	Agg      api.Aggregate   `json:"-"`

	heard     bool // in this life
	silent    bool
	lastHeard time.Time
	boot, seq uint64
	ack       api.Generation // the newest that it said it holds

	gen      api.Generation // of its desired set
	from     api.Generation // before this step's changes
	floor    api.Generation // the removals since then are in log
	log      []removal
	wanted   api.Digest
	assigned map[api.InstanceID]*instance
	leaving  map[api.InstanceID]api.Generation // withdrawn at, and not confirmed
	put      map[api.InstanceID]bool
	drop     map[api.InstanceID]bool
	sentAt   time.Time

	pending   map[api.InstanceID]reservation // put there, and not in its aggregate yet
	reserved  api.Resources                  // Σ of them
	byRuntime map[string]api.Resources

	observed map[api.InstanceID]api.Digest
	known    api.Digest

	at int // its candidate
}

type removal struct {
	gen api.Generation
	id  api.InstanceID
}

type reservation struct {
	gen     api.Generation
	needs   api.Resources
	runtime string
}

// keptRemovals bounds the log that lets a cluster resume without the whole set.
const keptRemovals = 1024

func newCluster(info api.ClusterInfo) *cluster {
	return &cluster{
		Info:     info,
		assigned: map[api.InstanceID]*instance{},
		leaving:  map[api.InstanceID]api.Generation{},
		put:      map[api.InstanceID]bool{},
		drop:     map[api.InstanceID]bool{},
		pending:  map[api.InstanceID]reservation{},
		observed: map[api.InstanceID]api.Digest{},

		byRuntime: map[string]api.Resources{},
	}
}

func (c *Core) restoreCluster(d store.Doc) error {
	cl := newCluster(api.ClusterInfo{})
	if err := json.Unmarshal(d.Data, cl); err != nil {
		return err
	}
	c.addCluster(cl)
	return nil
}

func (c *Core) addCluster(cl *cluster) {
	cl.at = len(c.cands)
	c.cands = append(c.cands, sched.Candidate{})
	c.clusters[cl.Info.ID] = cl
	c.refresh(cl)
}

func (c *Core) changedCluster(cl *cluster) {
	if c.dirty.first("cluster", string(cl.Info.ID)) {
		c.dirty.clusters = append(c.dirty.clusters, cl.Info.ID)
	}
}

// touch begins a new generation of the cluster's desired set, once a step.
func (c *Core) touch(cl *cluster) {
	if !c.dirty.first("desired", string(cl.Info.ID)) {
		return
	}
	c.dirty.touched = append(c.dirty.touched, cl.Info.ID)
	cl.from = cl.gen
	cl.gen = max(c.nextGen(), cl.gen+1)
}

func (c *Core) joinCluster(info api.ClusterInfo) error {
	if cl := c.clusters[info.ID]; cl != nil {
		if cl.Info.Tenant != info.Tenant {
			return fmt.Errorf("cluster %s belongs to another tenant; choose another name: %w", info.ID, api.ErrConflict)
		}
		info.Block = cl.Info.Block
		if cl.Info != info {
			cl.Info = info
			c.changedCluster(cl)
		}
		return nil
	}
	// A block is given once: what a forgotten cluster added may still be around.
	info.Block = c.blocks
	c.blocks++
	c.journal.Put(kindMeta, metaBlocks, c.blocks)
	cl := newCluster(info)
	cl.Joined, cl.lastHeard = c.wall, c.now
	c.addCluster(cl)
	c.changedCluster(cl)
	c.touch(cl)
	cl.floor = cl.gen
	c.timers.Set(timerKey{what: timerDead, cluster: info.ID}, c.now.Add(c.cfg.Dead))
	c.event(api.Event{Kind: "cluster", Object: string(info.ID), Cluster: info.ID, Detail: "joined"})
	return nil
}

func (c *Core) forgetCluster(id api.ClusterID) error {
	cl := c.clusters[id]
	if cl == nil {
		return c.noCluster(id)
	}
	lost := sortedKeys(cl.assigned)
	leaving := sortedKeys(cl.leaving)
	for _, i := range lost {
		in := cl.assigned[i]
		in.Reason = api.ReasonClusterLost
		c.takeBack(in, cl)
	}
	delete(c.clusters, id)
	c.timers.Clear(timerKey{what: timerDead, cluster: id})
	last := len(c.cands) - 1
	if cl.at != last {
		c.cands[cl.at] = c.cands[last]
		c.clusters[api.ClusterID(c.cands[cl.at].ID)].at = cl.at
	}
	c.cands[last] = sched.Candidate{}
	c.cands = c.cands[:last]
	c.journal.Delete(kindCluster, string(id))
	c.event(api.Event{Kind: "cluster", Object: string(id), Cluster: id, Detail: "forgotten"})
	c.show(api.Change{Kind: "cluster", ID: string(id), Revision: c.nextRev()})
	for _, i := range leaving {
		switch in := c.instances[i]; {
		case in == nil:
		case in.Leaving && in.Cluster == id:
			c.remove(in)
		case in.Vacating == id:
			in.Vacating = ""
			c.changed(in)
			c.tryPlace(in)
		}
	}
	for _, i := range lost {
		in := c.instances[i]
		if in.State == api.Completed {
			c.changed(in)
			continue
		}
		c.become(in, api.Requested, api.ReasonClusterLost, "cluster "+string(id)+" was forgotten")
		c.tryPlace(in)
	}
	for _, i := range lost {
		if s := c.services[i.Service()]; s != nil {
			c.reconcile(s) // a roll-out that waited for this cluster goes on
		}
	}
	return nil
}

func (c *Core) noCluster(id api.ClusterID) error {
	var known []string
	for _, k := range sortedKeys(c.clusters) {
		known = append(known, string(k))
	}
	return fmt.Errorf("cluster %s is not known (there is %s): %w", id, strings.Join(known, ", "), api.ErrNotFound)
}

func (cl *cluster) reserve(in *instance) {
	r := reservation{gen: cl.gen, needs: in.needs(), runtime: sched.RuntimeName(in.Spec.Virtualization)}
	cl.pending[in.ID] = r
	cl.reserved = cl.reserved.Plus(r.needs)
	cl.byRuntime[r.runtime] = cl.byRuntime[r.runtime].Plus(r.needs)
}

// free gives a reservation up, and reports whether there was one.
func (cl *cluster) free(id api.InstanceID) bool {
	r, ok := cl.pending[id]
	if ok {
		cl.reserved = cl.reserved.Minus(r.needs)
		cl.byRuntime[r.runtime] = cl.byRuntime[r.runtime].Minus(r.needs)
		delete(cl.pending, id)
	}
	return ok
}

func (cl *cluster) out() string {
	switch {
	case cl.silent:
		return "silent"
	case !cl.heard:
		return "not heard yet"
	case cl.Agg.Nodes == 0:
		return "no node takes work"
	}
	return ""
}

// refresh brings the cluster's candidate up to date: its aggregate less what the
// root placed there since.
func (c *Core) refresh(cl *cluster) {
	rooms := make([]sched.Room, 0, len(cl.Agg.Slots))
	for _, s := range cl.Agg.Slots {
		free := s.Free.Minus(cl.byRuntime[s.Runtime])
		rooms = append(rooms, sched.Room{
			Runtimes: []string{s.Runtime}, Arch: s.Arch, Privileged: s.Privileged, Free: free,
			Largest: api.Resources{
				MilliCPU: min(s.Largest.MilliCPU, free.MilliCPU),
				MemoryMB: min(s.Largest.MemoryMB, free.MemoryMB),
			},
		})
	}
	c.cands[cl.at] = sched.Candidate{
		ID: string(cl.Info.ID), Level: sched.Clusters, Out: cl.out(), Capacity: cl.Agg.Capacity,
		Free: cl.Agg.Free.Minus(cl.reserved), Rooms: rooms, Load: len(cl.assigned),
	}
}

// sendChange sends what this step changed of the cluster's desired set.
func (c *Core) sendChange(cl *cluster) {
	for _, id := range sortedKeys(cl.drop) {
		cl.log = append(cl.log, removal{cl.gen, id})
	}
	if n := len(cl.log); n > keptRemovals {
		cl.floor = cl.log[n-keptRemovals-1].gen
		cl.log = slices.Clone(cl.log[n-keptRemovals:])
	}
	if cl.from == 0 {
		c.sendWhole(cl)
	} else {
		d := api.Desired{Gen: cl.gen, From: cl.from, Digest: cl.wanted, Drop: sortedKeys(cl.drop)}
		for _, id := range sortedKeys(cl.put) {
			d.Put = append(d.Put, cl.assigned[id].assignment())
		}
		cl.sentAt = c.now
		c.emit(cl.Info.ID.Addr(), d)
	}
	clear(cl.put)
	clear(cl.drop)
}

func (c *Core) sendWhole(cl *cluster) {
	d := api.Desired{Gen: cl.gen, Digest: cl.wanted}
	for _, id := range sortedKeys(cl.assigned) {
		d.Put = append(d.Put, cl.assigned[id].assignment())
	}
	cl.sentAt = c.now
	c.emit(cl.Info.ID.Addr(), d)
}

// catchUp sends all that came after a generation, or everything where the log
// does not reach back so far.
func (c *Core) catchUp(cl *cluster, since api.Generation, has api.Digest) {
	switch {
	case since > cl.gen:
		// It holds a generation that this root never reached: the store was restored
		// from an older copy. Go on above it; the new generation goes out as a whole.
		cl.gen = since
		c.touch(cl)
		cl.from = 0
		return
	case since == cl.gen && has == cl.wanted:
		return
	case since == cl.gen, since == 0, since < cl.floor:
		c.sendWhole(cl)
		return
	}
	d := api.Desired{Gen: cl.gen, From: since, Digest: cl.wanted}
	for _, id := range sortedKeys(cl.assigned) {
		if in := cl.assigned[id]; in.gen > since {
			d.Put = append(d.Put, in.assignment())
		}
	}
	seen := map[api.InstanceID]bool{}
	for _, r := range cl.log {
		if r.gen > since && cl.assigned[r.id] == nil && !seen[r.id] {
			seen[r.id] = true
			d.Drop = append(d.Drop, r.id)
		}
	}
	cl.sentAt = c.now
	c.emit(cl.Info.ID.Addr(), d)
}

func (c *Core) hello(h api.Hello) error {
	cl := c.clusters[h.Cluster]
	if cl == nil {
		return c.noCluster(h.Cluster)
	}
	c.catchUp(cl, h.Since, h.Digest)
	return nil
}

// report takes what a cluster says. One that was taken already is only answered.
func (c *Core) report(r api.Report) error {
	cl := c.clusters[r.Cluster]
	if cl == nil {
		return c.noCluster(r.Cluster)
	}
	if r.Boot < cl.boot || r.Boot == cl.boot && r.Seq <= cl.seq {
		c.emit(cl.Info.ID.Addr(), api.ReportAck{Boot: r.Boot, Seq: r.Seq, Gen: cl.gen})
		return nil
	}
	cl.boot, cl.seq, cl.ack = r.Boot, r.Seq, max(cl.ack, r.Gen)
	cl.lastHeard = c.now
	before := c.cands[cl.at]
	if cl.Agg.Nodes != r.Aggregate.Nodes {
		c.changedCluster(cl) // who watches clusters wants to see nodes come and go; the rest of it changes too often
	}
	cl.Agg = r.Aggregate
	for id, p := range cl.pending {
		if p.gen <= r.Gen {
			cl.free(id)
		}
	}
	c.heardAgain(cl)
	c.observe(cl, r)
	c.refresh(cl)
	want := cl.known != r.Known
	if !want {
		c.settleLeaving(cl, r.Gen)
	}
	if (r.Gen != cl.gen || r.Desired != cl.wanted) && c.now.Sub(cl.sentAt) >= resend && !c.dirty.seen["desired\x00"+string(r.Cluster)] {
		c.catchUp(cl, r.Gen, r.Desired)
	}
	c.emit(cl.Info.ID.Addr(), api.ReportAck{Boot: r.Boot, Seq: r.Seq, Gen: cl.gen, WantWhole: want})
	if roomier(before, c.cands[cl.at]) {
		c.retryWaiting(cl)
	}
	return nil
}

// roomier reports whether anything that did not fit before may fit now.
func roomier(before, now sched.Candidate) bool {
	if now.Out != "" {
		return false
	}
	if before.Out != "" || len(now.Rooms) > len(before.Rooms) ||
		now.Free.MilliCPU > before.Free.MilliCPU || now.Free.MemoryMB > before.Free.MemoryMB {
		return true
	}
	for i := range now.Rooms {
		was, is := &before.Rooms[i], &now.Rooms[i]
		a, b := was.Largest, is.Largest
		if b.MilliCPU > a.MilliCPU || b.MemoryMB > a.MemoryMB ||
			was.Arch != is.Arch || was.Privileged != is.Privileged || !slices.Equal(was.Runtimes, is.Runtimes) {
			return true
		}
	}
	return false
}

// observe takes the report's observations. A cluster is believed only about
// what was placed there, and about the newest placement.
func (c *Core) observe(cl *cluster, r api.Report) {
	if r.Whole {
		present := make(map[api.InstanceID]bool, len(r.Observed))
		for _, o := range r.Observed {
			present[o.Instance] = true
		}
		for _, id := range sortedKeys(cl.observed) {
			if !present[id] {
				cl.forget(id)
			}
		}
	}
	for _, o := range r.Observed {
		if o.Stopped {
			cl.forget(o.Instance)
		} else if cl.assigned[o.Instance] != nil || len(cl.observed) < len(cl.assigned)+len(cl.leaving)+keptRemovals {
			cl.forget(o.Instance)
			cl.observed[o.Instance] = o.Digest()
			cl.known = cl.known.Toggle(o.Digest())
		}
		if in := cl.assigned[o.Instance]; in != nil && o.Epoch.Root() > in.Epoch.Root() {
			c.overtaken(cl, in, o)
		}
		switch in := cl.assigned[o.Instance]; {
		case in != nil && o.Epoch.Root() == in.Epoch.Root() && o.Epoch >= in.Epoch:
			c.observed(cl, in, o)
		case in == nil && o.Local && !o.Stopped && o.State != api.Terminated:
			c.adopt(cl, o)
		}
	}
}

// mostRevision bounds what a cluster may make the root skip to, so that none can
// use the numbers up.
const mostRevision = 1 << 42

// overtaken takes that a cluster holds a placement from beyond all that this
// root remembers: its store was restored from an older copy. It goes on above,
// and believes what runs.
func (c *Core) overtaken(cl *cluster, in *instance, o api.Observed) {
	newest := o.Epoch.Root()
	if newest <= c.Revision() || newest >= mostRevision {
		return
	}
	c.counter.Raise(uint64(newest), &c.journal, kindMeta, metaCounter)
	c.touch(cl)
	cl.wanted = cl.wanted.Toggle(in.assignment().Digest())
	in.Epoch = api.EpochOf(newest, 0)
	cl.wanted = cl.wanted.Toggle(in.assignment().Digest())
	cl.put[in.ID] = true
	in.gen = cl.gen
	c.changed(in)
}

func (cl *cluster) forget(id api.InstanceID) {
	if d, ok := cl.observed[id]; ok {
		cl.known = cl.known.Toggle(d)
		delete(cl.observed, id)
	}
}

// settleLeaving forgets withdrawn instances of which the cluster, holding the
// generation that withdrew them, has nothing any more.
func (c *Core) settleLeaving(cl *cluster, gen api.Generation) {
	for _, id := range sortedKeys(cl.leaving) {
		if _, still := cl.observed[id]; still || cl.leaving[id] > gen {
			continue
		}
		delete(cl.leaving, id)
		switch in := c.instances[id]; {
		case in == nil:
		case in.Leaving && in.Cluster == cl.Info.ID:
			c.remove(in)
			c.reconcileSoon(id.Service())
		case in.Vacating == cl.Info.ID:
			in.Vacating = ""
			c.changed(in)
			c.tryPlace(in)
		}
	}
}

// observed takes what the instance's own cluster says of its present placement.
func (c *Core) observed(cl *cluster, in *instance, o api.Observed) {
	if in.State == api.Completed && o.State != api.Completed {
		return
	}
	news := in.Epoch != o.Epoch || in.Restarts != o.Restarts || !sameCode(in.ExitCode, o.ExitCode)
	in.Epoch, in.Restarts, in.ExitCode = o.Epoch, o.Restarts, o.ExitCode
	switch {
	case o.State == api.Terminated && o.Reason == api.ReasonScaledLocally:
		c.withdrawnLocally(in)
		return
	case o.HandedBack:
		c.handedBack(in, cl, o)
		return
	case in.State != o.State && !lifecycle.Leads(in.State, o.State):
		return // from outside: not ours to panic about
	}
	if in.Offered {
		in.Offered = false
		c.stopWaiting(in)
	}
	if o.State == api.Running || o.State == api.Completed {
		in.forgetRefusals()
	}
	if in.State == o.State && in.Reason == o.Reason && in.Detail == o.Detail {
		if news {
			c.changed(in)
		}
		return
	}
	c.become(in, o.State, o.Reason, o.Detail)
	if o.State == api.Running || o.State == api.Completed {
		c.reconcileSoon(in.ID.Service()) // a roll-out may go on
	}
}

func sameCode(a, b *int) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// adopt takes over an instance that a cluster's operator added while the root
// was away. One that nobody wants any more is withdrawn.
func (c *Core) adopt(cl *cluster, o api.Observed) {
	first := cl.Info.LocalNumbers()
	s := c.services[o.Instance.Service()]
	n := o.Instance.Number()
	// An operator scales what its cluster has; whoever has nothing of a service must
	// not learn its SLA by claiming so.
	if s == nil || s.app == nil || s.app.Leaving || s.instances[o.Instance] != nil || n < first || n >= first+100_000 ||
		s.peers[string(cl.Info.ID)] == 0 || s.app.Replicas[s.id] >= MaxReplicas {
		cl.sentAt = c.now
		c.emit(cl.Info.ID.Addr(), api.Desired{Gen: cl.gen, From: cl.gen, Drop: []api.InstanceID{o.Instance}, Digest: cl.wanted})
		return
	}
	in := &instance{
		ID: o.Instance, Cluster: cl.Info.ID, Epoch: o.Epoch, State: o.State, Reason: o.Reason, Detail: o.Detail,
		Spec: *s.spec, SpecRev: s.app.SpecRevs[s.id], Created: c.wall, Since: c.wall, Tries: 1,
		Placements: []api.Placement{{Epoch: o.Epoch, Cluster: cl.Info.ID, At: c.wall, Reason: api.ReasonScaledLocally}},
	}
	c.enter(in)
	c.touch(cl)
	cl.assigned[in.ID] = in
	cl.put[in.ID] = true
	cl.wanted = cl.wanted.Toggle(in.assignment().Digest())
	in.gen = cl.gen
	s.peers[string(cl.Info.ID)]++
	s.app.Replicas[s.id]++
	c.changedApp(s.app)
	c.changed(in)
	c.event(c.about(in, in.State, api.ReasonScaledLocally, "added by the operator of cluster "+string(cl.Info.ID)))
}

func (c *Core) withdrawnLocally(in *instance) {
	if s := c.services[in.ID.Service()]; s != nil && s.app != nil && s.app.Replicas[s.id] > 0 {
		s.app.Replicas[s.id]--
		c.changedApp(s.app)
	}
	c.leave(in, api.ReasonScaledLocally)
}

// heardAgain takes a cluster as alive.
func (c *Core) heardAgain(cl *cluster) {
	if cl.heard && !cl.silent {
		return
	}
	was := cl.silent
	cl.heard, cl.silent = true, false
	c.changedCluster(cl)
	if was {
		c.backFromSilence(cl)
	}
	// Roll-outs that waited for the cluster go on.
	for _, id := range sortedKeys(cl.assigned) {
		c.reconcileSoon(id.Service())
	}
}

func (c *Core) backFromSilence(cl *cluster) {
	c.timers.Set(timerKey{what: timerDead, cluster: cl.Info.ID}, c.now.Add(c.cfg.Dead))
	c.event(api.Event{Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Detail: "is heard again"})
	for _, id := range sortedKeys(cl.assigned) {
		if in := cl.assigned[id]; in.Reason == api.ReasonClusterLost {
			in.Offered = false
			c.stopWaiting(in)
			c.become(in, in.State, api.ReasonNone, "")
			cl.forget(id) // what its cluster last said was overwritten: have it say it again
		}
	}
}

// checkSilence looks whether the cluster was heard since the timer was set.
func (c *Core) checkSilence(cl *cluster) {
	if due := cl.lastHeard.Add(c.cfg.Dead); due.After(c.now) {
		c.timers.Set(timerKey{what: timerDead, cluster: cl.Info.ID}, due)
		return
	}
	if cl.silent {
		return
	}
	cl.silent = true
	c.refresh(cl)
	c.changedCluster(cl)
	c.event(api.Event{
		Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Reason: api.ReasonClusterLost,
		Detail: "has not been heard for " + c.cfg.Dead.String(),
	})
	for _, id := range sortedKeys(cl.assigned) {
		in := cl.assigned[id]
		if in.State == api.Completed {
			continue
		}
		c.become(in, in.State, api.ReasonClusterLost, "cluster "+string(cl.Info.ID)+" has not been heard")
		if in.Spec.Exclusive {
			// It may run on there, cut off from here; only its operator or its return can tell.
			continue
		}
		in.Offered = true
		c.tryPlace(in)
	}
}
