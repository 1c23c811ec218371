// Package overlay is the core of a netmanager. It assigns addresses to the node's instances, subscribes
// at the cluster to the resources that they use, chooses the backends of each service's flows, and
// chooses the path to each peer. While the cluster is disconnected, it continues with the resources that
// it has.
//
// The core routes inputs to machines, which own the state, and their results to other
// machines or adapters:
//
//	endpoints      attached workloads, their addresses and ports
//	services       routes and sources; the service of each address, which services may call each other
//	subscriptions  what the instances use, and the session with the cluster
//	balance        backends and weights of semantic addresses
//	demand         sleeping services that packets wait for
//	peers          other nodes, their subnets and paths
//	kernelpath     paths to peers that need no tunnel
//	paths          paths to a peer inside the tunnel; run by netmanager/pathmanager
//	measure        round trips and the node's coordinate
//	notice         what nodes report to each other about their instances
//	table          what the data plane has
//
// Adapters configure the kernel (netmanager/dataplane and link), reach peers (netmanager/tunnel) and the
// cluster. They carry out orders in sequence. If the plane is new, or its last change failed, its adapter
// replaces the contents with View.Plane. Changes emitted before that may still be applied afterwards.
//
//	c := overlay.New(overlay.Config{Node: plane.Node{VXLAN: 4789}})
//	err := c.Restore(docs)
//	c.Step(now, overlay.Start{})
//	eff := c.Step(now, overlay.Miss{Local: client, Remote: semantic})
package overlay

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
	"github.com/treeline-edge/treeline/netmanager/overlay/demand"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
	"github.com/treeline-edge/treeline/netmanager/overlay/table"
)

// Config configures a Core. Zero values mean the defaults.
type Config struct {
	plane.Node     // Ranges and Subnet come from the lease; names: "tl", "tltun", "tlhold"
	MTU        int // of attached instances: 1400

	Quarantine       time.Duration // how long a freed address is not assigned again: 2 min
	Idle             time.Duration // until an unused subscription is dropped: 5 min
	Negative         time.Duration // how long a refusal is valid without asking again: 5 s
	Poll             time.Duration // between two polls of the plane's counters: 60 s
	MaxSubscriptions int           // in all: 16,000, which fit one message with names of the maximum length
	MaxOpen          int           // open subscriptions of one service: 256
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "tl")
	c.Tunnel = cmp.Or(c.Tunnel, "tltun")
	c.Queue = cmp.Or(c.Queue, "tlhold")
	c.MTU = cmp.Or(c.MTU, 1400)
	c.Quarantine = cmp.Or(c.Quarantine, 2*time.Minute)
	c.Idle = cmp.Or(c.Idle, 5*time.Minute)
	c.Negative = cmp.Or(c.Negative, 5*time.Second)
	c.Poll = cmp.Or(c.Poll, time.Minute)
	c.MaxSubscriptions = cmp.Or(c.MaxSubscriptions, 16000)
	c.MaxOpen = cmp.Or(c.MaxOpen, 256)
	return c
}

// answerTime is how long a draining instance may take to answer a flow. Flows without an answer then end,
// because the instance may have died.
const answerTime = 700 * time.Millisecond

// Core decides for one node's overlay network. It is not safe for concurrent use.
type Core struct {
	state
	table   *table.Table
	demands *demand.Machine
	retries step.Timers[netip.Addr]       // when to end the unanswered flows of draining instances
	whole   interest.Cursor[interest.Key] // progress of a full update that the cluster sends in parts
	journal step.Journal                  // of the kinds meta and lease
	send    []wire.Envelope
	late    []wire.Envelope // orders that follow the plane's change
	err     error           // of the input of this step
}

// New returns a core without state.
func New(cfg Config) *Core {
	cfg = cfg.withDefaults()
	return &Core{
		state: state{
			cfg:       cfg,
			endpoints: endpoints.New(cfg.Quarantine),
			services:  services.New(),
			subs: subscriptions.New(subscriptions.Config{
				Idle: cfg.Idle, Negative: cfg.Negative, Poll: cfg.Poll, Quarantine: cfg.Quarantine, Max: cfg.MaxSubscriptions, MaxOpen: cfg.MaxOpen,
			}),
			balance:    balance.New(),
			peers:      peers.New(),
			kernel:     kernelpath.New(cfg.VXLAN),
			measure:    measure.New(),
			received:   notice.NewReceiver(),
			roundTrips: measure.NewServices(),
			notices:    notice.NewSender(),
		},
		table:   table.New(),
		demands: demand.New(),
	}
}

