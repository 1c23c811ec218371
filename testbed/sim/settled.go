package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// complaint is a reason why the world is not settled.
type complaint struct {
	subject string
	what    string
}

func (c complaint) String() string { return c.subject + ": " + c.what }

// unsettled compares what the root accepted, what the three tiers believe and what is true,
// and lists the differences. A settled world has none.
func (w *World) unsettled() []complaint {
	var out []complaint
	say := func(subject, format string, args ...any) {
		out = append(out, complaint{subject, fmt.Sprintf(format, args...)})
	}
	if !w.root.proc.running() {
		say("root", "is down")
		return out
	}
	for _, c := range w.living() {
		if !c.proc.running() || c.link.conn == 0 {
			say(c.name, "is down or cut off")
			return out
		}
		for _, n := range c.living() {
			if !n.proc.running() || n.link.conn == 0 {
				say(n.name, "is down or cut off")
				return out
			}
			if n.net != nil && !n.net.proc.running() {
				say(n.net.name, "is down")
				return out
			}
		}
	}
	if w.chaos != nil {
		w.chaos.unkept(say)
		for _, c := range w.living() {
			for _, n := range c.living() {
				if at, ok := c.core.Node(n.id); !ok || at.Status != api.NodeReady {
					say(n.name, "is %q at its cluster (known: %v)", at.Status, ok)
				}
			}
		}
	}
	for _, in := range w.root.core.Instances("") {
		w.compare(in, say)
	}
	for _, s := range w.root.core.Services("") {
		if !s.Spec.OneShot && (s.RollOut == api.RollOutProgressing || s.RollOut == api.RollOutRollingBack) {
			r, _ := w.root.core.RollOut(s.ID)
			say(string(s.ID), "its roll-out is %s", r.Standing())
		}
	}
	w.orphans(say)
	if w.Network {
		w.misled(say)
	}
	w.unsynced(say)
	if w.resting {
		w.restless(say)
	}
	if len(out) == 0 {
		w.misknown(say)
	}
	return out
}

func (w *World) living() []*ClusterMachine {
	return slices.DeleteFunc(slices.Clone(w.clusters), func(c *ClusterMachine) bool { return c.gone })
}

func (m *ClusterMachine) living() []*NodeMachine {
	return slices.DeleteFunc(slices.Clone(m.nodes), func(n *NodeMachine) bool { return n.gone })
}

type sayFunc func(subject, format string, args ...any)

// compare compares the root's view of an instance with the truth.
func (w *World) compare(in api.Instance, say sayFunc) {
	id := string(in.ID)
	if in.Leaving {
		say(id, "is leaving since %s", in.Since.Sub(dawn))
		return
	}
	live := w.running[in.ID]
	if api.Ended(in.State, in.Reason) {
		if len(live) > 0 {
			say(id, "is %s for good, but runs on %s", in.State, live[0].machine.name)
		}
		if s, ok := w.root.core.Service(in.Service); ok && in.State == api.Failed && in.Failures < s.Spec.Attempts() && in.Spec == s.SpecRev {
			say(id, "failed for good after %d of %d attempts", in.Failures, s.Spec.Attempts())
		}
		return
	}
	switch in.State {
	case api.Running:
		w.compareRunning(in, live, say)
	case api.Dormant:
		if len(live) > 0 {
			say(id, "is dormant, but runs on %s", live[0].machine.name)
		}
		if s, ok := w.root.core.Service(in.Service); ok && in.Spec == s.SpecRev && s.Spec.Dormant(in.Number) == api.ReasonNone {
			say(id, "is dormant, but always runs")
		}
	case api.Requested, api.ClusterScheduled:
		if len(live) > 0 {
			say(id, "is %s, but runs on %s", in.State, live[0].machine.name)
		}
		if node := w.wouldFit(in, nil); node != "" {
			say(id, "is %s (%s) and would fit on %s", in.State, in.Reason, node)
		}
		w.compareWhy(in, say)
	default:
		say(id, "is %s (%s: %s)", in.State, in.Reason, in.Detail)
	}
}

func (w *World) compareRunning(in api.Instance, live []*running, say sayFunc) {
	id := string(in.ID)
	if len(live) != 1 {
		say(id, "is shown as running, but %d processes run", len(live))
		return
	}
	m := live[0].machine
	if live[0].Epoch != in.Epoch || m.cluster.id != in.Cluster {
		say(id, "is shown as %s on %s, but runs as %s on %s", in.Epoch, in.Cluster, live[0].Epoch, m.name)
	}
	at, ok := m.cluster.core.Instance(in.ID)
	if !ok || at.Node != m.id || at.State != api.Running || at.Epoch != in.Epoch {
		say(id, "runs on %s, but its cluster has it as %s %s on %q", m.name, at.Epoch, at.State, at.Node)
	}
	if in.Reason == api.ReasonNotReady || in.Reason == api.ReasonUnhealthy {
		say(id, "runs and is %s: %s", in.Reason, in.Detail)
	}
	if live[0].spec.OneShot && live[0].spec.Schedule == nil && w.chaos != nil {
		say(id, "is a one-shot that still runs")
	}
	if s, ok := w.root.core.Service(in.Service); ok && !w.rollingOut(s) && (live[0].spec.Code != s.Spec.Code || live[0].spec.Needs() != s.Spec.Needs()) {
		say(id, "runs %s, the service is %s", live[0].spec.Code, s.Spec.Code)
	}
	w.comparePlace(in, live[0], say)
}

