// Package network connects a node engine to its machine's netmanager. It reports whether the overlay
// network is ready, attaches workloads, and carries messages between the netmanager and the cluster
// without decoding them: both daemons share the node's connection to its cluster and its identity.
//
// Messages for a netmanager that is not connected are dropped. When it connects it receives the state
// of the connection to the cluster, and requests what it missed.
//
//	n := network.New(network.Options{Client: netsock.New(path), Subscriptions: link.Subscriptions})
//	g.Go(func() error { return n.Run(ctx) })
//	n.Link(true); n.Routes(payload)               // from the cluster; do not block
package network

import (
	"cmp"
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

const (
	minPause    = 100 * time.Millisecond // between attempts to connect
	maxPause    = 5 * time.Second
	sendTimeout = 10 * time.Second // of one message
)

// Options are the options of a Network. Its functions must not block.
type Options struct {
	Client        *netsock.Client
	Subscriptions func(payload []byte) // sends a message of the netmanager to the cluster
	Changed       func()               // the result of Ready changed
	Serves        func(wire.Key)       // a workload is ready for flows
	Log           *slog.Logger         // default slog.Default
}

// Network is a driver.Network. It is safe for concurrent use.
type Network struct {
	*netsock.Client
	opt   Options
	inbox inbox

	mu    sync.Mutex // guards ready
	ready error
}

// New returns a network. It is not ready before Run.
func New(o Options) *Network {
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Network{Client: o.Client, opt: o, inbox: newInbox(), ready: errStarting}
}

var errStarting = fmt.Errorf("the netmanager is not connected yet: %w", api.ErrUnavailable)

// Ready returns nil while workloads can be attached, otherwise an error (ErrUnavailable).
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

// Routes queues a message of the cluster to the netmanager, in order. If the netmanager is not
// connected or too slow the message is lost, and the netmanager requests it again.
func (n *Network) Routes(payload []byte) { n.inbox.put(payload) }

// Link sets whether the cluster is connected.
func (n *Network) Link(up bool) { n.inbox.link(up) }

// Run carries messages until ctx ends.
func (n *Network) Run(ctx context.Context) error {
	pause := minPause
	for {
		began := time.Now()
		err := n.connect(ctx)
		n.inbox.close()
		if ctx.Err() != nil {
			return nil
		}
		n.setReady(err)
		if time.Since(began) > maxPause {
			pause = minPause
		}
		n.opt.Log.Debug("netmanager not connected", "err", err, "retry_in", pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		case <-ctx.Done():
			return nil
		}
	}
}

// connect connects to the netmanager, until the connection breaks.
func (n *Network) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	connected := false
	err := n.Events(ctx, func(e wire.NetEvent) error {
		if !connected {
			connected = true
			n.opt.Log.Info("netmanager connected")
			n.inbox.open()
			wg.Go(func() { cancel(n.feed(ctx)) })
		}
		switch {
		case e.Ready != nil && e.Ready.Ready:
			n.setReady(nil)
		case e.Ready != nil:
			n.setReady(fmt.Errorf("%s: %w", e.Ready.Error, api.ErrUnavailable))
		case len(e.Up) > 0:
			n.opt.Subscriptions(e.Up)
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

// feed sends the messages of the inbox to the netmanager until that fails.
func (n *Network) feed(ctx context.Context) error {
	for {
		m, err := n.inbox.take(ctx)
		if err != nil {
			return err
		}
		if err := n.send(ctx, m); err != nil {
			if errors.Is(err, api.ErrInvalid) || errors.Is(err, api.ErrTooLarge) {
				n.opt.Log.Warn("netmanager rejected a message of the cluster", "bytes", len(m.routes), "err", err)
				continue
			}
			return err
		}
	}
}

func (n *Network) send(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if m.routes == nil {
		return n.Client.Link(ctx, m.up)
	}
	return n.Down(ctx, m.routes)
}
