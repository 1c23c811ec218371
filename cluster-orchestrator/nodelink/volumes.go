package nodelink

import (
	"fmt"
	"net/http"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (d *Server) wantVolume(w http.ResponseWriter, r *http.Request) (want wire.WantVolume, err error) {
	if d.opt.AttachVolume == nil || d.opt.DetachVolume == nil {
		return want, fmt.Errorf("this cluster has no CSI drivers in its configuration (key csi): %w", api.ErrUnavailable)
	}
	if err := call.ReadJSON(w, r, &want); err != nil {
		return want, err
	}
	want, bad, ok := bounds.Apply(want)
	if !ok || bad.Total > 0 {
		return want, bad.Err()
	}
	return want, nil
}

func (d *Server) attachVolume(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	want, err := d.wantVolume(w, r)
	if err != nil {
		return err
	}
	v, err := d.opt.AttachVolume(r.Context(), n, want)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	call.WriteJSON(w, v)
	return nil
}

func (d *Server) detachVolume(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	want, err := d.wantVolume(w, r)
	if err != nil {
		return err
	}
	if err := d.opt.DetachVolume(r.Context(), n, want); err != nil {
		return err
	}
	call.WriteJSON(w, struct{}{})
	return nil
}
