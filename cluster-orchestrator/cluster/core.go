// Package cluster is the core of a cluster orchestrator: it keeps what the root
// wants of its cluster on the nodes that it has, notices nodes that fall silent,
// places again what they had, and hands back what fits nowhere. It goes on
// without its root.
//
//	c := cluster.New(cluster.Config{ID: "munich"})
//	eff := c.Step(now, cluster.Desired{Desired: want})
package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/latency"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/violations"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Config is what a cluster's core needs to know. Zero values mean the defaults.
//
// Dead must be longer than Timing.Lease by all that may lie between a node's
// lease and its workloads' end: clocks that drift apart by 5 % each, and a kill
// of up to a second (see node.link). The defaults are 2.5, 5 and 7 seconds.
type Config struct {
	ID           api.ClusterID
	LocalNumbers int                // the first instance number that this cluster may give: api.ClusterInfo.LocalNumbers
	Timing       wire.Timing        // for nodes; grows with their number
	Dead         time.Duration      // silence after which a node's instances are placed elsewhere
	Return       time.Duration      // what nodes may take to come back after the cluster's own start, beyond Dead: 6 s
	ReportIdle   time.Duration      // between reports when nothing changes, at first: 5 s
	ReportRetry  time.Duration      // how long a report may stay without an answer: 3 s
	Plugin       sched.Plugin       // rom
	Asks         string             // the scheduler outside that ranks nodes, by name; empty: Plugin does
	Location     *api.Geo           // of nodes that do not say where they are; nil: not known
	Offer        uplink.Offer       // to the root
	Workload     placement.Workload // memory and processor of one instance
	Caps         nodecaps.Policy    // limits what nodes report
	Probe        latency.Probe      // of users that SLAs name
	Preempt      bool               // an urgent instance may have less urgent ones make way
	MovesPerHour int                // that violations may cause, of one instance: 4; below 0: none

	// Of the overlay network. Seed is the cluster's own, kept for its life: from it
	// come the tickets and secrets of its relay.
	Seed        []byte
	Relay       string         // host:port under which nodes reach the cluster's relay; empty: there is none
	Unencrypted []netip.Prefix // networks of the operator on which nodes may talk without encryption
	Interest    time.Duration  // how long a node's want lasts without being named again: 10 min

	// Brokers are the addresses of the cluster's broker, now and after a planned switch, in
	// the order in which nodes try them (wire.Desired.Brokers). Empty: they are not sent.
	Brokers []string
}

func (c Config) withDefaults() Config {
	c.Timing.Heartbeat = cmp.Or(c.Timing.Heartbeat, 2500*time.Millisecond)
	c.Timing.Lease = cmp.Or(c.Timing.Lease, 5*time.Second)
	c.Dead = cmp.Or(c.Dead, 7*time.Second)
	c.Return = cmp.Or(c.Return, 6*time.Second)
	c.ReportIdle = cmp.Or(c.ReportIdle, 5*time.Second)
	c.ReportRetry = cmp.Or(c.ReportRetry, 3*time.Second)
	c.Interest = cmp.Or(c.Interest, 10*time.Minute)
	c.MovesPerHour = cmp.Or(c.MovesPerHour, 4)
	if c.Plugin == nil {
		c.Plugin = rom.Plugin{}
	}
	return c
}

// Core is a cluster's state. It has one owner.
type Core struct {
	cfg        Config
	fx         *effects.Sink
	members    *membership.Machine
	violations *violations.Machine
	place      *placement.Machine
	latency    *latency.Machine
	netbook    *netbook.Machine

	uplink *uplink.Machine

	// What the netbook must be told at the end of the step.
	places    map[routes.Place]bool
	instances map[api.InstanceID]bool
}

// New is the core of a cluster that nothing is known of yet.
func New(cfg Config) *Core {
	cfg = cfg.withDefaults()
	fx := &effects.Sink{}
	c := &Core{
		cfg:        cfg,
		fx:         fx,
		members:    membership.New(membership.Config{Cluster: cfg.ID, Timing: cfg.Timing, Dead: cfg.Dead, Return: cfg.Return, Caps: cfg.Caps}, fx),
		violations: violations.New(fx),
		latency:    latency.New(fx, cfg.ID, cfg.Probe),
		netbook: netbook.New(fx, netbook.Config{
			Cluster: cfg.ID, Seed: cfg.Seed, Relay: cfg.Relay, Unencrypted: cfg.Unencrypted, Interest: cfg.Interest, Return: cfg.Return,
		}),
		uplink:    uplink.New(fx, uplink.Config{Cluster: cfg.ID, Idle: cfg.ReportIdle, Retry: cfg.ReportRetry, Offer: cfg.Offer}),
		places:    map[routes.Place]bool{},
		instances: map[api.InstanceID]bool{},
	}
	c.place = placement.New(placement.Config{
		Cluster: cfg.ID, LocalNumbers: cfg.LocalNumbers, Plugin: cfg.Plugin, Asks: cfg.Asks, Location: cfg.Location,
		Share: cfg.Offer.Part(), Workload: cfg.Workload, Preempt: cfg.Preempt, MovesPerHour: cfg.MovesPerHour,
		Brokers: cfg.Brokers, SaveNode: c.saveNode,
	}, fx, c.latency)
	c.rescale()
	return c
}

