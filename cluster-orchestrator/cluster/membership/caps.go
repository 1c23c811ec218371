package membership

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

type capsNotice struct {
	names string    // of the claims above the caps
	at    time.Time // zero: no notice since the start
}

// noticeEvery is the minimum time between two notices about the caps of one node.
// noticeAgain is the time until an unchanged notice is repeated.
const noticeEvery, noticeAgain = time.Minute, time.Hour

// setClaims stores a node's reported Info, and the Info limited by its caps.
func (m *Machine) setClaims(n *member, claims api.NodeInfo) {
	n.claims, n.digest = claims, claims.Digest()
	n.Info, n.Capped = m.cfg.Caps.Of(claims.ID).With(n.Caps).Limit(claims, n.existing)
}

// SetCaps sets the caps of a node that apply in addition to the configured ones. It replaces
// earlier ones; zero Caps remove them. It returns api.ErrInvalid for invalid caps.
func (m *Machine) SetCaps(id api.NodeID, caps api.Caps) error {
	if err := caps.ValidateNode(); err != nil {
		return err
	}
	n := m.nodes[id]
	n.Caps = caps
	m.setClaims(n, n.claims)
	return nil
}

// CapsNotice returns a notice about claims of a node above its caps, or "" if none is due.
func (m *Machine) CapsNotice(id api.NodeID) string {
	n := m.nodes[id]
	if len(n.Capped) == 0 {
		return ""
	}
	var names, parts []string
	for _, a := range n.Capped {
		names = append(names, a.What)
		parts = append(parts, fmt.Sprintf("%s (reports %s, %s is used)", a.What, a.Claims, cmp.Or(a.Counts, "none")))
	}
	what, since := strings.Join(names, ", "), m.fx.Now.Sub(n.notice.at)
	if !n.notice.at.IsZero() && since < noticeAgain && (what == n.notice.names || since < noticeEvery) {
		return ""
	}
	n.notice = capsNotice{what, m.fx.Now}
	return fmt.Sprintf("node %s reports more than its caps allow (treeline cap node, and node_caps of the cluster), so the caps are used instead: %s", id, strings.Join(parts, ", "))
}

// ExplainCaps adds to a rejection of the node that its caps are the reason.
func (n *Node) ExplainCaps(r api.Rejection) api.Rejection {
	what := strings.TrimPrefix(r.Constraint, sched.ConstraintDevice)
	if r.Constraint == sched.ConstraintVirtualization {
		what = "runtimes"
	}
	for _, a := range n.Capped {
		switch {
		case a.What != what:
		case what == sched.ConstraintPrivileged && !n.Caps.NoPrivileged:
			r.Have = "forbidden (node_caps.privileged of the cluster)"
		default:
			r.Have += " (capped)"
		}
	}
	return r
}
