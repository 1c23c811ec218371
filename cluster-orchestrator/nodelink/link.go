// Package nodelink is the cluster's end of the links that nodes dial: messages over the
// bus, joins and renewals, and streams that nodes dial out. A node is identified by its
// certificate, and on the bus by the topic, to which only it may write. What a message says
// about its sender is ignored.
//
// It carries messages. The core (package cluster) decides what a node should have.
package nodelink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/parts"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	// publishTime bounds one publish. A message that is not out by then is lost; the node's
	// next heartbeat shows it.
	publishTime = 10 * time.Second
	// publishers is how many nodes are written to at once: an external broker acknowledges
	// each message, and the round trips must not add up.
	publishers = 16
)

// Options configure a Link.
type Options struct {
	Bus    bus.Bus               // the cluster's own end; the caller closes it
	Post   func(cluster.Input)   // passes an input that may be lost
	Member func(api.NodeID) bool // whether the node has joined and was not removed
	Log    *slog.Logger          // slog.Default
}

var messageRates = fairshare.Declare(fairshare.Bound{
	Resource: "rates of nodes' messages that are remembered", Total: 65536, Per: "node",
	Beyond: "100 messages/s and 1000 at once per node, then they are dropped; the node's next heartbeat shows what is missing",
	Attack: "TestMessagesOfOneNodeLeaveRoomForOthers",
})

// Link carries messages between the core and its nodes.
type Link struct {
	opt        Options
	out        *outbox
	rates      *fairshare.Rates // of messages, by node
	unfinished *unfinished
	unreadable atomic.Uint64
	limited    atomic.Uint64
}

// New returns a link. It carries nothing before Run.
func New(o Options) *Link {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Link{opt: o, out: newOutbox(), rates: fairshare.NewRates(messageRates, 100, 1000), unfinished: newUnfinished(o.Member)}
}

// Send queues a message of the core to its node. It does not block, and drops what cannot
// be sent.
func (l *Link) Send(e wire.Envelope) {
	if id, ok := strings.CutPrefix(string(e.To), "node/"); ok {
		l.out.put(api.NodeID(id), e.Msg.(wire.ClusterToNode))
	}
}

// Stream asks a node to dial a stream out.
func (l *Link) Stream(n api.NodeID, r wire.StreamRequest) { l.out.stream(n, r) }

// Forget clears what the broker retains for a removed node, and drops its unfinished
// messages. Options.Member must report false for it by then.
func (l *Link) Forget(n api.NodeID) {
	l.unfinished.drop(n)
	l.out.clear(n)
}

// Unreadable returns how many messages of nodes could not be decoded.
func (l *Link) Unreadable() uint64 { return l.unreadable.Load() }

// Limited returns how many messages were dropped because their node sent too many.
func (l *Link) Limited() uint64 { return l.limited.Load() }

// Lost returns how many messages to nodes were dropped because too many waited.
func (l *Link) Lost() uint64 { return l.out.lost() }

// Run carries messages until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	var g sync.WaitGroup
	defer g.Wait()
	defer l.out.close()
	for range publishers {
		g.Go(func() { l.publish(ctx) })
	}
	for leaf, fn := range map[topic.Leaf]func(api.NodeID, []byte) (cluster.Input, error){
		topic.Observed: observed,
		topic.Alive:    alive,
		topic.Will:     will,
		topic.Interest: netUp,
		topic.Probed:   probed,
	} {
		err := l.opt.Bus.Subscribe(ctx, leaf.Every(), leaf.QoS, func(m bus.Message) { l.take(m, fn) })
		if err != nil {
			return fmt.Errorf("subscribe to the nodes' topics: %w", err)
		}
	}
	<-ctx.Done()
	return nil
}

