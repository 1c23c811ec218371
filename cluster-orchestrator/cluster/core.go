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
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/nodecaps"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/rollcall"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/rounds"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
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
	LocalNumbers int             // the first instance number that this cluster may give: api.ClusterInfo.LocalNumbers
	Timing       api.Timing      // for nodes; grows with their number
	Dead         time.Duration   // silence after which a node's instances are placed elsewhere
	Return       time.Duration   // what nodes may take to come back after the cluster's own start, beyond Dead: 6 s
	ReportIdle   time.Duration   // between reports when nothing changes, at first: 5 s
	ReportRetry  time.Duration   // how long a report may stay without an answer: 3 s
	Plugin       sched.Plugin    // rom
	Asks         string          // the scheduler outside that ranks nodes, by name; empty: Plugin does
	Location     *api.Geo        // of nodes that do not say where they are; nil: not known
	Offer        Offer           // to the root
	Workload     Workload        // memory and processor of one instance
	Caps         nodecaps.Policy // limits what nodes report
	Probe        Probe           // of users that SLAs name
	Preempt      bool            // an urgent instance may have less urgent ones make way
	MovesPerHour int             // that violations may cause, of one instance: 4; below 0: none

	// Of the overlay network. Seed is the cluster's own, kept for its life: from it
	// come the tickets and secrets of its relay.
	Seed     []byte
	Relay    string         // host:port under which nodes reach the cluster's relay; empty: there is none
	Clear    []netip.Prefix // networks of the operator on which nodes may talk without encryption
	Interest time.Duration  // how long a node's want lasts without being named again: 10 min

	// Brokers are the addresses of the cluster's broker, now and after a planned switch, in
	// the order in which nodes try them (api.Desired.Brokers). Empty: they are not sent.
	Brokers []string
}

func (c Config) withDefaults() Config {
	c.Timing.Beat = cmp.Or(c.Timing.Beat, 2500*time.Millisecond)
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

const (
	resend      = time.Second // how soon a desired set is sent again to a node that does not hold it
	largeSet    = 32          // sets above this travel as changes
	nodesAtBase = 2000        // nodes that the configured beat serves; more slow it down
)

// Core is a cluster's state. It has one owner.
type Core struct {
	cfg       Config
	boot      uint64
	nodes     map[api.NodeID]*node
	instances map[api.InstanceID]*instance
	services  map[api.ServiceID]*service
	table     sched.Table   // one candidate per node
	capacity  api.Resources // of all nodes that are not silent
	used      api.Resources // of that
	version   uint64        // of the table: it grows with each change
	changes   uint64        // of the room that the root is told of
	agg       aggregated
	short     shortlist
	reasons   reasons
	apps      kin                  // services
	linkers   kin                  // services whose SLAs name others of their application
	stirring  uint64               // grows with each change of where something is that others are measured against
	stirs     map[api.AppID]uint64 // as of the last one in an application with such
	placed    [8]int               // instances on nodes, by urgency
	lapsed    []api.NodeID         // that take no work any more and on which room is reserved

	areas     areas
	users     map[string]*user
	probes    map[uint64]string // users by the probes that have no answer
	lastProbe uint64
	rounds    *rounds.Line // users that are being measured, and that wait for it
	asks      asks
	notices   notices

	refusedValues uint64 // of nodes' messages
	tied          [checkSlots]map[api.InstanceID]bool
	slot          int
	pairs         pairs

	broken  step.Queue[api.InstanceID] // whose SLAs were violated for too long, to be relieved at a pace
	waiting step.Queue[api.InstanceID] // instances that fit nowhere, in the order they came
	held    []api.InstanceID           // to be placed again at a pace, after half the cluster fell silent
	beyond  map[api.InstanceID]bool    // went beyond the root's share
	widened bool                       // since then more of that is free
	noWay   misfit                     // beyond it, and nobody makes way
	vain    map[api.InstanceID]bool    // others made way in this step, and it did not help
	grown   map[api.NodeID]bool
	vacated map[api.InstanceID]bool           // an earlier placement ended in this step
	left    map[api.ServiceID][]api.ServiceID // an instance left its node; those that it may have kept out
	touched map[api.NodeID]bool
	scale   int // what the timing is multiplied with; it never shrinks
	unheard int // nodes that have not reported since the start
	silent  int // nodes that are silent
	roll    rollcall.Roll
	settled bool

	root    root
	net     network
	counter step.Counter
	local   int // instance numbers given by this cluster so far
	journal step.Journal
	timers  step.Timers[timerKey]

	clock step.Clock
	wall  time.Time // the step's time, for people
	now   time.Time // less the pauses of this process, for silence and leases
	send  []api.Envelope
}

type timerKey struct {
	what     timerKind
	node     api.NodeID
	instance api.InstanceID
	name     string // a user, or the key of an ask
}

type timerKind uint8

const (
	timerDead     timerKind = iota // look whether the node is silent
	timerReport                    // report to the root
	timerPace                      // place the next of those that are held
	timerSettle                    // stop waiting for nodes that were not heard since the start
	timerAck                       // ask what the node holds of the network
	timerInterest                  // drop what the node no longer wants
	timerLease                     // give subnets to nodes that named none since the start
	timerListen                    // a new placement has run for long without listening
	timerCheck                     // look at the next tenth of those whose place may violate their SLA
	timerRelieve                   // relieve the next of those whose SLAs are violated
	timerViolated                  // a violation was borne for as long as the SLA says
	timerSearch                    // placing has searched for as long as the SLA says
	timerUser                      // a user's round of probes ends, or the next begins
	timerAsk                       // the scheduler outside has had its time
	timerPeers                     // give a node others to measure
	timerPairs                     // forget what was measured between services too long ago
	timerAccept                    // check whether the node accepted the placement
)

// New is the core of a cluster that nothing is known of yet.
func New(cfg Config) *Core {
	cfg = cfg.withDefaults()
	return &Core{
		cfg:       cfg,
		nodes:     map[api.NodeID]*node{},
		instances: map[api.InstanceID]*instance{},
		services:  map[api.ServiceID]*service{},
		apps:      kin{},
		linkers:   kin{},
		stirs:     map[api.AppID]uint64{},
		users:     map[string]*user{},
		probes:    map[uint64]string{},
		rounds:    rounds.New(maxRounds, tenantRounds),
		asks:      asks{open: map[string]*ask{}},
		beyond:    map[api.InstanceID]bool{},
		grown:     map[api.NodeID]bool{},
		vain:      map[api.InstanceID]bool{},
		vacated:   map[api.InstanceID]bool{},
		left:      map[api.ServiceID][]api.ServiceID{},
		pairs:     pairs{},
		touched:   map[api.NodeID]bool{},
		root:      newRoot(),
		net:       newNetwork(cfg.ID),
		scale:     1,
		settled:   true,
	}
}

// Step takes one input.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.wall, c.now, c.send = now, c.clock.Observe(now, c.timers.Next()), nil
	clear(c.vain)
	err := c.take(in)
	c.expire()
	c.askMore()
	c.retryWaiting()
	c.network()
	c.flushNodes()
	c.report()
	return step.Effects{Save: c.journal.Take(), Send: c.send, Wake: c.clock.Real(c.timers.Next()), Err: err}
}

