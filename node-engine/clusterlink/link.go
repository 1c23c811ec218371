// Package clusterlink connects a node to its cluster. It joins with a token, carries the core's
// messages over MQTT, dials streams that the cluster requests, and renews the node's certificate.
// All connections are dialled by the node.
package clusterlink

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/parts"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// publishTimeout is the timeout of one publish. A message that is not sent within it is lost; the
// digests of the next heartbeat detect that.
const publishTimeout = 10 * time.Second

type Options struct {
	ID      api.NodeID
	Bus     bus.Bus // to the cluster's broker; the caller closes it
	Cluster *Cluster

	Post    func(node.Input)                        // delivers an input that may be lost
	Deliver func(context.Context, node.Input) error // delivers an input that must be saved
	Logs    func(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error)
	// LogLines is Logs for a request with LogLines; nil: the runtime keeps no times of lines.
	LogLines func(context.Context, wire.StreamRequest) (io.ReadCloser, error)
	Access   func(context.Context, wire.StreamRequest) (streams.Serve, error) // serves the kinds that are Duplex; nil: the node gives no access to workloads
	Probe    func(context.Context, wire.ProbeOrder) wire.Probed               // nil: the node does not probe
	// DeleteVolume deletes a local volume, and succeeds if there is none; nil: the node has no volumes.
	DeleteVolume func(context.Context, api.VolumeID) error
	// DiscardVolume deletes what a move has left of a volume, and succeeds if there is nothing; nil: as DeleteVolume.
	DiscardVolume func(context.Context, wire.StreamRequest) error
	Net           Net // nil: the node has no netmanager
	// Renew renews the node's certificate now; nil: only when it is due.
	Renew func(context.Context) error
	// Metrics returns the engine's metrics, as text of Prometheus.
	Metrics func(context.Context) (io.ReadCloser, error)
	// Learned is called with the URLs of the cluster's replicas; nil: the cluster has none.
	Learned func([]string)
	Traces  *tracing.Relay // of placements; nil: none is followed
	// Usage measures what the machine and its workloads use; nil: the node does not measure it.
	Usage func(context.Context) (wire.NodeSample, error)
	Log   *slog.Logger // default slog.Default
}

// Net is the node's netmanager. Routes and Link must not block.
type Net interface {
	Routes(payload []byte)                                        // a message of the cluster, in order
	Link(up bool)                                                 // a change of the connection to the cluster
	Open(ctx context.Context, path string) (io.ReadCloser, error) // one of its views
}

// Link carries messages between the node's core and its cluster.
type Link struct {
	opt           Options
	out           *outbox
	subscriptions *byteQueue
	streams       *streams.Places
	probes        chan struct{} // limits the concurrent ones

	mu    sync.Mutex // guards the fields below
	up    bool
	ended bool // no stream or probe may begin
	wg    sync.WaitGroup
}

// New returns a link. It sends and receives nothing before Run.
func New(o Options) *Link {
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Link{opt: o, out: newOutbox(), subscriptions: newByteQueue(), streams: streams.NewPlaces(), probes: make(chan struct{}, maxProbes)}
}

// Will returns the message that the broker publishes when the node's connection breaks.
func Will(id api.NodeID) *bus.Message {
	return &bus.Message{Topic: topic.Will.Of(id), QoS: topic.Will.QoS, Retain: topic.Will.Retain}
}

// Send queues a message of the core to its cluster. It does not block, and drops what cannot be
// sent.
func (l *Link) Send(m wire.NodeToCluster) { m.DeliverFromNode(l.out) }

// Subscriptions queues a message of the node's netmanager to the cluster. It does not block.
func (l *Link) Subscriptions(payload []byte) {
	if dropped := l.subscriptions.add(payload); dropped > 0 {
		l.opt.Log.Warn("messages of the netmanager dropped, because the cluster is too slow", "bytes", dropped)
	}
}

// Up returns ErrUnavailable while there is no connection to the cluster.
func (l *Link) Up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.up {
		return fmt.Errorf("no connection to the cluster at %s: %w", l.opt.Cluster.URL, api.ErrUnavailable)
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
	desired := decoded(l, func(d wire.Desired) {
		if len(d.Replicas) > 0 && l.opt.Learned != nil {
			l.opt.Learned(d.Replicas)
		}
		d.Replicas = nil
		l.opt.Post(node.Desired{Desired: l.opt.Traces.Received(d, tracing.OfPlacementHere)})
	})
	leaves := map[topic.Leaf]func(bus.Message){
		topic.Desired: desired,
		topic.Delta:   joined(desired), // also a whole set that is too large for one message
		topic.Lease:   decoded(l, func(m wire.Lease) { l.opt.Post(node.Lease{Lease: m}) }),
		topic.Stream:  decoded(l, func(r wire.StreamRequest) { l.stream(ctx, r) }),
	}
	if l.opt.Probe != nil {
		leaves[topic.Probe] = decoded(l, func(o wire.ProbeOrder) { l.probe(ctx, o) })
	}
	if l.opt.Net != nil {
		leaves[topic.Routes] = joined(func(m bus.Message) { l.opt.Net.Routes(m.Payload) })
		l.wg.Go(func() { l.publishSubscriptions(ctx) })
	}
	for leaf, fn := range leaves {
		if err := l.opt.Bus.Subscribe(ctx, leaf.Of(l.opt.ID), leaf.QoS, fn); err != nil {
			return fmt.Errorf("subscribe to the cluster's messages: %w", err)
		}
	}
	l.wg.Go(func() { l.publish(ctx) })
	l.watch(ctx)
	return nil
}

// decoded returns a handler that decodes a message for fn. It drops messages that it cannot decode,
// and empty ones, which clear a retained message.
func decoded[M any](l *Link, fn func(M)) func(bus.Message) {
	return func(m bus.Message) {
		var to M
		if len(m.Payload) == 0 {
			return
		}
		if err := json.Unmarshal(m.Payload, &to); err != nil {
			l.opt.Log.Warn("message of the cluster not decoded", "topic", m.Topic, "bytes", len(m.Payload), "err", err)
			return
		}
		fn(to)
	}
}

// joined returns a handler that joins the parts of messages for fn.
func joined(fn func(bus.Message)) func(bus.Message) {
	var joiner parts.Joiner // used by the subscription's goroutine only
	return func(m bus.Message) {
		var complete bool
		if m.Payload, complete = joiner.Add(m.Payload); complete {
			fn(m)
		}
	}
}

// watch reports changes of the connection to the core and the netmanager.
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
			for l.opt.Deliver(ctx, node.Link{Up: up}) != nil { // the store is full or slow
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
	for l.out.filled.wait(ctx) {
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

func (l *Link) publishSubscriptions(ctx context.Context) {
	for l.subscriptions.filled.wait(ctx) {
		for _, m := range l.subscriptions.take() {
			l.publishOne(ctx, topic.Interest, m, nil)
		}
	}
}

// publishOne publishes a message, unless its encoding failed with err.
func (l *Link) publishOne(ctx context.Context, leaf topic.Leaf, payload []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err == nil {
		err = l.publishParts(ctx, leaf, payload)
	}
	switch {
	case err == nil:
	case errors.Is(err, bus.ErrDown), ctx.Err() != nil:
		l.opt.Log.Debug("message to the cluster lost", "topic", leaf.Name, "err", err)
	default:
		l.opt.Log.Warn("message to the cluster rejected", "topic", leaf.Name, "bytes", len(payload), "err", err)
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
