package nodelink

import (
	"fmt"
	"net/http"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
)

// value answers a node's request of a config or secret, if an instance that is assigned to the node
// needs this version. All others get the same answer, whether they exist or not. Values are never
// sent over the broker, which may retain messages.
func (d *Server) value(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	var req wire.WantValue
	if err := call.ReadJSON(w, r, &req); err != nil {
		return err
	}
	want, bad, ok := bounds.Apply(req)
	if !ok || bad.Total > 0 {
		return bad.Err()
	}
	v, ok, err := d.opt.Value(r.Context(), n, want)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("node %s has no instance that needs %s %s version %d: %w", n, want.Kind, want.Tenant.Values(want.Name), want.Version, api.ErrNotFound)
	}
	w.Header().Set("Cache-Control", "no-store")
	call.WriteJSON(w, v)
	return nil
}
