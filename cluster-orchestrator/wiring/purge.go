package wiring

import (
	"context"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
)

// purging implements nodelink.ServerOptions.Purging.
func (o *orchestrator) purging(ctx context.Context, id api.NodeID, p wire.NodePurging) (ordered bool, err error) {
	err = o.loop.Do(ctx, cluster.NodePurging{Node: id, NodePurging: p}, func() {
		n, ok := o.core.Node(id)
		ordered = ok && n.Purging
	})
	return ordered, err
}

// left implements nodelink.ServerOptions.Left. After a crash between its two steps, expel completes
// it.
func (o *orchestrator) left(ctx context.Context, id api.NodeID) error {
	if err := o.loop.Do(ctx, cluster.NodeLeft{Node: id}, nil); err != nil {
		return err
	}
	return o.nodes.Remove(ctx, id)
}