// Step applies an input and handles everything that is due.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.now, c.send, c.late = now, nil, nil
	c.err = nil
	in.apply(c)
	c.expire()
	for k := c.subs.Excess(); k != nil; k = c.subs.Excess() {
		c.unsubscribe(*k)
	}
	removed, changes := c.peers.Sweep()
	for _, k := range removed {
		c.received.Remove(k)
		c.notices.Remove(k)
		c.applyKernel(c.kernel.Remove(c.now, k))
	}
	c.applyPeers(changes)
	if c.notices.Changed() {
		c.sendNotice(c.notices.Publish(c.now, c.View().reachable(true)))
	}
	c.flush()
	c.report()
	save := slices.Concat(c.journal.Take(), c.endpoints.Save(), c.services.Save(), c.peers.Save(), c.subs.Save(), c.kernel.Save(), c.received.Save())
	return step.Effects{Save: save, Send: c.send, Wake: c.next(), Err: c.err}
}

// apply begins a process lifetime. It emits no plane.Change, because the adapter sets a new plane to
// Plane. The tunnel gets all peers.
func (Start) apply(c *Core) {
	// The clock makes the number grow even if the store was lost.
	c.boot = max(c.boot+1, uint64(max(0, c.now.Unix())))
	c.saveMeta()
	c.table.Touched.All, c.table.Touched.Silent = true, true
	if c.lease != nil {
		c.emit(ToTunnel, TunnelSelf{*c.lease})
	}
	c.emit(ToTunnel, TunnelCoord{c.measure.Coordinate()})
	inUse := c.peers.Start()
	c.renewNotices(c.endpoints.Start(c.now))
	c.received.Start(c.now)
	c.subs.Start(c.now)
	c.kernel.Start(c.now, c.boot)
	for _, k := range inUse {
		c.emitLate(ToTunnel, TunnelMeasure{k})
	}
}

// next returns when the next timer is due; zero: never.
func (c *Core) next() time.Time {
	return step.Earliest(c.subs.Next(), c.endpoints.Next(), c.kernel.Next(), c.balance.Next(), c.retries.Next(), c.measure.Next(),
		c.demands.Next(), c.notices.Next(), c.received.Next())
}

// expire handles all timers that are due, the earliest first.
func (c *Core) expire() {
	for at := c.next(); !at.IsZero() && !at.After(c.now); at = c.next() {
		switch at {
		case c.subs.Next():
			c.subscriptionDue(c.subs.Expire(c.now))
		case c.endpoints.Next():
			c.endpoints.Expire(c.now)
		case c.kernel.Next():
			c.applyKernel(c.kernel.Expire(c.now))
		case c.balance.Next():
			if id, _ := c.balance.Expire(c.now); c.services.Has(id) {
				c.weigh(id, api.PeerKey{}, true)
			}
		case c.retries.Next():
			c.retry()
		case c.demands.Next():
			if k, over := c.demands.Expire(c.now); over {
				c.emitLate(ToQueue, Refuse{Remote: k.Address})
			}
		case c.measure.Next():
			c.applyMeasure(c.measure.Expire(c.now))
		case c.notices.Next():
			c.sendNotice(c.notices.Repeat(c.now, c.View().reachable(true)))
		default:
			c.applyMarks(c.received.Expire(c.now))
		}
	}
}

// retry ends the TCP flows that a draining instance has not answered, unless it accepts flows again.
// Clients retransmit, and may reach another instance.
func (c *Core) retry() {
	addr, _ := c.retries.Pop(c.now)
	draining := false
	if a, ok := c.endpoints.At(addr); ok {
		draining = !a.Accepting()
	} else if k, ok := c.peers.At(addr); ok {
		_, draining = c.received.Get(k, addr)
	}
	if draining {
		c.table.Touched.Retry.Add(addr)
	}
}

func (c *Core) retryUnanswered(a netip.Addr) { c.retries.Set(a, c.now.Add(answerTime)) }

func (c *Core) emit(to api.Addr, msg any) {
	c.send = append(c.send, wire.Envelope{To: to, Msg: msg, Volatile: volatile(msg)})
}

// emitLate emits an order that requires the plane's change of this step.
func (c *Core) emitLate(to api.Addr, msg any) {
	c.late = append(c.late, wire.Envelope{To: to, Msg: msg, Volatile: volatile(msg)})
}
