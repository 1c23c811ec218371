// Package root is the core of the root orchestrator: it keeps what developers
// asked for, ranks clusters by their aggregates, offers each instance down the
// list, and takes back what a cluster cannot place. It knows clusters, never nodes.
//
//	c := root.New(root.Config{})
//	eff := c.Step(now, root.Apply{Tenant: "acme", Spec: sla.Applications[0]})
package root

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Config is what the root's core needs to know. Zero values mean the defaults.
type Config struct {
	Dead       time.Duration // silence after which a cluster's instances are placed elsewhere: 30 s
	RetryMin   time.Duration // before a cluster that refused an instance is asked again: 2 s, doubling
	RetryMax   time.Duration // up to: 60 s
	EventsKept int           // 4096
	Plugin     sched.Plugin  // rom
	// Asks names the scheduler outside of the core that ranks the clusters that fit
	// (api.ToScheduler); Plugin decides where it does not answer well and in time.
	Asks string
	// MovesPerHour bounds how often an instance moves because its place breaks its SLA: 4; below 0 never.
	MovesPerHour int
	// Ranges are the network's, for the installation's whole life: api.DefaultNetRanges
	// at the first start, what they were at a later one. Restore refuses others.
	Ranges api.NetRanges
	// ClusterPercent is how much of the instance network one cluster gets at most: 25.
	ClusterPercent int
	// TenantPercent is how much of the services' addresses one tenant gets at most, with
	// the tenants below it: 25. What it has beyond, as after a change of this, it keeps.
	TenantPercent int
}

func (c Config) withDefaults() Config {
	c.Dead = cmp.Or(c.Dead, 30*time.Second)
	c.RetryMin = cmp.Or(c.RetryMin, 2*time.Second)
	c.RetryMax = cmp.Or(c.RetryMax, time.Minute)
	c.EventsKept = cmp.Or(c.EventsKept, 4096)
	c.MovesPerHour = cmp.Or(c.MovesPerHour, 4)
	c.ClusterPercent = cmp.Or(c.ClusterPercent, 25)
	c.TenantPercent = cmp.Or(c.TenantPercent, 25)
	if c.Plugin == nil {
		c.Plugin = rom.Plugin{}
	}
	return c
}

// MaxReplicas bounds the instances of one service.
const MaxReplicas = 10_000

// resend is how soon a desired set is sent again to a cluster that does not hold it.
const resend = time.Second

// Core is the root's state. It has one owner.
type Core struct {
	cfg       Config
	apps      map[api.AppID]*app
	services  map[api.ServiceID]*service
	instances map[api.InstanceID]*instance
	clusters  map[api.ClusterID]*cluster
	table     sched.Table // one candidate per cluster
	waiting   queue
	questions questions
	links     links
	stuck     stuck
	roomier   map[api.ClusterID]bool // where this step gave a reservation up
	events    events
	speaker   api.ClusterID // whose word the step takes; "": no cluster's
	net       network
	dry       bool                       // a sketch
	doubts    map[api.InstanceID][]Doubt // of a sketch

	counter step.Counter
	blocks  int // given to clusters so far
	journal step.Journal
	timers  step.Timers[timerKey]
	dirty   dirty

	clock step.Clock
	wall  time.Time // the step's time, for people
	now   time.Time // less the pauses of this process, for silence
	send  []api.Envelope
}

type timerKey struct {
	what     timerKind
	cluster  api.ClusterID
	instance api.InstanceID
	service  api.ServiceID
	tenant   api.Tenant
}

type timerKind uint8

const (
	timerDead         timerKind = iota // look whether the cluster is silent
	timerRetry                         // try to place the instance again
	timerAge                           // what is known of the cluster is older by a step
	timerAsk                           // the scheduler outside has not answered about the instance
	timerProbe                         // ask the cluster again that refused what the service asks
	timerTell                          // clusters are to be told where a service's links lead
	timerTellOfOne                     // there is room for an event about the instance
	timerTellOfTenant                  // there is room for an event about the topmost tenant's instances by the cluster
	timerTellOfAll                     // there is room for an event by the cluster
	timerSearch                        // the search for a place that keeps the instance's links is over
)

// dirty is what a step changed and its end saves and shows, once each and in
// the order of the first change.
type dirty struct {
	apps      []api.AppID
	instances []api.InstanceID
	clusters  []api.ClusterID
	touched   []api.ClusterID // whose desired set changed
	services  []api.ServiceID // to be reconciled, once for all that the step brought
	seen      map[string]bool
}

