// Package node is the core of a node engine. It compares the desired set of its cluster
// with the workloads of its runtime and orders the difference. It works without its
// cluster and adopts running workloads after a restart. It stops only workloads that are
// not desired, and exclusive ones when the node's lease ends.
//
//	c := node.New(node.Config{ID: "n7"})
//	eff := c.Step(now, node.Desired{Desired: want})
package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Config configures a node's core. Zero durations and counts mean the defaults.
type Config struct {
	ID          api.NodeID
	Timing      wire.Timing   // until the cluster sends its own: 2.5 s and 5 s
	BackoffMin  time.Duration // pause before the first restart: 1 s
	BackoffMax  time.Duration // longest pause: 60 s
	StableAfter time.Duration // a workload that ran this long has its backoff reset: 60 s
	MaxFailures int           // failures in a row that are reported as too many: 5
	Linger      time.Duration // how long a completed workload keeps its address, for its last packets: 60 s
}

func (c Config) withDefaults() Config {
	c.Timing.Heartbeat = cmp.Or(c.Timing.Heartbeat, 2500*time.Millisecond)
	c.Timing.Lease = cmp.Or(c.Timing.Lease, 5*time.Second)
	c.BackoffMin = cmp.Or(c.BackoffMin, time.Second)
	c.BackoffMax = cmp.Or(c.BackoffMax, time.Minute)
	c.StableAfter = cmp.Or(c.StableAfter, time.Minute)
	c.MaxFailures = cmp.Or(c.MaxFailures, 5)
	c.Linger = cmp.Or(c.Linger, time.Minute)
	return c
}

// Core is a node's state. It is not safe for concurrent use.
type Core struct {
	cfg            Config
	info           api.NodeInfo
	boot           uint64
	gen            api.Generation
	timing         wire.Timing
	works          map[api.InstanceID]*work
	desiredDigest  api.Digest // of the desired assignments
	observedDigest api.Digest // of all observations
	infoDigest     api.Digest // of info
	usage          Usage
	link           link
	brokers        []string // from the cluster's last message that named any
	dial           *Dial    // last one sent to the dialer; nil: none
	journal        step.Journal
	timers         step.Timers[timerKey]
	purge          bool // the cluster removes the node with its data, see purge.go
	runtimeSilent  bool // the runtime does not answer, or has not listed its workloads since the start

	// unclaimed are workloads that the runtime had before the first desired set arrived.
	// A node that lost its store must not stop workloads that its cluster still wants.
	unclaimed map[api.InstanceID]wire.WorkloadEvent
	// leaving are placements that are being stopped and have no entry in works, with their devices.
	leaving map[wire.Key][]string

	now  time.Time
	send []wire.Envelope
}

type timerKey struct {
	what     timerKind
	instance api.InstanceID
}

type timerKind uint8

const (
	timerHeartbeat timerKind = iota // send a heartbeat
	timerLease                      // the lease ends
	timerWork                       // an instance's backoff ends
	timerDeadline                   // an instance takes longer than its deadline
)

func New(cfg Config) *Core {
	cfg = cfg.withDefaults()
	return &Core{
		cfg:       cfg,
		timing:    cfg.Timing,
		works:     map[api.InstanceID]*work{},
		unclaimed: map[api.InstanceID]wire.WorkloadEvent{},
		leaving:   map[wire.Key][]string{},
		link:      newLink(),
	}
}

func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.now, c.send = now, nil
	in.apply(c)
	c.expire()
	c.report()
	return step.Effects{Save: c.journal.Take(), Send: c.send, Wake: c.timers.Next()}
}

// Instances returns the node's instances, sorted by id.
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

func (c *Core) Gen() api.Generation { return c.gen }

// Digests returns the digests of the desired set and of the observations.
func (c *Core) Digests() (desired, observed api.Digest) { return c.desiredDigest, c.observedDigest }

// infoChanged handles a change of the node's resources or runtime.
func (c *Core) infoChanged(in Info) {
	c.describe(in.Info)
	c.link.sendWhole = true
	switch {
	case in.Info.RuntimeError != "":
		c.runtimeDown()
	case in.Fresh:
		c.runtimeUp(in.Found)
	}
	c.revokeLostDevices()
}

// volumesChanged reports a change of the node's local volumes to the cluster.
func (c *Core) volumesChanged(all []api.NodeVolume) {
	info := c.info
	info.Volumes = all
	c.describe(info)
	c.link.sendWhole = true
}

func (c *Core) describe(info api.NodeInfo) {
	info.ID, info.Brokers = c.cfg.ID, c.brokers
	c.info, c.infoDigest = info, info.Digest()
}

func (c *Core) expire() {
	for {
		k, ok := c.timers.Pop(c.now)
		if !ok {
			return
		}
		switch k.what {
		case timerHeartbeat:
			c.heartbeat()
		case timerLease:
			c.leaseEnded()
		case timerDeadline:
			if w := c.works[k.instance]; w != nil {
				c.deadlineOver(w)
			}
		case timerWork:
			if w := c.works[k.instance]; w != nil {
				c.pauseEnded(w)
			}
		}
	}
}

func (c *Core) order(o wire.WorkloadOrder) { c.emit(wire.Envelope{To: wire.ToRuntime, Msg: o}) }

func (c *Core) toCluster(m wire.NodeToCluster) { c.emit(wire.Envelope{To: wire.ToCluster, Msg: m}) }

func (c *Core) emit(e wire.Envelope) { c.send = append(c.send, e) }

// The node's documents: one per instance, and one for itself.
const (
	kindWork = "work"
	kindMeta = "meta"
	metaNode = "node"
)

type metaRecord struct {
	Boot   uint64         `json:"boot"`
	Gen    api.Generation `json:"gen"`
	Timing wire.Timing    `json:"timing"`

	Brokers []string `json:"brokers,omitempty"`
	Purge   bool     `json:"purge,omitempty"`
}

func (c *Core) saveMeta() {
	c.journal.Put(kindMeta, metaNode, metaRecord{Boot: c.boot, Gen: c.gen, Timing: c.timing, Brokers: c.brokers, Purge: c.purge})
}

// Restore reads the documents that an earlier process saved. It ignores other kinds.
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
				if m.Timing.Heartbeat > 0 {
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
