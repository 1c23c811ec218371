package root

import "github.com/treeline-edge/treeline/api"

// Desired returns the generation and the digest of a cluster's desired set.
func (s *state) Desired(id api.ClusterID) (api.Generation, api.Digest, bool) {
	if !s.clusters.Known(id) {
		return 0, 0, false
	}
	gen, digest := s.clusters.Generation(id)
	return gen, digest, true
}
