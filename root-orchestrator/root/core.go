// Package root is the core of the root orchestrator. It keeps the applications of developers, ranks
// clusters by their aggregates, offers each instance to the best cluster, and places instances that
// a cluster hands back. It has no information about single nodes.
//
// The state is in sub-machines: applications, rollouts, clusters, placement, lost, netbook, addresses, values,
// volumes, custom, addons and events.
// Core passes each input to one of them and its results to the others.
//
//	c := root.New(root.Config{})
//	eff := c.Step(now, root.Apply{Tenant: "acme", Spec: sla.Applications[0]})
package root

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addresses"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/clusters"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
	"github.com/treeline-edge/treeline/root-orchestrator/root/events"
	"github.com/treeline-edge/treeline/root-orchestrator/root/lost"
	"github.com/treeline-edge/treeline/root-orchestrator/root/netbook"
	"github.com/treeline-edge/treeline/root-orchestrator/root/placement"
	"github.com/treeline-edge/treeline/root-orchestrator/root/rollouts"
	"github.com/treeline-edge/treeline/root-orchestrator/root/values"
	"github.com/treeline-edge/treeline/root-orchestrator/root/volumes"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Config configures a Core. Zero values mean the defaults.
type Config struct {
	Dead       time.Duration // silence after which a cluster's instances are placed elsewhere; default 30 s
	RetryMin   time.Duration // first pause before a cluster that refused is asked again; doubles; default 2 s
	RetryMax   time.Duration // the longest pause; default 60 s
	EventsKept int           // default 4096
	Plugin     sched.Plugin  // default rom
	// Asks is the name of the external scheduler that ranks the clusters that fit (see
	// wire.ToScheduler); "" for none. Plugin decides if it gives no valid answer in time.
	Asks string
	// MovesPerHour bounds how often an instance moves because its place violates its SLA;
	// below 0 means never, the default is 4.
	MovesPerHour int
	// Ranges are the address ranges of the network; default wire.DefaultNetRanges. They cannot
	// change after the first start: Restore then returns ErrConflict.
	Ranges wire.NetRanges
	// ClusterPercent limits the part of the instance network that one cluster gets; default 25.
	ClusterPercent int
	// TenantPercent limits the part of the semantic addresses that a tenant and the tenants below
	// it get; default 25. Lowering it takes no address away.
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

// MaxReplicas limits the instances of one service.
const MaxReplicas = applications.MaxReplicas

// Core is the root's state. It is not safe for concurrent use. Its methods are in layers, each of
// which calls only the layers below: Core takes inputs, instances changes instances, network
// updates the network, and effects collects what a step saves and sends.
type Core struct{ instances }

// state has the sub-machines. Its methods answer reads.
type state struct {
	apps      *applications.Machine
	rollouts  *rollouts.Machine
	clusters  *clusters.Machine
	placement *placement.Machine
	net       *netbook.Machine
	addresses *addresses.Registry
	events    *eventlog.Log
	values    *values.Machine
	volumes   *volumes.Machine
	custom    *custom.Machine
	addons    *addons.Machine

	copies  bool // it is that of a Copy, which knows no liveness of clusters
	counter step.Counter
	clock   step.Clock
	wall    time.Time // time of the step
	now     time.Time // time of the step without the pauses of this process; for timers
}

type effects struct {
	state
	cfg        Config
	journal    step.Journal
	send       []wire.Envelope
	eventLimit *events.Limiter
	expiry     step.Timers[api.ServiceID] // ends of times to live, on the clock of now
	lost       lost.Machine               // instances of silent clusters, until they are placed elsewhere
	reporter   api.ClusterID              // whose report is the step's input, or ""
	failed     []api.ServiceID            // whose last healthy versions are to return in this step
	orphans    []string                   // custom resources that were restored without their kind
	unfinished []addonChange              // that were restored; the first step completes them
	ending     []api.AddonID              // whose changes this step completes
	restored   *store.Restored            // what the store was restored from; not nil: clusters get no assignments
	dry        bool                       // this core is the copy of a dry run; it writes no events
}

// toCluster sends a message to a cluster at the end of the step.
func (c *effects) toCluster(id api.ClusterID, m wire.RootToCluster) { c.emit(id.Addr(), m) }

// emit sends a message to another part of the root orchestrator at the end of the step.
func (c *effects) emit(to api.Addr, msg any) {
	c.send = append(c.send, wire.Envelope{To: to, Msg: msg})
}

func (c *effects) publish(ch api.Change) { c.emit(wire.ToWatchers, ch) }

// next returns a number above all that it returned before, including those before a restart.
func (c *effects) next() uint64 { return c.counter.Next(&c.journal, kindMeta, metaCounter) }

func (c *effects) nextRev() api.Revision { return api.Revision(c.next()) }

func New(cfg Config) *Core {
	cfg = cfg.withDefaults()
	return &Core{instances{network{effects{
		cfg:        cfg,
		eventLimit: events.NewLimiter(cfg.EventsKept),
		state: state{
			events:   eventlog.NewLog(cfg.EventsKept),
			volumes:  volumes.New(),
			apps:     applications.New(),
			values:   values.New(),
			custom:   custom.New(),
			addons:   addons.New(),
			rollouts: rollouts.New(applications.VersionChanges),
			clusters: clusters.New(clusters.Config{Dead: cfg.Dead}),
			placement: placement.New(placement.Config{
				RetryMin: cfg.RetryMin, RetryMax: cfg.RetryMax, Plugin: cfg.Plugin, Asks: cfg.Asks, MovesPerHour: cfg.MovesPerHour,
			}),
			net: netbook.New(netbook.Config{Ranges: cfg.Ranges, ClusterPercent: cfg.ClusterPercent, Wait: cfg.Dead}),
		},
	}}}}
}

// Step handles one input and the timers that have expired.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.wall, c.now, c.send = now, c.clock.Observe(now, c.wake()), nil
	c.apps.Begin(c.wall)
	c.rollouts.Begin(c.now, c.wall)
	c.clusters.Begin(c.now, c.wall)
	c.placement.Begin(c.clock, c.now, c.wall)
	c.reporter = ""
	err := in.apply(c)
	c.expire()
	for _, id := range c.apps.TakeReconcile() {
		c.reconcile(id)
	}
	c.rollBack()
	for _, id := range c.placement.Retries() {
		if c.placement.Retried(id) { // moves made here free resources, which the next step offers
			c.retry(id, placement.MoreCapacity)
		}
	}
	for id, ok := c.placement.NextUnasked(); ok; id, ok = c.placement.NextUnasked() {
		c.place(id)
	}
	c.resendTargets()
	c.permitDisruptions()
	c.endNetwork()
	c.flush()
	c.endAddons()
	return step.Effects{Save: c.journal.Take(), Send: c.send, Wake: c.clock.Real(c.wake()), Err: err}
}