func (c *Core) take(in Input) error {
	switch in := in.(type) {
	case Start:
		c.start()
	case Desired:
		c.desired(in.Desired)
	case Ack:
		c.acked(in.ReportAck)
	case RootLink:
		c.rootLink(in.Up)
	case RootNet:
		c.rootNet(in.RootNet)
	case NetUp:
		return within(c, in.Node, in.NetUp, func(up api.NetUp) { c.netUp(in.Node, up) })
	case JoinNode:
		info, bad, _ := bounds.Take(in.Info)
		if err := bad.Err(); err != nil {
			return fmt.Errorf("join node: %w", err)
		}
		c.joinNode(info, in.Token)
	case NodeReport:
		return within(c, in.Node, in.NodeReport, c.nodeReport)
	case NodeAlive:
		return within(c, in.Node, in.Alive, func(a api.Alive) { c.nodeAlive(in.Node, a) })
	case NodeWill:
		c.nodeWill(in.Node)
	case NodeProbed:
		return within(c, in.Node, in.Probed, func(p api.Probed) { c.nodeProbed(in.Node, p) })
	case Ranked:
		c.ranked(in.Answer)
	case Cordon:
		return c.cordon(in.Node, in.On)
	case CapNode:
		return c.capNode(in.Node, in.Caps)
	case Drain:
		return c.drain(in.Node, in.Force)
	case RemoveNode:
		return c.removeNode(in.Node, false)
	case PurgeNode:
		return c.purgeNode(in.Node)
	case NodePurging:
		return c.nodePurging(in.Node, in.NodePurging)
	case NodeLeft:
		return c.nodeLeft(in.Node)
	case LocalScale:
		return c.localScale(in.Service, in.Replicas)
	}
	return nil
}

func (c *Core) start() {
	// The wall clock only keeps the number growing where the store was lost.
	c.boot = max(c.boot+1, uint64(max(0, c.wall.Unix())))
	c.saveMeta()
	c.rescale()
	for _, id := range step.Keys(c.nodes) {
		n := c.nodes[id]
		// Nodes that were cut off for long try again at their slowest.
		n.lastAlive, n.awaited = c.now.Add(c.cfg.Return), true
		c.timers.Set(timerKey{what: timerDead, node: id}, c.now.Add(c.dead()))
		c.sayCapped(n)
		c.touch(n) // numbers of an earlier life may have been lost: begin anew above them
		if n.leased > 0 {
			c.emit(id.Addr(), api.Lease{Answer: true}) // its lease has run since before this process started
		}
		c.refresh(n)
	}
	for _, id := range step.Keys(c.instances) {
		in := c.instances[id]
		in.Vacancies = slices.DeleteFunc(in.Vacancies, func(v vacancy) bool { return c.nodes[v.Node] == nil })
		for i := range in.Vacancies {
			in.Vacancies[i].Gen = c.nodes[in.Vacancies[i].Node].gen
		}
		if in.Moving || in.Node == "" && !in.Leaving && !in.Withdrawn && !in.Bound {
			c.waiting.Add(id)
		}
		c.made(in)
		c.finish(in)
	}
	c.settled, c.unheard = false, len(c.nodes)
	c.timers.Set(timerKey{what: timerSettle}, c.now.Add(c.dead()))
	if c.unheard == 0 {
		c.settle()
	}
	c.startNetwork()
	c.timers.Set(timerKey{what: timerReport}, c.now)
	c.hello(c.root.gen)
}