// Step takes one input.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.fx.Begin(now)
	c.place.Begin()
	err := in.apply(c)
	c.route()
	c.expire()
	c.place.AskMore()
	c.place.Retry()
	c.route()
	c.flushNetwork()
	c.place.Flush()
	c.report()
	eff := c.fx.End()
	eff.Err = err
	return eff
}

func (c *Core) start() {
	// The wall clock only keeps the number growing where the store was lost.
	c.fx.Boot = max(c.fx.Boot+1, uint64(max(0, c.fx.Wall.Unix())))
	c.saveMeta()
	c.rescale()
	c.latency.Start()
	c.members.Start()
	for _, n := range c.members.All() {
		c.sync(n.Info.ID)
		c.noticeCaps(n.Info.ID)
		c.place.StartNode(n.Info.ID)
	}
	c.place.Start()
	c.settleIfAllReported()
	c.networkChanged(c.netbook.Start())
	c.uplink.Start()
}

// expire goes on with what is due.
func (c *Core) expire() {
	for {
		k, ok := c.fx.Timers.Pop(c.fx.Now)
		if !ok {
			return
		}
		switch k.Kind {
		case effects.Dead:
			c.checkSilence(k.Node)
		case effects.Report:
			c.uplink.Due()
		case effects.Pace:
			c.place.Pace()
		case effects.Settle:
			c.place.Settle()
		case effects.Ack:
			c.netbook.AckDue(k.Node)
		case effects.Interest:
			c.netbook.InterestDue(k.Node)
		case effects.Lease:
			c.networkChanged(c.netbook.LeasesDue())
		case effects.Listen:
			c.place.ListenDue(k.Instance)
		case effects.Check:
			c.checkDue()
		case effects.Relieve:
			c.relieveDue()
		case effects.Violated:
			c.judge(k.Instance)
		case effects.Search:
			c.place.Searched(k.Instance)
		case effects.User:
			c.measured(c.latency.UserDue(k.Name))
		case effects.Ask:
			c.place.AskDue(k.Instance)
		case effects.Peers:
			if c.latency.ChoosePeers(k.Node) {
				c.netbook.Tell(k.Node)
			}
		case effects.Pairs:
			c.measured(latency.Result{Changed: c.latency.ExpirePairs()})
		case effects.Accept:
			c.unaccepted(k.Instance)
		}
		c.route()
	}
}

// route passes on what placement has changed.
func (c *Core) route() {
	ch := c.place.Changes()
	defer c.place.ClearChanges()
	for _, id := range step.Keys(ch.Watch) {
		c.violations.Watch(id, ch.Watch[id])
	}
	for _, o := range ch.Removed {
		id := o.Instance
		c.violations.Drop(id)
		c.uplink.Removed(o)
		for _, p := range c.netbook.PlacesOf(id) { // on silent nodes, too
			c.places[p] = true
		}
	}
	for id := range ch.Shown {
		c.uplink.Show(id)
	}
	if ch.Report {
		c.uplink.Due()
	}
	c.uplink.Toggle(ch.Wanted, ch.Known)
	maps.Copy(c.places, ch.Places)
	maps.Copy(c.instances, ch.Instances)
	for id := range ch.Tell {
		c.netbook.Tell(id)
	}
	for _, s := range ch.Sums {
		c.uplink.RoomChanged(roomOf(s), s.Much)
	}
	for _, text := range ch.Faults {
		c.uplink.Notice(api.ReasonNoScheduler, text)
	}
	if ch.Local {
		c.saveMeta()
	}
}

// metaCluster is the key of the cluster's own document, of kind placement.KindMeta.
const metaCluster = "cluster"

type metaRecord struct {
	Boot  uint64         `json:"boot"`
	Gen   api.Generation `json:"gen"` // of the root's desired set
	Local int            `json:"local,omitempty"`
	Scale int            `json:"scale,omitempty"`
}

func (c *Core) saveMeta() {
	c.fx.Journal.Put(placement.KindMeta, metaCluster, metaRecord{Boot: c.fx.Boot, Gen: c.uplink.Gen(), Local: c.place.Local(), Scale: c.members.Scale()})
}

// Restore takes in what an earlier life saved. Kinds that are not the core's are
// left alone.
func (c *Core) Restore(docs []store.Doc) error {
	// Instances refer to nodes, and both to the counters.
	rank := map[string]int{placement.KindMeta: 1, membership.Kind: 2, placement.KindInstance: 3}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b store.Doc) int { return cmp.Compare(rank[a.Kind], rank[b.Kind]) })
	for _, d := range docs {
		var err error
		switch {
		case d.Kind == membership.Kind:
			err = c.restoreNode(d.Data)
		case d.Kind == placement.KindInstance:
			err = c.place.Restore(d.Data)
		case d.Kind == placement.KindMeta && d.Key == placement.KeyCounter:
			err = c.place.RestoreCounter(d.Data)
		case d.Kind == placement.KindMeta && d.Key == metaCluster:
			var m metaRecord
			if err = json.Unmarshal(d.Data, &m); err == nil {
				c.fx.Boot = m.Boot
				c.uplink.Restore(m.Gen)
				c.place.SetLocal(m.Local)
				c.members.SetScale(m.Scale)
			}
		case d.Kind == netbook.DocKind && d.Key == netbook.DocKey:
			err = c.netbook.Restore(d.Data)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("restore %s %s: %w", d.Kind, d.Key, err)
		}
		c.fx.Journal.Restored(d)
	}
	c.route()
	return nil
}