func (d *dirty) first(kind, id string) bool {
	key := kind + "\x00" + id
	if d.seen[key] {
		return false
	}
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[key] = true
	return true
}

// New is the core of a root that nothing is known of yet.
func New(cfg Config) *Core {
	return &Core{
		cfg:       cfg.withDefaults(),
		events:    events{of: map[api.ClusterID]*clusterEvents{}},
		apps:      map[api.AppID]*app{},
		services:  map[api.ServiceID]*service{},
		instances: map[api.InstanceID]*instance{},
		clusters:  map[api.ClusterID]*cluster{},
		roomier:   map[api.ClusterID]bool{},
		questions: newQuestions(),
		net:       newNetwork(),
	}
}

// Step takes one input.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.wall, c.now, c.send, c.stuck = now, c.clock.Observe(now, c.timers.Next()), nil, stuck{}
	c.speaker = ""
	err := c.take(in)
	c.expire()
	c.reconcileChanged()
	c.retryRoomier()
	c.askMore()
	c.tellLinked()
	c.network()
	c.flush()
	return step.Effects{Save: c.journal.Take(), Send: c.send, Wake: c.clock.Real(c.timers.Next()), Err: err}
}

func (c *Core) take(in Input) error {
	switch in := in.(type) {
	case Start:
		c.start()
	case Apply:
		return c.apply(in)
	case Scale:
		return c.scale(in)
	case DeleteApp:
		return c.deleteApp(in)
	case JoinCluster:
		info, bad, _ := bounds.Take(in.Info)
		if err := bad.Err(); err != nil {
			return fmt.Errorf("join cluster: %w", err)
		}
		return c.joinCluster(info, in.Open)
	case SetGrant:
		return c.setGrant(in)
	case ForgetCluster:
		return c.forgetCluster(in.ID)
	case Hello:
		h, bad, ok := bounds.Take(in.Hello)
		if c.refuseValues(in.Hello.Cluster, bad); !ok {
			return bad.Err()
		}
		return c.hello(h)
	case Report:
		c.speaker = in.Report.Cluster
		r, bad, ok := bounds.Take(in.Report)
		if c.refuseValues(in.Report.Cluster, bad); !ok {
			return bad.Err()
		}
		return c.report(r)
	case Ranked:
		c.ranked(in.Answer)
	}
	return nil
}

// start repairs what a crash between two saves left half done.
func (c *Core) start() {
	for _, id := range step.Keys(c.clusters) {
		cl := c.clusters[id]
		cl.lastHeard = c.now
		cl.gen = c.nextGen() // above all that an earlier life sent
		cl.floor = cl.gen
		for leaving := range cl.leaving {
			cl.leaving[leaving] = cl.gen
		}
		for _, in := range cl.assigned {
			in.putAt(cl)
		}
		c.timers.Set(timerKey{what: timerDead, cluster: id}, c.now.Add(c.cfg.Dead))
		c.refresh(cl)
	}
	for _, id := range step.Keys(c.instances) {
		in := c.instances[id]
		switch s := c.services[id.Service()]; {
		case in.Leaving && in.Cluster == "":
			c.remove(in) // the last of it went with its cluster
		case s == nil || s.app == nil:
			// Its application was not saved, or is gone.
			c.leave(in, api.ReasonDeleted)
		case in.Next != nil:
		case in.Cluster == "" || in.Offered:
			c.waiting.add(in)
		}
	}
	for _, id := range step.Keys(c.services) {
		c.reconcile(c.services[id])
	}
	for _, id := range step.Keys(c.apps) {
		c.finishApp(c.apps[id])
	}
	c.startNetwork()
}

func (c *Core) expire() {
	for {
		k, ok := c.timers.Pop(c.now)
		if !ok {
			return
		}
		switch k.what {
		case timerDead:
			if cl := c.clusters[k.cluster]; cl != nil {
				c.checkSilence(cl)
			}
		case timerRetry, timerSearch:
			if in := c.instances[k.instance]; in != nil && c.waiting.has(k.instance) {
				c.tryPlace(in)
			}
		case timerAge:
			if cl := c.clusters[k.cluster]; cl != nil {
				c.age(cl)
			}
		case timerAsk:
			if in := c.instances[k.instance]; in != nil {
				c.unanswered(in)
			}
		case timerProbe:
			if s, cl := c.services[k.service], c.clusters[k.cluster]; s != nil && cl != nil {
				c.probe(s, cl)
			}
		case timerTell:
			c.links.told[k.service] = true
		case timerTellOfOne:
			if in := c.instances[k.instance]; in != nil {
				c.tellOfOne(in)
			}
		case timerTellOfTenant:
			if cl := c.clusters[k.cluster]; cl != nil {
				c.tellOfTenant(cl, k.tenant)
			}
		case timerTellOfAll:
			if cl := c.clusters[k.cluster]; cl != nil {
				c.tellOfAll(cl)
			}
		}
	}
}