// take passes a node's message on. The topic names the node: the broker lets no other
// client write there.
func (l *Link) take(m bus.Message, read func(api.NodeID, []byte) (cluster.Input, error)) {
	id, leaf, ok := topic.Parse(m.Topic)
	if !ok {
		return
	}
	if leaf == topic.Will {
		l.unfinished.drop(id)
	}
	// All nodes share the core's queue: one that floods must not fill it.
	if l.rates.Allow(time.Now(), string(id), string(id)) != nil {
		if l.limited.Add(1) == 1 {
			l.opt.Log.Warn("node exceeds its message rate, dropping messages; further ones are only counted", "node", id, "topic", m.Topic)
		}
		return
	}
	if leaf == topic.Observed || leaf == topic.Interest {
		if m.Payload, ok = l.unfinished.join(id, leaf, m.Payload); !ok {
			return
		}
	}
	in, err := read(id, m.Payload)
	if err != nil {
		if l.unreadable.Add(1) == 1 { // a hostile node must not fill the log
			l.opt.Log.Warn("cannot decode a message of a node; further ones are only counted", "node", id, "topic", m.Topic, "bytes", len(m.Payload), "err", err)
		}
		return
	}
	l.opt.Post(in)
}

// maxReport bounds a node's report and its netmanager's messages: each object in them
// takes up to 224 bytes once decoded.
var maxReport = jsonsize.Limit{Bytes: parts.Max, Objects: 1 << 16, Values: 1 << 19}

func observed(id api.NodeID, payload []byte) (cluster.Input, error) {
	var r wire.NodeReport
	if err := maxReport.Check(payload); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, err
	}
	r.Node = id
	if r.Info != nil {
		r.Info.ID = id
	}
	for i := range r.Observed {
		r.Observed[i].Node = id
	}
	return cluster.NodeReport{NodeReport: r}, nil
}

func alive(id api.NodeID, payload []byte) (cluster.Input, error) {
	var a wire.Alive
	err := a.UnmarshalBinary(payload)
	return cluster.NodeAlive{Node: id, Alive: a}, err
}

func will(id api.NodeID, _ []byte) (cluster.Input, error) { return cluster.NodeWill{Node: id}, nil }

func (l *Link) publish(ctx context.Context) {
	for {
		n, letters, ok := l.out.next()
		if !ok {
			return
		}
		for _, d := range letters.net {
			l.publishOne(ctx, topic.Routes, n, d, false)
		}
		if letters.clear {
			l.publishOne(ctx, topic.Desired, n, nil, true)
		}
		if letters.whole != nil {
			l.publishOne(ctx, topic.Desired, n, letters.whole, false)
		}
		for _, d := range letters.deltas {
			l.publishOne(ctx, topic.Delta, n, d, false)
		}
		if letters.lease != nil {
			l.publishOne(ctx, topic.Lease, n, letters.lease, false)
		}
		for _, r := range letters.streams {
			l.publishOne(ctx, topic.Stream, n, r, false)
		}
		for _, p := range letters.probes {
			l.publishOne(ctx, topic.Probe, n, p, false)
		}
		l.out.done(n)
	}
}

func (l *Link) publishOne(ctx context.Context, leaf topic.Leaf, n api.NodeID, msg any, empty bool) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	var payload []byte
	var err error
	if !empty {
		payload, err = json.Marshal(msg)
	}
	if err == nil {
		err = l.publishParts(ctx, leaf, n, payload)
	}
	switch {
	case err == nil:
	case errors.Is(err, bus.ErrDown), ctx.Err() != nil:
		l.opt.Log.Debug("message to a node lost", "node", n, "topic", leaf.Name, "err", err)
	default:
		l.opt.Log.Warn("message to a node refused", "node", n, "topic", leaf.Name, "bytes", len(payload), "err", err)
	}
}

// publishParts publishes a message of any size. A broker retains one message per topic, so
// a set in several messages is not retained, and an older retained one is cleared. A node
// that connects later asks for the set by its heartbeat.
func (l *Link) publishParts(ctx context.Context, leaf topic.Leaf, n api.NodeID, payload []byte) error {
	all, err := parts.Split(payload)
	if err != nil {
		return err
	}
	if len(all) > 1 && leaf.Retain {
		if err := l.opt.Bus.Publish(ctx, bus.Message{Topic: leaf.Of(n), QoS: leaf.QoS, Retain: true}); err != nil {
			return err
		}
		leaf = topic.Delta
	}
	for _, p := range all {
		if err := l.opt.Bus.Publish(ctx, bus.Message{Topic: leaf.Of(n), Payload: p, QoS: leaf.QoS, Retain: leaf.Retain}); err != nil {
			return err
		}
	}
	return nil
}
