package placement

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
)

// restorePrefix marks the bookings of restores. No instance has an id that begins with it.
const restorePrefix = "restore of "

func restoreOf(id api.VolumeID) api.InstanceID { return restorePrefix + api.InstanceID(id) }

// BeginRestore books the disk that a restore of a local volume takes beside the volume, on its node. It fails with
// ErrNotFound if the node does not have it, with ErrConflict if the volume is being restored, and with ErrFull if the disk is not free. The booking is not
// saved: a restore ends with the process.
func (m *Machine) BeginRestore(id api.VolumeID, at api.NodeID) error {
	n := m.nodes[at]
	if n == nil || m.VolumeAt(id) != at {
		return fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
	}
	if _, busy := n.account.Bookings()[restoreOf(id)]; busy {
		return fmt.Errorf("restore volume %s: it is being restored already: %w", id, api.ErrConflict)
	}
	need := n.volumes[id.Instance()].sizes[id.Label()]
	if have := n.account.Left().Free.StorageMB; have < need {
		return fmt.Errorf("restore volume %s: its node has %d MiB of disk free, and the restore takes %d MiB beside the volume until it is complete; "+
			"delete a volume there, or stop an instance with storage: %w", id, max(have, 0), need, api.ErrFull)
	}
	n.account.Book(restoreOf(id), account.Claim{Resources: api.Resources{StorageMB: need}})
	m.refresh(n)
	return nil
}

// EndRestore releases what BeginRestore booked.
func (m *Machine) EndRestore(id api.VolumeID, at api.NodeID) {
	if n := m.nodes[at]; n != nil {
		n.account.Release(restoreOf(id))
		m.refresh(n)
	}
}