// start repairs changes that a crash interrupted between two saves.
func (c *Core) start() {
	c.startRestored()
	for _, id := range c.clusters.IDs() {
		c.clusters.Start(id, api.Generation(c.next()))
		c.refresh(id)
	}
	for _, id := range c.apps.Instances() {
		in := c.apps.Get(id)
		switch app, _ := c.apps.Service(id.Service()); {
		case in.Leaving && in.Cluster == "":
			c.remove(id) // its last cluster was removed
		case app == nil: // the application was not saved, or was deleted
			c.leave(id, api.ReasonDeleted)
		case in.Next == nil && (in.Cluster == "" || in.HandedBack):
			c.placement.Wait(c.facts(id))
		}
	}
	c.repairValues()
	c.finishAddons()
	for _, id := range c.apps.Services() {
		c.reconcile(id)
	}
	for _, id := range c.apps.Apps() {
		c.finishApp(id)
	}
	c.startRollOuts()
	c.startNetwork()
	if len(c.clusters.IDs()) == 0 && c.Revision() > 0 {
		c.next() // also without clusters, the saved counter says that all earlier numbers are used
	}
}

func (c *Core) wake() (at time.Time) {
	for _, t := range []time.Time{c.clusters.Next(), c.placement.Next(), c.rollouts.Next(), c.eventLimit.Next(), c.expiry.Next(), c.lost.Next()} {
		if at.IsZero() || !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	return at
}

// expire handles the timers that have expired, in the order of their times.
func (c *Core) expire() {
	for due := true; due; {
		if at, other := c.placement.Next(), c.clusters.Next(); !at.IsZero() && (other.IsZero() || !other.Before(at)) {
			due = c.placementDue()
		} else {
			due = c.clusterDue()
		}
	}
	for _, id := range c.lost.Due(c.now) {
		c.placeLost(id)
	}
	for id, ok := c.rollouts.Due(); ok; id, ok = c.rollouts.Due() {
		c.apps.ReconcileSoon(id)
	}
	for {
		id, ok := c.expiry.Pop(c.now)
		if !ok {
			break
		}
		c.expired(id)
	}
	for _, e := range c.eventLimit.Due(c.now) {
		c.writeEvent(e)
	}
}

func (c *Core) placementDue() bool {
	d, ok := c.placement.Pop(c.now)
	if !ok {
		return false
	}
	switch d.Kind {
	case placement.DueRetry, placement.DueSearch:
		if c.placement.Waits(d.Instance) {
			c.place(d.Instance)
		}
	case placement.DueAsk:
		if c.apps.Has(d.Instance) {
			choice, fault := c.placement.Unanswered(c.facts(d.Instance))
			c.answered(d.Instance, choice, fault)
		}
	case placement.DueProbe:
		c.probe(d.Service, d.Cluster)
	}
	return true
}

func (c *Core) clusterDue() bool {
	d, ok := c.clusters.Pop(c.now)
	switch d.Kind {
	case clusters.DueSilence:
		c.clusterSilent(d.Cluster)
	case clusters.DueAge:
		c.refresh(d.Cluster)
	case clusters.DueTrust:
		c.refresh(d.Cluster)
		c.event(clusterEvent(d.Cluster, api.ReasonNone, "takes new instances again"))
		c.retry(d.Cluster, placement.MoreCapacity)
	}
	return ok
}

// flush saves what the step changed and publishes it to watchers.
func (c *Core) flush() {
	for _, id := range c.clusters.TakeChanged() {
		r := c.clusters.Saved(id, c.nextRev())
		r.Shares = c.net.Shares(id)
		c.journal.Put(kindCluster, string(id), r)
		v, _ := c.Cluster(id)
		c.publish(api.Change{Kind: "cluster", ID: string(id), Revision: r.Revision, Object: v})
	}
	c.flushAddons()
	c.flushCustom()
	// Before the instances that refer to new versions.
	for _, k := range c.values.TakeChanged() {
		if c.values.Get(k) != nil {
			o := c.values.Saved(k, c.nextRev())
			c.journal.Put(KindValues, k.String(), o)
			v, _ := c.values.View(k)
			c.publish(api.Change{Kind: string(k.Kind), ID: string(k.ID), Tenant: v.Tenant, Revision: o.Revision, Object: v})
		}
	}
	apps, instances := c.apps.TakeChanged()
	for _, id := range apps {
		if c.apps.App(id) != nil {
			c.journal.Put(kindApp, string(id), c.apps.SavedApp(id, c.nextRev()))
		}
	}
	for _, id := range instances {
		if c.apps.Has(id) {
			in := c.apps.SavedInstance(id, c.nextRev())
			c.journal.Put(kindInstance, string(id), in)
			c.publish(api.Change{Kind: "instance", ID: string(id), Tenant: id.Tenant(), Revision: in.Revision, Object: c.view(in)})
		}
	}
	c.flushRollOuts()
	for _, id := range apps {
		if a, ok := c.App(id); ok {
			c.publish(api.Change{Kind: "app", ID: string(id), Tenant: a.Tenant, Revision: a.Revision, Object: a})
		}
	}
	for _, id := range c.clusters.TakeTouched() {
		msg, put := c.clusters.Update(id)
		c.sendDesired(id, msg, put)
	}
}

// The kinds of the root's documents, and the keys of the documents of kindMeta.
const (
	kindApp      = "app"
	kindInstance = "instance"
	kindCluster  = "cluster"
	kindEvent    = "event"
	kindRollOut  = "rollout"
	kindMeta     = "meta"
	metaCounter  = "revision"
	metaBlocks   = "blocks"
)

// Restore reads what the root saved before a restart. It must come before the first Step. It
// ignores documents of other kinds.
func (c *Core) Restore(docs []store.Doc) error {
	rank := map[string]int{store.KindRestored: 1, kindMeta: 1, kindCluster: 2, kindApp: 3, kindInstance: 4, kindEvent: 5, kindAddress: 6, KindValues: 7, kindVolume: 3, kindSnapshot: 3, kindRollOut: 8, kindCustomKind: 9, kindCustom: 10, kindAddon: 11, kindAddonChange: 12}
	docs = slices.DeleteFunc(slices.Clone(docs), func(d store.Doc) bool { return rank[d.Kind] == 0 })
	slices.SortStableFunc(docs, func(a, b store.Doc) int { return cmp.Compare(rank[a.Kind], rank[b.Kind]) })
	for _, d := range docs {
		if err := c.restore(d); err != nil {
			return fmt.Errorf("restore %s %s: %w", d.Kind, d.Key, err)
		}
		c.journal.Restored(d)
	}
	c.deleteEvents(c.events.Restored())
	c.deleteOrphans()
	return nil
}

func (c *Core) restore(d store.Doc) error {
	if d.Kind == kindMeta {
		switch d.Key {
		case metaCounter:
			return c.counter.Restore(d.Data)
		case metaNetwork:
			return c.restoreNetwork(d.Data)
		case metaBlocks:
			return restoreAs(d, c.clusters.RestoreBlocks)
		}
		return nil
	}
	if d.Kind == store.KindRestored {
		return restoreAs(d, func(r store.Restored) { c.restored = &r })
	}
	if err := c.initNetwork(); err != nil {
		return err
	}
	switch d.Kind {
	case kindCluster:
		return restoreAs(d, func(r clusters.Record) {
			c.clusters.Restore(r)
			c.addCluster(r.Info.ID, r.Shares)
		})
	case kindApp:
		return restoreAs(d, func(a applications.App) {
			c.apps.RestoreApp(&a)
			c.setApp(a.ID, nil)
			for _, id := range step.Keys(a.Addresses) {
				a.Addresses[id] = c.addresses.Restore(id, a.Addresses[id])
			}
		})
	case kindVolume:
		return restoreAs(d, c.volumes.Restore)
	case kindSnapshot:
		return restoreAs(d, c.volumes.RestoreSnapshot)
	case kindRollOut:
		return restoreAs(d, c.rollouts.Restore)
	case kindInstance:
		return restoreAs(d, func(in applications.Instance) { c.restoreInstance(&in) })
	case kindEvent:
		slot, err := strconv.Atoi(d.Key)
		if err != nil {
			return err
		}
		return restoreAs(d, func(e api.Event) { c.events.Restore(slot, e) })
	case KindValues:
		return restoreAs(d, c.values.Restore)
	case kindCustomKind:
		return restoreAs(d, c.custom.RestoreKind)
	case kindCustom:
		return c.restoreCustom(d)
	case kindAddon:
		return restoreAs(d, c.addons.Restore)
	case kindAddonChange:
		return restoreAs(d, func(ch addonChange) { c.unfinished = append(c.unfinished, ch) })
	case kindAddress:
		a, err := netip.ParseAddr(d.Key)
		if err != nil {
			return err
		}
		return restoreAs(d, func(r addresses.Resting) { c.addresses.Rest(r, []netip.Addr{a}) })
	}
	return nil
}

// restoreAs decodes a document and passes it to fn.
func restoreAs[T any](d store.Doc, fn func(T)) error {
	var v T
	if err := json.Unmarshal(d.Data, &v); err != nil {
		return err
	}
	fn(v)
	return nil
}

func (c *Core) restoreInstance(in *applications.Instance) {
	c.apps.RestoreInstance(in, c.clusters.Known)
	c.findVolumes(in.ID)
	c.eventLimit.AddInstance(in.ID)
	c.placement.Add(in.ID)
	c.values.Pin(in.ID, in.Values)
	for _, at := range in.Stopping {
		c.clusters.Leave(at, in.ID)
	}
	switch {
	case !c.clusters.Known(in.Cluster):
	case in.Leaving:
		c.clusters.Leave(in.Cluster, in.ID)
	default:
		for _, at := range in.Clusters() {
			c.clusters.RestorePut(at, in.ID, in.Digest(at))
			c.eventLimit.Assigned(c.now, at, in.ID.Tenant(), 1)
			c.placement.Count(in.ID, at, 1)
		}
	}
	c.placement.Locate(facts(in))
}
