// Package nodelink is the cluster's end of the connections that nodes dial: messages over the
// bus, joins and renewals, and streams that nodes dial out. A node is identified by its
// certificate, or on the bus by the topic, to which only that node may write. The sender that
// a message names is ignored.
package nodelink

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

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
	// publishTime bounds one publish. A message that is not published by then is lost; the
	// node's next heartbeat shows that.
	publishTime = 10 * time.Second
	// publishers is the number of nodes to which messages are published concurrently, because
	// an external broker takes a round trip to acknowledge each message.
	publishers = 16
)

// Options configure a Link.
type Options struct {
	Buses  []bus.Bus             // the cluster's connections, one to each of its brokers; the caller closes them
	Post   func(cluster.Input)   // passes an input to the core; may drop it
	Member func(api.NodeID) bool // reports whether the node has joined and was not removed
	Log    *slog.Logger          // default slog.Default
}

var messageRates = fairshare.Declare(fairshare.Bound{
	Resource: "rates of nodes' messages that are remembered", Total: 65536, Per: "node",
	Beyond: "100 messages/s and 1000 at once per node, then they are dropped; the node's next heartbeat shows what is missing",
	Attack: "TestMessagesOfOneNodeLeaveRoomForOthers",
})

// Link passes messages between the core and its nodes. A node is connected to one of the brokers, so that a message to it
// is published to all, each with an outbox of its own: one that does not answer delays no other.
type Link struct {
	opt        Options
	out        []*outbox        // by index in Options.Buses
	rates      *fairshare.Rates // of messages from nodes
	unfinished *unfinished
	unreadable atomic.Uint64
	limited    atomic.Uint64
}

// New returns a Link. It passes no messages before Run.
func New(o Options) *Link {
	o.Log = cmp.Or(o.Log, slog.Default())
	l := &Link{opt: o, rates: fairshare.NewRates(messageRates, 100, 1000), unfinished: newUnfinished(o.Member)}
	for range o.Buses {
		l.out = append(l.out, newOutbox())
	}
	return l
}

// Send queues a message of the core to its node. It does not block. It drops messages beyond
// the bounds of the queue, and messages that are not for a node.
func (l *Link) Send(e wire.Envelope) {
	if id, ok := strings.CutPrefix(string(e.To), "node/"); ok {
		for _, out := range l.out {
			out.put(api.NodeID(id), e.Msg.(wire.ClusterToNode))
		}
	}
}

// Stream queues a request to a node to dial out a stream.
func (l *Link) Stream(n api.NodeID, r wire.StreamRequest) {
	for _, out := range l.out {
		out.stream(n, r)
	}
}

// Forget clears the messages that the brokers retain for a removed node, and drops the node's
// unfinished messages. Options.Member must already report false for it.
func (l *Link) Forget(n api.NodeID) {
	l.unfinished.drop(n)
	for _, out := range l.out {
		out.clear(n)
	}
}

// Unreadable returns the number of messages from nodes that could not be decoded.
func (l *Link) Unreadable() uint64 { return l.unreadable.Load() }

// Limited returns the number of messages that were dropped because their node sent too many.
func (l *Link) Limited() uint64 { return l.limited.Load() }

// Lost returns the number of messages to nodes that were dropped because too many waited.
func (l *Link) Lost() (sum uint64) {
	for _, out := range l.out {
		sum += out.lost()
	}
	return sum
}

// Run passes messages until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, b := range l.opt.Buses {
		g.Go(func() error { return l.serve(ctx, b, l.out[i]) })
	}
	return g.Wait()
}

// serve passes the messages of one broker until ctx ends.
func (l *Link) serve(ctx context.Context, b bus.Bus, out *outbox) error {
	var g sync.WaitGroup
	defer g.Wait()
	defer out.close()
	for range publishers {
		g.Go(func() { l.publish(ctx, b, out) })
	}
	for leaf, fn := range map[topic.Leaf]func(api.NodeID, []byte) (cluster.Input, error){
		topic.Observed: observed,
		topic.Alive:    alive,
		topic.Will:     will,
		topic.Interest: netUp,
		topic.Probed:   probed,
	} {
		if err := b.Subscribe(ctx, leaf.Every(), leaf.QoS, func(m bus.Message) { l.take(m, fn) }); err != nil {
			return fmt.Errorf("subscribe to the nodes' topics: %w", err)
		}
	}
	<-ctx.Done()
	return nil
}

// take passes a node's message to the core. The topic identifies the node, because the broker
// lets no other client write to it. The brokers share the node's rate.
func (l *Link) take(m bus.Message, read func(api.NodeID, []byte) (cluster.Input, error)) {
	id, leaf, ok := topic.Parse(m.Topic)
	if !ok {
		return
	}
	if leaf == topic.Will {
		l.unfinished.drop(id)
	}
	// All nodes share the core's queue. A node that floods must not fill it.
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

// maxReport bounds a node's report and its netmanager's messages. Each object in them takes up
// to 224 bytes when decoded.
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

// publish publishes the messages of one outbox to its broker until the outbox is closed.
func (l *Link) publish(ctx context.Context, b bus.Bus, out *outbox) {
	for {
		n, letters, ok := out.next()
		if !ok {
			return
		}
		for _, d := range letters.net {
			l.publishOne(ctx, b, topic.Routes, n, d, false)
		}
		if letters.clear {
			l.publishOne(ctx, b, topic.Desired, n, nil, true)
		}
		if letters.whole != nil {
			l.publishOne(ctx, b, topic.Desired, n, letters.whole, false)
		}
		for _, d := range letters.deltas {
			l.publishOne(ctx, b, topic.Delta, n, d, false)
		}
		if letters.lease != nil {
			l.publishOne(ctx, b, topic.Lease, n, letters.lease, false)
		}
		for _, r := range letters.streams {
			l.publishOne(ctx, b, topic.Stream, n, r, false)
		}
		for _, p := range letters.probes {
			l.publishOne(ctx, b, topic.Probe, n, p, false)
		}
		out.done(n)
	}
}

func (l *Link) publishOne(ctx context.Context, b bus.Bus, leaf topic.Leaf, n api.NodeID, msg any, empty bool) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	var payload []byte
	var err error
	if !empty {
		payload, err = json.Marshal(msg)
	}
	if err == nil {
		err = publishParts(ctx, b, leaf, n, payload)
	}
	switch {
	case err == nil:
	case errors.Is(err, bus.ErrDown), ctx.Err() != nil:
		l.opt.Log.Debug("message to a node lost", "node", n, "topic", leaf.Name, "err", err)
	default:
		l.opt.Log.Warn("message to a node refused", "node", n, "topic", leaf.Name, "bytes", len(payload), "err", err)
	}
}

// publishParts publishes a message in as many parts as its size requires. A broker retains one
// message per topic. So a set in several parts is not retained, and an older retained one is
// cleared; the heartbeat of a node that connects later shows that it lacks the set.
func publishParts(ctx context.Context, b bus.Bus, leaf topic.Leaf, n api.NodeID, payload []byte) error {
	all, err := parts.Split(payload)
	if err != nil {
		return err
	}
	if len(all) > 1 && leaf.Retain {
		if err := b.Publish(ctx, bus.Message{Topic: leaf.Of(n), QoS: leaf.QoS, Retain: true}); err != nil {
			return err
		}
		leaf = topic.Delta
	}
	for _, p := range all {
		if err := b.Publish(ctx, bus.Message{Topic: leaf.Of(n), Payload: p, QoS: leaf.QoS, Retain: leaf.Retain}); err != nil {
			return err
		}
	}
	return nil
}
