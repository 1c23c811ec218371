package clusterlink

import (
	"fmt"
	"net/http"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/values"
)

// value answers a cluster's request of a config or secret, if the cluster has an instance that names
// this version. All others get the same answer, whether they exist or not.
func (l *Link) value(w http.ResponseWriter, r *http.Request, c api.ClusterID) error {
	var req wire.WantValue
	if err := call.ReadJSON(w, r, &req); err != nil {
		return err
	}
	want, bad, ok := bounds.Apply(req)
	if !ok || bad.Total > 0 {
		return bad.Err()
	}
	var sealed []byte
	has := false
	if err := l.opt.Owner.Read(r.Context(), func() { sealed, has = l.opt.Core.ValueFor(c, want) }); err != nil {
		return err
	}
	if !has {
		return fmt.Errorf("cluster %s has no instance that needs %s %s version %d: %w", c, want.Kind, want.Tenant.Values(want.Name), want.Version, api.ErrNotFound)
	}
	v, err := l.opt.Open(values.Key{Kind: want.Kind, ID: want.Tenant.Values(want.Name)}.String(), sealed)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	call.WriteJSON(w, v)
	return nil
}