// retryRoomier gives the room of reservations that were given up to what waits.
// What moves by that frees room in turn, for the next step.
func (c *Core) retryRoomier() {
	for _, id := range step.Keys(c.roomier) {
		delete(c.roomier, id)
		if cl := c.clusters[id]; cl != nil {
			c.retryWaiting(cl, roomier)
		}
	}
}

// flush saves and shows what the step changed: what something hangs on first.
func (c *Core) flush() {
	d := c.dirty
	c.dirty = dirty{}
	for _, id := range d.clusters {
		if cl := c.clusters[id]; cl != nil {
			cl.Revision = c.nextRev()
			c.journal.Put(kindCluster, string(id), cl)
			v, _ := c.Cluster(id)
			c.show(api.Change{Kind: "cluster", ID: string(id), Revision: cl.Revision, Object: v})
		}
	}
	for _, id := range d.apps {
		if a := c.apps[id]; a != nil {
			a.Revision = c.nextRev()
			c.journal.Put(kindApp, string(id), a)
		}
	}
	for _, id := range d.instances {
		if in := c.instances[id]; in != nil {
			in.Revision = c.nextRev()
			c.journal.Put(kindInstance, string(id), in)
			c.show(api.Change{Kind: "instance", ID: string(id), Tenant: id.Tenant(), Revision: in.Revision, Object: c.view(in)})
		}
	}
	for _, id := range d.apps {
		if a := c.apps[id]; a != nil {
			c.show(api.Change{Kind: "app", ID: string(id), Tenant: a.Tenant, Revision: a.Revision, Object: c.viewApp(a)})
		}
	}
	for _, id := range d.touched {
		if cl := c.clusters[id]; cl != nil {
			c.sendChange(cl)
		}
	}
}

func (c *Core) emit(to api.Addr, msg any) {
	c.send = append(c.send, api.Envelope{To: to, Msg: msg})
}

func (c *Core) show(ch api.Change) { c.emit(api.ToWatchers, ch) }

func (c *Core) next() uint64 { return c.counter.Next(&c.journal, kindMeta, metaCounter) }

func (c *Core) nextRev() api.Revision { return api.Revision(c.next()) }

func (c *Core) nextGen() api.Generation { return api.Generation(c.next()) }

// The root's documents.
const (
	kindApp      = "app"
	kindInstance = "instance"
	kindCluster  = "cluster"
	kindEvent    = "event"
	kindMeta     = "meta"
	metaCounter  = "revision"
	metaBlocks   = "blocks"
)

// Restore takes in what an earlier life saved. Kinds that are not the core's are
// left alone.
func (c *Core) Restore(docs []store.Doc) error {
	rank := map[string]int{kindMeta: 1, kindCluster: 2, kindApp: 3, kindInstance: 4, kindEvent: 5, kindAddress: 6}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b store.Doc) int { return cmp.Compare(rank[a.Kind], rank[b.Kind]) })
	for _, d := range docs {
		var err error
		if d.Kind != kindMeta {
			err = c.defaultRanges()
		}
		switch {
		case err != nil:
		case d.Kind == kindMeta && d.Key == metaCounter:
			err = c.counter.Restore(d.Data)
		case d.Kind == kindMeta && d.Key == metaBlocks:
			err = json.Unmarshal(d.Data, &c.blocks)
		case d.Kind == kindMeta && d.Key == metaNetwork:
			err = c.restoreNetwork(d.Data)
		case d.Kind == kindAddress:
			err = c.restoreAddress(d)
		case d.Kind == kindCluster:
			err = c.restoreCluster(d)
		case d.Kind == kindApp:
			err = c.restoreApp(d)
		case d.Kind == kindInstance:
			err = c.restoreInstance(d)
		case d.Kind == kindEvent:
			err = c.restoreEvent(d)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("restore %s %s: %w", d.Kind, d.Key, err)
		}
		c.journal.Restored(d)
	}
	c.orderEvents()
	return nil
}
