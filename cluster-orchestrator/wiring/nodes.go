package wiring

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/nodelink"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// dialTime is how long a node may take to dial out a stream. The root waits longer for the cluster, so that it gets
// the error, which names the node.
const dialTime = 8 * time.Second

// nodes implements httpapi.Nodes.
type nodes struct {
	members *nodelink.Members
	tokens  *jointoken.Store
	link    *nodelink.Link
	streams streams.Registry
	replica string // the URL of this replica, at which nodes dial out streams; empty: the cluster has none

	disconnect func(api.NodeID) // ends the node's connections to the embedded broker
}

// Remove implements httpapi.Nodes.
func (n *nodes) Remove(ctx context.Context, id api.NodeID) error {
	// Retire the token first, otherwise the node could join again in between.
	if err := n.tokens.RevokeUses(ctx, jointoken.ForNode, string(id)); err != nil {
		return fmt.Errorf("end the join token of node %s: %w", id, err)
	}
	if err := n.members.Remove(ctx, id); err != nil {
		return fmt.Errorf("refuse the certificates of node %s: %w", id, err)
	}
	n.disconnect(id)
	n.streams.End(string(id.Addr()))
	n.link.Forget(id)
	return nil
}

// Stream implements httpapi.Nodes.
func (n *nodes) Stream(ctx context.Context, id api.NodeID, r wire.StreamRequest) (io.ReadCloser, error) {
	return ask(n, id, r, func(w *streams.Wait) (io.ReadCloser, error) { return w.Stream(ctx, dialTime) })
}

// Connect implements httpapi.Nodes.
func (n *nodes) Connect(ctx context.Context, id api.NodeID, r wire.StreamRequest) (io.ReadWriteCloser, error) {
	return ask(n, id, r, func(w *streams.Wait) (io.ReadWriteCloser, error) { return w.Duplex(ctx, dialTime) })
}

func ask[S any](n *nodes, id api.NodeID, r wire.StreamRequest, open func(*streams.Wait) (S, error)) (stream S, err error) {
	wait, err := n.streams.Expect(string(id.Addr()), r)
	if err != nil {
		return stream, err
	}
	r.Replica = n.replica
	r.ID, r.Token = wait.ID(), "" // nodes must not get credentials of users
	n.link.Stream(id, r)
	if stream, err = open(wait); err != nil {
		return stream, fmt.Errorf("ask node %s: %w", id, err)
	}
	return stream, nil
}

// expel removes members that the core does not have. It completes removals that a crash
// interrupted.
func expel(ctx context.Context, core *cluster.Core, l *loop.Loop[cluster.Input], n *nodes) error {
	known := map[api.NodeID]bool{}
	if err := l.Read(ctx, func() {
		for _, v := range core.Nodes() {
			known[v.ID] = true
		}
	}); err != nil {
		return err
	}
	for _, id := range n.members.All() {
		if known[id] {
			continue
		}
		if err := n.Remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// purging implements nodelink.ServerOptions.Purging.
func (o *orchestrator) purging(ctx context.Context, id api.NodeID, p wire.NodePurging) (ordered bool, err error) {
	err = o.loop.Do(ctx, cluster.NodePurging{Node: id, NodePurging: p}, func() {
		n, ok := o.core.Node(id)
		ordered = ok && n.Purging
	})
	return ordered, err
}

// left implements nodelink.ServerOptions.Left. After a crash between its two steps, expel
// completes it.
func (o *orchestrator) left(ctx context.Context, id api.NodeID) error {
	if err := o.loop.Do(ctx, cluster.NodeLeft{Node: id}, nil); err != nil {
		return err
	}
	return o.nodes.Remove(ctx, id)
}
