// Package clusterlink is a node's way to its cluster: it joins with a token,
// carries the core's messages over MQTT, dials streams out when asked to, and
// renews the node's certificate. The node dials; nobody dials a node.
//
// It decides nothing: what to say and what to do is the core's (package node).
package clusterlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/parts"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// publishTime bounds one publish. What is not out by then is lost, and healed by
// the digests of the next sign of life.
const publishTime = 10 * time.Second

// Options are what a link needs.
type Options struct {
	ID     api.NodeID
	Bus    bus.Bus      // to the cluster's broker; the caller closes it
	Client *http.Client // to the cluster, with the node's certificate
	URL    string       // of the cluster: https://host:port

	Post    func(node.Input)                        // hands in what may be lost
	Deliver func(context.Context, node.Input) error // hands in what may not
	Logs    func(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error)
	Probe   func(context.Context, wire.ProbeOrder) wire.Probed // nil: the node measures nothing
	Net     Net                                                // nil: the node has no netmanager
	Log     *slog.Logger                                       // slog.Default
}

// Net is the node's netmanager, as far as its cluster speaks to it. Routes and
// Link must not block.
type Net interface {
	Routes(payload []byte)                                        // a message of the cluster, in order
	Link(up bool)                                                 // whether the cluster is reached
	Open(ctx context.Context, path string) (io.ReadCloser, error) // one of its views
}

// Link carries messages between the node's core and its cluster.
type Link struct {
	opt     Options
	out     *outbox
	wants   *interest
	streams *streams.Places
	probes  chan struct{} // those under way

	mu    sync.Mutex // guards the fields below
	up    bool
	ended bool // no stream begins any more
	wg    sync.WaitGroup
}

// New is a link that carries nothing before Run.
func New(o Options) *Link {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Link{opt: o, out: newOutbox(), wants: newInterest(), streams: streams.NewPlaces(), probes: make(chan struct{}, maxProbes)}
}

// Will is what the broker publishes when the node's connection breaks.
func Will(id api.NodeID) *bus.Message {
	return &bus.Message{Topic: topic.Will.Of(id), QoS: topic.Will.QoS, Retain: topic.Will.Retain}
}

// Send queues a message of the core to its cluster. It does not block, and drops what
// cannot be sent.
func (l *Link) Send(m wire.NodeToCluster) { m.DeliverFromNode(l.out) }

// Up reports whether there is a connection, for health checks (ErrUnavailable).
func (l *Link) Up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.up {
		return fmt.Errorf("no connection to the cluster at %s: %w", l.opt.URL, api.ErrUnavailable)
	}
	return nil
}

// Run carries messages until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	defer func() {
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		l.wg.Wait()
	}()
	leaves := map[topic.Leaf]func(bus.Message){
		topic.Desired: l.desired,
		topic.Delta:   l.delta(),
		topic.Lease:   l.lease,
		topic.Stream:  func(m bus.Message) { l.stream(ctx, m) },
	}
	if l.opt.Probe != nil {
		leaves[topic.Probe] = func(m bus.Message) { l.probe(ctx, m) }
	}
	if l.opt.Net != nil {
		leaves[topic.Routes] = l.routes()
		l.wg.Go(func() { l.publishInterest(ctx) })
	}
	for leaf, fn := range leaves {
		if err := l.opt.Bus.Subscribe(ctx, leaf.Of(l.opt.ID), leaf.QoS, fn); err != nil {
			return fmt.Errorf("listen to the cluster: %w", err)
		}
	}
	l.wg.Go(func() { l.publish(ctx) })
	l.watch(ctx)
	return nil
}

func (l *Link) desired(m bus.Message) {
	var d wire.Desired
	if l.decode(m, &d) {
		l.opt.Post(node.Desired{Desired: d})
	}
}

// delta takes changes, and wholes that are too large for one message.
func (l *Link) delta() func(bus.Message) {
	var half parts.Joiner // the subscription's goroutine's
	return func(m bus.Message) {
		var ok bool
		if m.Payload, ok = half.Add(m.Payload); ok {
			l.desired(m)
		}
	}
}

// routes hands on what is for the node's netmanager, unread.
func (l *Link) routes() func(bus.Message) {
	var half parts.Joiner // the subscription's goroutine's
	return func(m bus.Message) {
		if whole, ok := half.Add(m.Payload); ok {
			l.opt.Net.Routes(whole)
		}
	}
}

func (l *Link) lease(m bus.Message) {
	var lease wire.Lease
	if l.decode(m, &lease) {
		l.opt.Post(node.Lease{Lease: lease})
	}
}

func (l *Link) decode(m bus.Message, to any) bool {
	if len(m.Payload) == 0 {
		return false // a retained message that was cleared
	}
	if err := json.Unmarshal(m.Payload, to); err != nil {
		l.opt.Log.Warn("message from the cluster cannot be read", "topic", m.Topic, "bytes", len(m.Payload), "err", err)
		return false
	}
	return true
}

// watch tells the core when the connection comes and goes.
func (l *Link) watch(ctx context.Context) {
	changes := l.opt.Bus.Up()
	for {
		select {
		case up, open := <-changes:
			if !open {
				return
			}
			l.mu.Lock()
			l.up = up
			l.mu.Unlock()
			if l.opt.Net != nil {
				l.opt.Net.Link(up)
			}
			for l.opt.Deliver(ctx, node.Link{Up: up}) != nil {
				// The store is full or slow: the core must learn of it all the same.
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

func (l *Link) publish(ctx context.Context) {
	for {
		select {
		case <-l.out.filled:
		case <-ctx.Done():
			return
		}
		report, alive := l.out.take()
		if report != nil {
			b, err := json.Marshal(report)
			l.publishOne(ctx, topic.Observed, b, err)
		}
		if alive != nil {
			b, err := alive.MarshalBinary()
			l.publishOne(ctx, topic.Alive, b, err)
		}
	}
}

func (l *Link) publishOne(ctx context.Context, leaf topic.Leaf, payload []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if err == nil {
		err = l.publishParts(ctx, leaf, payload)
	}
	switch {
	case err == nil:
	case errors.Is(err, bus.ErrDown), ctx.Err() != nil:
		l.opt.Log.Debug("message to the cluster lost", "topic", leaf.Name, "err", err)
	default:
		l.opt.Log.Warn("message to the cluster refused", "topic", leaf.Name, "bytes", len(payload), "err", err)
	}
}

func (l *Link) publishParts(ctx context.Context, leaf topic.Leaf, payload []byte) error {
	all, err := parts.Split(payload)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := l.opt.Bus.Publish(ctx, bus.Message{Topic: leaf.Of(l.opt.ID), Payload: p, QoS: leaf.QoS, Retain: leaf.Retain}); err != nil {
			return err
		}
	}
	return nil
}
