// Package cluster is the core of a cluster orchestrator. It places the instances of the
// root's desired set on nodes, detects dead nodes, places their instances again, and hands
// back instances that fit on no node. It continues to work while the root is unreachable.
//
//	c := cluster.New(cluster.Config{ID: "munich"})
//	eff := c.Step(now, cluster.Desired{Desired: set})
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
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/latency"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/restored"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/violations"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Config configures a cluster's core. Zero values are the defaults.
//
// Dead must exceed Timing.Lease by the longest time from the end of a node's lease to the
// end of its workloads: both clocks drift by up to 5 %, and a kill takes up to a second.
// The defaults are 2.5 s (Timing.Heartbeat), 5 s (Timing.Lease) and 7 s (Dead).
type Config struct {
	ID           api.ClusterID
	LocalNumbers int                // first number of local instances; see api.ClusterInfo.LocalNumbers
	Timing       wire.Timing        // of nodes; scaled up in large clusters
	Dead         time.Duration      // silence after which a node's instances are placed elsewhere
	Return       time.Duration      // added to Dead after a start, for nodes to reconnect; default 6 s
	ReportIdle   time.Duration      // initial interval of reports without changes; default 5 s
	ReportRetry  time.Duration      // a report without an answer is repeated after this time; default 3 s
	Plugin       sched.Plugin       // default rom
	Asks         string             // name of the external scheduler; empty: Plugin ranks nodes
	Location     *api.Geo           // of nodes that report none; nil: unknown
	Offer        uplink.Offer       // to the root
	Workload     placement.Workload // limits on memory and processor of one instance
	Caps         nodecaps.Policy    // limits on the resources that nodes report
	Probe        latency.Probe      // policy on probes of users that SLAs name
	Preempt      bool               // instances of lower priority may be preempted
	MovesPerHour int                // moves of an instance because of violations; default 4, below 0: none

	// The overlay network. The relay's tickets and secrets are derived from Seed, which must
	// never change.
	Seed        []byte
	Relay       string         // host:port at which nodes reach the cluster's relay; empty: none
	Unencrypted []netip.Prefix // networks on which packets between nodes are not encrypted
	Interest    time.Duration  // lifetime of a subscription that the node does not renew; default 10 min

	// Brokers are the addresses of the cluster's broker, now and after a planned switch, in
	// the order in which nodes try them (wire.Desired.Brokers). Empty: they are not sent.
	Brokers []string

	CSI []string // names of the CSI drivers whose controllers the cluster can call

	// DetachAfter is how long a CSI volume stays attached to a silent node after its dead time, so that the
	// node can write back what is cached and unmount it; default 60 s, below 0: not at all.
	DetachAfter time.Duration

	Prometheus bool // the cluster evaluates expressions
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
	c.DetachAfter = cmp.Or(c.DetachAfter, time.Minute)
	if c.Plugin == nil {
		c.Plugin = rom.Plugin{}
	}
	return c
}

// Core is a cluster's state. It is not safe for concurrent use.
type Core struct {
	cfg        Config
	fx         *effects.Sink
	members    *membership.Machine
	violations *violations.Machine
	place      *placement.Machine
	latency    *latency.Machine
	netbook    *netbook.Machine
	uplink     *uplink.Machine
	scale      *autoscale.Machine
	volumes    *volumes.Machine
	restored   *restored.Machine // not nil: the store is restored from a snapshot, and nodes get no desired sets

	// Changes that are passed to the netbook at the end of the step.
	places    map[routes.Place]bool
	instances map[api.InstanceID]bool
	// scaled are instances whose state is passed to scale in this step.
	scaled map[api.InstanceID]bool
	// watched are the objects whose views have changed in this step.
	watched struct {
		nodes     map[api.NodeID]bool
		instances map[api.InstanceID]bool
		root      bool // the connection to the root began or ended
	}
}

// New returns the core of a cluster without nodes and instances.
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
		volumes:   volumes.New(fx),
		places:    map[routes.Place]bool{},
		instances: map[api.InstanceID]bool{},
		scale:     autoscale.New(),
		scaled:    map[api.InstanceID]bool{},
	}
	c.watched.nodes, c.watched.instances = map[api.NodeID]bool{}, map[api.InstanceID]bool{}
	c.place = placement.New(placement.Config{
		Cluster: cfg.ID, LocalNumbers: cfg.LocalNumbers, Plugin: cfg.Plugin, Asks: cfg.Asks, Location: cfg.Location,
		Share: cfg.Offer.Part(), Workload: cfg.Workload, Preempt: cfg.Preempt, MovesPerHour: cfg.MovesPerHour,
		Brokers: cfg.Brokers, CSI: cfg.CSI, Prometheus: cfg.Prometheus, SaveNode: c.saveNode,
	}, fx, c.latency)
	c.rescale()
	return c
}

