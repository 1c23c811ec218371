package wiring

import (
	"context"
	"encoding/json"
	"net/http"
	"os"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
)

// OakestraFile has the host:port of oakestra_listen, in the data directory.
const OakestraFile = "oakestra-address"

// serveOakestra returns what serves the status that the oak CLI reads, nil without an address for it.
func (o *orchestrator) serveOakestra(dir *os.Root) func(context.Context) error {
	if o.cfg.OakestraListen == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/cluster/status", func(w http.ResponseWriter, r *http.Request) {
		var up bool
		if err := o.loop.Read(r.Context(), func() { up = o.core.RootUp() }); err != nil {
			http.Error(w, "the cluster stops", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			Name      api.ClusterID `json:"cluster_name"`
			ID        api.ClusterID `json:"cluster_id"`
			Connected bool          `json:"connected_to_root"`
		}{o.id.info().ID, o.id.info().ID, up})
	})
	return func(ctx context.Context) error {
		return daemon.ServePlain(ctx, o.cfg.OakestraListen, mux, o.log, func(address string) error {
			return ca.WriteFile(dir, OakestraFile, []byte(address+"\n"), 0o644)
		})
	}
}
