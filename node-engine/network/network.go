// Package network is a node engine's side of its machine's netmanager: it knows
// whether the overlay is ready, has workloads attached, and carries what the
// netmanager and the cluster say to each other, which it does not read. The node
// has one connection to its cluster and one identity; this is how two daemons
// share them.
//
// Nothing is kept for a netmanager that is away. When it is back it hears whether
// the cluster is reached, and asks for what it missed.
//
//	n := network.New(network.Options{Client: netsock.New(path), Interest: link.Interest})
//	g.Go(func() error { return n.Run(ctx) })
//	n.Link(true); n.Routes(payload)               // from the cluster's side; never block
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The pauses between attempts to reach a netmanager that is away, and how long it
// may take to answer one message.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
	sendTime = 10 * time.Second
)

// Options are what it needs.
type Options struct {
	Client   *netsock.Client
	Interest func(payload []byte) // takes a message of the netmanager to the cluster; must not block
	Changed  func()               // it became ready, or is not any more; must not block
	Serves   func(wire.Key)       // a workload takes flows since; must not block
	Log      *slog.Logger         // slog.Default
}

// Network is a driver.Network. It is safe for concurrent use.
type Network struct {
	*netsock.Client
	opt   Options
	inbox inbox

	mu    sync.Mutex // guards ready
	ready error
}

// New is a network that is not ready before Run.
func New(o Options) *Network {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Network{Client: o.Client, opt: o, inbox: newInbox(), ready: errStarting}
}

var errStarting = fmt.Errorf("the netmanager was not reached yet: %w", api.ErrUnavailable)

// Ready is nil while workloads can be attached, and else says why not (ErrUnavailable).
func (n *Network) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

func (n *Network) setReady(err error) {
	n.mu.Lock()
	changed := (err == nil) != (n.ready == nil) || err != nil && err.Error() != n.ready.Error()
	n.ready = err
	n.mu.Unlock()
	if changed {
		n.opt.Changed()
	}
}

// Routes takes a message of the cluster to the netmanager, in order. What a
// netmanager that is away, or slow, does not take is lost; it asks for it.
func (n *Network) Routes(payload []byte) { n.inbox.put(payload) }

// Link says whether the cluster is reached.
func (n *Network) Link(up bool) { n.inbox.link(up) }

// Run carries messages until ctx ends.
func (n *Network) Run(ctx context.Context) error {
	pause := minPause
	for {
		began := time.Now()
		err := n.live(ctx)
		n.inbox.close()
		if ctx.Err() != nil {
			return nil
		}
		n.setReady(err)
		if time.Since(began) > maxPause {
			pause = minPause
		}
		n.opt.Log.Debug("netmanager not reached", "err", err, "retry_in", pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		case <-ctx.Done():
			return nil
		}
	}
}

// live is one connection to the netmanager.
func (n *Network) live(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	connected := false
	err := n.Events(ctx, func(e wire.NetEvent) error {
		if !connected {
			connected = true
			n.opt.Log.Info("netmanager reached")
			n.inbox.open()
			wg.Go(func() { cancel(n.feed(ctx)) })
		}
		switch {
		case e.Ready != nil && e.Ready.Ready:
			n.setReady(nil)
		case e.Ready != nil:
			n.setReady(fmt.Errorf("%s: %w", e.Ready.Error, api.ErrUnavailable))
		case len(e.Up) > 0:
			n.opt.Interest(e.Up)
		case e.Serves != nil:
			n.opt.Serves(*e.Serves)
		}
		return nil
	})
	cancel(err)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// feed takes what the inbox has to the netmanager until it does not take it.
func (n *Network) feed(ctx context.Context) error {
	for {
		m, err := n.inbox.take(ctx)
		if err != nil {
			return err
		}
		if err := n.send(ctx, m); err != nil {
			if errors.Is(err, api.ErrInvalid) || errors.Is(err, api.ErrTooLarge) {
				n.opt.Log.Warn("the netmanager refuses a message of the cluster", "bytes", len(m.routes), "err", err)
				continue
			}
			return err
		}
	}
}

func (n *Network) send(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	if m.routes == nil {
		return n.Client.Link(ctx, m.up)
	}
	return n.Down(ctx, m.routes)
}
