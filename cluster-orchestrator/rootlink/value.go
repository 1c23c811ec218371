package rootlink

import (
	"context"

	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Value requests a config or secret that an instance of this cluster needs. It fails with ErrNotFound
// if the root does not have it for this cluster.
func (l *Link) Value(ctx context.Context, w wire.WantValue) (v wire.Value, err error) {
	err = call.JSON(ctx, l.opt.Client, l.opt.Roots.Current()+"/v1/cluster/value", w, &v)
	return v, err
}