func (c *Core) expire() {
	for {
		k, ok := c.timers.Pop(c.now)
		if !ok {
			return
		}
		switch k.what {
		case timerDead:
			if n := c.nodes[k.node]; n != nil {
				c.checkSilence(n)
			}
		case timerReport:
			c.root.due = true
		case timerPace:
			c.pace()
		case timerSettle:
			c.settle()
		case timerAck:
			if n := c.nodes[k.node]; n != nil {
				c.unacknowledged(n)
			}
		case timerInterest:
			if n := c.nodes[k.node]; n != nil {
				c.interestOver(n)
			}
		case timerLease:
			c.leaseWaiting()
		case timerListen:
			c.overdue(k.instance)
		case timerCheck:
			c.check()
		case timerRelieve:
			c.relieveNext()
		case timerViolated:
			if in := c.instances[k.instance]; in != nil {
				c.judge(in)
			}
		case timerSearch:
			if in := c.instances[k.instance]; in != nil {
				c.searched(in)
			}
		case timerUser:
			c.userDue(k.name)
		case timerAsk:
			c.askDue(k.name)
		case timerPeers:
			if n := c.nodes[k.node]; n != nil {
				c.choosePeers(n)
			}
		case timerPairs:
			c.forgetPairs()
		case timerAccept:
			if in := c.instances[k.instance]; in != nil {
				c.unaccepted(in)
			}
		}
	}
}

// settle ends the time after a start in which the cluster did not know yet what
// its nodes have room for.
func (c *Core) settle() {
	if c.settled {
		return
	}
	c.settled = true
	c.reasons = reasons{} // nobody made way before
	c.timers.Clear(timerKey{what: timerSettle})
	for _, id := range c.inTurn() {
		if in := c.instances[id]; in != nil && in.Node == "" {
			c.tryPlace(in)
		}
	}
	for _, id := range step.Keys(c.nodes) {
		if n := c.nodes[id]; n.draining && n.heard {
			c.evictAll(n)
		}
	}
}

func (c *Core) emit(to api.Addr, msg any) {
	c.send = append(c.send, api.Envelope{To: to, Msg: msg})
}

func (c *Core) nextGen() api.Generation {
	return api.Generation(c.counter.Next(&c.journal, kindMeta, metaCounter))
}

// The cluster's documents: one per node and instance, and a few of its own.
const (
	kindInstance = "instance"
	kindNode     = "node"
	kindMeta     = "meta"
	metaCluster  = "cluster"
	metaCounter  = "generation"
)

type metaRecord struct {
	Boot  uint64         `json:"boot"`
	Gen   api.Generation `json:"gen"` // of the root's desired set
	Local int            `json:"local,omitempty"`
	Scale int            `json:"scale,omitempty"`
}

func (c *Core) saveMeta() {
	c.journal.Put(kindMeta, metaCluster, metaRecord{Boot: c.boot, Gen: c.root.gen, Local: c.local, Scale: c.scale})
}

// Restore takes in what an earlier life saved. Kinds that are not the core's are
// left alone.
func (c *Core) Restore(docs []store.Doc) error {
	// Instances refer to nodes, and both to the counters.
	rank := map[string]int{kindMeta: 1, kindNode: 2, kindInstance: 3}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b store.Doc) int { return cmp.Compare(rank[a.Kind], rank[b.Kind]) })
	for _, d := range docs {
		var err error
		switch {
		case d.Kind == kindNode:
			err = c.restoreNode(d)
		case d.Kind == kindInstance:
			err = c.restoreInstance(d)
		case d.Kind == kindMeta && d.Key == metaCounter:
			err = c.counter.Restore(d.Data)
		case d.Kind == kindMeta && d.Key == metaCluster:
			var m metaRecord
			if err = json.Unmarshal(d.Data, &m); err == nil {
				c.boot, c.root.gen, c.local, c.scale = m.Boot, m.Gen, m.Local, max(m.Scale, 1)
			}
		case d.Kind == kindMeta && d.Key == metaNetwork:
			err = c.restoreNetwork(d.Data)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("restore %s %s: %w", d.Kind, d.Key, err)
		}
		c.journal.Restored(d)
	}
	return nil
}