// rollingOut reports whether instances may have an earlier version by design: a roll-out waits for a
// person, has failed for good, or is one of a one-shot, which waits for an instance that does not run.
func (w *World) rollingOut(s api.Service) bool {
	if s.RollOut == api.RollOutPaused || s.RollOut == api.RollOutCanary || s.RollOut == api.RollOutFailed {
		return true
	}
	for _, in := range w.root.core.Instances(s.ID.Tenant()) {
		if s.Spec.OneShot && in.Service == s.ID && in.Spec == s.SpecRev && in.State != api.Running && in.State != api.Completed && in.State != api.Dormant {
			return true
		}
	}
	return false
}

// compareWhy checks that the explanation of an unplaced instance adds up.
func (w *World) compareWhy(in api.Instance, say sayFunc) {
	why, ok := w.root.core.Why(in.ID, w.root.proc.clock.at(w.now))
	if !ok || why.Summary == "" {
		say(string(in.ID), "is %s without an explanation", in.State)
		return
	}
	check := func(who string, ex api.Explanation) {
		sum := 0
		for _, c := range ex.Causes {
			sum += c.Count
		}
		if sum != ex.Considered {
			say(string(in.ID), "%s explains %d of %d candidates", who, sum, ex.Considered)
		}
	}
	check("the root", why.Root)
	for _, c := range why.Clusters {
		check(string(c.Cluster), c.Answer)
	}
}

// orphans lists instances at a tier that the tier above does not want.
func (w *World) orphans(say sayFunc) {
	for _, id := range slices.Sorted(maps.Keys(w.running)) {
		in, ok := w.root.core.Instance(id)
		for _, r := range w.running[id] {
			if !ok || in.Epoch != r.Epoch {
				say(string(id), "runs as %s on %s, but the root wants %s (known: %v)", r.Epoch, r.machine.name, in.Epoch, ok)
			}
		}
	}
	for _, c := range w.living() {
		for _, in := range c.core.Instances() {
			at, ok := w.root.core.Instance(in.ID)
			if !ok || at.Cluster != c.id && in.State != api.Requested {
				say(string(in.ID), "is %s in %s, but the root has it in %q", in.State, c.name, at.Cluster)
			}
		}
		for _, n := range c.living() {
			known := n.core.Instances()
			for _, in := range known {
				at, ok := c.core.Instance(in.ID)
				asleep := at.State == api.Dormant && api.Ended(in.State, in.Reason) // its logs are there until the next run
				if !ok || at.Node != n.id || at.Epoch != in.Epoch || at.State != in.State && !asleep {
					say(string(in.ID), "is %s %s on %s, but %s %s on %q at its cluster", in.Epoch, in.State, n.name, at.Epoch, at.State, at.Node)
				}
			}
			for _, v := range n.runtime.all() {
				if !slices.ContainsFunc(known, func(in api.Instance) bool { return in.ID == v.Instance && in.Epoch == v.Epoch }) {
					say(string(v.Instance), "the runtime of %s has %s, which its engine does not know", n.name, v.Key)
				}
			}
		}
	}
}

// unsynced compares the generations and digests that the tiers hold.
func (w *World) unsynced(say sayFunc) {
	for _, c := range w.living() {
		if c.reported.Gen != c.sent.Gen || c.reported.Desired != c.sent.Digest {
			say(c.name, "reports generation %d, the root sent %d (digests equal: %v)", c.reported.Gen, c.sent.Gen, c.reported.Desired == c.sent.Digest)
		}
		for _, n := range c.living() {
			if n.alive.Gen != n.sent.Gen || n.alive.Desired != n.sent.Digest {
				say(n.name, "holds generation %d, its cluster sent %d (digests equal: %v)", n.alive.Gen, n.sent.Gen, n.alive.Desired == n.sent.Digest)
			}
		}
	}
}

// misknown compares the properties of nodes with those that their cluster knows.
func (w *World) misknown(say sayFunc) {
	for _, c := range w.living() {
		for _, n := range c.living() {
			if at, _ := c.core.Node(n.id); at.NodeInfo.Digest() != n.truth().Digest() {
				say(n.name, "is %+v, but %+v at its cluster", n.truth(), at.NodeInfo)
			}
		}
	}
}

// join returns complaints as text, in the same order in every run.
func join(cs []complaint) string {
	slices.SortStableFunc(cs, func(a, b complaint) int { return cmp.Compare(a.subject, b.subject) })
	var parts []string
	for i, c := range cs {
		if i == 8 {
			parts = append(parts, fmt.Sprintf("and %d more", len(cs)-i))
			break
		}
		parts = append(parts, c.String())
	}
	return strings.Join(parts, "; ")
}