func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.fx.Begin(now)
	if c.restored != nil {
		err := c.stepHeld(in)
		if c.restored != nil {
			c.endHeldStep()
			c.publish()
			eff := c.fx.End()
			eff.Err = err
			return eff
		}
		in = Tick{}
	}
	c.place.Begin()
	err := in.apply(c)
	c.route()
	c.expire()
	c.autoscale()
	c.place.RunsDue()
	c.place.AskMore()
	c.place.Retry()
	c.route()
	c.flushNetwork()
	c.place.Flush()
	c.report()
	c.publish()
	eff := c.fx.End()
	eff.Err = err
	return eff
}

func (Start) apply(c *Core) error {
	c.begin()
	c.start()
	return nil
}

func (c *Core) begin() {
	// The wall clock keeps the number growing if the store was lost.
	c.fx.Boot = max(c.fx.Boot+1, uint64(max(0, c.fx.Wall.Unix())))
	c.saveMeta()
}

// start resumes nodes and instances.
func (c *Core) start() {
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

func (Tick) apply(*Core) error { return nil }

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
		case effects.Routes:
			c.netbook.RoutesDue()
		case effects.Listen:
			c.place.ListenDue(k.Instance)
		case effects.Check:
			c.checkDue()
		case effects.Relieve:
			c.relieveDue()
		case effects.Violated:
			c.judge(k.Instance)
		case effects.Search:
			c.place.RetryInstance(k.Instance)
		case effects.User:
			c.retryMeasured(c.latency.UserDue(k.Name))
		case effects.Ask:
			c.place.AskDue(k.Instance)
		case effects.Peers:
			if c.latency.ChoosePeers(k.Node) {
				c.netbook.MarkDue(k.Node)
			}
		case effects.Pairs:
			c.retryMeasured(latency.Result{Changed: c.latency.ExpirePairs()})
		case effects.Accept:
			c.unaccepted(k.Instance)
		case effects.Move:
			c.place.MoveDue(k.Instance)
		case effects.Scale: // see autoscale
		}
		c.route()
	}
}

// route passes placement's changes to the other sub-machines.
func (c *Core) route() {
	ch := c.place.Changes()
	defer c.place.ClearChanges()
	for _, id := range step.Keys(ch.Watch) {
		c.violations.Watch(id, ch.Watch[id])
	}
	for _, o := range ch.Removed {
		id := o.Instance
		c.watched.instances[id] = true
		c.violations.Drop(id)
		c.uplink.Removed(o)
		for _, p := range c.netbook.PlacesOf(id) { // on silent nodes, too
			c.places[p] = true
		}
	}
	for id := range ch.Shown {
		c.watched.instances[id] = true
		c.uplink.MarkChanged(id)
	}
	if ch.Report {
		c.uplink.Due()
	}
	c.uplink.Toggle(ch.Wanted, ch.Known)
	maps.Copy(c.places, ch.Places)
	maps.Copy(c.instances, ch.Instances)
	maps.Copy(c.scaled, ch.Instances)
	maps.Copy(c.watched.instances, ch.Instances)
	maps.Copy(c.watched.nodes, ch.Nodes)
	for id := range ch.Remeasure {
		c.netbook.MarkDue(id)
	}
	for _, s := range ch.Sums {
		c.uplink.TotalsChanged(totalsOf(s), s.NodesChanged)
	}
	for _, text := range ch.Faults {
		c.uplink.Notice(api.ReasonNoScheduler, text)
	}
	if ch.Local {
		c.saveMeta()
	}
	if ch.Values {
		c.fx.Emit(placement.ToValues, c.place.Values())
	}
	if ch.Moves {
		c.fx.Emit(placement.ToMoves, c.place.Tasks())
	}
}

// metaCluster is the key of the cluster's own document; its kind is placement.KindMeta.
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

// Restore loads the documents that an earlier process saved. It ignores documents of other
// kinds.
func (c *Core) Restore(docs []store.Doc) error {
	// Instances refer to nodes, and both refer to the counters.
	rank := map[string]int{placement.KindMeta: 1, membership.Kind: 2, placement.KindInstance: 3}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b store.Doc) int { return cmp.Compare(rank[a.Kind], rank[b.Kind]) })
	for _, d := range docs {
		var err error
		switch {
		case d.Kind == membership.Kind:
			err = c.restoreNode(d.Data)
		case d.Kind == volumes.Kind:
			var r volumes.Record
			if err = json.Unmarshal(d.Data, &r); err == nil {
				c.volumes.Restore(r)
				c.showVolume(r.ID)
			}
		case d.Kind == volumes.SnapshotKind:
			var s volumes.Snapshot
			if err = json.Unmarshal(d.Data, &s); err == nil {
				c.volumes.RestoreSnapshot(s)
			}
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
		case d.Kind == store.KindRestored:
			var of store.Restored
			if err = json.Unmarshal(d.Data, &of); err == nil {
				c.restored = restored.New(of)
			}
		case d.Kind == netbook.DocKind && d.Key == netbook.DocKey:
			err = c.netbook.Restore(d.Data)
		case d.Kind == netbook.RouteKind:
			var id api.ServiceID
			if id, err = c.netbook.RestoreRoute(d.Data); err == nil {
				c.latency.SetRemote(id, c.netbook.Remote(id))
			}
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
