// Package node is the core of a node engine: it compares what its cluster wants
// with what its runtime has and orders the difference. It goes on without its
// cluster, adopts what it finds after a restart, and ends nothing but what is
// not wanted, or what must not outlive the node's lease.
//
//	c := node.New(node.Config{ID: "n7"})
//	eff := c.Step(now, node.Desired{Desired: want})
package node

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
)

// Config is what a node's core needs to know. Zero durations and counts mean
// the defaults.
type Config struct {
	ID          api.NodeID
	Timing      api.Timing    // until the cluster says otherwise: 2.5 s and 5 s
	BackoffMin  time.Duration // pause before the first restart: 1 s
	BackoffMax  time.Duration // longest pause: 60 s
	StableAfter time.Duration // a workload that ran this long starts its backoff anew: 60 s
	MaxFailures int           // failures in a row that are reported as too many: 5
	Linger      time.Duration // for which what has completed stays on the network: 60 s, in which what it sent last gets through
}

func (c Config) withDefaults() Config {
	c.Timing.Beat = orDefault(c.Timing.Beat, 2500*time.Millisecond)
	c.Timing.Lease = orDefault(c.Timing.Lease, 5*time.Second)
	c.BackoffMin = orDefault(c.BackoffMin, time.Second)
	c.BackoffMax = orDefault(c.BackoffMax, time.Minute)
	c.StableAfter = orDefault(c.StableAfter, time.Minute)
	c.MaxFailures = orDefault(c.MaxFailures, 5)
	c.Linger = orDefault(c.Linger, time.Minute)
	return c
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Core is a node's state. It has one owner.
type Core struct {
	cfg     Config
	info    api.NodeInfo
	boot    uint64
	gen     api.Generation
	timing  api.Timing
	works   map[api.InstanceID]*work
	wanted  api.Digest // of the assignments that are wanted
	known   api.Digest // of all observations
	said    api.Digest // of info
	usage   Usage
	link    link
	brokers []string // that the cluster named last
	dial    *Dial    // that was sent to the dialer last; nil: none
	journal step.Journal
	timers  step.Timers[timerKey]
	purge   bool // the cluster removes the node with its data, see purge.go
	blind   bool // the runtime does not answer, or has not listed its workloads in this life yet

	// unclaimed are workloads that the runtime had before the first desired set
	// arrived: a node that lost its store must not end what its cluster still wants.
	unclaimed map[api.InstanceID]api.WorkloadEvent
	// leaving are placements that nobody's work stands for and that are being stopped,
	// with the devices that they have until they are gone.
	leaving map[api.Key][]string

	now  time.Time
	send []api.Envelope
}

type timerKey struct {
	what     timerKind
	instance api.InstanceID
}

type timerKind uint8

const (
	timerBeat  timerKind = iota // send a sign of life
	timerLease                  // the lease ends
	timerWork                   // an instance's pause is over
)

// New is the core of a node that nothing is known of yet.
func New(cfg Config) *Core {
	cfg = cfg.withDefaults()
	return &Core{
		cfg:       cfg,
		timing:    cfg.Timing,
		works:     map[api.InstanceID]*work{},
		unclaimed: map[api.InstanceID]api.WorkloadEvent{},
		leaving:   map[api.Key][]string{},
		link:      newLink(),
	}
}

// Step takes one input.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.now, c.send = now, nil
	switch in := in.(type) {
	case Start:
		c.start(in)
	case Info:
		c.describe(in.Info)
		c.link.wantWhole = true
		switch {
		case in.Info.RuntimeError != "":
			c.loseSight()
		case in.Fresh:
			c.regainSight(in.Found)
		}
		c.missDevices()
	case Desired:
		c.desired(in.Desired)
	case Lease:
		c.lease(in.Lease)
	case Link:
		c.linked(in.Up)
	case Workload:
		if in.Phase == api.WorkloadGone {
			delete(c.leaving, in.Key)
		}
		if w := c.works[in.Instance]; w != nil {
			c.happened(w, in.WorkloadEvent)
		} else {
			c.happenedUnclaimed(in.WorkloadEvent)
		}
	case Usage:
		c.usage = in
	case Brokers:
		if c.learnBrokers(in.URLs) {
			c.saveMeta()
		}
	case Tick:
	}
	c.expire()
	c.report()
	return step.Effects{Save: c.journal.Take(), Send: c.send, Wake: c.timers.Next()}
}

// Instances lists what the node has, in the order of their ids.
func (c *Core) Instances() []api.Instance {
	var out []api.Instance
	for _, id := range step.Keys(c.works) {
		w := c.works[id]
		o := w.observed
		out = append(out, api.Instance{
			ID: id, Service: id.Service(), Number: id.Number(), State: o.State, Reason: o.Reason,
			Detail: o.Detail, Node: c.cfg.ID, Epoch: o.Epoch, Restarts: o.Restarts, Failures: o.Failures, ExitCode: o.ExitCode,
			Spec: w.assignment.SpecRev, Leaving: !w.wanted, Devices: w.devices,
		})
	}
	return out
}

// Gen is the generation of the desired set that the node holds.
func (c *Core) Gen() api.Generation { return c.gen }

// Digests are those of the desired set and of the observations.
func (c *Core) Digests() (desired, observed api.Digest) { return c.wanted, c.known }

// describe notes what the node is.
func (c *Core) describe(info api.NodeInfo) {
	info.ID, info.Brokers = c.cfg.ID, c.brokers
	c.info, c.said = info, info.Digest()
}

func (c *Core) expire() {
	for {
		k, ok := c.timers.Pop(c.now)
		if !ok {
			return
		}
		switch k.what {
		case timerBeat:
			c.beat()
		case timerLease:
			c.leaseEnded()
		case timerWork:
			if w := c.works[k.instance]; w != nil {
				c.pauseOver(w)
			}
		}
	}
}

func (c *Core) emit(to api.Addr, msg any) {
	c.send = append(c.send, api.Envelope{To: to, Msg: msg})
}

// emitVolatile is for what hangs on nothing that is saved.
func (c *Core) emitVolatile(to api.Addr, msg any) {
	c.send = append(c.send, api.Envelope{To: to, Msg: msg, Volatile: true})
}

// The node's documents: one per instance, and one for itself.
const (
	kindWork = "work"
	kindMeta = "meta"
	metaNode = "node"
)

type metaRecord struct {
	Boot   uint64         `json:"boot"`
	Gen    api.Generation `json:"gen"`
	Timing api.Timing     `json:"timing"`

	Brokers []string `json:"brokers,omitempty"`
	Purge   bool     `json:"purge,omitempty"`
}

func (c *Core) saveMeta() {
	c.journal.Put(kindMeta, metaNode, metaRecord{Boot: c.boot, Gen: c.gen, Timing: c.timing, Brokers: c.brokers, Purge: c.purge})
}

// Restore takes in what an earlier life saved. Kinds that are not the node's are
// left alone.
func (c *Core) Restore(docs []store.Doc) error {
	for _, d := range docs {
		var err error
		switch d.Kind {
		case kindWork:
			err = c.restoreWork(d)
		case kindMeta:
			if d.Key != metaNode {
				continue
			}
			var m metaRecord
			if err = json.Unmarshal(d.Data, &m); err == nil {
				c.boot, c.gen, c.brokers, c.purge = m.Boot, m.Gen, m.Brokers, m.Purge
				if m.Timing.Beat > 0 {
					c.timing = m.Timing
				}
			}
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
