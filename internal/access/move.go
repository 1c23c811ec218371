package access

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// AboutMove describes the operation that moves an instance, of both tiers.
const AboutMove = "Moves one instance within its cluster, as a drain does: the new placement is ready before the old one is stopped, " +
	"an exclusive instance is stopped first, and local volumes are copied if the SLA says `move: volume`. It may be called by those who may " +
	"change the application and by the cluster's operator; only those who see the cluster's nodes may name one. The answer is the instance " +
	"at the begin of the move. 409: no node fits, with the constraint; it moves already, or it does not run."

// NoNodes is the error for someone who names a node and may not see nodes.
func NoNodes(id api.InstanceID) error {
	return fmt.Errorf("move %s to a node: only those who may see the nodes of its cluster may name one; leave to out (--away) and the cluster chooses: %w", id, api.ErrForbidden)
}

// DescribeMove describes a request for the records of access.
func DescribeMove(r api.MoveRequest) string {
	if r.To == "" {
		return "move to another node"
	}
	return fmt.Sprintf("move to node %.63q", string(r.To))
}
